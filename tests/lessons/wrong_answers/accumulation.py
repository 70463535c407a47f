"""Answers to the exercises of lesson 08: wrong ones, each with the mistake that must be named, and right ones."""

import math
from fractions import Fraction

import numpy as np
import torch
from torch.nn import functional as F

from course_lm import accumulation as package
from course_lm.step import train_step

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("accumulation",)
SABOTAGE = (
    "accumulation.py",
    'counts = (count_targets(batch["labels"], ignore_index) for batch in micro_batches)',
    'counts = ((batch["labels"] != ignore_index).sum() for batch in micro_batches)',
)


def token_groups(*, shift=1, ignore=True, rows=False, tail=True, exact=True, reset=True):
    """Windows by a running count, right unless told otherwise."""

    def token_windows(micro_batches, min_tokens):
        windows, held, seen = [], [], 0
        for batch in micro_batches:
            held.append(batch)
            wanted = batch["labels"][:, shift:]
            seen += len(wanted) if rows else int((wanted > -100).sum()) if ignore else wanted.numel()
            if seen > min_tokens or (exact and seen == min_tokens):
                windows.append(held)
                held = []
                if reset:
                    seen = 0
        if tail and held:
            windows.append(held)
        return windows

    return token_windows


def token_windows_at_most(micro_batches, min_tokens):
    window = []
    for batch in micro_batches:
        if window and package.count_window_targets([*window, batch]) > min_tokens:
            yield window
            window = []
        window.append(batch)
    if window:
        yield window


def token_windows_empty_end(micro_batches, min_tokens):
    yield from token_groups()(micro_batches, min_tokens)
    yield []


def token_windows_cleared(micro_batches, min_tokens):
    window = []
    for batch in micro_batches:
        window.append(batch)
        if sum(int((one["labels"][:, 1:] != -100).sum()) for one in window) >= min_tokens:
            yield window
            window.clear()
    if window:
        yield window


def token_windows_carried(micro_batches, min_tokens):
    window, tokens = [], 0
    for batch in micro_batches:
        window.append(batch)
        tokens += int((batch["labels"][:, 1:] != -100).sum())
        if tokens >= min_tokens:
            yield tuple(window)
            window, tokens = [], tokens - min_tokens
    if window:
        yield tuple(window)


def token_windows_counted_anew(micro_batches, min_tokens):
    window = []
    for batch in micro_batches:
        window = [*window, batch]
        if package.count_window_targets(window) >= min_tokens:
            yield window
            window = []
    if window:
        yield window


def per_step(*, shift=1, ignore=True, rows=False, tail=True, mean=False, each=False):
    """Targets counted label by label, right unless told otherwise."""

    def tokens_per_step(labels, accumulation_steps):
        steps, counts = [], []
        for number, one in enumerate(labels, start=1):
            counted = sum(1 for row in one.tolist() for label in row[shift:] if label != -100 or not ignore)
            counts.append(one.size(0) if rows else counted)
            full = number % accumulation_steps == 0
            if each or full or (tail and number == len(labels)):
                steps.append(sum(counts) / len(counts) if mean else sum(counts))
                counts = []
        return steps

    return tokens_per_step


def per_step_by_the_package(labels, accumulation_steps):
    batches = [{"labels": one} for one in labels]
    return [package.count_window_targets(window) for window in package.windows(batches, accumulation_steps)]


def per_step_in_overlapping_windows(labels, accumulation_steps):
    counts = [(one[:, 1:] != -100).sum().item() for one in labels]
    return [sum(counts[start : start + accumulation_steps]) for start in range(len(counts))]


def per_step_running_total(labels, accumulation_steps):
    total, steps = 0, []
    for number, one in enumerate(labels, start=1):
        total += int((one[:, 1:] != -100).sum())
        if number % accumulation_steps == 0 or number == len(labels):
            steps.append(total)
    return steps


def per_step_without_zeros(labels, accumulation_steps):
    counts = np.array([np.count_nonzero(one[:, 1:].numpy() > 0) for one in labels])
    return [counts[start : start + accumulation_steps].sum() for start in range(0, len(counts), accumulation_steps)]


def per_step_with_numpy(labels, accumulation_steps):
    counts = np.array([np.count_nonzero(one[:, 1:].numpy() != -100) for one in labels])
    return np.add.reduceat(counts, np.arange(0, len(counts), accumulation_steps))


