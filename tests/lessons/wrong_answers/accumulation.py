"""Answers to the exercises of lesson 08: wrong ones, each with the mistake that must be named, and right ones."""

import math

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
    micro_batches = [*micro_batches]
    targets = sum((batch["labels"][:, 1:] != -100).sum() for batch in micro_batches)
    model.zero_grad()
    if not targets:
        return math.nan
    loss = torch.stack([losses_of(model, batch, "sum") for batch in micro_batches]).sum() / targets
    loss.backward()
    return loss


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
        (token_windows_empty_end, "an empty window follows the last one"),
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
        (accumulate_and_divide_anyway, "a window without targets is divided by 0"),
    ],
}

EQUIVALENT = {
    "token_windows": [token_groups(), token_windows_counted_anew],
    "tokens_per_step": [per_step(), per_step_by_the_package],
    "mean_factors": [factors(), factors_as_a_tensor_list],
    "accumulate_gradient": [accumulate(), accumulate_at_once, accumulate_then_divide, accumulate_with_train_step],
}
