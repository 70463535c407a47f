"""Answers to the exercises of lesson 05: wrong ones, each with the mistake that must be named, and right ones."""

import math
from itertools import islice

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

from course_lm import schedules
from course_lm.config import LoopConfig
from course_lm.schedules import ScheduleLR
from course_lm.trainer.run import count_steps

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("schedules",)
SABOTAGE = (
    "schedules.py",
    "math.cos(2 * math.pi * num_cycles * progress)",
    "math.cos(math.pi * num_cycles * progress)",
)


def batches_of_all_epochs(num_documents, batch_size, accumulation_steps, num_epochs):
    return num_epochs * len(range(0, num_documents, batch_size))


def full_windows_only(num_documents, batch_size, accumulation_steps, num_epochs):
    return math.ceil(num_documents / batch_size) // accumulation_steps * num_epochs


def full_batches_only(num_documents, batch_size, accumulation_steps, num_epochs):
    return math.ceil(num_documents // batch_size / accumulation_steps) * num_epochs


def floors_everywhere(num_documents, batch_size, accumulation_steps, num_epochs):
    return num_documents // (batch_size * accumulation_steps) * num_epochs


def rounds_once(num_documents, batch_size, accumulation_steps, num_epochs):
    return math.ceil(num_epochs * math.ceil(num_documents / batch_size) / accumulation_steps)


def one_epoch(num_documents, batch_size, accumulation_steps, num_epochs):
    return math.ceil(num_documents / (batch_size * accumulation_steps))


def steps_in_one_division(num_documents, batch_size, accumulation_steps, num_epochs):
    return num_epochs * math.ceil(num_documents / (batch_size * accumulation_steps))


def steps_by_counting(num_documents, batch_size, accumulation_steps, num_epochs):
    steps = 0
    for _ in range(num_epochs):
        batches = iter(range(0, num_documents, batch_size))
        while list(islice(batches, accumulation_steps)):
            steps += 1
    return steps


def steps_of_the_package(num_documents, batch_size, accumulation_steps, num_epochs):
    loop = LoopConfig(gradient_accumulation_steps=accumulation_steps, num_epochs=num_epochs)
    return count_steps(range(0, num_documents, batch_size), loop)


def cosine_by_tokens(*, waves=0.5, low=0.1, subtract=True, hold=True, floor_by_max=False, high=None):
    """A schedule in tokens, right unless told otherwise."""

    def rate_by_tokens(tokens, peak_lr, warmup_tokens, decay_tokens):
        if warmup_tokens and tokens < warmup_tokens:
            return tokens / warmup_tokens * peak_lr
        if hold and tokens >= decay_tokens:
            return low * peak_lr if not floor_by_max else 0.1 * peak_lr
        start = warmup_tokens if subtract else 0
        angle = 2 * np.pi * waves * (tokens - start) / (decay_tokens - start)
        height = (high or 1 - low) / 2
        rate = float(low + height * (1 + np.cos(angle)))
        return peak_lr * (max(0.1, rate) if floor_by_max else rate)

    return rate_by_tokens


def starts_at_the_peak(tokens, peak_lr, warmup_tokens, decay_tokens):
    progress = np.clip((tokens - warmup_tokens) / (decay_tokens - warmup_tokens), 0, 1)
    return peak_lr * (0.55 + 0.45 * math.cos(math.pi * progress))


def cosine_of_the_package(tokens, peak_lr, warmup_tokens, decay_tokens):
    config = schedules.ScheduleConfig("cosine", warmup_steps=warmup_tokens, min_lr=0.1 * peak_lr)
    return schedules.build_schedule(config, peak_lr=peak_lr, total_steps=decay_tokens)(tokens)


def plateau_and_decay(shape, *, start=lambda total, warmup, decay: total - decay, length=None, ahead=0):
    """A cooldown, right where `shape` is 1 − sqrt and nothing else is given."""

    def cooldown_rate(step, peak_lr, total_steps, warmup_steps, decay_steps):
        first = start(total_steps, warmup_steps, decay_steps)
        steps = total_steps - first if length is None else length(decay_steps)
        if step < warmup_steps:
            return peak_lr / warmup_steps * step
        passed = step + ahead - first
        if passed <= 0:
            return peak_lr
        return peak_lr * shape(min(passed, steps) / steps)

    return cooldown_rate


def one_minus_root(progress):
    return 1 - progress**0.5


def without_the_ramp(step, peak_lr, total_steps, warmup_steps, decay_steps):
    remaining = min(decay_steps, total_steps - step)
    return peak_lr * (1 - math.sqrt((decay_steps - remaining) / decay_steps))


def cooldown_by_cases(step, peak_lr, total_steps, warmup_steps, decay_steps):
    if step < warmup_steps:
        return peak_lr * step / warmup_steps
    if step <= total_steps - decay_steps:
        return peak_lr
    return peak_lr * (1 - math.sqrt(1 - (total_steps - step) / decay_steps))


def loop(*, k_of=lambda index, size, step: step, sizes=lambda size, window: window, first_only=False, zero=True):
    """A loop over micro-batches by number, as it is mostly written; right unless told otherwise."""

    def scheduled_steps(micro_batches, optimizer, accumulation_steps, lr_at):
        step = 0
        optimizer.zero_grad()
        for index, micro_batch in enumerate(micro_batches):
            window_start = index - index % accumulation_steps
            window = min(accumulation_steps, len(micro_batches) - window_start)
            micro_batch().div(sizes(accumulation_steps, window)).backward()
            if (index + 1) % accumulation_steps == 0 or index + 1 == len(micro_batches):
                for group in optimizer.param_groups:
                    group["lr"] = lr_at(k_of(index, accumulation_steps, step)) * group.get("lr_scale", 1)
                    if first_only:
                        break
                optimizer.step()
                if zero:
                    optimizer.zero_grad()
                step += 1

    return scheduled_steps


def only_full_windows(micro_batches, optimizer, accumulation_steps, lr_at):
    whole = len(micro_batches) - len(micro_batches) % accumulation_steps
    loop()(micro_batches[:whole], optimizer, accumulation_steps, lr_at)


def one_rate_for_all(micro_batches, optimizer, accumulation_steps, lr_at):
    for group in optimizer.param_groups:
        group.pop("lr_scale", None)
    loop()(micro_batches, optimizer, accumulation_steps, lr_at)


def with_a_scheduler(micro_batches, optimizer, accumulation_steps, lr_at):
    scheduler = ScheduleLR(optimizer, lr_at)
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        optimizer.zero_grad()
        torch.stack([micro_batch() for micro_batch in window]).mean().backward()
        optimizer.step()
        scheduler.step()


def rate_set_too_late(micro_batches, optimizer, accumulation_steps, lr_at):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        optimizer.zero_grad()
        torch.stack([micro_batch() for micro_batch in window]).mean().backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = lr_at(start // accumulation_steps) * group.get("lr_scale", 1.0)


def nearest_everywhere(num_documents, batch_size, accumulation_steps, num_epochs):
    return num_epochs * round(round(num_documents / batch_size) / accumulation_steps)


def stepped_for_each_micro_batch(micro_batches, optimizer, accumulation_steps, lr_at):
    for group in optimizer.param_groups:
        group["initial_lr"] = group.get("lr_scale", 1)
    scheduler = LambdaLR(optimizer, lr_at)
    for start in range(0, len(micro_batches), accumulation_steps):
        optimizer.zero_grad()
        window = micro_batches[start : start + accumulation_steps]
        torch.stack([micro_batch() for micro_batch in window]).mean().backward()
        optimizer.step()
        for _ in window:
            scheduler.step()


WRONG_ANSWERS = {
    "optimizer_steps": [
        (batches_of_all_epochs, "micro-batches are counted instead of optimizer steps"),
        (full_windows_only, "the last, smaller window of each epoch is dropped"),
        (full_batches_only, "the last, smaller batch of each epoch is dropped"),
        (floors_everywhere, "both tails of each epoch are dropped"),
        (rounds_once, "the steps of the whole run are rounded once, as if a window went on into the next epoch"),
        (one_epoch, "only one epoch is counted"),
        (nearest_everywhere, "batches and windows are rounded to the nearest number, not up"),
    ],
    "rate_by_tokens": [
        (cosine_by_tokens(waves=1.0), "the cosine makes a full wave instead of half a wave"),
        (cosine_by_tokens(waves=0.5 / np.pi), "π is missing"),
        (cosine_by_tokens(subtract=False), "the warm-up is not subtracted: the cosine runs over all tokens"),
        (cosine_by_tokens(low=0.0), "the rate falls to 0, not to a tenth of the peak"),
        (cosine_by_tokens(low=0.0, floor_by_max=True), "the cosine falls to 0 and is cut off at a tenth"),
        (cosine_by_tokens(high=1.0), "the tenth is added to a cosine of full height"),
        (cosine_by_tokens(hold=False), "the wave goes on after decay_tokens, and the rate rises again"),
        (starts_at_the_peak, "there is no warm-up"),
    ],
    "cooldown_rate": [
        (plateau_and_decay(lambda p: 1 - p), "the root is left out: the decay is a straight line"),
        (
            plateau_and_decay(lambda p: (1 - p) ** 0.5),
            "the root is taken of the steps that remain: sqrt(1 − progress)",
        ),
        (
            plateau_and_decay(one_minus_root, start=lambda total, warmup, decay: warmup),
            "the decay runs over everything after the warm-up",
        ),
        (
            plateau_and_decay(one_minus_root, start=lambda total, warmup, decay: decay),
            "decay_steps is taken as the step at which the decay begins, not as its length",
        ),
        (
            plateau_and_decay(one_minus_root, ahead=1, length=lambda decay: decay),
            "the decay is one step early",
        ),
        (
            plateau_and_decay(lambda p: (1 + math.cos(math.pi * p)) / 2),
            "a cosine falls instead of 1 − sqrt",
        ),
        (plateau_and_decay(lambda p: p**0.5), "the decay rises from 0 to the peak: sqrt(progress)"),
        (without_the_ramp, "there is no warm-up"),
    ],
    "scheduled_steps": [
        (
            stepped_for_each_micro_batch,
            "the schedule counts micro-batches: a step runs at the rate of its first micro-batch",
        ),
        (
            loop(k_of=lambda index, size, step: index),
            "the schedule counts micro-batches: a step runs at the rate of its last micro-batch",
        ),
        (loop(k_of=lambda index, size, step: step + 1), "the learning rate is one step ahead: lr_at(k + 1)"),
        (one_rate_for_all, "lr_scale is ignored"),
        (rate_set_too_late, "the rate is set after the step, so that each step runs at the one before"),
        (loop(first_only=True), "only the first parameter group gets the rate"),
        (only_full_windows, "the last, smaller window is dropped"),
        (loop(sizes=lambda size, window: 1), "the gradients are summed, not averaged over the window"),
        (loop(zero=False), "the gradients are never cleared"),
        (
            loop(sizes=lambda size, window: size),
            "the last, smaller window is divided by accumulation_steps, not by its own size",
        ),
    ],
}

EQUIVALENT = {
    "optimizer_steps": [steps_in_one_division, steps_by_counting, steps_of_the_package],
    "rate_by_tokens": [cosine_by_tokens(), cosine_of_the_package],
    "cooldown_rate": [plateau_and_decay(one_minus_root), cooldown_by_cases],
    "scheduled_steps": [loop(), with_a_scheduler],
}
