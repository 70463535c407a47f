"""Where a loop departs from the specification: the run, its part, its numbers beside the right ones, the promise."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, product, takewhile

import torch
from torch import Tensor

from course_lm.audit import spec
from course_lm.audit.observe import Forward, Row, rows_in, watcher
from course_lm.audit.outcome import PRECISIONS, Outcome, Precision, distance
from course_lm.audit.play import Play, Player, Trouble
from course_lm.audit.report import AuditReport
from course_lm.audit.runs import Case, count_targets, ladder
from course_lm.audit.search import Explanation, Specification

# The runs of one SGD step without anything else: in these a loss and a rate that are wrong by a factor look alike.
FIRST_RUNS = ("one SGD step on one row", "rows of equal length", "labels of -100 on real tokens")

# In the first runs a step that departs by less, as a share of its length, is one of rounding. bfloat16 has 8 bits.
COARSE = 1e-2

# The faults that break a line of the contract; one that breaks none, such as exchanged betas, is in no line.
BREAKS: Mapping[str, tuple[str, ...]] = {
    "C1": ("unshifted_labels", "shifted_twice"),
    "C2": ("pads_counted", "eos_masked", "pads_divide"),
    "C3": ("counted_before_shift", "row_means", "mean_of_means", "accumulation_not_divided", "divided_twice"),
    "C4": ("tail_dropped", "tail_leaks", "tail_divided_by_full", "windows_across_epochs"),
    "C5": ("steps_on_empty_window",),
    "C6": ("clip_before_unscale", "clip_per_micro_batch", "clip_by_value", "clip_per_tensor"),
    "C7": ("steps_on_nonfinite",),
    "C8": (
        "schedule_per_micro_batch",
        "schedule_per_epoch",
        "schedule_never_moves",
        "schedule_off_by_one",
        "first_rate_is_zero",
        "schedule_on_overflow",
        "schedule_on_skipped_step",
    ),
    "C9": ("coupled_decay", "decays_everything"),
    "C10": ("missing_zero_grad", "zero_grad_per_micro_batch"),
    "C11": (
        "stays_in_eval_mode",
        "validation_in_train_mode",
        "val_label_smoothing",
        "val_mean_of_means",
        "val_weighted_by_rows",
    ),
    "C12": ("best_is_a_reference",),
}

# The lines of docs/contract.md that a run of the audit can show to be broken.
PROMISES: Mapping[str, str] = {
    "C1": "Position t predicts token t + 1.",
    "C2": "A target of −100 adds nothing to loss, gradient or count. PAD never counts, a real `<eos>` always does, "
    "even where both share an id: masks decide, not ids.",
    "C3": "The loss of a step is the sum of its token losses divided by the number of its target tokens, over all "
    "micro-batches and ranks.",
    "C4": "A last, smaller group of micro-batches is a step of its own, divided by its own tokens. Nothing leaks into "
    "the next epoch.",
    "C5": "A window without a target token changes nothing and counts as no step;",
    "C6": "Clipping acts on the true global gradient norm, once per step.",
    "C7": "A loss, gradient or rate that is not finite never reaches the weights, the buffers, the moments or the "
    "optimizer's step count.",
    "C8": "The learning rate is a function of k, the number of completed steps.",
    "C9": "Weight decay is decoupled and touches matrices only.",
    "C10": "Gradients are cleared once per step.",
    "C11": "Validation runs in eval mode without gradients, gives each module its mode back, and nothing that is "
    "drawn in it reaches the run, nor does it move a loader's position. Its loss is the plain next-token loss, a mean "
    "over all target tokens.",
    "C12": "The best weights are a copy or on disk, never live tensors.",
    "C13": "k steps, stop, resume, N − k steps: the same bits as N steps, for any k, in the middle of an epoch, with "
    "dropout, and with what model, loss, clip and optimizer keep beside their weights.",
}

Line = tuple[str, str, str]  # what, of the loop, of the specification


def numbers(case: Case, got: Outcome, right: Outcome, start: Tensor) -> list[Line]:
    """Numbers of the loop beside those of the specification, in rows of (what, loop, specification)."""
    rows = [("the run", "raises" if got.refused else "ends", "raises" if right.refused else "ends")]
    if got.weights is not None and right.weights is not None:
        rows += _weight_rows(case, got.weights, right.weights, start)
    if got.validation_losses is not None and not right.refused:
        mine, its = _listed(got.validation_losses), _listed(right.validation_losses or ())
        rows.append(("validation losses, nats per token", mine, its))
    if got.best is not None:
        its = "none" if right.best is None else _length(right.best - start)
        rows.append(("best weights, distance from the start", _length(got.best - start), its))
    return [row for row in rows if row[0] != "the run" or row[1] != row[2]]


def _weight_rows(case: Case, got: Tensor, right: Tensor, start: Tensor) -> list[Line]:
    changes = [one - start for one in (got, right)]
    rows = [("the weights' change, its norm", _length(changes[0]), _length(changes[1]))]
    if not torch.isfinite(torch.stack(changes)).all():
        return rows
    shares = dict(_by_name(case, *changes))
    name = max(shares, key=lambda one: float((shares[one][0] - shares[one][1]).norm()))
    mine, its = shares[name]
    rows.append((f"the change of {name}, its norm", _length(mine), _length(its)))
    at = int((mine - its).abs().argmax())
    rows.append((f"the change of {name}, entry {at}", f"{float(mine[at]):.6g}", f"{float(its[at]):.6g}"))
    return rows


def _listed(losses: Sequence[float]) -> str:
    return " ".join(f"{loss:.6g}" for loss in losses) or "none"


def _length(vector: Tensor) -> str:
    return f"{float(vector.norm()):.6g}"


def _by_name(case: Case, *vectors: Tensor) -> list[tuple[str, list[Tensor]]]:
    named = list(case.model().named_parameters())
    pieces = [vector.split([weight.numel() for _, weight in named]) for vector in vectors]
    return [(name, [piece[place] for piece in pieces]) for place, (name, _) in enumerate(named)]


def proportion(got: Outcome, right: Outcome, start: Tensor) -> float | None:
    """How many times the right change the loop's change is, where it has the same direction; else None."""
    if got.weights is None or right.weights is None:
        return None
    return _ratio(got.weights - start, right.weights - start)


