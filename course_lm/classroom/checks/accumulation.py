"""Checks of lesson 08: targets of each step, factors for means, windows by tokens, a gradient divided last."""

import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lm.accumulation import count_window_targets, windows
from course_lm.batching import AnyBatch
from course_lm.classroom.checks.report import AnyOf, Edit, Refused, Report, compare
from course_lm.loss import count_targets
from course_lm.step import train_step

_VOCAB_SIZE = 7
_COUNT = "(one[:, 1:] != -100).sum()"
_SHIFT = "Label t + 1 is what position t predicts: the first label of each row is no target, whatever stands there."
# the mistakes of counting, for each exercise whose solution has the line `_COUNT`
_COUNTED_WRONG = {
    "the first label of each row is counted: there is no shift": Edit("one[:, 1:]", "one"),
    "ignored labels are counted too": Edit(_COUNT, "one[:, 1:].numel()"),
    "all positions are counted, the first and the ignored ones too": Edit(_COUNT, "one.numel()"),
    "rows are counted instead of targets": Edit(_COUNT, "len(one)"),
    "the shift goes the wrong way: the last label of each row is left out": Edit("one[:, 1:]", "one[:, :-1]"),
    "the first row is left out instead of the first label of each row": Edit("one[:, 1:]", "one[1:]"),
    "the first label of the micro-batch is left out, not that of each row": Edit("one[:, 1:]", "one.flatten()[1:]"),
    "the label 0 is not counted, though it is a token like others": Edit("!= -100", "> 0"),
    "the ignored labels are counted, not the others": Edit("!= -100", "== -100"),
    "1 is subtracted for each row, even where its first label is ignored anyway": Edit(
        _COUNT, "((one != -100).sum() - len(one))"
    ),
    "1 is subtracted for the micro-batch, not for each of its rows": Edit(_COUNT, "((one != -100).sum() - 1)"),
    "the width T of a row is taken for the targets": Edit(_COUNT, "one.size(1)"),
    "the width T − 1 of a row is taken for the targets": Edit(_COUNT, "(one.size(1) - 1)"),
    "the labels are added up instead of being counted": Edit(_COUNT, "one[:, 1:].sum()"),
    "the labels are added up, without those that are ignored": Edit(_COUNT, "one[:, 1:].clamp(min=0).sum()"),
    "equal labels are counted once": Edit(_COUNT, "(one[:, 1:].unique() != -100).sum()"),
    "two labels of each row are left out: the shift is made twice": Edit("one[:, 1:]", "one[:, 2:]"),
    "the first row alone is counted": Edit("one[:, 1:]", "one[:1, 1:]"),
}


