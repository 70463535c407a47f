"""Answers to the exercises of lesson 00: wrong ones, each with the mistake that must be named, and right ones."""

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


def linear_by_minimum(step, peak_lr, total_steps, warmup_steps):
    rising = step / warmup_steps if warmup_steps else 1.0
    return peak_lr * min(rising, (total_steps - step) / (total_steps - warmup_steps))


def linear_of_the_package(step, peak_lr, total_steps, warmup_steps):
    return schedules.linear(step, peak_lr=peak_lr, total_steps=total_steps, warmup_steps=warmup_steps)


def loop(*, shift=1, clip=True, zero=True, padding=-100, ahead=0, own_rate=False):
    """A training loop, right unless told otherwise."""

    def train_steps(model, batches, optimizer, lr_at):
        for k, batch in enumerate(batches, start=ahead):
            if not own_rate:
                optimizer.param_groups[0]["lr"] = lr_at(k)
            if zero:
                optimizer.zero_grad()
            logits = model(batch["input_ids"], batch["attention_mask"])
            length = logits.size(1) - shift
            targets = batch["labels"][:, shift:].where(batch["attention_mask"][:, shift:] == 1, padding)
            F.cross_entropy(logits[:, :length].permute(0, 2, 1), targets).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return train_steps


def package_loop(model, batches, optimizer, lr_at):
    for k, batch in enumerate(batches):
        train_step(model, [batch], optimizer, lr=lr_at(k))


WRONG_ANSWERS = {
    "floor": [
        (floor_over_all_ids, "the first <eos>, which nothing predicts, counts as a target"),
        (floor_between_the_eos, "neither <eos> counts as a target, although the model predicts the last one"),
        (floor_as_mean_of_ratios, "each document weighs the same, however long it is"),
        (floor_per_document, "the sum is divided by the number of documents: nats per document, not per token"),
    ],
    "linear_schedule": [
        (falls_from_the_start, "there is no warm-up"),
        (falls_over_all_steps, "the line falls over all steps instead of those after the warm-up"),
        (never_falls, "the line never falls: the rate stays at its peak"),
        (without_the_peak, "the peak is left out"),
    ],
    "train_steps": [
        (loop(shift=0), "the loss is not shifted: position t is scored against token t"),
        (loop(padding=0), "padding counts as a target"),
        (loop(zero=False), "the gradients are never cleared"),
        (loop(ahead=1), "the learning rate is one step ahead: lr_at(k + 1)"),
        (loop(clip=False), "the gradient is not clipped before the step"),
        (loop(own_rate=True), "lr_at is not used and the optimizer keeps its own rate"),
        (
            loop(shift=0, zero=False),
            "the loss is not shifted: position t is scored against token t; and the gradients are never cleared",
        ),
    ],
}

EQUIVALENT = {
    "floor": [floor_by_a_loop],
    "linear_schedule": [linear_by_minimum, linear_of_the_package],
    "train_steps": [loop(), package_loop],
}
