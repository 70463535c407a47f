"""One optimizer step: one mean over all tokens, a true norm, and nothing moved by a gradient that is not finite."""

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import course_lm.step
from course_lm.forward import forward_logits, unwrap
from course_lm.loss import next_token_loss
from course_lm.optim import OPTIMIZERS, OptimizerConfig, build_optimizer
from course_lm.precision import Precision
from course_lm.step import (
    NonFiniteGradientError,
    StepResult,
    raise_if_nonfinite,
    train_step,
)
from tests.foreign_models import hugging_face
from tests.tiny import VOCAB, packed_batch, plain_batch, tiny_gpt

BAD_PARAMETER = "blocks.0.up.weight"


def without_targets(lengths: list[int]) -> dict[str, Any]:
    batch = plain_batch(lengths)
    return batch | {"labels": torch.full_like(batch["labels"], -100)}


def adamw(model: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    return build_optimizer(model, OptimizerConfig(type="adamw", learning_rate=lr, weight_decay=0.1))


def still(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer that moves nothing, for looking at gradients."""
    return torch.optim.SGD(model.parameters(), lr=0.0)


def gradient_of(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def gradient_after(model: nn.Module, micro_batches: list[dict[str, Any]], **settings: Any) -> Tensor:
    train_step(model, micro_batches, still(model), max_grad_norm=None, **settings)
    return gradient_of(model)


def assert_same_direction_and_size(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert (actual - expected).norm() <= tolerance * expected.norm()


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return copy.deepcopy({"model": model.state_dict(), "state": optimizer.state_dict()["state"]})


def assert_untouched(before: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.testing.assert_close(snapshot(model, optimizer), before, rtol=0, atol=0)


def spoil_gradients(model: nn.Module, value: float = math.nan) -> Any:
    """Make one parameter's gradient non-finite until the returned handle is removed."""
    return model.get_parameter(BAD_PARAMETER).register_hook(lambda gradient: gradient * value)


@pytest.mark.parametrize("window", [[], [without_targets([4, 2])], [without_targets([3]), plain_batch([1])]])
def test_a_step_without_targets_moves_nothing_and_warns_once(window):
    model = tiny_gpt()
    optimizer = adamw(model)
    train_step(model, [plain_batch([6])], optimizer, lr=0.02)
    before, rng = snapshot(model, optimizer), torch.get_rng_state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train_step(model, window, optimizer, lr=0.5)
    assert [str(one.message) for one in caught] == ["skipped a step: its micro-batches hold no target token"]
    assert math.isnan(result.loss)
    assert (int(result.tokens), float(result.grad_norm), bool(result.skipped)) == (0, 0.0, True)
    assert_untouched(before, model, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.02
    assert torch.equal(torch.get_rng_state(), rng)


def test_the_update_itself_skips_where_the_count_of_targets_is_zero():
    model = tiny_gpt()
    optimizer = adamw(model)
    before = snapshot(model, optimizer)
    gradient_after(model, [plain_batch([6])])
    zero = torch.tensor(0)
    result = course_lm.step._update(
        optimizer, Precision("fp32", "cpu"), torch.tensor(0.0), zero, torch.tensor(0.0), torch.tensor(True)
    )
    assert math.isnan(result.loss) and result.skipped and int(result.bad_parameter) == -1
    assert_untouched(before, model, optimizer)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("good_steps", [0, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_gradient_raises_and_leaves_everything_as_it_was(kind, good_steps, value):
    model = tiny_gpt()
    optimizer = build_optimizer(model, OptimizerConfig(type=kind))
    for seed in range(good_steps):
        train_step(model, [plain_batch([6, 4], seed=seed)], optimizer)
    before, batch = snapshot(model, optimizer), plain_batch([6, 4], seed=9)
    loss = float(next_token_loss(forward_logits(model, batch), batch["labels"]).detach())
    spoil_gradients(model, value)
    with pytest.raises(NonFiniteGradientError) as error:
        train_step(model, [batch], optimizer)
    assert_untouched(before, model, optimizer)
    assert f"loss {loss:g}, norm " in str(error.value)
    assert f"first bad parameter {BAD_PARAMETER};" in str(error.value)


def test_the_first_bad_parameter_is_named_even_where_later_ones_are_bad_too():
    model = tiny_gpt()
    for name in ("blocks.1.down.weight", "blocks.0.down.weight"):
        model.get_parameter(name).register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(NonFiniteGradientError, match=r"parameter blocks\.0\.down\.weight;"):
        train_step(model, [plain_batch([6])], torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_deferred_error_names_the_bad_parameter_although_another_step_has_left_gradients_elsewhere(monkeypatch):
    """As on an accelerator, where a result is read when it is logged."""
    monkeypatch.setattr(course_lm.step, "_defers", lambda optimizer, precision, device: True)
    model = tiny_gpt()
    optimizer = adamw(model)
    raise_if_nonfinite(train_step(model, [plain_batch([6])], optimizer), model, optimizer)
    spoil_gradients(model)
    result = train_step(model, [plain_batch([6])], optimizer)
    for parameter in list(model.parameters())[:3]:
        parameter.grad = None
    with pytest.raises(NonFiniteGradientError, match=f"first bad parameter {BAD_PARAMETER};"):
        raise_if_nonfinite(result, model, optimizer)


def test_a_parameter_without_elements_is_no_bad_one():
    model = tiny_gpt()
    empty = nn.Parameter(torch.empty(0))
    model.register_parameter("empty", empty)
    spoil_gradients(model)
    with pytest.raises(NonFiniteGradientError, match=f"first bad parameter {BAD_PARAMETER};"):
        train_step(
            model,
            [plain_batch([6])],
            torch.optim.SGD(model.parameters(), lr=0.1),
            loss_fn=lambda logits, labels, reduction: next_token_loss(logits, labels, reduction="sum") + empty.sum(),
        )


@pytest.mark.filterwarnings("ignore:the optimizer leaves out")
def test_a_loss_that_is_not_finite_is_refused_where_the_optimizer_has_no_gradient():
    model = tiny_gpt()
    model.unused = unused = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([unused], lr=0.1)
    with pytest.raises(NonFiniteGradientError, match="loss is not finite: loss nan, norm 0, first bad parameter none"):
        train_step(
            model,
            [plain_batch([6])],
            optimizer,
            loss_fn=lambda logits, labels, reduction: next_token_loss(logits, labels, reduction="sum") * math.nan,
        )


def test_finite_gradients_whose_norm_overflows_are_refused_too():
    model = tiny_gpt(dtype=torch.float32)
    before = weights_of(model)
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: torch.full_like(gradient, 3e38))
    with pytest.raises(NonFiniteGradientError, match="norm inf, first bad parameter none alone"):
        train_step(model, [plain_batch([6])], adamw(model))
    assert torch.equal(weights_of(model), before)


@pytest.fixture(params=["on the host", "deferred"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The update as a CPU takes it, and as an accelerator does."""
    if request.param == "deferred":
        monkeypatch.setattr(course_lm.step, "_defers", lambda optimizer, precision, device: True)
    return request.param


@pytest.mark.parametrize("good_steps", [0, 1])
def test_with_skip_training_goes_on_as_if_the_bad_step_had_never_been(good_steps, anywhere):
    models = tiny_gpt(), tiny_gpt()
    optimizers = [adamw(model) for model in models]
    for model, optimizer in zip(models, optimizers):
        for _ in range(good_steps):
            train_step(model, [plain_batch([6], seed=1)], optimizer)
    handle = spoil_gradients(models[0])
    result = train_step(models[0], [plain_batch([5], seed=2)], optimizers[0], on_nonfinite="skip")
    handle.remove()
    assert result.skipped and math.isnan(result.grad_norm)
    for model, optimizer in zip(models, optimizers):
        result = train_step(model, [plain_batch([4], seed=3)], optimizer)
        assert not result.skipped and int(result.bad_parameter) == -1
    assert_untouched(snapshot(models[1], optimizers[1]), models[0], optimizers[0])


def fp16_at_scale(scale: float) -> Precision:
    precision = Precision("fp16", "cpu")
    precision.load_state_dict(precision.state_dict() | {"scale": scale})
    return precision


def test_fp16_lowers_its_scale_until_it_fits_and_then_trains():
    model = tiny_gpt(dtype=torch.float32)
    model.register_buffer("passes", torch.zeros(()))

    def count(*_: object) -> None:
        model.get_buffer("passes").add_(1)

    model.register_forward_hook(count)
    optimizer, precision, start = adamw(model), fp16_at_scale(2.0**24), weights_of(model)
    before = snapshot(model, optimizer)
    skipped = 0
    while train_step(model, [plain_batch([6, 4])], optimizer, precision=precision).skipped:
        skipped += 1
        assert precision.scaler.get_scale() == 2.0 ** (24 - skipped)
        assert_untouched(before, model, optimizer)
    assert 1 <= skipped <= 20
    assert not torch.equal(weights_of(model), start) and model.passes == 1
    assert {float(state["step"]) for state in optimizer.state.values()} == {1.0}


@pytest.mark.parametrize("name, tolerance", [("fp16", 0.01), ("bf16", 0.05)])
def test_half_precision_trains_as_fp32_does_to_its_rounding(name, tolerance):
    start = weights_of(tiny_gpt(dtype=torch.float32))
    moves, losses = [], []
    for precision in (Precision("fp32", "cpu"), fp16_at_scale(2.0**10) if name == "fp16" else Precision(name, "cpu")):
        model = tiny_gpt(dtype=torch.float32)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for seed in range(5):
            batches = [plain_batch([9, 4], seed=seed), plain_batch([3], seed=seed + 50)]
            result = train_step(model, batches, optimizer, precision=precision)
            assert not result.skipped
        moves.append(weights_of(model) - start)
        losses.append(float(result.loss))
    assert_same_direction_and_size(moves[1], moves[0], tolerance)
    assert losses[1] == pytest.approx(losses[0], rel=0.01)


def test_an_fp16_gradient_that_stays_infinite_is_an_error_at_the_minimum_scale():
    model = tiny_gpt(dtype=torch.float32)
    optimizer, precision = adamw(model), fp16_at_scale(4.0)
    before = snapshot(model, optimizer)
    spoil_gradients(model, math.inf)
    for scale in (2.0, 1.0):
        assert train_step(model, [plain_batch([6])], optimizer, precision=precision).skipped
        assert precision.scaler.get_scale() == scale
    with pytest.raises(NonFiniteGradientError, match=rf"at the lowest loss scale 1: .* parameter {BAD_PARAMETER};"):
        train_step(model, [plain_batch([6])], optimizer, precision=precision)
    assert_untouched(before, model, optimizer)


def test_without_a_rate_the_optimizer_keeps_its_own():
    model = tiny_gpt()
    optimizer = adamw(model, lr=0.03)
    train_step(model, [plain_batch([6])], optimizer)
    assert {group["lr"] for group in optimizer.param_groups} == {0.03}


def test_weights_that_belong_to_the_loss_are_cleared_between_steps_too():
    model, temperature = tiny_gpt(), nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.0)

    def scaled_loss(logits: Tensor, labels: Tensor, *, reduction: Any) -> Tensor:
        return next_token_loss(logits * temperature, labels, reduction=reduction)

    gradients = []
    for _ in range(2):
        train_step(model, [plain_batch([6, 4])], optimizer, loss_fn=scaled_loss, max_grad_norm=None)
        assert temperature.grad is not None
        gradients.append(temperature.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_of_the_model_is_left_to_the_caller(training):
    model = tiny_gpt().train(training)
    train_step(model, [plain_batch([6])], adamw(model))
    assert model.training is training


def fused(kind: type[torch.optim.Optimizer], **options: Any) -> torch.optim.Optimizer:
    groups = [{"params": [nn.Parameter(torch.ones(2))]} for _ in range(2)]
    return kind(groups, lr=0.1, **options)  # type: ignore[call-arg]


class AdamWithAName(torch.optim.AdamW):
    """Someone's subclass: it inherits the step that honours found_inf."""


@pytest.mark.parametrize(
    "optimizer, expected",
    [
        (fused(torch.optim.AdamW, fused=True), True),
        (fused(torch.optim.Adam, fused=True), True),
        (fused(AdamWithAName, fused=True), True),
        (fused(torch.optim.AdamW), False),
        (fused(torch.optim.SGD, fused=True, momentum=0.9), False),
        (fused(torch.optim.Adafactor), False),
    ],
)
def test_only_a_fused_adam_on_an_accelerator_skips_without_the_host(optimizer, expected):
    decide, fp32 = course_lm.step._defers, Precision("fp32", "cpu")
    assert decide(optimizer, fp32, torch.device("cuda")) is expected
    assert decide(optimizer, fp32, torch.device("cpu")) is False
    assert decide(optimizer, Precision("fp16", "cpu"), torch.device("cuda")) is False


def test_one_group_that_is_not_fused_is_enough_to_ask_the_host():
    optimizer = fused(torch.optim.AdamW, fused=True)
    optimizer.param_groups[1]["fused"] = False
    assert not course_lm.step._defers(optimizer, Precision("fp32", "cpu"), torch.device("cuda"))


def train_some(steps: int) -> tuple[nn.Module, torch.optim.Optimizer, list[StepResult]]:
    model = tiny_gpt(dtype=torch.float32)
    optimizer = adamw(model)
    windows = [[plain_batch([6, 4], seed=k), plain_batch([3], seed=k + 90)] for k in range(steps)]
    return model, optimizer, [train_step(model, window, optimizer, lr=0.01) for window in windows]


def test_the_deferred_update_equals_the_ordinary_one(monkeypatch):
    model, optimizer, results = train_some(3)
    expected = snapshot(model, optimizer)
    monkeypatch.setattr(course_lm.step, "_defers", lambda optimizer, precision, device: True)
    deferred_model, deferred_optimizer, deferred_results = train_some(3)
    assert_untouched(expected, deferred_model, deferred_optimizer)
    torch.testing.assert_close(deferred_results, results, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_hugging_face_models_train_packed_in_half_precision(kind, name):
    model, row = hugging_face(kind, attention="sdpa"), packed_batch([[4, 2, 6]], pads=3)
    exact = gradient_after(model, [row])
    precision = fp16_at_scale(2.0**8) if name == "fp16" else Precision(name, "cpu")
    assert_same_direction_and_size(gradient_after(model, [row], precision=precision), exact, 0.1)


def test_hugging_face_models_are_not_asked_for_a_cache():
    model, asked = hugging_face("llama"), []
    model.register_forward_pre_hook(lambda module, args, kwargs: asked.append(kwargs), with_kwargs=True)
    forward_logits(model, plain_batch([4]))
    assert asked[0]["use_cache"] is False


# What a step that meets NaN leaves behind


class WithNorm(nn.Module):
    """A bigram model with a layer that may keep statistics of its own."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCAB, 4)
        self.norm, self.head = norm, nn.Linear(4, VOCAB)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.head(self.norm(self.table(input_ids).transpose(1, 2)).transpose(1, 2))


def make_nan(parameters: list[Tensor], max_norm: float) -> None:
    parameters[1].grad.fill_(math.nan)  # type: ignore[union-attr]


def finite_gradient(logits: Tensor, labels: Tensor, reduction: Any, value: float = math.nan) -> Tensor:
    return next_token_loss(logits, labels, reduction=reduction) + value


def spoiled(value: float) -> Callable[..., Tensor]:
    return lambda logits, labels, reduction: next_token_loss(logits, labels, reduction=reduction) * value


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
    *({"loss_fn": partial(finite_gradient, value=value)} for value in (math.nan, math.inf)),
    *({"loss_fn": spoiled(value)} for value in (math.nan, math.inf)),
    {"clip": make_nan},
]


@pytest.mark.parametrize("bad", BAD_STEPS, ids=["nan loss", "inf loss", "nan gradient", "inf gradient", "clip"])
@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(4), MeanOfAllSteps(), Expanded(), nn.Identity()], ids=["bn", "own", "expanded", "none"]
)
def test_a_step_that_meets_nan_leaves_weights_buffers_and_moments(bad, norm, anywhere):
    model = WithNorm(copy.deepcopy(norm))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    train_step(model, [plain_batch([6, 5], seed=8)], optimizer)
    before = snapshot(model, optimizer)
    result = train_step(
        model, [plain_batch([6, 5], seed=2), plain_batch([6, 5], seed=3)], optimizer, on_nonfinite="skip", **bad
    )
    assert result.skipped and int(result.tokens) > 0
    assert_untouched(before, model, optimizer)
    assert not train_step(model, [plain_batch([6, 5], seed=4)], optimizer).skipped


def test_an_error_inside_a_step_leaves_the_buffers_too():
    def broken(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        raise KeyboardInterrupt

    model = WithNorm(nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = snapshot(model, optimizer)
    with pytest.raises(KeyboardInterrupt):
        train_step(model, [plain_batch([6, 5])], optimizer, loss_fn=broken)
    assert_untouched(before, model, optimizer)


def test_an_ordinary_step_keeps_what_the_forward_pass_wrote_into_the_buffers(anywhere):
    model = WithNorm(nn.BatchNorm1d(4))
    train_step(
        model, [plain_batch([6, 5]), plain_batch([6, 5], seed=1)], torch.optim.AdamW(model.parameters(), fused=True)
    )
    assert int(model.norm.num_batches_tracked) == 2 and model.norm.running_mean.any()  # type: ignore[operator, union-attr, arg-type]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_loss_of_nan_whose_gradient_is_finite_is_an_error_that_says_so(precision):
    model = WithNorm(nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"loss_fn": finite_gradient, "precision": Precision(precision, "cpu")}
    if precision == "fp16":
        settings["precision"].scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with pytest.raises(NonFiniteGradientError, match=r"^loss is not finite: loss nan, norm (?!nan)"):
        train_step(model, [plain_batch([6, 5])], optimizer, **settings)


def test_a_clip_that_makes_nan_is_an_error_that_names_the_parameter():
    model = WithNorm(nn.Identity())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NonFiniteGradientError, match=r"^gradient after clip is not finite.* parameter head\.weight;"):
        train_step(model, [plain_batch([6, 5])], optimizer, clip=make_nan)


@pytest.fixture
def one_process_group(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


@pytest.mark.parametrize(
    "wrap",
    [
        compiled,
        DistributedDataParallel,
        lambda model: compiled(DistributedDataParallel(model)),
        lambda model: DistributedDataParallel(compiled(model)),
    ],
)
def test_a_wrapped_model_is_asked_for_its_own_parameters(wrap: Callable[[nn.Module], nn.Module], one_process_group):
    model = tiny_gpt()
    assert unwrap(wrap(model)) is model


class Around(nn.Module):
    """A wrapper with a weight of its own that hands on all attributes of what it wraps."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.own = inner, nn.Parameter(torch.zeros(()))

    def __getattr__(self, name: str) -> Any:
        return vars(self)["_parameters"].get(name) or getattr(vars(self)["_modules"]["inner"], name)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.inner(input_ids) + self.own


def test_a_wrapper_around_a_compiled_model_is_no_compiled_model():
    model = Around(compiled(tiny_gpt()))
    assert unwrap(model) is model


def test_a_part_in_ddp_is_refused(one_process_group):
    model = nn.Sequential(DistributedDataParallel(tiny_gpt()))
    with pytest.raises(ValueError, match="must be around the whole model, got it inside Sequential"):
        train_step(model, [plain_batch([5, 4])], torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_model_that_keeps_its_layers_under_the_name_module_is_not_unwrapped():
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    outer = Outer()
    assert unwrap(outer) is outer


def test_a_packed_batch_reaches_a_model_inside_ddp(one_process_group):
    model, row = tiny_gpt(), packed_batch([[4, 3]])
    wrapped = DistributedDataParallel(model)
    torch.testing.assert_close(forward_logits(wrapped, row), forward_logits(model, row))


def test_ranks_exchange_gradients_once_a_step_and_not_after_each_micro_batch(one_process_group):
    exchanged = []

    def note(state, bucket):
        exchanged.append(bucket.index())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model = DistributedDataParallel(tiny_gpt())
    model.register_comm_hook(None, note)
    batches = [plain_batch([6], seed=k) for k in range(3)]
    gradient = gradient_after(model, batches, process_group=dist.group.WORLD)
    assert exchanged == [0]
    torch.testing.assert_close(gradient, gradient_after(tiny_gpt(), batches))


def test_the_default_type_of_the_user_changes_no_bit_of_a_step():
    results, batch = [], plain_batch([3, 5])
    for dtype in (torch.float32, torch.float64):
        model = tiny_gpt(dtype=torch.float32)
        torch.set_default_dtype(dtype)
        try:
            results.append(train_step(model, [batch], adamw(model)))
        finally:
            torch.set_default_dtype(torch.float32)
    assert results[0].loss.dtype == results[1].loss.dtype and torch.equal(results[0].loss, results[1].loss)
