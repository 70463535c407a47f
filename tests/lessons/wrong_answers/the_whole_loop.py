"""Answers to the exercises of lesson 00: wrong ones, each with the mistake that must be named, and right ones."""

import itertools
import math
from fractions import Fraction

import numpy as np
import torch
from torch.nn import functional as F

from course_lm import schedules
from course_lm.step import train_step

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ()
SABOTAGE = (
    "loss.py",
    "F.pad(labels[:, 1:], (0, 1), value=ignore_index)",
    "F.pad(labels[:, 2:], (0, 2), value=ignore_index)",
)


def floor_over_all_ids(neg_log_p, documents):
    return np.sum(neg_log_p) / len(np.concatenate(documents))


def floor_between_the_eos(neg_log_p, documents):
    return sum(neg_log_p) / sum(len(document[1:-1]) for document in documents)


def floor_as_mean_of_ratios(neg_log_p, documents):
    return float(np.mean([cost / len(document[1:]) for cost, document in zip(neg_log_p, documents)]))


def floor_per_document(neg_log_p, documents):
    return np.mean(neg_log_p)


def floor_by_a_loop(neg_log_p, documents):
    nats = targets = 0
    for cost, document in zip(neg_log_p, documents):
        nats, targets = nats + cost, targets + len(document[1:])
    return nats / targets


def floor_with_one_eos_in_all(neg_log_p, documents):
    return sum(neg_log_p) / (len(list(itertools.chain(*documents))) - 1)


def floor_of_padded_rows(neg_log_p, documents):
    return sum(neg_log_p) / np.full((len(documents), max(map(len, documents))), 1)[:, 1:].sum()


def floor_weighted_with_targets(neg_log_p, documents):
    return np.average(neg_log_p, weights=[len(document) - 1 for document in documents])


def floor_in_bits(neg_log_p, documents):
    return floor_by_a_loop(neg_log_p, documents) / math.log(2)


def floor_as_a_fraction(neg_log_p, documents):
    return Fraction(math.fsum(neg_log_p)) / (len([token for row in documents for token in row]) - len(documents))


def floor_in_float32(neg_log_p, documents):
    return torch.tensor(neg_log_p).sum() / sum(len(document[:-1]) for document in documents)


def falls_from_the_start(step, peak_lr, total_steps, warmup_steps):
    return peak_lr * (total_steps - step) / total_steps


def falls_over_all_steps(step, peak_lr, total_steps, warmup_steps):
    if step < warmup_steps:
        return step / warmup_steps * peak_lr
    return peak_lr * (total_steps - step) / total_steps


def never_falls(step, peak_lr, total_steps, warmup_steps):
    return peak_lr * step / warmup_steps if step < warmup_steps else peak_lr


def without_the_peak(step, peak_lr, total_steps, warmup_steps):
    return step / warmup_steps if step < warmup_steps else (total_steps - step) / (total_steps - warmup_steps)


def begins_above_the_peak(step, peak_lr, total_steps, warmup_steps):
    return peak_lr * (total_steps - step) / (total_steps - warmup_steps)


def counts_from_the_start(step, peak_lr, total_steps, warmup_steps):
    if step < warmup_steps:
        return step / warmup_steps * peak_lr
    return peak_lr * max(0.0, 1 - step / (total_steps - warmup_steps))


def warm_up_above_zero(step, peak_lr, total_steps, warmup_steps):
    if step < warmup_steps:
        return (step + 1) / warmup_steps * peak_lr
    return linear_by_minimum(step, peak_lr, total_steps, warmup_steps)


def one_step_ahead(step, peak_lr, total_steps, warmup_steps):
    return linear_by_minimum(min(step + 1, total_steps), peak_lr, total_steps, warmup_steps)


def falls_as_a_cosine(step, peak_lr, total_steps, warmup_steps):
    return schedules.cosine(step, peak_lr=peak_lr, total_steps=total_steps, warmup_steps=warmup_steps)