def tokens_per_step(fn: Callable[..., object]) -> Report:
    """Targets of each optimizer step: `fn(labels, accumulation_steps)`, a list of labels (B, T), one a micro-batch."""
    each, summed = "windows(counts, accumulation_steps)", "sum(window)"
    rows = ([[4, 0, 5, -100], [-100, 6, 5, 1]], [[3, -100, 2]], [[1, 4, 0, 6, 2, -100]])
    return compare(
        fn,
        reference=lambda labels, steps: [
            sum(int(count_targets(one)) for one in part) for part in windows(labels, steps)
        ],
        cases={
            "three micro-batches in windows of two": ([torch.tensor(one) for one in rows], 2),
            "five in windows of three": (_labels([5, 11, 6, 3, 8], seed=1), 3),
            "one micro-batch a step, one without a target": ([*_labels([6, 4], seed=2), torch.full((2, 5), -100)], 1),
            "the last, shorter window has no target": ([*_labels([3, 5], seed=3), torch.full((1, 3), -100)], 2),
        },
        mistakes={
            **_COUNTED_WRONG,
            "the last, shorter window is dropped": Edit(each, f"{each} if len(window) == accumulation_steps"),
            "a last, shorter window without a target is dropped": (
                lambda labels, steps: _without_empty_tail(
                    [sum(int(count_targets(one)) for one in part) for part in windows(labels, steps)],
                    len(labels) % steps > 0,
                )
            ),
            "each micro-batch is taken for a step": Edit(each, "windows(counts, 1)"),
            "the targets are averaged over the micro-batches, not summed": Edit(summed, f"{summed} / len(window)"),
            "the targets are divided by accumulation_steps": Edit(summed, f"{summed} / accumulation_steps"),
            "the targets are averaged, and the average is cut off to a whole number": Edit(
                summed, f"{summed} // len(window)"
            ),
            "a running total is given: the count is not set back to 0 for the next step": Edit(
                f"[{summed} for window in {each}]",
                f"[sum(sum(part) for part in list({each})[:end + 1]) for end in range(len(list({each})))]",
            ),
            "micro-batches are counted instead of targets": Edit(summed, "len(window)"),
            "only the last micro-batch of each window is counted": Edit(summed, "window[-1]"),
            "only the first micro-batch of each window is counted": Edit(summed, "window[0]"),
            "only the largest micro-batch of each window is counted": Edit(summed, "max(window)"),
            "accumulation_steps is taken for the number of steps, not of micro-batches in each": Edit(
                each, "windows(counts, -(-len(counts) // accumulation_steps))"
            ),
            "accumulation_steps is taken for the number of steps, and the micro-batches are dealt out in turn": Edit(
                each, "(counts[start::accumulation_steps] for start in range(accumulation_steps))"
            ),
            "the windows overlap: a new one begins at each micro-batch": Edit(
                each, "(counts[i:i + accumulation_steps] for i in range(len(counts)))"
            ),
            "only whole windows that overlap are counted: a new one begins at each micro-batch": Edit(
                each, "(counts[i:i + accumulation_steps] for i in range(len(counts) - accumulation_steps + 1))"
            ),
            "the tail is added to the window before it": lambda labels, steps: _with_tail(_counts(labels), steps),
            "only the tail is given": Edit(f"in {each}]", f"in {each}][-1:]"),
            "one total for the whole epoch is given": Edit("windows(counts, accumulation_steps)", "[counts]"),
            "an empty step follows the last full window": lambda labels, steps: [
                sum(_counts(labels)[start : start + steps]) for start in range(0, len(labels) + 1, steps)
            ],
            "a window ends one micro-batch late": Edit(each, "windows(counts, accumulation_steps + 1)"),
            "the first window has one micro-batch only: a step comes where the number, from 0, is a multiple": (
                lambda labels, steps: _after_a_lone_one(_counts(labels), steps, least=1)
            ),
            "the first window has one micro-batch only, and the tail is dropped": lambda labels, steps: (
                _after_a_lone_one(_counts(labels), steps, least=steps)
            ),
        },
        shown=["three micro-batches in windows of two"],
        hints={
            "one[:, 1:]": _SHIFT,
            "!= -100": "Only −100 is ignored.",
            "windows(": "`windows(counts, accumulation_steps)` gives the lists, the shorter last one too.",
            "sum(window)": "A step's targets are those of its micro-batches together.",
        },
    )


def _without_empty_tail(counts: list[int], has_tail: bool) -> list[int]:
    return counts[:-1] if has_tail and not counts[-1] else counts


def _counts(labels: Iterable[Tensor]) -> list[int]:
    return [int(count_targets(one)) for one in labels]


