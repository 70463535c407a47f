"""Run a case through the package, and compare what it leaves with what the specification leaves.

Run by one of several ranks, a case is shared out among them, and each gets the whole result.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.accumulation import windows
from course_lm.audit import spec
from course_lm.clipping import build_clip
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.distributed import DistributedConfig, connect, share, wrap
from course_lm.loss import count_targets
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.precision import Precision
from course_lm.shards import gathered
from course_lm.step import train_step
from course_lm.trainer import Trainer

from .cases import Batch, Case

TOLERANCE = 1e-10
ONE_WAY = DistributedConfig()  # as many ranks as there are, each with the whole model


@dataclass
class FastResult:
    """What the package left; the fields that a way of running does not give are None."""

    weights: dict[str, Tensor]
    moments: dict[str, dict[str, Any]]
    k: int
    learning_rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # targets of each step
    validation_losses: list[float] | None = None
    best_weights: dict[str, Tensor] | None = None


class EpochLoader:
    """Its own batches for each epoch; can be set to a position, as `Trainer` asks of a loader."""

    def __init__(self, epochs: Sequence[Sequence[Batch]]) -> None:
        self.epochs, self.epoch, self.batch = epochs, 0, 0

    def __len__(self) -> int:
        return len(self.epochs[0])

    def __iter__(self) -> Iterator[Batch]:
        start, self.batch = self.batch, 0
        return iter(self.epochs[self.epoch][start:])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.batch = state["epoch"], state["batch"]


class ScalingOnly(Precision):
    """fp16's real gradient scaler around a forward pass that stays in float64."""

    @contextmanager
    def autocast(self) -> Iterator[None]:
        yield


def run_train_step(
    case: Case, precision: Precision | None = None, distributed: DistributedConfig = ONE_WAY, by_value: bool = False
) -> FastResult:
    """Train a copy of the case's model by `train_step` in a bare loop; `by_value`: its bound is one on each number."""
    model, settings, group = _copy_that_overflows(case), case.settings, connect()
    runner = wrap(model, distributed, group)
    optimizer = build_optimizer(model, optimizer_config(settings))
    done, rates = [], []
    loop = LoopConfig(**_bounds(settings, by_value))
    for epoch in case.epochs:
        for window in windows(epoch, settings.accumulation_steps):
            lr = settings.schedule(len(done))
            result = train_step(
                runner,
                share(window, group),
                optimizer,
                lr=lr,
                max_grad_norm=loop.norm_bound,
                clip=build_clip(loop.max_grad_value),
                precision=precision,
                on_nonfinite="skip",
            )
            if not result.skipped:
                done.append(result)
                rates.append(lr)
    return FastResult(
        _weights(model),
        _moments(model, optimizer),
        len(done),
        rates,
        [float(result.loss) for result in done],
        [float(result.grad_norm) for result in done],
        [int(result.tokens) for result in done],
    )


def run_trainer(case: Case, distributed: DistributedConfig = ONE_WAY, by_value: bool = False) -> FastResult:
    """Train a copy of the case's model by `Trainer`, which writes no files."""
    model, settings = _copy_that_overflows(case), case.settings
    loop = LoopConfig(
        gradient_accumulation_steps=settings.accumulation_steps,
        num_epochs=len(case.epochs),
        **_bounds(settings, by_value),
        precision="fp32",
        device="cpu",
        on_nonfinite="skip",
        logging_steps=1,
        deterministic=False,
        output_dir=None,
    )
    config = TrainingConfig(optimizer=optimizer_config(settings), training=loop, distributed=distributed)
    trainer = Trainer(model, config, schedule=settings.schedule)
    # The trainer refuses a validation without a target token, where the specification says NaN.
    validated = not settings.validation or any(count_targets(batch["labels"]) for batch in settings.validation)
    history = trainer.train(
        EpochLoader(case.epochs), settings.validation if settings.validation and validated else None
    )
    records = [record for record in history.train if not math.isnan(record["loss"])]  # NaN: skipped steps alone
    totals = [record["tokens"] for record in records]
    return FastResult(
        _weights(model),
        _moments(model, trainer.optimizer),
        trainer.step,
        [record["lr"] for record in records],
        [record["loss"] for record in records],
        [record["grad_norm"] for record in records],
        [record["tokens"] - before for before, record in zip([0, *totals], records)],
        [record["val_loss"] for record in history.validation] if validated else None,
        gathered(trainer.best_weights),
    )


def _bounds(settings: spec.Settings, by_value: bool) -> dict[str, Any]:
    bound = settings.max_grad_norm
    return {"max_grad_norm": None, "max_grad_value": bound} if by_value else {"max_grad_norm": bound}


