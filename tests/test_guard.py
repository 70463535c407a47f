"""What cannot train is refused in one line, before anything changes, and what can is taken."""

import copy
import itertools
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from course_lm.guard import adapt_loss, check_schedule, loss_sum
from course_lm.loss import next_token_loss
from course_lm.lr_finder import find_lr
from course_lm.monitoring import evaluate
from course_lm.precision import Precision
from course_lm.schedules import ScheduleConfig, ScheduleLR, cosine
from course_lm.step import train_step
from course_lm.trainer import Trainer
from tests.refusals import refusal

VOCAB = 7


class Model(nn.Module):
    """A bigram model."""

    def __init__(self, *, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(VOCAB, 4, sparse=sparse), nn.Linear(4, VOCAB)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.table(input_ids))


def make_batch() -> dict[str, Tensor]:
    ids = torch.randint(0, VOCAB, (3, 6), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def sparse_embedding() -> tuple[nn.Module, Optimizer]:
    model = Model(sparse=True)
    return model, SGD(model.parameters(), lr=0.1)


def half_weights(dtype: torch.dtype) -> tuple[nn.Module, Optimizer]:
    model = Model()
    model.head.to(dtype)
    return model, SGD(model.parameters(), lr=0.1)


def taken_gradients() -> tuple[nn.Module, Optimizer]:
    """As where each weight is updated and its gradient freed within the backward pass."""
    model = Model()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: setattr(one, "grad", None))
    return model, SGD(model.parameters(), lr=0.1)


class Accelerated(SGD):
    """accelerate's, which makes no step while its `gradient_state` says that a window goes on."""

    gradient_state = None

    def step(self, closure: Any = None) -> None:
        """Nothing happens."""