def ends_one_step_early(step, peak_lr, total_steps, warmup_steps):
    if step < warmup_steps:
        return peak_lr * step / warmup_steps
    return peak_lr * max(0, total_steps - 1 - step) / (total_steps - 1 - warmup_steps)


def linear_by_interpolation(step, peak_lr, total_steps, warmup_steps):
    corners = [0, warmup_steps, total_steps] if warmup_steps else [0, total_steps]
    return np.interp(step, corners, [0.0, peak_lr, 0.0][-len(corners) :])


def linear_by_fractions(step, peak_lr, total_steps, warmup_steps):
    rising = Fraction(step, warmup_steps) if warmup_steps else 1
    return Fraction(peak_lr) * min(rising, Fraction(total_steps - step, total_steps - warmup_steps))


def linear_by_minimum(step, peak_lr, total_steps, warmup_steps):
    rising = step / warmup_steps if warmup_steps else 1.0
    return peak_lr * min(rising, (total_steps - step) / (total_steps - warmup_steps))


def linear_of_the_package(step, peak_lr, total_steps, warmup_steps):
    return schedules.linear(step, peak_lr=peak_lr, total_steps=total_steps, warmup_steps=warmup_steps)


def loss_of(model, batch, *, shift=1, padding=-100, reduction="mean"):
    logits = model(batch["input_ids"], batch["attention_mask"])
    length = logits.size(1) - shift
    targets = batch["labels"][:, shift:].where(batch["attention_mask"][:, shift:] == 1, padding)
    return F.cross_entropy(logits[:, :length].permute(0, 2, 1), targets, reduction=reduction)


def clip_whole(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_exactly(model):
    norm = torch.cat([weight.grad.flatten() for weight in model.parameters()]).norm()
    for weight in model.parameters():
        weight.grad = weight.grad / norm.clamp(min=1.0)


def clip_each(model):
    for weight in model.parameters():
        torch.nn.utils.clip_grad_norm_([weight], 1.0)


def clip_values(model):
    torch.nn.utils.clip_grad_value_(model.parameters(), 1.0)


def clip_to_one(model):
    norm = torch.nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
    for weight in model.parameters():
        weight.grad.div_(norm)


def loop(*, clip=clip_whole, zero=True, ahead=0, own_rate=False, first_group=False, **settings):
    """A training loop, right unless told otherwise; `settings` are those of `loss_of`."""

    def train_steps(model, batches, optimizer, lr_at):
        for k, batch in enumerate(batches, start=ahead):
            for group in optimizer.param_groups[: 1 if first_group else None]:
                group["lr"] = group["lr"] if own_rate else lr_at(k)
            if zero:
                optimizer.zero_grad()
            loss_of(model, batch, **settings).backward()
            if clip:
                clip(model)
            optimizer.step()

    return train_steps


def loop_with_a_scheduler(model, batches, optimizer, lr_at):
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_at)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        clip_whole(model)
        optimizer.step()
        scheduler.step()


def loop_that_sets_the_rate_last(model, batches, optimizer, lr_at):
    for k, batch in enumerate(batches):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        clip_whole(model)
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = lr_at(k)


def loop_with_one_step(model, batches, optimizer, lr_at):
    for k, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(k)
        loss_of(model, batch).backward()
    clip_whole(model)
    optimizer.step()


def loop_by_hand(model, batches, optimizer, lr_at):
    for k, batch in enumerate(batches):
        model.zero_grad()
        loss_of(model, batch).backward()
        clip_whole(model)
        for weight in model.parameters():
            weight.data -= lr_at(k) * weight.grad


def package_loop(model, batches, optimizer, lr_at):
    for k, batch in enumerate(batches):
        train_step(model, [batch], optimizer, lr=lr_at(k))