def _ratio(mine: Tensor, its: Tensor) -> float | None:
    ratio = float(mine @ its / (its @ its).clamp(min=1e-300))
    return ratio if float((mine - ratio * its).norm()) <= 1e-8 * float(mine.norm()) else None


def times_as_far(ratio: float) -> str:
    """A proportion in words, with digits enough to tell it from 1."""
    digits = 6 if ratio == 1.0 else max(6, 2 - math.floor(math.log10(abs(ratio - 1))))
    return f"{ratio:.{digits}g} times as far"


def locate(
    base: AuditReport, player: Player, specification: Specification, case: Case, made: Play, explanation: Explanation
) -> AuditReport:
    """The report `base` with the run that departs from the specification of an `explanation`, its part and its numbers.

    Where the report says already what is wrong, the part is the run's own.
    """
    departure = _Departure(player, specification, case, made, explanation)
    return departure.of_several(base) if specification.seen else departure.of_one(base)


@dataclass(frozen=True)
class _Departure:
    """A run that departs from the specification under an explanation, and the player that can make it again."""

    player: Player
    specification: Specification
    case: Case
    made: Play
    explanation: Explanation

    @cached_property
    def right(self) -> Outcome:
        return self.specification.outcome(self.case, self.explanation)

    @cached_property
    def start(self) -> Tensor:
        return self.specification.start(self.case)

    def departs(self, got: Outcome, precision: Precision) -> bool:
        return distance(got, self.right, self.start, precision) > 1.0

    def of_several(self, base: AuditReport) -> AuditReport:
        """The report with what was seen of a run of several processes or calls, and its numbers.

        They are those of the first process that departs most.
        """
        got, right = self.made.outcome, self.right
        base = replace(base, part=self.case.part, case=self.case, promise=_quoted(self.case.promise))
        if got.weights is None or right.weights is None:
            return base
        notes = [told for name, told in self.specification.seen.items() if name in got.seen - right.seen]
        processes = self.specification.processes
        ones, others, starts = (one.chunk(processes) for one in (got.weights, right.weights, self.start))
        apart = [float((one - other).norm()) for one, other in zip(ones, others)]
        if max(apart) == 0.0:
            return replace(base, notes=(*notes, *base.notes))
        worst = apart.index(max(apart))
        if processes > 1:
            notes.append(f"the numbers are those of rank {worst}")
        mine, its = replace(got, weights=ones[worst], best=None), replace(right, weights=others[worst])
        rows = tuple(numbers(self.case, mine, its, starts[worst]))
        return replace(base, notes=(*notes, *base.notes), numbers=rows)

    def of_one(self, base: AuditReport) -> AuditReport:
        """The report with the part of a run of one call in one process, the promise that it breaks, and its numbers."""
        got, part, promise = self.made.outcome, self.case.part, None
        notes = [self.made.said] if got.refused and not self.right.refused else []
        if base.faults:
            promise = self.promise_of(base.faults)
        elif not (base.problem or got.refused or self.right.refused):
            odd = odd_rows(self.player, self.case)
            if odd and not self.is_harmless(odd.keys()):
                # the rows of all runs before were right, so what leaves some out here is how windows are cut
                is_window = part == "accumulation" and odd.keys() <= {"never", "order"}
                part, more = part if is_window else "data", [" and ".join(odd.values())]
            else:
                part, more = self.part()
                promise = self.promise_of_what_differs() if part == self.case.part else None
            notes += more
        return replace(
            base,
            part=part,
            case=self.case,
            promise=None if promise is None else _quoted(promise),
            numbers=tuple(numbers(self.case, got, self.right, self.start)),
            notes=(*notes, *base.notes),
        )

    def promise_of(self, faults: Sequence[str]) -> str | None:
        """The line of the contract that is broken by the first of the faults that shows in the run."""
        for fault in sorted(faults, key=[*spec.FAULTS].index):
            wrong = self.specification.outcome(self.case, self.explanation.with_faults([fault]))
            if self.departs(wrong, PRECISIONS["float64"]):
                return next((promise for promise, names in BREAKS.items() if fault in names), None)
        return None

    def promise_of_what_differs(self) -> str | None:
        """The line of the contract that the run breaks by what differs in it; None where that does not tell."""
        got, right, precision = self.made.outcome, self.right, self.player.precision
        if not got.is_finite():
            return "C7"
        if self.departs(replace(got, validation_losses=None, best=None), precision):
            is_scaled = self.case.part == "loss" and proportion(got, right, self.start)  # divided by another count
            return "C3" if is_scaled else self.case.promise if self.case.is_clear else None
        if not self.departs(replace(got, best=None), precision):
            return "C12" if self.made.best_is_live else None
        pairs = product(enumerate(got.validation_losses or ()), enumerate(right.validation_losses or ()))
        is_late = any(math.isclose(mine, its, rel_tol=1e-9) for (i, mine), (j, its) in pairs if i != j)
        return None if is_late else "C11"  # a right loss at another time is a right loss

    def part(self) -> tuple[str, list[str]]:
        """The part of a loop that the run is about, and what else can be said of it."""
        part, ratio = self.case.part, proportion(self.made.outcome, self.right, self.start)
        if ratio is None:
            return self.part_of_another_way()
        if abs(ratio - 1) <= 1e-8:
            return part, []
        if ratio == 0.0:
            return part, ["the loop leaves the weights as they were"]
        words = [f"the weights go the right way, but {times_as_far(ratio)}"]
        # a loss that is too large by a factor is nothing to Adam, whose step is as long for any gradient; a rate is
        adam = next(one for one in ladder(self.case.seed) if one.name == "one step of Adam")
        made = self.player.replay(adam) if self.case.name in FIRST_RUNS else None
        right = self.specification.outcome(adam, self.explanation)
        as_far = None if made is None else proportion(made, right, self.start)
        if as_far is None or abs(as_far - 1) <= 1e-6:
            return part, words
        same = math.isclose(as_far, ratio, rel_tol=1e-6)
        under = "so do they under Adam" if same else f"under Adam they go {times_as_far(as_far)}"
        return "optimizer", [*words, f"{under}: the learning rate is not the one that was asked for"]

    def part_of_another_way(self) -> tuple[str, list[str]]:
        """The part where the weights do not go the right way, or not all of them as far."""
        got, right = self.made.outcome.weights, self.right.weights
        assert got is not None and right is not None
        is_first = self.case.name in FIRST_RUNS
        coarse = _coarse(self.player.precision, got, right, self.start, is_first=is_first)
        if coarse is not None:
            return "precision", [coarse]
        changes = _by_name(self.case, got - self.start, right - self.start) if is_first else []
        ratios = {name: _ratio(mine, its) for name, (mine, its) in changes}
        if None in ratios.values():
            return self.case.part, []
        # where each weight goes the right way: a wrong gradient of the logits would turn the gradients of most
        moves = [
            f"{name} moves {times_as_far(ratio)}" if ratio else f"{name} does not move"
            for name, (_, its) in changes
            if its.any() and (ratio := ratios[name]) is not None and abs(ratio - 1) > 1e-8
        ]
        return ("optimizer" if moves else self.case.part), moves

    def is_harmless(self, odd: Collection[str]) -> bool:
        """Whether a run before this one is right although the same is odd about its rows: a loop may read them so."""
        for one in takewhile(lambda one: one.name != self.case.name, ladder(self.case.seed)):
            made = self.player.replay(one) if set(odd) <= odd_rows(self.player, one).keys() else None
            right, start = self.specification.outcome(one, self.explanation), self.specification.start(one)
            if made is not None and not made.refused and distance(made, right, start, self.player.precision) <= 1.0:
                return True
        return False