def _with_tail(counts: Sequence[int], steps: int) -> list[int]:
    """The sums of whole windows; the last one holds the tail as well."""
    whole = max(1, len(counts) // steps)
    return [sum(counts[i * steps : (i + 1) * steps if i < whole - 1 else None]) for i in range(whole)]


def _after_a_lone_one(counts: Sequence[int], steps: int, *, least: int) -> list[int]:
    return [counts[0], *(sum(part) for part in windows(counts[1:], steps) if len(part) >= least)]


def mean_factors(fn: Callable[..., object]) -> Report:
    """Factors of the micro-batches' mean losses: `fn(labels)`, a list of labels (B, T), gives a float for each."""
    share = "count / sum(counts)"

    def reference(labels: Sequence[Tensor]) -> list[float]:
        return [count / sum(_counts(labels)) for count in _counts(labels)]

    return compare(
        fn,
        reference=reference,
        cases={
            "four and one targets": ([torch.tensor([[5, 0, 4, 1, 6]]), torch.tensor([[2, 3, -100]])],),
            "three micro-batches of different width": (_labels([9, 4, 12], seed=0),),
            "one without a target": ([*_labels([5, 8, 7], seed=1), torch.full((2, 6), -100)],),
        },
        mistakes={
            "every micro-batch weighs the same: a mean of means": Edit(share, "1 / len(labels)"),
            "every micro-batch that has a target weighs the same: a mean of means": Edit(
                share, "(count > 0) / sum(one > 0 for one in counts)"
            ),
            **_COUNTED_WRONG,
            "a micro-batch's own count is missing: its mean is not turned back into a sum": Edit(
                share, "1 / sum(counts)"
            ),
            "a micro-batch's own count is missing, except that one without a target gets 0": Edit(
                share, "(count > 0) / sum(counts)"
            ),
            "the division by all targets of the window is missing": Edit(share, "float(count)"),
            "the factor is multiplied by the number of micro-batches": Edit(share, f"{share} * len(labels)"),
            "the factor is multiplied by the number of micro-batches that have a target": Edit(
                share, f"{share} * sum(one > 0 for one in counts)"
            ),
            "the factor is divided by the number of micro-batches once more": Edit(share, f"{share} / len(labels)"),
            "the division is upside down: all targets by a micro-batch's own": AnyOf(
                Edit(share, "sum(counts) / count if count else 0.0"),
                Edit(share, "sum(counts) / max(1, count)"),
                Edit(share, "sum(counts) / count"),
            ),
            "the factor is 1 over the micro-batch's own count": AnyOf(
                Edit(share, "1 / count if count else 0.0"),
                Edit(share, "1 / max(1, count)"),
                Edit(share, "1 / count"),
            ),
            "the factors go by 1 over the counts: small micro-batches weigh more": Edit(
                share, "(1 / count if count else 0.0) / sum(1 / one for one in counts if one)"
            ),
            "the count is divided by the largest count, not by all": Edit(share, "count / max(counts)"),
            "the count is divided by the number of micro-batches": Edit(share, "count / len(labels)"),
            "a softmax is taken of the counts": lambda labels: (
                torch.tensor(_counts(labels), dtype=torch.float64).softmax(0).tolist()
            ),
            "a micro-batch without a target counts as one target": Edit(_COUNT, "(one[:, 1:] != -100).sum().clamp(1)"),
            "a micro-batch without a target is left out of the list": Edit(
                "for count in counts]", "for count in counts if count]"
            ),
            "the division is cut off to a whole number": Edit(share, "count // sum(counts)"),
            "the factors are added up along the list": lambda labels: [
                sum(_counts(labels)[: end + 1]) / sum(_counts(labels)) for end in range(len(labels))
            ],
            "this is 1 minus the factor": Edit(share, f"1 - {share}"),
            "the factors come in the opposite order": Edit("in counts]", "in reversed(counts)]"),
        },
        hints={
            "one[:, 1:]": _SHIFT,
            "!= -100": "Only −100 is ignored.",
            share: "A mean times its own count is a sum; all sums are divided by one number.",
        },
        shown=["four and one targets", "three micro-batches of different width"],
    )


def token_windows(fn: Callable[..., object]) -> Report:
    """Windows by tokens: `fn(micro_batches, min_tokens)` yields lists that hold at least so many targets."""
    ragged = _batches(_labels([9, 4, 12, 5, 7, 3, 6, 11, 4, 8, 5], seed=3))
    five = _batches([torch.ones(1, 6, dtype=torch.int64)] * 5)  # five targets each
    count, starts = "count_window_targets(window)", "    window = []\n    for"
    full, rest = "            yield window\n            window = []", "    if window:\n        yield window"

    def counted(of_one: str) -> Edit:
        return Edit(count, f'sum(int({of_one}) for one in [batch["labels"] for batch in window])')

    return compare(
        fn,
        reference=_windows_by_tokens,
        cases={
            "five targets each, windows of ten": (five, [10]),
            "ragged micro-batches, windows of 4 to 20": (ragged, [4, 7, 11, 20]),
            "no micro-batches": ([], [5]),
            "a tail without targets": (_batches([torch.full((1, 6), label) for label in (1, 1, -100)]), [10]),
        },
        mistakes={
            "the last window is dropped where it holds too few targets": Edit(rest, ""),
            "the last window is dropped where it holds no target": Edit(
                rest, "    if window and count_window_targets(window):\n        yield window"
            ),
            "a window ends before the micro-batch that would complete it": (
                Edit("window.append(batch)\n        ", ""),
                Edit(f"{count} >= min_tokens", "window and count_window_targets([*window, batch]) > min_tokens"),
                Edit(full, f"{full}\n        window.append(batch)"),
            ),
            "a window that holds exactly min_tokens goes on": Edit(">=", ">"),
            "the count is not set back to 0 for the next window": (
                Edit(starts, "    window, seen = [], []\n    for"),
                Edit("window.append(batch)", "window.append(batch)\n        seen.append(batch)"),
                Edit(count, "count_window_targets(seen)"),
            ),
            "the count is set back by min_tokens, so that what was too much counts for the next window": (
                Edit(starts, "    window, seen, used = [], [], 0\n    for"),
                Edit("window.append(batch)", "window.append(batch)\n        seen.append(batch)"),
                Edit(count, "count_window_targets(seen) - used"),
                Edit(full, f"{full}\n            used += min_tokens"),
            ),
            "rows are counted instead of targets": counted("len(one)"),
            "the first label of each row is counted: there is no shift": counted("(one != -100).sum()"),
            "ignored labels are counted too": counted("one[:, 1:].numel()"),
            "all positions are counted, the first and the ignored ones too": counted("one.numel()"),
            "the label 0 is not counted, though it is a token like others": counted("(one[:, 1:] > 0).sum()"),
            "the shift goes the wrong way: the last label of each row is left out": counted(
                "(one[:, :-1] != -100).sum()"
            ),
            "the first row is left out instead of the first label of each row": counted("(one[1:] != -100).sum()"),
            "micro-batches are counted instead of targets": Edit(count, "len(window)"),
            "only the last micro-batch is counted, not the window": Edit(count, "count_window_targets([batch])"),
            "an empty window follows the last one": AnyOf(
                Edit(rest, "    yield window"), Edit(rest, f"{rest}\n    yield []")
            ),
            "the micro-batch that completes a window is left out": (
                Edit("window.append(batch)\n        ", ""),
                Edit(count, "count_window_targets([*window, batch])"),
                Edit(full, f"{full}\n        else:\n            window.append(batch)"),
            ),
            "the micro-batch that completes a window begins the next one as well": Edit(
                full, full.replace("[]", "[batch]")
            ),
            "a window goes on after it was yielded: it is never started anew": Edit(full, "            yield window"),
            "all windows are one list, which is emptied after it was yielded": Edit(
                full, full.replace("window = []", "window.clear()")
            ),
            "the windows are yielded as numbers of targets, not as lists of micro-batches": (
                Edit(full, f"            yield int({count})\n            window = []"),
                Edit(rest, f"    if window:\n        yield int({count})"),
            ),
            "the labels are yielded instead of the micro-batches": Edit(
                "window.append(batch)", 'window.append(batch["labels"])'
            ),
            "the first window alone is given": Edit(full, f"{full}\n            return"),
            "the first window is given, not a list that holds it": lambda batches, least: next(
                iter(_windows_by_tokens(batches, least)), []
            ),
            "the micro-batches are yielded one after the other, not in lists": lambda batches, least: list(batches),
            "the rest is joined to the last full window": lambda batches, least: _joined_rest(
                list(_windows_by_tokens(batches, least)), least
            ),
            "one micro-batch is skipped after each window": lambda batches, least: _windows_with_gaps(batches, least),
        },
        run=_numbers_of_windows,
        shown=["five targets each, windows of ten"],
        hints={
            ">= min_tokens": "At least `min_tokens`: a window that holds exactly so many is complete.",
            "window = []\n    for": "Each window is a new list.",
            "if window:": "After the loop, what is left over is a window too, unless it is empty.",
            "window.append": "First the micro-batch joins the window; then ask whether the window holds enough.",
        },
    )


def _windows_by_tokens(batches: Iterable[AnyBatch], min_tokens: int) -> Iterator[list[AnyBatch]]:
    window, tokens = [], 0
    for batch in batches:
        window.append(batch)
        tokens += int(count_targets(batch["labels"]))
        if tokens >= min_tokens:
            yield window
            window, tokens = [], 0
    if window:
        yield window


def _joined_rest(groups: list[list[AnyBatch]], min_tokens: int) -> list[list[AnyBatch]]:
    if len(groups) > 1 and count_window_targets(groups[-1]) < min_tokens:
        groups[-2:] = [groups[-2] + groups[-1]]
    return groups


def _windows_with_gaps(batches: Iterable[AnyBatch], min_tokens: int) -> Iterator[list[AnyBatch]]:
    batches = iter(batches)
    while window := next(_windows_by_tokens(batches, min_tokens), None):
        yield window
        next(batches, None)


def _numbers_of_windows(fn: Callable[..., Any], batches: Sequence[AnyBatch], sizes: Sequence[int]) -> list[object]:
    """For each `min_tokens` the micro-batches of each window by number, read when all windows have been made."""
    found = []
    for min_tokens in sizes:
        groups = fn(iter(batches), min_tokens)
        found.append(_numbered(list(groups) if isinstance(groups, Iterable | Tensor) else groups))
    return found


def _numbered(value: Any) -> object:
    if isinstance(value, Mapping):
        return int(value["number"]) if "number" in value else "a dict that is no micro-batch"
    if isinstance(value, list | tuple):
        return [_numbered(one) for one in value]
    return value if value is None or isinstance(value, int | float | str | Tensor) else f"a {type(value).__name__}"


def accumulate_gradient(fn: Callable[..., object]) -> Report:
    """A step's gradient from an iterator: `fn(model, micro_batches)` leaves it in the model, returns the mean loss."""
    window = _window([[9, 3], [12, 12], [4, 2]], seed=0)
    clean, left_over = None, 1.0
    empty = {**window[2], "labels": torch.full_like(window[2]["labels"], -100)}
    summed, divided = ', reduction="sum")', "    for parameter in model.parameters():\n        parameter.grad /= tokens"
    own, added = "int(count_window_targets([batch]))", "tokens + int(count_window_targets([batch]))"
    first, guard = (
        "    model.zero_grad()\n    nats",
        "    if tokens == 0:\n        model.zero_grad()\n        return math.nan\n",
    )
    backward, result = "        loss.backward()\n", "return nats / tokens"
    mean_of_each = (Edit(summed, ")"), Edit(added, "tokens + 1"))

    def divided_by(other: str) -> AnyOf:
        """Another divisor; whether there is any target is asked of it, or of the number of targets."""
        asked = (
            Edit(first, f"    targets = 0\n{first}"),
            Edit(backward, f"{backward}        targets += {own}\n"),
            Edit("tokens == 0", "targets == 0"),
        )
        return AnyOf(Edit(own, other), (Edit(own, other), *asked))

    return compare(
        fn,
        reference=lambda model, batches: _by_train_step(model, [{**batch} for batch in batches]),
        cases={
            "two ragged micro-batches": (window[:2], clean),
            "gradients left over from before": (window, left_over),
            "one micro-batch without a target": ([window[0], empty, window[1]], clean),
            "the first and the last micro-batch without a target": ([empty, window[0], empty], clean),
            "no target in the whole window": ([empty, empty], left_over),
        },
        mistakes={
            "each micro-batch's mean is divided by the number of micro-batches: a mean of means": AnyOf(
                mean_of_each,
                _accumulation(lambda own, number, total: 1 / (own * number), skips=True),
                _accumulation(lambda own, number, total: 1 / (own * number), skips=True, counts_empty=True),
            ),
            "several batches are held at a time; read one, use it, and let it go": _accumulation(),
            "each micro-batch is divided by its own targets, and the means are added up": AnyOf(
                _accumulation(lambda own, number, total: 1 / own),
                _accumulation(lambda own, number, total: 1 / own, skips=True),
                _accumulation(lambda own, number, total: 1 / own, guard=False),
            ),
            "each micro-batch's mean is divided by the targets of the window: it is divided twice": AnyOf(
                _accumulation(lambda own, number, total: 1 / (own * total)),
                _accumulation(lambda own, number, total: 1 / (own * total), skips=True),
            ),
            "the gradients of means are divided as those of sums: they are divided twice": _accumulation(
                lambda own, number, total: 1 / (own * total), reports="right"
            ),
            "the sums are not divided": AnyOf(
                (Edit(divided + "\n", ""), Edit(result, "return nats")),
                (Edit(guard, ""), Edit(divided + "\n", ""), Edit(result, "return nats")),
            ),
            "the gradients are not divided, only the loss": Edit(divided + "\n", ""),
            "the loss is not divided, only the gradients": Edit(result, "return nats"),
            "the sums are divided by the number of micro-batches": divided_by("1"),
            "the sums are divided by all positions, padding too": divided_by('batch["labels"].numel()'),
            "the sums are divided by all predicted positions, padding too": divided_by(
                'batch["labels"][:, 1:].numel()'
            ),
            "the sums are divided by the number of rows": divided_by('len(batch["labels"])'),
            "the sums are divided by all labels that are not −100: the divisor is not shifted": Edit(
                own, 'int((batch["labels"] != -100).sum())'
            ),
            "the sums are divided by all positions that attention_mask shows, without a shift": divided_by(
                'int(batch["attention_mask"].sum())'
            ),
            "the sums are divided by the targets of the last micro-batch alone": Edit(added, own),
            "the gradients are divided after every micro-batch by the targets so far, again and again": (
                Edit(divided + "\n", ""),
                Edit(
                    f"tokens + {own}\n",
                    f"tokens + {own}\n        for parameter in model.parameters():\n"
                    "            parameter.grad /= max(1, tokens)\n",
                ),
            ),
            "gradients are cleared before every micro-batch, so that the last one alone remains": Edit(
                backward, f"        model.zero_grad()\n{backward}"
            ),
            "gradients from before the step are not cleared": AnyOf(
                Edit(first, "    nats"),
                _accumulation(lambda own, number, total: 1 / total, clears=False),
            ),
            "no gradient is left: `backward()` is not called, or what it gave is cleared at the end": Edit(
                f"    {result}", f"    model.zero_grad()\n    {result}"
            ),
            "a window without targets is divided by 0": AnyOf(
                (Edit(guard, ""), Edit(result, "return nats / tokens if tokens else math.nan")),
                (Edit(guard, ""), Edit(result, "return nats / tokens if tokens else 0.0")),
            ),
            "a window without targets gives a loss of 0": Edit("return math.nan", "return 0.0"),
            "a window without targets leaves the gradients of before": (
                Edit(first, "    nats"),
                Edit(guard, "    if tokens == 0:\n        return math.nan\n"),
                Edit(backward, f"        if tokens == 0 and {own}:\n            model.zero_grad()\n{backward}"),
            ),
            "the loop ends at a micro-batch without a target": Edit(
                "        logits = ", f"        if not {own}:\n            break\n        logits = "
            ),
            "the loss is the mean of the micro-batches' means; the gradients are right": AnyOf(
                _accumulation(reports="mean of means"),
                _accumulation(reports="mean of means", skips=True),
                _accumulation(reports="mean of means", skips=True, counts_empty=True),
            ),
            "the loss is the sum of the micro-batches' means; the gradients are right": AnyOf(
                _accumulation(reports="sum of means"),
                _accumulation(reports="sum of means", skips=True),
            ),
            "the loss is the sum over the targets by the number of micro-batches; the gradients are right": (
                _accumulation(reports="sums by number")
            ),
            "the loss is that of the last micro-batch; the gradients are right": Edit(
                result, f"return loss.item() / {own}"
            ),
            "the loss is the sum of the last micro-batch; the gradients are right": AnyOf(
                Edit(result, "return loss.item()"), Edit(result, "return loss.item() / tokens")
            ),
            "the perplexity is returned: the exponential of the mean loss": Edit(
                result, "return math.exp(nats / tokens)"
            ),
            "there is no shift: position t is scored against token t": _accumulation(shift=0),
        },
        run=_gradient_and_loss,
        shown=["two ragged micro-batches"],
        hints={
            "parameter.grad /=": "Divide each `.grad` once, after the last micro-batch, by the targets of them all.",
            'reduction="sum"': "Sums add up; means do not. Divide at the end, by the targets of all micro-batches.",
            "tokens == 0": "Without any target there is nothing to divide: clear the gradients and return nan.",
            "model.zero_grad()\n    nats": "Clear once, before the first micro-batch: `backward()` adds.",
        },
    )


def _gradient_and_loss(fn: Callable[..., Any], micro_batches: Sequence[AnyBatch], before: float | None) -> object:
    """Gradients that were `before` and are then what `fn` leaves, with the loss; None where `fn` gives none.

    Raises Refused where the weights have changed, and for right results of an answer that holds many batches, or what
    their forward passes saved.
    """
    model = _Model()
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    _set_gradients(model, before)
    held: list[int] = []
    saved: weakref.WeakSet[_Saved] = weakref.WeakSet()
    given = _one_at_a_time(micro_batches, held, saved)

    def pack(tensor: Tensor) -> _Saved:
        one = _Saved(tensor, len(held))
        saved.add(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
        loss = fn(model, given)
    if loss is None or loss is ...:
        return None
    if any(not torch.equal(weights[name], parameter) for name, parameter in model.named_parameters()):
        raise Refused("the weights have changed: only their `.grad` is to be filled, the step comes later")
    found = _found(model, loss)
    if max(held, default=0) > 2 and _is_right(found, model, micro_batches):
        raise Refused("several batches are held at a time, though the numbers are right")
    return found


def _set_gradients(model: nn.Module, value: float | None) -> None:
    for parameter in model.parameters():
        parameter.grad = None if value is None else torch.full_like(parameter, value)


def _found(model: nn.Module, loss: object) -> dict[str, object]:
    parameters = dict(model.named_parameters())
    gradients = {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in parameters.items()}
    number = loss.item() if isinstance(loss, Tensor) and loss.numel() == 1 else loss
    return {"the loss": number, **{f"the gradient of {name}": one for name, one in gradients.items()}}


def _is_right(found: Mapping[str, object], model: nn.Module, micro_batches: Sequence[AnyBatch]) -> bool:
    right = _found(model, _by_train_step(model, micro_batches))
    pairs = [(torch.as_tensor(found[name]).double(), torch.as_tensor(right[name]).double()) for name in right]
    return all(torch.allclose(one, other, equal_nan=True) for one, other in pairs)


class _Held(dict[str, Tensor]):
    """A batch that can be asked whether somebody still holds it."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class _Saved:
    """What a forward pass saved for the backward one, in batch number `batch`; it lives as long as the graph does."""

    def __init__(self, tensor: Tensor, batch: int) -> None:
        self.tensor, self.batch = tensor, batch


def _one_at_a_time(micro_batches: Iterable[AnyBatch], held: list[int], saved: Iterable[_Saved]) -> Iterator[AnyBatch]:
    """The batches; whenever one is asked for, `held` gets the number of those held, themselves or in a graph."""
    given: list[weakref.ref[_Held]] = []
    for micro_batch in micro_batches:
        batch = _Held(micro_batch)  # type: ignore[arg-type]
        given.append(weakref.ref(batch))
        yield batch
        del batch
        in_graphs = {one.batch for one in saved}
        held.append(max(sum(one() is not None for one in given), len(in_graphs)))


def _by_train_step(model: nn.Module, micro_batches: Iterable[AnyBatch]) -> float:
    model.zero_grad()  # train_step leaves the gradients of before where there is no target
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a window without targets
        still = torch.optim.SGD(model.parameters(), lr=0.0)
        return float(train_step(model, list(micro_batches), still, max_grad_norm=None).loss)


def _accumulation(
    weight: Callable[[float, int, int], float] = lambda own, number, total: 1 / total,
    *,
    skips: bool = False,
    counts_empty: bool = False,
    guard: bool = True,
    clears: bool = True,
    shift: int = 1,
    reports: str = "",
) -> Callable[[nn.Module, Iterable[AnyBatch]], float]:
    """The exercise's answer with a part exchanged.

    `weight(own, number, total)` is the factor of a sum, from its own targets, the number of micro-batches and all
    targets. Micro-batches without a target are nan times something, unless the answer `skips` them; `counts_empty`
    counts them among the micro-batches then as well. `reports` is another loss than the sum of what went backward.
    """

    def accumulate(model: nn.Module, batches: Iterable[AnyBatch]) -> float:
        micro_batches = list(batches)
        counts = [int((batch["labels"][:, shift:] != -100).sum()) for batch in micro_batches]
        total, number = sum(counts), len(counts) if counts_empty or not skips else sum(map(bool, counts))
        if clears or (guard and not total):
            model.zero_grad()
        if guard and not total:
            return math.nan
        parts, sums = [], []
        for batch, own in zip(micro_batches, counts):
            if skips and not own:
                continue
            logits = model(batch["input_ids"], batch["attention_mask"])
            scored = logits[:, : logits.size(1) - shift].flatten(0, 1)
            loss = F.cross_entropy(scored, batch["labels"][:, shift:].flatten(), reduction="sum")
            part = loss * weight(own or math.nan, number, total)
            part.backward()
            parts.append(float(part))
            sums.append(float(loss))
        means = [one / (own or math.nan) for one, own in zip(sums, [own for own in counts if own or not skips])]
        losses = {
            "": sum(parts),
            "mean of means": sum(means) / number,
            "sum of means": sum(means),
            "sums by number": sum(sums) / number,
            "right": sum(sums) / total,
        }
        return losses[reports]

    return accumulate


class _Model(nn.Module):
    """Scores the next token by the current one alone."""

    def __init__(self) -> None:
        super().__init__()
        scores, bias = _drawn_weights()
        self.scores, self.bias = nn.Parameter(scores.clone()), nn.Parameter(bias.clone())

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return F.embedding(input_ids, self.scores) + self.bias  # (B, T, V)


@lru_cache
def _drawn_weights() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(_VOCAB_SIZE, _VOCAB_SIZE, generator=generator, dtype=torch.float64)
    return scores, torch.randn(_VOCAB_SIZE, generator=generator, dtype=torch.float64)


def _labels(widths: Sequence[int], *, seed: int) -> list[Tensor]:
    """Labels (B, T) of these widths with one to three rows; about a quarter is ignored."""
    generator = torch.Generator().manual_seed(seed)
    every = []
    for number, width in enumerate(widths):
        labels = torch.randint(0, _VOCAB_SIZE, (1 + number % 3, width), generator=generator)
        labels[torch.rand(labels.shape, generator=generator) < 0.25] = -100
        labels[:, 0], labels[:, 1], labels[0, 2] = 1, 2, -100  # a first label, a target and an ignored one
        labels[1:2, 0] = -100  # a first label that is ignored
        every.append(labels)
    return every


def _window(lengths: Sequence[Sequence[int]], *, seed: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    window = []
    for rows in lengths:
        mask = (torch.arange(max(rows)) < torch.tensor(rows)[:, None]).long()  # (B, T)
        ids = torch.randint(0, _VOCAB_SIZE, mask.shape, generator=generator)
        window.append({"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)})
    return window


def _batches(labels: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [{"labels": one, "number": number} for number, one in enumerate(labels)]
