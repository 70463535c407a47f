"""Answers to the exercises of lesson 08: wrong ones, each with the mistake that must be named, and right ones."""

import math
from itertools import chain, islice

import torch
from torch.nn import functional as F

from course_lm import accumulation as package
from course_lm.step import train_step


def group_by_modulo(batches, accumulation_steps):
    window = []
    for number, batch in enumerate(batches, start=1):
        window.append(batch)
        if number % accumulation_steps == 0:
            yield window
            window = []


def group_with_long_end(batches, accumulation_steps):
    held = list(batches)
    whole = max(1, len(held) // accumulation_steps)
    for number in range(whole if held else 0):
        end = None if number == whole - 1 else (number + 1) * accumulation_steps
        yield held[number * accumulation_steps : end]


def group_a_list(batches, accumulation_steps):
    held = [*batches]
    return [held[start : start + accumulation_steps] for start in range(0, len(held), accumulation_steps)]


def group_looking_ahead(batches, accumulation_steps):
    iterator, ahead = iter(batches), []
    while window := ahead + list(islice(iterator, accumulation_steps - len(ahead))):
        ahead = list(islice(iterator, 1))
        yield window


def group_into_parts(batches, accumulation_steps):
    held = list(batches)
    size = math.ceil(len(held) / accumulation_steps) or 1
    for start in range(0, len(held), size):
        yield held[start : start + size]


def group_with_empty_end(batches, accumulation_steps):
    held = list(batches)
    for start in range(0, len(held), accumulation_steps):
        yield held[start : start + accumulation_steps]
    yield []


def group_filled_up(batches, accumulation_steps):
    held = list(batches)
    missing = -len(held) % accumulation_steps
    endless = chain(held, *([held] * missing))
    for _ in range(math.ceil(len(held) / accumulation_steps)):
        yield list(islice(endless, accumulation_steps))


def group_by_hand(batches, accumulation_steps):
    window = []
    for batch in batches:
        window.append(batch)
        if len(window) == accumulation_steps:
            yield window
            window = []
    if window:
        yield window


def group_by_next(batches, accumulation_steps):
    iterator = iter(batches)
    for first in iterator:
        yield [first, *islice(iterator, accumulation_steps - 1)]


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


def factors_as_a_tensor_list(labels):
    counts = torch.tensor([float((one[:, 1:] >= 0).sum()) for one in labels], dtype=torch.float64)
    return (counts / counts.sum()).tolist()


def losses_of(model, batch, reduction):
    logits = model(batch["input_ids"], batch["attention_mask"])
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction=reduction)


def accumulate(*, reduction="sum", divisor="targets", clear="first"):
    """A step as it is often written, right unless told otherwise."""

    def accumulate_gradient(model, micro_batches):
        labels = [batch["labels"] for batch in micro_batches]
        targets = int(sum((one[:, 1:] != -100).sum() for one in labels))
        if clear == "anyway":
            model.zero_grad()
        if targets == 0:
            return float("nan")
        if clear == "first":
            model.zero_grad(set_to_none=True)
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
    targets = sum((batch["labels"][:, 1:] != -100).sum() for batch in micro_batches)
    if not targets:
        return math.nan
    model.zero_grad()
    loss = torch.stack([losses_of(model, batch, "sum") for batch in micro_batches]).sum() / targets
    loss.backward()
    return loss


def accumulate_then_divide(model, micro_batches):
    targets = package.count_window_targets(micro_batches)
    if targets == 0:
        return torch.tensor(math.nan)
    model.zero_grad()
    total = torch.zeros(())
    for batch in micro_batches:
        nats = losses_of(model, batch, "sum")
        nats.backward()
        total = total + nats.detach()
    for parameter in model.parameters():
        parameter.grad /= targets
    return total / targets


def accumulate_with_train_step(model, micro_batches):
    if not package.count_window_targets(micro_batches):
        return math.nan
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return train_step(model, micro_batches, optimizer, max_grad_norm=None).loss


WRONG_ANSWERS = {
    "group_batches": [
        (group_by_modulo, "the last, shorter window is dropped"),
        (group_with_long_end, "the rest is added to the window before it"),
        (group_a_list, "all batches are read before the first window is given out"),
        (group_looking_ahead, "the first batch of the next window is read before a window is given out"),
        (group_into_parts, "there are accumulation_steps windows, not windows of accumulation_steps batches"),
        (group_with_empty_end, "an empty window follows the last one"),
        (group_filled_up, "the last window is filled up with earlier batches"),
    ],
    "tokens_per_step": [
        (per_step(shift=0), "the first label of each row is counted: there is no shift"),
        (per_step(ignore=False), "ignored labels are counted too"),
        (per_step(shift=0, ignore=False), "all positions are counted, the first and the ignored ones too"),
        (per_step(rows=True), "rows are counted instead of targets"),
        (per_step(tail=False), "the last, shorter window is dropped"),
        (per_step(each=True), "each micro-batch is taken for a step"),
        (per_step(mean=True), "the targets are averaged over the micro-batches, not summed"),
    ],
    "mean_factors": [
        (factors_of_means, "every micro-batch weighs the same: a mean of means"),
        (factors(shift=0), "the first label of each row is counted: there is no shift"),
        (factors(ignore=False), "ignored labels are counted too"),
        (factors(rows=True), "rows are counted instead of targets"),
        (factors_without_own_count, "a micro-batch's own count is missing: its mean is not turned back into a sum"),
        (factors_that_are_counts, "the division by all targets of the window is missing"),
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
        (accumulate(clear="anyway"), "a window without targets clears the gradients"),
    ],
}

EQUIVALENT = {
    "group_batches": [group_by_hand, group_by_next, package.windows],
    "tokens_per_step": [per_step(), per_step_by_the_package],
    "mean_factors": [factors(), factors_as_a_tensor_list],
    "accumulate_gradient": [accumulate(), accumulate_at_once, accumulate_then_divide, accumulate_with_train_step],
}