def _quoted(promise: str) -> str:
    return f"{promise}: {PROMISES[promise].rstrip(';')}"


def _coarse(precision: Precision, got: Tensor, right: Tensor, start: Tensor, *, is_first: bool) -> str | None:
    """Why the weights look like those of a loop that rounds to fewer digits, in words; None if they do not."""
    for dtype in (torch.bfloat16, torch.float16, *([torch.float32] if precision.exact else [])):
        if torch.equal(got, got.to(dtype).double()):
            return f"each weight that the loop leaves is a number of {str(dtype).removeprefix('torch.')}"
    apart = float((got - right).norm() / (right - start).norm())
    if is_first and apart <= COARSE:
        return f"the step departs by {apart:.1g} of its length, as if something were rounded to few digits"
    return None


def odd_rows(player: Player, case: Case) -> dict[str, str]:
    """What is odd about the rows that a loop trains on, by kind, in words; {} where each is trained on when it is due.

    Of a loop that runs each row several times, each must come as often. A row of a batch without a target may be left
    out.
    """
    seen: list[Forward] = []
    try:
        player.play(case, watcher(seen))
    except Trouble:
        return {}
    windows = [rows_in([batch for batch in window if count_targets(batch)]) for window in case.windows()]
    due = Counter(row for window in windows for row in window)
    idle = {row for row in rows_in([batch for window in case.windows() for batch in window]) if row not in due}
    passes = [row for one in seen if one.training and one.with_gradients for row in one.rows if row not in idle]
    trained = Counter(passes)
    if not passes:
        return {}  # the loop calls another model, or a copy that has lost its hooks
    (times, _), *_ = Counter(max(1, round(trained[row] / due[row])) for row in due).most_common()
    never = sum(max(0, due[row] - trained[row] // times) for row in due)
    again = sum(max(0, trained[row] // times - due[row]) for row in due)
    others = sum(count for row, count in trained.items() if row not in due)
    found: dict[str, str] = {}
    if never:
        found["never"] = f"{_rows(never, due.total())} not trained on when {'it is' if never == 1 else 'they are'} due"
    if again:
        found["again"] = f"{_rows(again)} trained on more often than {'it is' if again == 1 else 'they are'} due"
    if others:
        found["others"] = f"{_rows(others)} trained on that {'is' if others == 1 else 'are'} not due"
    if not found and times == 1 and not _in_order(passes, windows):
        found["order"] = "the loop trains on the rows in another order"
    return found


def _in_order(passes: Sequence[Row], windows: Sequence[Sequence[Row]]) -> bool:
    """Whether each window has its own rows, in any order."""
    ends = accumulate(map(len, windows))
    return all(Counter(passes[end - len(window) : end]) == Counter(window) for end, window in zip(ends, windows))


def _rows(count: int, of: int | None = None) -> str:
    """So many rows, with the verb."""
    word = f"{count} of {of} rows" if of is not None else "1 row" if count == 1 else f"{count} rows"
    return f"{word} {'is' if count == 1 else 'are'}"
