"""A step ends right or with one line: ratios of rates stay, NaN changes nothing, and what cannot train is refused."""

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer, SparseAdam
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

import course_lm.step
from course_lm.guard import adapt_loss, check_schedule, loss_sum
from course_lm.loss import next_token_loss
from course_lm.lr_finder import find_lr
from course_lm.optim import OptimizerConfig
from course_lm.precision import Precision
from course_lm.schedules import ScheduleConfig, ScheduleLR, build_schedule, cosine
from course_lm.step import NonFiniteGradientError, train_step

VOCAB = 7
NAN_OR_INF = (math.nan, math.inf)


class Model(nn.Module):
    """A bigram model with two weights of its own; BatchNorm gives it buffers."""

    def __init__(self, *, norm: bool = False, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCAB, 4, sparse=sparse)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.head = nn.Linear(4, VOCAB)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.norm(self.table(input_ids).transpose(1, 2)).transpose(1, 2))


def make_batch(seed: int = 0) -> dict[str, Tensor]:
    ids = torch.randint(0, VOCAB, (3, 6), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def groups_of(model: Model, *options: dict[str, Any]) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [{"params": parameters[index :: len(options)], **option} for index, option in enumerate(options)]


def rates_of(optimizer: Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def state_of(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    return copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"]})


def assert_untouched(before: dict[str, Any], model: nn.Module, optimizer: Optimizer) -> None:
    torch.testing.assert_close(state_of(model, optimizer), before, rtol=0, atol=0)


def refusal(kind: type[Exception] | tuple[type[Exception], ...], act: Callable[[], object]) -> str:
    """The one line with which `act` is refused."""
    with pytest.raises(kind) as caught:
        act()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    return str(caught.value)


# The ratios between the rates of parameter groups are kept

some_rates = st.lists(st.sampled_from([0.0, 1e-5, 1e-4, 3e-4, 1e-3, 0.5]), min_size=2, max_size=3).filter(any)
run_rates = st.lists(st.sampled_from([0.0, 1e-3, 0.2]), min_size=1, max_size=4)


@settings(max_examples=40)
@given(some_rates, run_rates, st.booleans())
def test_train_step_keeps_the_ratios_of_any_rates_through_any_rates_of_the_run(rates, of_run, resumed):
    model = Model()
    optimizer = SGD(groups_of(model, *({"lr": rate} for rate in rates)))
    for lr in of_run:
        train_step(model, [make_batch()], optimizer, lr=lr)
        assert rates_of(optimizer) == pytest.approx([lr * rate / max(rates) for rate in rates], rel=1e-12)
        if resumed:
            saved, optimizer = optimizer.state_dict(), SGD(groups_of(model, *({"lr": 1.0} for _ in rates)))
            optimizer.load_state_dict(saved)


@settings(max_examples=20)
@given(some_rates, run_rates)
def test_a_scheduler_of_the_course_and_the_range_test_keep_them_as_train_step_does(rates, of_run):
    built = [Model() for _ in range(3)]
    optimizers = [SGD(groups_of(model, *({"lr": rate} for rate in rates))) for model in built]
    scheduler = ScheduleLR(optimizers[0], lambda k: ([*of_run, 0.1])[k])
    for lr in of_run:
        assert rates_of(optimizers[0]) == pytest.approx([lr * rate / max(rates) for rate in rates], rel=1e-12)
        optimizers[0].step()
        scheduler.step()
    seen: list[list[float]] = []
    handle = optimizers[1].register_step_pre_hook(lambda optimizer, *_: seen.append(rates_of(optimizer)))
    result = find_lr(built[1], [make_batch()], optimizers[1], start_lr=1e-4, end_lr=0.1, num_iter=3)
    handle.remove()
    for lr, found in zip(result.lrs, seen, strict=True):
        train_step(built[2], [make_batch()], optimizers[2], lr=lr)
        assert found == pytest.approx(rates_of(optimizers[2]), rel=1e-12)


def test_the_rates_that_a_scheduler_noted_decide_where_its_warm_up_has_set_all_to_zero():
    model = Model()
    optimizer = SGD(groups_of(model, {"lr": 1e-3}, {"lr": 1e-4}))
    LambdaLR(optimizer, lambda step: 0.0)
    assert rates_of(optimizer) == [0, 0]
    train_step(model, [make_batch()], optimizer, lr=1.0)
    assert rates_of(optimizer) == pytest.approx([1, 0.1])


def test_equal_rates_leave_no_mark_in_the_groups():
    model = Model()
    optimizer = SGD(groups_of(model, {"lr": 1e-3}, {"lr": 1e-3}))
    train_step(model, [make_batch()], optimizer, lr=0.1)
    assert all("lr_scale" not in group for group in optimizer.param_groups)


@pytest.mark.parametrize(
    "options",
    [
        [{"lr": 1e-3, "lr_scale": 1.0}, {"lr": 1e-4}],
        [{"lr": 1e-3}, {"lr": 1e-4}, {"lr": 1e-3, "lr_scale": 0.1}],
    ],
)
@pytest.mark.parametrize("drive", [lambda *run: train_step(*run, lr=0.1), lambda m, b, o: find_lr(m, b, o)])
def test_a_scale_and_rates_that_contradict_each_other_are_refused(options, drive):
    model = Model()
    optimizer = SGD(groups_of(model, *options))
    assert "give every group an lr_scale, or none" in refusal(
        ValueError, lambda: drive(model, [make_batch()], optimizer)
    )


@pytest.mark.parametrize("scale", [math.nan, -1.0, math.inf, "half", True])
def test_a_scale_that_is_no_factor_is_refused(scale):
    model = Model()
    optimizer = SGD(groups_of(model, {"lr_scale": scale}), lr=0.1)
    message = refusal((ValueError, TypeError), lambda: train_step(model, [make_batch()], optimizer, lr=0.1))
    assert f"lr_scale must be a finite number of at least 0, got {scale!r}" == message


def test_groups_that_share_one_tensor_as_their_rate_get_rates_of_their_own():
    model, shared = Model(), torch.tensor(1.0)
    optimizer = Adam(groups_of(model, {"lr_scale": 1.0}, {"lr_scale": 0.5}), lr=shared)
    train_step(model, [make_batch()], optimizer, lr=0.1)
    tensors = [group["lr"] for group in optimizer.param_groups]
    assert rates_of(optimizer) == pytest.approx([0.1, 0.05]) and tensors[0] is shared
    train_step(model, [make_batch()], optimizer, lr=0.2)
    assert all(group["lr"] is tensor for group, tensor in zip(optimizer.param_groups, tensors))


@pytest.mark.parametrize("lr", [np.float64(0.25), np.float32(0.25), np.array(0.25), torch.tensor(0.25)])
def test_a_rate_from_numpy_or_torch_becomes_a_plain_number(lr):
    model = Model()
    optimizer = SGD(model.parameters(), lr=1.0)
    train_step(model, [make_batch()], optimizer, lr=lr)
    assert type(optimizer.param_groups[0]["lr"]) is float and rates_of(optimizer) == [0.25]


# NaN changes nothing


@pytest.mark.parametrize("lr", [math.nan, math.inf, -math.inf, -0.1, "0.1", True, 1j, [0.1], np.array([0.1])])
@pytest.mark.parametrize("window", [[make_batch()], []])
def test_a_rate_that_is_no_rate_is_refused_before_anything_changes(lr, window):
    model = Model()
    optimizer = AdamW(model.parameters(), lr=0.5)
    before = state_of(model, optimizer)
    message = refusal((ValueError, TypeError), lambda: train_step(model, window, optimizer, lr=lr))
    assert message == f"lr must be a finite number of at least 0, got {lr!r}"
    assert_untouched(before, model, optimizer)
    assert rates_of(optimizer) == [0.5]


@pytest.mark.parametrize("bad", [math.nan, torch.tensor(math.nan), -1.0])
def test_a_bad_rate_that_stands_in_the_optimizer_is_refused_too(bad):
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.5)
    optimizer.param_groups[0]["lr"] = bad
    assert "rate of a parameter group" in refusal(ValueError, lambda: train_step(model, [make_batch()], optimizer))


def test_a_scheduler_of_the_course_refuses_the_bad_rate_of_its_schedule():
    optimizer = SGD(Model().parameters(), lr=0.5)
    scheduler = ScheduleLR(optimizer, lambda k: 0.1 if k == 0 else math.nan)
    optimizer.step()
    assert "got nan" in refusal(ValueError, scheduler.step)
    assert rates_of(optimizer) == [0.1]


def make_nan(parameters: list[Tensor], max_norm: float) -> None:
    parameters[1].grad.fill_(math.nan)  # type: ignore[union-attr]


def finite_gradient(logits: Tensor, labels: Tensor, reduction: Any, value: float = math.nan) -> Tensor:
    return next_token_loss(logits, labels, reduction=reduction) + value


def spoiled(value: float) -> Callable[..., Tensor]:
    return lambda logits, labels, reduction: next_token_loss(logits, labels, reduction=reduction) * value


@pytest.fixture(params=["on the host", "deferred"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The update as a CPU takes it, and as an accelerator does."""
    if request.param == "deferred":
        monkeypatch.setattr(course_lm.step, "_defers", lambda optimizer, precision, device: True)
    return request.param


class MeanOfAllSteps(nn.Module):
    """A buffer that each forward pass replaces by a new tensor, and one that it changes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()  # type: ignore[has-type]
        self.count += 1
        return x


class Expanded(nn.Module):
    """A buffer of four numbers that share one place in memory: nothing can be copied into it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1).expand(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale[:, None]


BAD_STEPS = [
    *({"loss_fn": partial(finite_gradient, value=value)} for value in NAN_OR_INF),
    *({"loss_fn": spoiled(value)} for value in NAN_OR_INF),
    {"clip": make_nan},
]


@pytest.mark.parametrize("bad", BAD_STEPS, ids=["nan loss", "inf loss", "nan gradient", "inf gradient", "clip"])
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(4), MeanOfAllSteps(), Expanded(), nn.Identity()], ids=["bn", "own", "expanded", "none"]
)
def test_a_step_that_meets_nan_leaves_weights_buffers_and_moments(bad, norm, anywhere):
    model = Model()
    model.norm = copy.deepcopy(norm)
    optimizer = AdamW(model.parameters(), lr=0.1, fused=True)
    train_step(model, [make_batch(8)], optimizer)
    before = state_of(model, optimizer)
    result = train_step(model, [make_batch(2), make_batch(3)], optimizer, on_nonfinite="skip", **bad)
    assert result.skipped and int(result.tokens) == 30
    assert_untouched(before, model, optimizer)
    assert not train_step(model, [make_batch(4)], optimizer).skipped


def test_an_error_inside_a_step_leaves_the_buffers_too():
    def broken(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        raise KeyboardInterrupt

    model = Model(norm=True)
    optimizer = SGD(model.parameters(), lr=0.1)
    before = state_of(model, optimizer)
    with pytest.raises(KeyboardInterrupt):
        train_step(model, [make_batch()], optimizer, loss_fn=broken)
    assert_untouched(before, model, optimizer)


def test_an_ordinary_step_keeps_what_the_forward_pass_wrote_into_the_buffers(anywhere):
    model = Model(norm=True)
    train_step(model, [make_batch(), make_batch(1)], AdamW(model.parameters(), fused=True))
    assert int(model.norm.num_batches_tracked) == 2 and model.norm.running_mean.any()  # type: ignore[operator, union-attr, arg-type]


def test_an_fp16_overflow_leaves_the_buffers_too():
    model, precision = Model(norm=True), Precision("fp16", "cpu")
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = state_of(model, optimizer)
    assert train_step(model, [make_batch()], optimizer, precision=precision).skipped
    assert_untouched(before, model, optimizer)
    assert precision.scaler.get_scale() == 2.0**59


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_loss_of_nan_whose_gradient_is_finite_is_an_error_that_says_so(precision):
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.1)
    settings = {"loss_fn": finite_gradient, "precision": Precision(precision, "cpu")}
    if precision == "fp16":
        settings["precision"].scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    message = refusal(NonFiniteGradientError, lambda: train_step(model, [make_batch()], optimizer, **settings))
    assert message.startswith("loss is not finite: loss nan, norm ") and "norm nan" not in message


def test_a_clip_that_makes_nan_is_an_error_that_names_the_parameter():
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.1)
    message = refusal(NonFiniteGradientError, lambda: train_step(model, [make_batch()], optimizer, clip=make_nan))
    assert message.startswith("gradient after clip is not finite") and "parameter head.weight;" in message


# What cannot train is refused in one line


def sparse_embedding() -> tuple[nn.Module, Optimizer]:
    model = Model(sparse=True)
    return model, SGD(model.parameters(), lr=0.1)


def half_weights(dtype: torch.dtype) -> tuple[nn.Module, Optimizer]:
    model = Model()
    model.head.to(dtype)
    return model, SGD(model.parameters(), lr=0.1)


def with_optimizer(make: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
    model = Model()
    return model, make(model)


UNTRAINABLE: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], str]] = {
    "a closure": (lambda: with_optimizer(lambda model: LBFGS(model.parameters())), "got LBFGS, which evaluates"),
    "sparse Adam": (lambda: with_optimizer(lambda model: SparseAdam(model.parameters())), "got SparseAdam"),
    "sparse gradients": (sparse_embedding, "got a sparse one for table.weight"),
    "bf16 weights": (lambda: half_weights(torch.bfloat16), "got torch.bfloat16 for head.weight"),
    "fp16 weights": (lambda: half_weights(torch.float16), "got torch.float16 for head.weight"),
    "another model": (lambda: with_optimizer(lambda _: SGD(Model().parameters(), lr=0.1)), "holds none of"),
    "a class": (lambda: with_optimizer(lambda _: SGD), "must be a torch.optim.Optimizer, got <class"),
    "nothing": (lambda: with_optimizer(lambda _: None), "must be a torch.optim.Optimizer, got None"),
}


@pytest.mark.parametrize("case", UNTRAINABLE)
@pytest.mark.parametrize("drive", [train_step, find_lr])
def test_an_optimizer_that_cannot_train_the_model_is_refused(case, drive):
    make, expected = UNTRAINABLE[case]
    model, optimizer = make()
    before = copy.deepcopy(model.state_dict())
    assert expected in refusal((TypeError, ValueError), lambda: drive(model, [make_batch()], optimizer))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


def test_frozen_weights_in_half_precision_and_trainable_ones_in_float64_train():
    model = Model().double()
    model.extra = nn.Linear(2, 2, dtype=torch.bfloat16).requires_grad_(False)
    assert not train_step(model, [make_batch()], SGD(model.parameters(), lr=0.1)).skipped


def test_an_optimizer_that_leaves_parameters_out_is_told_of_once():
    model = Model()
    optimizer = SGD(model.head.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            train_step(model, [make_batch()], optimizer)
    (warning,) = caught
    assert "leaves out 1 of the model's 3 trainable parameters, first table.weight" in str(warning.message)
    assert warning.filename == __file__


def test_a_frozen_parameter_and_a_weight_of_the_loss_are_no_reason_to_warn():
    model, own = Model(), nn.Parameter(torch.ones(()))
    model.table.requires_grad_(False)
    optimizer = SGD([*model.head.parameters(), own], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_step(model, [make_batch()], optimizer)


def no_reduction(logits: Tensor, labels: Tensor) -> Tensor:
    return next_token_loss(logits, labels)


def detached(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
    return next_token_loss(logits, labels, reduction=reduction).detach()


def per_token(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
    return next_token_loss(logits, labels, reduction="none")


def as_pair(logits: Tensor, labels: Tensor, reduction: Any) -> Any:
    return next_token_loss(logits, labels, reduction=reduction), 3


def always_a_mean(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
    return next_token_loss(logits, labels, reduction="mean")


LOSSES: dict[str, tuple[Any, str]] = {
    "class weights": (nn.CrossEntropyLoss(weight=torch.ones(VOCAB)), "CrossEntropyLoss with class weights"),
    "another ignored label": (nn.CrossEntropyLoss(ignore_index=0), "must ignore the label -100"),
    "an option with another ignored label": (partial(next_token_loss, ignore_index=0), "must ignore the label -100"),
    "another of torch's": (nn.NLLLoss(), "got NLLLoss: got an unexpected keyword argument 'reduction'"),
    "a class": (nn.CrossEntropyLoss, "got <class 'torch.nn.modules.loss.CrossEntropyLoss'>"),
    "a name": ("cross_entropy", "got 'cross_entropy'"),
    "no reduction": (no_reduction, "no_reduction: got an unexpected keyword argument 'reduction'"),
    "detached": (detached, "without one from detached"),
    "a loss for each token": (per_token, "got a tensor (3, 5) from per_token"),
    "a pair": (as_pair, "got tuple of 2 from as_pair"),
    "a mean": (always_a_mean, "got a mean from always_a_mean"),
}


@pytest.mark.parametrize("case", LOSSES)
@pytest.mark.parametrize("drive", [train_step, find_lr])
def test_a_loss_that_cannot_be_trained_is_refused(case, drive):
    loss_fn, expected = LOSSES[case]
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.1)
    before = state_of(model, optimizer)
    act = partial(drive, model, [make_batch()], optimizer, loss_fn=loss_fn)
    assert expected in refusal((TypeError, ValueError), act)
    assert_untouched(before, model, optimizer)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_torchs_cross_entropy_is_read_as_the_next_token_loss(smoothing):
    logits, labels = torch.randn(2, 5, VOCAB, requires_grad=True), make_batch()["labels"][:2, :5]
    adapted = adapt_loss(nn.CrossEntropyLoss(label_smoothing=smoothing))
    expected = next_token_loss(logits, labels, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss_sum(adapted, logits, labels), expected, rtol=0, atol=0)
    assert adapt_loss(F.cross_entropy) is next_token_loss


class Counting(nn.Module):
    """A loss of one's own; it draws random numbers, and is not hashable."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def score(self, logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        self.calls += 1
        torch.rand(3)
        return next_token_loss(logits, labels, reduction=reduction)

    def forward(self, logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        return self.score(logits, labels, reduction)


@pytest.mark.parametrize("pick", [lambda loss: loss, lambda loss: loss.score], ids=["module", "method"])
def test_a_loss_is_asked_once_whether_it_sums_and_no_random_number_is_used_up(pick):
    loss_fn, logits, labels = Counting(), torch.randn(3, 6, VOCAB, requires_grad=True), make_batch()["labels"]
    torch.manual_seed(0)
    for _ in range(4):
        loss_sum(pick(loss_fn), logits, labels)
    assert loss_fn.calls == 4 + 2
    left = torch.rand(1)
    torch.manual_seed(0)
    for _ in range(4):
        torch.rand(3)
    assert torch.equal(left, torch.rand(1))


def test_a_batch_without_targets_does_not_settle_whether_a_loss_sums():
    logits, empty = torch.randn(3, 6, VOCAB, requires_grad=True), torch.full((3, 6), -100)

    def mean_or_nothing(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        return next_token_loss(logits, labels, reduction="sum") / (labels[:, 1:] >= 0).sum().clamp(min=1)

    loss_sum(mean_or_nothing, logits, empty)
    assert "got a mean" in refusal(ValueError, lambda: loss_sum(mean_or_nothing, logits, make_batch()["labels"]))


@settings(max_examples=50)
@given(st.integers(0, 2), st.integers(1, 5), st.one_of(st.integers(-99, -1), st.integers(VOCAB, 10**9)), st.booleans())
def test_any_label_outside_the_vocabulary_is_named(row, position, label, smooth):
    batch = make_batch()
    batch["labels"][row, position] = label
    loss_fn = partial(next_token_loss, label_smoothing=0.1 * smooth)
    model = Model()
    act = partial(train_step, model, [batch], SGD(model.parameters(), lr=0.1), loss_fn=loss_fn)
    line = refusal(ValueError, act)
    assert line.startswith(f"labels must be from 0 to {VOCAB - 1}, the model's vocabulary") and f"got {label}" in line
    with pytest.raises(ValueError, match=rf"in \[0, {VOCAB}\), the model's vocabulary, or -100, got {label}"):
        loss_fn(model(batch["input_ids"]), batch["labels"])


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a clip without a norm": ({"clip": lambda *_: None, "max_grad_norm": None}, "max_grad_norm None means no clipping"),
    "a clip that is none": ({"clip": 1.0}, "clip must be callable as clip(parameters, max_grad_norm), got 1.0"),
    "a norm of 0": ({"max_grad_norm": 0.0}, "max_grad_norm must be a positive number or None, got 0.0"),
    "a norm of NaN": ({"max_grad_norm": math.nan}, "max_grad_norm must be a positive number or None, got nan"),
    "a norm in words": ({"max_grad_norm": "1.0"}, "max_grad_norm must be a positive number or None, got '1.0'"),
    "a norm of True": ({"max_grad_norm": True}, "max_grad_norm must be a positive number or None, got True"),
    "a name of a precision": ({"precision": "bf16"}, "must be a Precision(name, device) or None, got 'bf16'"),
    "another device": (
        {"precision": Precision("bf16", "cuda")},
        "precision must be for the model's device cpu, got 'cuda'",
    ),
    "a generator": ({"micro_batches": (batch for batch in [make_batch()])}, "a list of batches, got generator"),
    "a batch in a list in a list": ({"micro_batches": [[make_batch()]]}, "a dict with input_ids and labels, got list"),
    "no labels": (
        {"micro_batches": [{"input_ids": torch.ones(1, 2).long()}]},
        "a batch must hold input_ids and labels, got input_ids",
    ),
    "labels of one row": (
        {"micro_batches": [make_batch() | {"labels": torch.ones(6).long()}]},
        "labels must have the shape (B, T), got (6,)",
    ),
    "on_nonfinite": ({"on_nonfinite": "ignore"}, "on_nonfinite must be one of raise, skip, got 'ignore'"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_an_argument_of_the_wrong_kind_is_refused(case):
    options, expected = ARGUMENTS[case]
    model = Model()
    run: dict[str, Any] = {"micro_batches": [make_batch()], "optimizer": SGD(model.parameters(), lr=0.1), **options}
    assert expected in refusal((TypeError, ValueError), lambda: train_step(model, **run))


def test_a_clip_of_ones_own_may_be_given_an_infinite_norm():
    model, seen = Model(), []
    clip = lambda parameters, max_norm: seen.append(max_norm)  # noqa: E731
    train_step(model, [make_batch()], SGD(model.parameters(), lr=0.1), clip=clip, max_grad_norm=math.inf)
    assert seen == [math.inf]


SCHEDULES: dict[str, tuple[Any, str]] = {
    "torch's": (LambdaLR(SGD(Model().parameters(), lr=0.1), lambda k: 1.0), "got torch's LambdaLR"),
    "on plateaus": (ReduceLROnPlateau(SGD(Model().parameters(), lr=0.1)), "got torch's ReduceLROnPlateau"),
    "a number": (3e-4, "got 0.0003"),
    "a name": ("cosine", "got 'cosine'"),
    "without its peak": (cosine, "got cosine: missing a required argument: 'peak_lr'"),
    "without the step": (lambda: 0.1, "too many positional arguments"),
    "a class": (SGD, "got <class"),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_what_is_no_schedule_is_refused(case):
    schedule, expected = SCHEDULES[case]
    assert expected in refusal(TypeError, lambda: check_schedule(schedule))
    assert expected in refusal(TypeError, lambda: ScheduleLR(SGD(Model().parameters(), lr=0.1), schedule))


def test_functions_partials_and_objects_that_can_be_called_are_schedules():
    class Schedule:
        def __call__(self, k: int) -> float:
            return 0.1

    for schedule in (lambda k: 0.1, partial(cosine, peak_lr=1.0, total_steps=9), Schedule()):
        check_schedule(schedule)


# Numbers of a configuration

KINDS = [np.bool_(True), np.array([1, 2]), torch.tensor([0.1]), True, "0.1", 1j, None, [0.1]]


@pytest.mark.parametrize("value", KINDS, ids=repr)
@pytest.mark.parametrize(
    ("section", "key"),
    [
        (OptimizerConfig, "learning_rate"),
        (OptimizerConfig, "beta1"),
        (OptimizerConfig, "weight_decay"),
        (OptimizerConfig, "type"),
        (ScheduleConfig, "warmup_ratio"),
        (ScheduleConfig, "min_lr"),
        (ScheduleConfig, "milestones"),
        (ScheduleConfig, "type"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_key(section, key, value):
    if (key, value is None) == ("milestones", True):
        assert section(**{key: value}).milestones is None
    else:
        assert refusal(ValueError, lambda: section(**{key: value})).startswith(f"{key} must be ")


@pytest.mark.parametrize("peak_lr", [math.nan, math.inf, -1.0, "0.1", None])
def test_a_schedule_is_not_built_for_a_peak_that_is_no_rate(peak_lr):
    act = partial(build_schedule, ScheduleConfig(), peak_lr=peak_lr, total_steps=9)
    assert refusal((ValueError, TypeError), act).startswith("peak_lr must be a finite number of at least 0, got ")


@pytest.mark.parametrize("total_steps", [0, 2.5, math.nan, "9", True, None])
def test_a_schedule_is_not_built_for_a_run_without_a_number_of_steps(total_steps):
    act = partial(build_schedule, ScheduleConfig(), peak_lr=0.1, total_steps=total_steps)
    assert refusal(ValueError, act).startswith("total_steps must be a whole number of at least 1, got ")


@pytest.mark.parametrize("key", ["start_lr", "end_lr", "num_iter", "accumulation_steps", "diverge_threshold"])
@pytest.mark.parametrize("value", ["2", True, None, math.nan, np.array([2.0])], ids=repr)
def test_a_setting_of_the_range_test_that_is_no_number_is_refused(key, value):
    model = Model()
    act = partial(find_lr, model, [make_batch()], SGD(model.parameters()), **{key: value})
    assert refusal(ValueError, act).startswith(f"{key} must be ")