def assert_same(expected: spec.SpecResult, got: FastResult) -> None:
    """Fail unless both left the same weights, moments, k, records and validation.

    The tolerance is relative and over all weights together: where a single weight's gradient is pure rounding, as
    that of an attention key's bias is, Adam makes a step of it.
    """
    assert got.k == expected.k, f"k is {got.k}, should be {expected.k}"
    _assert_near(expected.weights, got.weights, "weights")
    for kind in ("step", "momentum_buffer", "exp_avg", "exp_avg_sq"):
        _assert_near(_of_kind(kind, expected.moments), _of_kind(kind, got.moments), kind)
    for name in ("learning_rates", "losses", "norms"):
        _assert_numbers_near(getattr(expected, name), getattr(got, name), name)
    if got.validation_losses is not None:
        wanted, have = _changes(expected.validation_losses), _changes(got.validation_losses)
        _assert_numbers_near(wanted, have, "validation losses")
        assert (got.best_weights is None) == (expected.best_weights is None), "only one has best weights"
        if expected.best_weights is not None and got.best_weights is not None:
            best = {name: got.best_weights[name] for name in expected.best_weights}
            _assert_near(expected.best_weights, best, "best weights")


def _of_kind(kind: str, moments: dict[str, dict[str, Any]]) -> dict[str, Tensor]:
    held = {name: state[kind] for name, state in moments.items() if kind in state}
    return {name: torch.as_tensor(value, dtype=torch.float64) for name, value in held.items()}


def _assert_near(expected: dict[str, Tensor], got: dict[str, Tensor], what: str) -> None:
    assert got.keys() == expected.keys(), f"{what}: {sorted(got)} should be {sorted(expected)}"
    difference = _norm(got[name].double() - value for name, value in expected.items())
    error = difference / max(_norm(expected.values()), 1e-300)
    assert error <= TOLERANCE, f"{what} differ by a relative norm of {error:.1e}"  # a NaN fails, too


def _assert_numbers_near(expected: list[float], got: list[float], what: str) -> None:
    assert len(got) == len(expected), f"{len(got)} {what}, should be {len(expected)}"
    for index, (wanted, have) in enumerate(zip(expected, got, strict=True)):
        same = math.isclose(wanted, have, rel_tol=TOLERANCE, abs_tol=1e-14)
        assert same or (math.isnan(wanted) and math.isnan(have)), f"{what}[{index}]: {have}, should be {wanted}"


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float((tensor.detach() ** 2).sum()) for tensor in tensors))


def _changes(losses: list[float]) -> list[float]:
    """Leave out a validation that repeats the one before: `Trainer` makes none where no step was made since."""
    return [loss for i, loss in enumerate(losses) if i == 0 or str(loss) != str(losses[i - 1])]


def optimizer_config(settings: spec.Settings) -> OptimizerConfig:
    kind: Any = settings.optimizer
    unread = OptimizerConfig(type=kind).unread()  # may not be given
    read = {name: getattr(settings, name) for name in ("beta1", "beta2", "epsilon", "momentum") if name not in unread}
    return OptimizerConfig(type=kind, learning_rate=settings.schedule(0), weight_decay=settings.weight_decay, **read)


def _copy_that_overflows(case: Case) -> nn.Module:
    """A copy of the model in which one gradient is not finite in the windows of `overflow_steps`.

    It is that of the first trainable weight, an embedding, and made so at the embedding's output: sharding puts another
    weight in its place, and a hook on the weight itself would be lost.
    """
    model = copy.deepcopy(case.model).train()
    windows_of_case = case.windows()
    doomed = {  # by what they hold, since a step makes copies
        str(batch["input_ids"].tolist()) for index in case.settings.overflow_steps for batch in windows_of_case[index]
    }
    overflows = False

    def look_at_batch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal overflows
        overflows = str(inputs[0].tolist()) in doomed

    model.register_forward_pre_hook(look_at_batch)

    def spoil(_: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * math.inf if overflows else gradient)

    victim = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    owner = next(m for m in model.modules() if any(p is victim for p in m.parameters(recurse=False)))
    assert isinstance(owner, nn.Embedding)
    owner.register_forward_hook(spoil)
    return model


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return gathered({name: parameter.detach() for name, parameter in model.named_parameters()})


def _moments(model: nn.Module, optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    moments = {
        names[id(parameter)]: {kind: value for kind, value in state.items() if value is not None}
        for parameter, state in optimizer.state.items()
    }
    return gathered(moments)