def with_optimizer(make: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
    model = Model()
    return model, make(model)


class WithoutRate(Optimizer):
    """A rule of one's own that has no rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing happens."""


class Wrapper(Optimizer):
    """An optimizer around another one, which does not call torch's constructor."""

    def __init__(self, inner: Optimizer) -> None:
        vars(self).update(vars(inner))
        vars(self).pop("_optimizer_step_pre_hooks")


UNTRAINABLE: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], str]] = {
    "a closure": (lambda: with_optimizer(lambda model: LBFGS(model.parameters())), "required positional argument"),
    "sparse gradients": (sparse_embedding, "got a sparse one for table.weight"),
    "bf16 weights": (lambda: half_weights(torch.bfloat16), "got torch.bfloat16 for head.weight"),
    "fp16 weights": (lambda: half_weights(torch.float16), "got torch.float16 for head.weight"),
    "another model": (lambda: with_optimizer(lambda _: SGD(Model().parameters(), lr=0.1)), "holds none of"),
    "a class": (lambda: with_optimizer(lambda _: SGD), "must be a torch.optim.Optimizer, got <class"),
    "no gradients": (taken_gradients, "gradients must be there after backward(), got none"),
    "accelerate's": (lambda: with_optimizer(lambda model: Accelerated(model.parameters(), lr=0.1)), "got Accelerated"),
    "a weight twice": (
        lambda: with_optimizer(lambda model: SGD([*model.parameters(), model.get_parameter("head.weight")], lr=0.1)),
        "must hold each weight once, got head.weight twice",
    ),
    "no rate": (
        lambda: with_optimizer(lambda model: WithoutRate(model.parameters())),
        "got WithoutRate with ['params'",
    ),
    "not of torch's constructor": (
        lambda: with_optimizer(lambda model: Wrapper(SGD(model.parameters(), lr=0.1))),
        "must be made by torch's Optimizer.__init__, got Wrapper",
    ),
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
        assert not train_step(model, [make_batch()], optimizer).skipped


def test_the_trial_of_a_loss_writes_into_no_weight_that_a_graph_needs():
    model = Model()

    def near(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        return next_token_loss(logits, labels, reduction=reduction) + model.head.weight.square().sum() * len(labels)

    assert not train_step(model, [make_batch()], SGD(model.parameters(), lr=0.1), loss_fn=near).skipped


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
    before = copy.deepcopy(model.state_dict())
    act = partial(drive, model, [make_batch()], optimizer, loss_fn=loss_fn)
    assert expected in refusal((TypeError, ValueError), act)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


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
        self.calls = itertools.count()  # which nobody puts back

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    def score(self, logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        next(self.calls)
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
    assert next(loss_fn.calls) == 4 + 2
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
    with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
        loss_fn(model(batch["input_ids"]), batch["labels"])


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a clip without a norm": ({"clip": lambda *_: None, "max_grad_norm": None}, "max_grad_norm None means no clipping"),
    "a clip that is none": ({"clip": 1.0}, "clip must be callable as clip(parameters, max_grad_norm), got 1.0"),
    "a norm of NaN": ({"max_grad_norm": math.nan}, "max_grad_norm must be a positive number or None, got nan"),
    "a norm in words": ({"max_grad_norm": "1.0"}, "max_grad_norm must be a positive number or None, got '1.0'"),
    "a name of a precision": ({"precision": "bf16"}, "must be a Precision(name, device) or None, got 'bf16'"),
    "another device": (
        {"precision": Precision("bf16", "cuda")},
        "precision must be for the model's device cpu, got 'cuda'",
    ),
    "a generator": ({"micro_batches": (batch for batch in [make_batch()])}, "a list of batches, got generator"),
    "no seed": ({"seeds": []}, "seeds must be one for each of 1 micro-batches, got []"),
    "one seed for all": ({"seeds": 5}, "seeds must be one for each of 1 micro-batches, got 5"),
    "a seed too large": ({"seeds": [2**32]}, "a seed must be a whole number from 0 to 4294967295, got 4294967296"),
    "on_nonfinite": ({"on_nonfinite": "ignore"}, "on_nonfinite must be one of raise, skip, got 'ignore'"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_an_argument_of_the_wrong_kind_is_refused(case):
    options, expected = ARGUMENTS[case]
    model = Model()
    run: dict[str, Any] = {"micro_batches": [make_batch()], "optimizer": SGD(model.parameters(), lr=0.1), **options}
    assert expected in refusal((TypeError, ValueError), lambda: train_step(model, **run))


@pytest.mark.parametrize("wrong", [None, {}, "model", Model])
def test_what_is_no_model_is_refused_by_its_kind(wrong):
    optimizer = SGD(Model().parameters(), lr=0.1)
    for call in (lambda: train_step(wrong, [make_batch()], optimizer), lambda: evaluate(wrong, [make_batch()])):
        assert "the model must be a torch.nn.Module, got " in refusal(TypeError, call)


@pytest.mark.parametrize(("part", "said"), [
    (lambda: nn.LazyLinear(VOCAB), "got none for head.weight, of a lazy module: call the model once on input_ids"),
    (lambda: nn.Linear(4, VOCAB, device="meta"), "got none for head.weight, on the device meta: call to_empty()"),
])  # fmt: skip
def test_a_weight_without_numbers_is_refused_by_its_name(part, said):
    model = Model()
    model.head = part()
    optimizer = SGD(model.table.parameters(), lr=0.1)
    config = {"training": {"output_dir": None}}
    for use in (
        lambda: train_step(model, [make_batch()], optimizer),
        lambda: evaluate(model, [make_batch()]),
        lambda: find_lr(model, [make_batch()], optimizer),
        lambda: Trainer(model, config),
    ):
        assert said in refusal(ValueError, use)


def test_a_clip_of_ones_own_may_be_given_an_infinite_norm():
    model, seen = Model(), []
    clip = lambda parameters, max_norm: seen.append(max_norm)  # noqa: E731
    train_step(model, [make_batch()], SGD(model.parameters(), lr=0.1), clip=clip, max_grad_norm=math.inf)
    assert seen == [math.inf]


RATES = itertools.cycle([0.1, 0.2])
SCHEDULES: dict[str, tuple[Any, str]] = {
    "torch's": (LambdaLR(SGD(Model().parameters(), lr=0.1), lambda k: 1.0), "got torch's LambdaLR"),
    "on plateaus": (ReduceLROnPlateau(SGD(Model().parameters(), lr=0.1)), "got torch's ReduceLROnPlateau"),
    "a number": (3e-4, "got 0.0003"),
    "a name": ("cosine", "got 'cosine'"),
    "without its peak": (cosine, "got cosine: missing a required argument: 'peak_lr'"),
    "without the step": (lambda: 0.1, "too many positional arguments"),
    "of two numbers": (lambda step, total: 0.1, "missing a required argument: 'total'"),
    "its settings": (ScheduleConfig(), "got ScheduleConfig("),
    "a class": (SGD, "got <class"),
    "without an answer": (lambda step: None, "the rate of <lambda>(0) must be a finite number of at least 0, got None"),
    "of its own count": (lambda step: next(RATES), "which gave 0.1 for 0 and then 0.2"),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_what_is_no_schedule_is_refused(case):
    schedule, expected = SCHEDULES[case]
    for use in (check_schedule, partial(ScheduleLR, SGD(Model().parameters(), lr=0.1))):
        assert expected in refusal((TypeError, ValueError), partial(use, schedule))


def test_functions_partials_and_objects_that_can_be_called_are_schedules():
    class Schedule:
        def __call__(self, k: int) -> float:
            return 0.1

    for schedule in (lambda k: 0.1, partial(cosine, peak_lr=1.0, total_steps=9), Schedule()):
        check_schedule(schedule)


def test_a_default_device_on_which_nothing_is_trained_is_refused_in_one_line():
    model = nn.Linear(2, 2)
    with torch.device("meta"), pytest.raises(ValueError, match=r"set_default_device must be cpu, got meta"):
        train_step(model, [make_batch()], torch.optim.SGD(model.parameters(), lr=0.1))
