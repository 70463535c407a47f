"""What a loop does that its weights do not show: seen by hooks on the model, while the loop trains it as ever."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from course_lm.audit import spec
from course_lm.audit.outcome import PRECISIONS
from course_lm.audit.play import Loop, Player, Trouble
from course_lm.audit.runs import Batch, Case, Constant, Rows
from course_lm.validation import require

Row = tuple[int, ...]  # the ids of a row, PAD left out

EPOCHS, BATCHES, ROWS, WINDOW = 3, 4, 2, 2


@dataclass
class Forward:
    """One forward pass: its rows, the model's mode, autocast's type, and how often the weights had been written."""

    rows: list[Row]
    training: bool
    with_gradients: bool
    autocast: str | None
    version: int


@dataclass(frozen=True)
class ObserveReport:
    """What was seen while a loop trained.

    Attributes:
        never_seen, seen_twice: rows of the training data that a loop never trains on in an epoch, or more than once;
            summed over all epochs.
        same_order: the rows come in one order in all epochs, though each epoch was given in an order of its own.
        validation_trained_on: validation rows that were run with gradients in train mode.
        train_modes, validation_modes: forward passes of training and of validation rows in each mode.
        validation_with_gradients: forward passes of validation rows with gradients on.
        autocast: number formats that autocast computed in, such as "bfloat16"; empty where it was off.
        forwards_per_step: forward passes of training rows between two changes of the weights, smallest and largest;
            None where the weights changed but once, as in a loop that writes them at its end.
        due_per_step: the micro-batches of a window.
        trouble: the error that ended the run, if one did.
    """

    never_seen: int
    seen_twice: int
    same_order: bool
    validation_trained_on: int
    train_modes: Mapping[str, int]
    validation_modes: Mapping[str, int]
    validation_with_gradients: int
    autocast: tuple[str, ...]
    forwards_per_step: tuple[int, int] | None
    due_per_step: int = WINDOW
    trouble: str | None = None

    @property
    def findings(self) -> list[str]:
        """What a right loop would not do, each in one sentence."""
        rows = EPOCHS * BATCHES * ROWS
        found = [
            (self.trouble is not None, f"the run ended early: {self.trouble}"),
            (self.never_seen, f"{self.never_seen} of {rows} rows are never trained on"),
            (self.seen_twice, f"{self.seen_twice} of {rows} rows are trained on more than once in an epoch"),
            (self.same_order, "the rows come in the same order in every epoch, not in that of the batches given"),
            (self.validation_trained_on, f"{self.validation_trained_on} validation rows are trained on"),
            (self.train_modes.get("eval"), f"{self.train_modes.get('eval')} training passes run in eval mode"),
            (self.validation_modes.get("train"), f"{self.validation_modes.get('train')} validations run in train mode"),
            (self.validation_with_gradients, f"{self.validation_with_gradients} validations keep gradients"),
        ]
        return [sentence for holds, sentence in found if holds]

    def __str__(self) -> str:
        """All that was seen, in a few lines."""
        steps = (
            "not seen" if self.forwards_per_step is None else " to ".join(map(str, sorted({*self.forwards_per_step})))
        )
        lines = [
            *(self.findings or ["nothing that a right loop would not do"]),
            f"training passes: {_counts(self.train_modes)}; validation passes: {_counts(self.validation_modes)}",
            f"autocast: {', '.join(self.autocast) or 'off'}",
            f"forward passes in a step: {steps}, of a window of {self.due_per_step} micro-batches",
        ]
        return "\n".join(lines)


def _counts(modes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} in {mode} mode" for mode, count in sorted(modes.items())) or "none"


def observe(loop: Loop, *, precision: str = "float64", seed: int = 0, timeout: float = 60.0) -> ObserveReport:
    """Let `loop` train for three epochs with validation, and report what it does besides changing weights.

    The model is that of the audit, and so are the arguments of the loop. Each epoch has the same rows in an order of
    its own.

    Raises:
        ValueError: an unknown precision.
    """
    require(precision in PRECISIONS, "precision", f"one of {', '.join(PRECISIONS)}", precision)
    case = _case(seed)
    seen: list[Forward] = []
    player = Player(loop, PRECISIONS[precision], timeout)
    trouble: str | None = None
    try:
        player.play(case, watcher(seen))
    except Trouble as error:
        trouble = str(error)
    return _report(case, seen, trouble)


def _case(seed: int) -> Case:
    rows = Rows(seed)
    batches = [rows.batch(6, 5) for _ in range(BATCHES)]
    orders = [[(start + step) % BATCHES for step in range(BATCHES)] for start in range(EPOCHS)]
    settings = spec.Settings(
        optimizer="sgd",
        schedule=Constant(0.1),
        accumulation_steps=WINDOW,
        validation=[rows.batch(6, 4), rows.batch(5, 5)],
        eos_id=1,
    )
    case = Case(
        "three epochs with validation", "data", "C11", [[batches[at] for at in order] for order in orders], settings
    )
    return replace(case, seed=seed)


def watcher(seen: list[Forward]) -> Callable[[nn.Module], None]:
    """A function that hooks itself to a model and adds each forward pass to `seen`."""

    def watch(model: nn.Module) -> None:
        def note(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            ids = arguments[0] if arguments else named.get("input_ids")
            mask = arguments[1] if len(arguments) > 1 else named.get("attention_mask")
            if not isinstance(ids, Tensor):
                return
            kind = ids.device.type
            autocast = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            seen.append(
                Forward(
                    rows_of(ids, mask),
                    module.training,
                    torch.is_grad_enabled(),
                    autocast if torch.is_autocast_enabled(kind) else None,
                    sum(weight._version for weight in model.parameters()),
                )
            )

        model.register_forward_pre_hook(note, with_kwargs=True)

    return watch


def rows_of(ids: Tensor, mask: Tensor | None) -> list[Row]:
    """The rows of a batch without their PAD."""
    kept = torch.ones_like(ids) if mask is None else mask
    return [tuple(row[real.bool()].tolist()) for row, real in zip(ids, kept)]


def rows_in(batches: Sequence[Batch]) -> list[Row]:
    """The rows of some batches without their PAD."""
    return [row for batch in batches for row in rows_of(batch["input_ids"], batch["attention_mask"])]


def _report(case: Case, seen: Sequence[Forward], trouble: str | None) -> ObserveReport:
    held_out = set(rows_in(case.settings.validation))
    validation = [one for one in seen if held_out & set(one.rows)]
    training = [one for one in seen if not held_out & set(one.rows)]
    trained = [Counter(row for one in part for row in one.rows) for part in _epochs(seen, held_out)]
    due = [Counter(rows_in(epoch)) for epoch in case.epochs]
    if len(trained) != len(due):  # where an epoch ends cannot be told: all are counted together
        trained, due = [sum(trained, Counter())], [sum(due, Counter())]
    leaked = [one for one in validation if one.training and one.with_gradients]
    return ObserveReport(
        never_seen=sum((wanted - got).total() for got, wanted in zip(trained, due)),
        seen_twice=sum((got - wanted).total() for got, wanted in zip(trained, due)),
        same_order=_same_order([row for one in training for row in one.rows], BATCHES * ROWS),
        validation_trained_on=sum(len(held_out & set(one.rows)) for one in leaked),
        train_modes=_modes(training),
        validation_modes=_modes([one for one in validation if one not in leaked]),
        validation_with_gradients=sum(one.with_gradients for one in validation if one not in leaked),
        autocast=tuple(sorted({one.autocast for one in seen if one.autocast is not None})),
        forwards_per_step=_forwards_per_step(training),
        trouble=trouble,
    )


def _epochs(seen: Sequence[Forward], held_out: set[Row]) -> list[list[Forward]]:
    """The training passes of each epoch, which ends where validation begins."""
    runs = groupby(seen, key=lambda one: bool(held_out & set(one.rows)))
    return [list(passes) for is_validation, passes in runs if not is_validation]


def _modes(forwards: Sequence[Forward]) -> dict[str, int]:
    return dict(Counter("train" if one.training else "eval" for one in forwards))


def _same_order(rows: Sequence[Row], size: int) -> bool:
    """Whether each epoch of `size` rows brings them in the order of the first."""
    epochs = [rows[start : start + size] for start in range(0, len(rows), size)]
    return len(epochs) > 1 and all(epoch == epochs[0] for epoch in epochs)


def _forwards_per_step(training: Sequence[Forward]) -> tuple[int, int] | None:
    counts = Counter(one.version for one in training)
    if len(counts) < 2:
        return None
    return min(counts.values()), max(counts.values())
