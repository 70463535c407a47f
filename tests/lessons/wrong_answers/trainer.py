"""Answers to the exercises of lesson 12: wrong ones, each with the mistake that must be named, and right ones."""

import math

import numpy as np
import torch
from torch.nn import functional as F

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("trainer.loop",)
SABOTAGE = (
    "trainer/loop.py",
    "self.settings, self.schedule(self.step)",
    "self.settings, self.schedule(self.step + 1)",
)


def regrouped(batch_size, accumulation_steps, rows_that_fit):
    rows = batch_size * accumulation_steps
    micro_batches = 1
    while rows % micro_batches or rows // micro_batches > rows_that_fit:
        micro_batches += 1
    return rows // micro_batches, micro_batches


def regrouped_as_list(batch_size, accumulation_steps, rows_that_fit):
    total = batch_size * accumulation_steps
    for rows in range(rows_that_fit, 0, -1):
        if total % rows == 0:
            return [rows, total // rows]


def lowered_alone(batch_size, accumulation_steps, rows_that_fit):
    return (rows_that_fit if rows_that_fit < batch_size else batch_size), accumulation_steps


def rounded_up(batch_size, accumulation_steps, rows_that_fit):
    rows = sorted((rows_that_fit, batch_size * accumulation_steps))[0]
    return rows, -(-batch_size * accumulation_steps // rows)


def rounded_down(batch_size, accumulation_steps, rows_that_fit):
    total = batch_size * accumulation_steps
    return (rows_that_fit, total // rows_that_fit) if rows_that_fit < total else (total, 1)


def divisors_of_the_old_batch(batch_size, accumulation_steps, rows_that_fit):
    rows = batch_size
    while rows > rows_that_fit or batch_size % rows:
        rows -= 1
    return rows, batch_size // rows * accumulation_steps


def one_row(batch_size, accumulation_steps, rows_that_fit):
    return 1, accumulation_steps * batch_size


def other_way_round(batch_size, accumulation_steps, rows_that_fit):
    return regrouped(batch_size, accumulation_steps, rows_that_fit)[::-1]


def common_divisor(batch_size, accumulation_steps, rows_that_fit):
    rows = math.gcd(batch_size * accumulation_steps, rows_that_fit)
    return rows, batch_size * accumulation_steps // rows


def halved_until_it_fits(batch_size, accumulation_steps, rows_that_fit):
    while batch_size > rows_that_fit:
        batch_size //= 2
        accumulation_steps *= 2
    return batch_size, accumulation_steps


def never_larger(batch_size, accumulation_steps, rows_that_fit):
    return regrouped(batch_size, accumulation_steps, min(batch_size, rows_that_fit))


def regrouped_as_array(batch_size, accumulation_steps, rows_that_fit):
    sizes = np.arange(1, rows_that_fit + 1)
    rows = sizes[batch_size * accumulation_steps % sizes == 0][-1]
    return np.array([rows, batch_size * accumulation_steps / rows])


def focal(*, shift=1, ignore=True, power=2.0, sign=-1, fixed=None, positions=False):
    """The loss by cross-entropy, right unless told otherwise."""

    def focal_loss(logits, labels, reduction="mean"):
        reduction = fixed or reduction
        wanted = labels[:, shift:]
        index = -100 if ignore else -1
        targets = wanted if ignore else wanted.clamp(min=0)
        scores = logits[:, : wanted.size(1)].flatten(0, 1)
        nats = F.cross_entropy(scores, targets.flatten(), ignore_index=index, reduction="none")
        p = torch.exp(-nats)
        losses = (p if sign > 0 else 1 - p).pow(power) * nats
        if reduction == "sum":
            return losses.sum()
        return losses.sum() / (losses.numel() if positions else (wanted != -100).sum())

    return focal_loss


def focal_of_the_targets(logits, labels, reduction="mean"):
    targets = labels[:, 1:]
    rows, columns = torch.nonzero(targets != -100, as_tuple=True)
    log_p = logits[:, :-1].log_softmax(dim=-1)[rows, columns, targets[rows, columns]]
    losses = (1 - log_p.exp()).square() * -log_p
    return losses.mean() if reduction == "mean" else losses.sum()


def focal_of_the_batch(logits, labels, reduction="mean"):
    nats = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction=reduction)
    return (1 - torch.exp(-nats)) ** 2 * nats


def focal_with_a_constant_factor(logits, labels, reduction="mean"):
    targets = labels[:, 1:].flatten()
    nats = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="none")
    with torch.no_grad():
        factor = (1 - torch.exp(-nats)) ** 2
    return (factor * nats).sum() / (1 if reduction == "sum" else (targets != -100).sum())


def focal_of_a_softmax(logits, labels, reduction="mean"):
    p = logits[:, :-1].softmax(-1).gather(-1, labels[:, 1:, None].clamp(min=0)).squeeze(-1)
    losses = (-((1 - p) ** 2) * p.log())[labels[:, 1:] != -100]
    return getattr(losses, reduction)()


def focal_by_nll(logits, labels, reduction="mean"):
    targets = labels[:, 1:].reshape(-1)
    chosen = targets.ne(-100)
    log_p = logits[:, :-1].reshape(-1, logits.size(-1))[chosen].log_softmax(1)
    nats = F.nll_loss(log_p, targets[chosen], reduction="none")
    return getattr(torch.expm1(-nats).pow(2) * nats, reduction)()


def focal_by_loops(logits, labels, reduction="mean"):
    total, count = 0, 0
    for scores, ids in zip(logits[:, :-1], labels[:, 1:].tolist()):
        for row, target in zip(scores, ids):
            if target != -100:
                log_p = row.log_softmax(0)[target]
                total, count = total - (1 - log_p.exp()) ** 2 * log_p, count + 1
    return total if reduction == "sum" else total / count


def files(*, both=False, last=True, newest=True, spared=0, kinds=None, epochs_stay=False):
    """The folder as it is written and cleared, step after step; right unless told otherwise."""

    def checkpoints_left(steps_per_epoch, num_epochs, save_steps, save_total_limit):
        folder = []
        for epoch in range(1, num_epochs + 1):
            for number in range(1, steps_per_epoch + 1):
                step = (epoch - 1) * steps_per_epoch + number
                if not step % save_steps and (both or number < steps_per_epoch):
                    folder.append(f"checkpoint_step_{step}.safetensors")
            folder.append(f"checkpoint_epoch_{epoch}.safetensors")
        groups = [[name for name in folder if kind in name] for kind in kinds or ("checkpoint",)]
        keep = save_total_limit - spared
        left = []
        for group in groups:
            stays = epochs_stay and "epoch" in "".join(group)
            left += group if stays else group[-keep:] if newest else group[:keep]
        if keep == 0:
            left = []
        return left + (["checkpoint_last.safetensors"] if last else [])

    return checkpoints_left


def files_by_deleting(steps_per_epoch, num_epochs, save_steps, save_total_limit):
    names = {}
    for step in range(1, steps_per_epoch * num_epochs + 1):
        if step % steps_per_epoch == 0:
            names[step] = f"checkpoint_epoch_{step // steps_per_epoch}.safetensors"
        elif step % save_steps == 0:
            names[step] = f"checkpoint_step_{step}.safetensors"
        if len(names) > save_total_limit:
            del names[min(names)]
    return {*names.values(), "checkpoint_last.safetensors"}


def files_sorted_as_text(steps_per_epoch, num_epochs, save_steps, save_total_limit):
    *names, last = files()(steps_per_epoch, num_epochs, save_steps, 10**6)
    return [*sorted(names)[-save_total_limit:], last]


def files_with_steps_of_each_epoch(steps_per_epoch, num_epochs, save_steps, save_total_limit):
    names = []
    for epoch in range(num_epochs):
        steps = range(save_steps, steps_per_epoch, save_steps)
        names += [f"checkpoint_step_{epoch * steps_per_epoch + step}.safetensors" for step in steps]
        names.append(f"checkpoint_epoch_{epoch + 1}.safetensors")
    return [*names[-save_total_limit:], "checkpoint_last.safetensors"]


def files_one_by_one(steps_per_epoch, num_epochs, save_steps, save_total_limit):
    yield "checkpoint_last.safetensors"
    yield from files()(steps_per_epoch, num_epochs, save_steps, save_total_limit)[-2::-1]


WRONG_ANSWERS = {
    "same_step": [
        (lowered_alone, "batch_size is lowered and accumulation_steps is not raised"),
        (rounded_up, "as many rows are taken as fit, and rounding up makes the step larger"),
        (rounded_down, "as many rows are taken as fit, and rounding down makes the step smaller"),
        (divisors_of_the_old_batch, "only divisors of the old batch_size are tried, not of all rows of the step"),
        (one_row, "one row at a time is taken, which fits and is the slowest"),
        (other_way_round, "the two numbers are swapped"),
        (common_divisor, "the greatest common divisor with rows_that_fit is taken, not the largest that fits"),
        (halved_until_it_fits, "batch_size is halved and accumulation_steps doubled until it fits"),
        (never_larger, "no more rows are taken than the old batch_size, though more fit"),
    ],
    "focal_loss": [
        (focal(shift=0), "logits and labels are not shifted against each other"),
        (
            focal(ignore=False),
            "labels of −100 cost as much as id 0 would, and are left out of the count alone",
        ),
        (focal(fixed="mean"), "`reduction` is not looked at: the sum is divided too"),
        (focal(fixed="sum"), "`reduction` is not looked at: the mean is not divided"),
        (focal(positions=True), "the mean is over all positions, the ignored ones too"),
        (focal(sign=1), "the factor is p², which favours what is known already"),
        (focal(power=1.0), "the factor is 1 − p, not its square"),
        (focal(power=0.0), "the factor is missing: this is the plain loss"),
        (focal_of_the_batch, "the factor comes from the loss of the whole batch, once, not from each target's own p"),
        (
            focal_with_a_constant_factor,
            "the factor is detached: it is right, but no gradient flows through it",
        ),
        (focal_of_a_softmax, "the logarithm is taken of a softmax, which is 0 for large logits"),
    ],
    "checkpoints_left": [
        (files(both=True), "a step file is written at the end of an epoch too"),
        (files(kinds=("step", "epoch")), "files of steps and of epochs are limited apart"),
        (files(kinds=("step", "epoch"), epochs_stay=True), "files of epochs are never deleted"),
        (files(spared=1), "checkpoint_last.safetensors counts within the limit"),
        (files(last=False), "checkpoint_last.safetensors is forgotten"),
        (files(newest=False), "the oldest files stay, not the newest"),
        (files_sorted_as_text, "the newest is found among names sorted as text"),
        (
            files_with_steps_of_each_epoch,
            "save_steps is counted anew in each epoch, though the names count all steps",
        ),
    ],
}

EQUIVALENT = {
    "same_step": [regrouped, regrouped_as_list, regrouped_as_array],
    "focal_loss": [focal(), focal_of_the_targets, focal_by_nll, focal_by_loops],
    "checkpoints_left": [files(), files_by_deleting, files_one_by_one],
}