def factors(*, shift=1, ignore=True, rows=False):
    def mean_factors(labels):
        counts = []
        for one in labels:
            wanted = one[:, shift:].flatten()
            counts.append(len(one) if rows else len(wanted[wanted != -100]) if ignore else len(wanted))
        return [count / sum(counts) for count in counts]

    return mean_factors


def factors_of_means(labels):
    return [1.0 / len(labels) for _ in labels]


def factors_without_own_count(labels):
    total = sum((one[:, 1:] != -100).sum().item() for one in labels)
    return [1 / total for _ in labels]


def factors_that_are_counts(labels):
    return [float((one[:, 1:] != -100).sum()) for one in labels]


def factors_times_the_window(labels):
    return [share * len(labels) for share in factors()(labels)]


def factors_upside_down(labels):
    counts = [(one[:, 1:] != -100).sum().item() for one in labels]
    return [sum(counts) / count if count > 0 else 0 for count in counts]


def factors_as_fractions(labels):
    counts = [(one[:, 1:] != -100).sum().item() for one in labels]
    return tuple(Fraction(count, sum(counts)) for count in counts)


def factors_as_a_tensor_list(labels):
    counts = torch.tensor([float((one[:, 1:] >= 0).sum()) for one in labels], dtype=torch.float64)
    return (counts / counts.sum()).tolist()


def losses_of(model, batch, reduction):
    logits = model(batch["input_ids"], batch["attention_mask"])
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction=reduction)


def accumulate(*, reduction="sum", divisor="targets", clear="first"):
    """A step as it is often written, right unless told otherwise."""

    def accumulate_gradient(model, micro_batches):
        micro_batches = list(micro_batches)
        labels = [batch["labels"] for batch in micro_batches]
        targets = int(sum((one[:, 1:] != -100).sum() for one in labels))
        if clear == "first" or targets == 0:
            model.zero_grad(set_to_none=True)
        if targets == 0:
            return float("nan")
        divisors = {
            "targets": targets,
            "nothing": 1.0,
            "micro-batches": len(micro_batches),
            "positions": sum(one.numel() for one in labels),
            "labels": int(sum((one != -100).sum() for one in labels)),
        }
        loss = 0.0
        for batch in micro_batches:
            if clear == "each":
                model.zero_grad(set_to_none=True)
            part = losses_of(model, batch, reduction) / divisors[divisor]
            part.backward()
            loss += part.item()
        return loss

    return accumulate_gradient


def accumulate_at_once(model, micro_batches):
    """The sum of all losses is divided, and goes backward once."""
    loss, targets = torch.zeros(()), 0
    model.zero_grad()
    for batch in micro_batches:
        loss = loss + losses_of(model, batch, "sum")
        targets += int((batch["labels"][:, 1:] != -100).sum())
    if not targets:
        return math.nan
    loss = loss / targets
    loss.backward()
    return loss


def accumulate_running_mean(model, micro_batches):
    """What stands in .grad is the mean so far; each micro-batch moves it by its share."""
    iterator, targets, mean = iter(micro_batches), 0, 0.0
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    while (batch := next(iterator, None)) is not None:
        new = package.count_window_targets([batch]).item()
        if new == 0:
            continue
        share = targets / (targets + new)
        for parameter in model.parameters():
            parameter.grad.mul_(share)
        part = losses_of(model, batch, "mean") * (1 - share)
        part.backward()
        targets, mean = targets + new, mean * share + float(part.detach())
    return np.float64(mean) if targets else np.nan


def accumulate_then_divide(model, micro_batches, stop=True):
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
    nats, targets = 0.0, torch.tensor(0)
    for batch in micro_batches:
        loss = losses_of(model, batch, "sum")
        for total, part in zip(sums, torch.autograd.grad(loss, [*model.parameters()])):
            total += part
        nats, targets = nats + loss.item(), targets + (batch["labels"][:, 1:] != -100).sum()
    for parameter, total in zip(model.parameters(), sums):
        parameter.grad = None if stop and not targets else total / targets
    return nats / targets


def accumulate_and_divide_anyway(model, micro_batches):
    return accumulate_then_divide(model, micro_batches, stop=False)


def accumulate_loss_of_means(model, micro_batches):
    means = []

    def watched():
        for batch in micro_batches:
            means.append(losses_of(model, batch, "mean").item())
            yield batch

    loss = accumulate_then_divide(model, watched())
    return sum(means) / len(means) if loss == loss else math.nan