def loop_with_a_closure(model, batches, optimizer, lr_at):
    model.train()
    for lr, batch in zip(map(lr_at, itertools.count()), iter(batches)):
        for group in optimizer.param_groups:
            group.update(lr=lr)

        def closure(batch=batch):
            optimizer.zero_grad(set_to_none=False)
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
            real = batch["labels"][:, 1:] != -100
            scores = logits[:, :-1].log_softmax(-1)[real]
            loss = -scores[torch.arange(len(scores)), batch["labels"][:, 1:][real]].mean()
            loss.backward()
            clip_exactly(model)
            return loss

        optimizer.step(closure)


WRONG_ANSWERS = {
    "floor": [
        (floor_over_all_ids, "the first <eos>, which nothing predicts, counts as a target"),
        (floor_between_the_eos, "neither <eos> counts as a target, although the model predicts the last one"),
        (floor_as_mean_of_ratios, "each document weighs the same, however long it is"),
        (floor_with_one_eos_in_all, "one <eos> is left out for all documents together, not one for each"),
        (floor_of_padded_rows, "every document counts as long as the longest: padding is counted"),
        (
            floor_weighted_with_targets,
            "neg_log_p is weighted with the targets, but is the sum over its document already",
        ),
        (floor_in_bits, "the logarithm has base 2: this is bits per token, not nats"),
        (floor_per_document, "the sum is divided by the number of documents: nats per document, not per token"),
    ],
    "linear_schedule": [
        (falls_from_the_start, "there is no warm-up"),
        (falls_over_all_steps, "the line falls over all steps instead of those after the warm-up"),
        (never_falls, "the line never falls: the rate stays at its peak"),
        (without_the_peak, "the peak is left out"),
        (begins_above_the_peak, "there is no warm-up: the line begins above the peak"),
        (
            counts_from_the_start,
            "the line counts from step 0, not from the end of the warm-up: it reaches 0 too early",
        ),
        (warm_up_above_zero, "the warm-up is one step ahead: it begins above 0"),
        (one_step_ahead, "the schedule is one step ahead"),
        (falls_as_a_cosine, "a cosine falls instead of a straight line"),
        (ends_one_step_early, "the line reaches 0 one step early, at total_steps − 1"),
    ],
    "train_steps": [
        (loop(shift=0), "the loss is not shifted: position t is scored against token t"),
        (loop(padding=0), "padding counts as a target"),
        (loop(zero=False), "the gradients are never cleared"),
        (loop(ahead=1), "the learning rate is one step ahead: lr_at(k + 1)"),
        (loop(clip=None), "the gradient is not clipped before the step"),
        (loop(own_rate=True), "lr_at is not used and the optimizer keeps its own rate"),
        (loop(first_group=True), "only the first parameter group gets the rate"),
        (loop(clip=clip_each), "each parameter's gradient is clipped alone, not the norm of all together"),
        (loop(clip=clip_values), "each element of the gradient is clipped, not its norm"),
        (loop(clip=clip_to_one), "a short gradient is made longer: its norm is set to 1, not bounded by 1"),
        (loop(reduction="sum"), "the losses are summed, not averaged"),
        (
            loop_with_a_scheduler,
            "lr_at(k) is multiplied onto the optimizer's own rate (`LambdaLR` does so)",
        ),
        (loop_that_sets_the_rate_last, "the rate is set after the step, so that each step runs at the one before"),
        (loop_with_one_step, "there is one step for all batches together, at the end"),
        (
            loop_by_hand,
            "the weights are moved by hand, by −lr · gradient: `optimizer.step()` is not used",
        ),
        (
            loop(shift=0, zero=False),
            "the loss is not shifted: position t is scored against token t; and the gradients are never cleared",
        ),
    ],
}

EQUIVALENT = {
    "floor": [floor_by_a_loop, floor_as_a_fraction, floor_in_float32],
    "linear_schedule": [linear_by_minimum, linear_of_the_package, linear_by_interpolation, linear_by_fractions],
    "train_steps": [loop(), loop(clip=clip_exactly), package_loop, loop_with_a_closure],
}