def accumulate_loss_undivided(model, micro_batches):
    targets = 0

    def watched():
        nonlocal targets
        for batch in micro_batches:
            targets += int((batch["labels"][:, 1:] > -1).sum())
            yield batch

    return accumulate_then_divide(model, watched()) * targets


def accumulate_with_train_step(model, micro_batches):
    micro_batches = list(micro_batches)
    if not package.count_window_targets(micro_batches):
        model.zero_grad()
        return math.nan
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return train_step(model, micro_batches, optimizer, max_grad_norm=None).loss


WRONG_ANSWERS = {
    "token_windows": [
        (token_groups(tail=False), "the last window is dropped where it holds too few targets"),
        (token_windows_at_most, "a window ends before the micro-batch that would complete it"),
        (token_groups(exact=False), "a window that holds exactly min_tokens goes on"),
        (token_groups(reset=False), "the count is not set back to 0 for the next window"),
        (token_groups(rows=True), "rows are counted instead of targets"),
        (token_groups(shift=0), "the first label of each row is counted: there is no shift"),
        (token_groups(ignore=False), "ignored labels are counted too"),
        (token_windows_cleared, "all windows are one list, which is emptied after it was yielded"),
        (
            token_windows_carried,
            "the count is set back by min_tokens, so that what was too much counts for the next window",
        ),
        (token_windows_empty_end, "an empty window follows the last one"),
    ],
    "tokens_per_step": [
        (per_step(shift=0), "the first label of each row is counted: there is no shift"),
        (per_step(ignore=False), "ignored labels are counted too"),
        (per_step(shift=0, ignore=False), "all positions are counted, the first and the ignored ones too"),
        (per_step(rows=True), "rows are counted instead of targets"),
        (per_step(tail=False), "the last, shorter window is dropped"),
        (per_step(each=True), "each micro-batch is taken for a step"),
        (per_step_in_overlapping_windows, "the windows overlap: a new one begins at each micro-batch"),
        (per_step_running_total, "a running total is given: the count is not set back to 0 for the next step"),
        (per_step_without_zeros, "the label 0 is not counted, though it is a token like others"),
        (per_step(mean=True), "the targets are averaged over the micro-batches, not summed"),
    ],
    "mean_factors": [
        (factors_of_means, "every micro-batch weighs the same: a mean of means"),
        (factors(shift=0), "the first label of each row is counted: there is no shift"),
        (factors(ignore=False), "ignored labels are counted too"),
        (factors(rows=True), "rows are counted instead of targets"),
        (factors_without_own_count, "a micro-batch's own count is missing: its mean is not turned back into a sum"),
        (factors_that_are_counts, "the division by all targets of the window is missing"),
        (factors_upside_down, "the division is upside down: all targets by a micro-batch's own"),
        (factors_times_the_window, "the factor is multiplied by the number of micro-batches"),
    ],
    "accumulate_gradient": [
        (
            accumulate(reduction="mean", divisor="micro-batches"),
            "each micro-batch's mean is divided by the number of micro-batches: a mean of means",
        ),
        (
            accumulate(reduction="mean", divisor="nothing"),
            "each micro-batch is divided by its own targets, and the means are added up",
        ),
        (accumulate(divisor="nothing"), "the sums are not divided"),
        (accumulate(divisor="positions"), "the sums are divided by all positions, padding too"),
        (
            accumulate(divisor="labels"),
            "the sums are divided by all labels that are not −100: the divisor is not shifted",
        ),
        (
            accumulate(clear="each"),
            "gradients are cleared before every micro-batch, so that the last one alone remains",
        ),
        (accumulate(clear="never"), "gradients from before the step are not cleared"),
        (accumulate(), "several batches are held at a time; read one, use it, and let it go"),
        (accumulate_at_once, "several batches are held at a time; read one, use it, and let it go"),
        (accumulate_with_train_step, "several batches are held at a time; read one, use it, and let it go"),
        (accumulate_loss_of_means, "the loss is the mean of the micro-batches' means; the gradients are right"),
        (accumulate_loss_undivided, "the loss is not divided, only the gradients"),
        (accumulate_and_divide_anyway, "a window without targets is divided by 0"),
    ],
}

EQUIVALENT = {
    "token_windows": [token_groups(), token_windows_counted_anew],
    "tokens_per_step": [per_step(), per_step_by_the_package, per_step_with_numpy],
    "mean_factors": [factors(), factors_as_a_tensor_list, factors_as_fractions],
    "accumulate_gradient": [accumulate_then_divide, accumulate_running_mean],
}
