"""Answers to the exercises of lesson 16: wrong ones, each with the mistake that must be named, and right ones."""

import copy
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, AdamW

from course_lm.audit import spec

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("audit",)
SABOTAGE = (
    "audit/search.py",
    "return all(self.apart(case, explanation) <= 1.0 for case in self.cases)",
    "return any(self.apart(case, explanation) <= 1.0 for case in self.cases)",
)


def _sum(model, batch):
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"])[:, :-1]
    return cross_entropy(logits.transpose(1, 2), batch["labels"][:, 1:], reduction="sum")


def _count(*batches):
    return sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)


def _as_with(*faults):
    """A loop that leaves what the specification with these faults leaves."""

    def loop(model, epochs, settings):
        made = spec.train(model, epochs, settings, faults)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(made.weights[name])
        return {"validation_losses": made.validation_losses, "best_weights": made.best_weights}

    loop.__name__ = "_".join(faults)
    return loop


# Exercise 1


def _accumulation(weigh, full_only=False, clear_each=False):
    def loop(model, epochs, settings):
        size, lr = settings.accumulation_steps, settings.schedule(0)
        optimizer = SGD(model.parameters(), lr=lr)
        for batches in epochs:
            windows = [batches[start : start + size] for start in range(0, len(batches), size)]
            for window in windows:
                if not _count(*window) or (full_only and len(window) < size):
                    continue
                optimizer.zero_grad()
                for batch in window:
                    if clear_each:
                        optimizer.zero_grad()
                    (_sum(model, batch) * weigh(batch, window, size)).backward()
                optimizer.step()
        return {"ignores": ["momentum", "schedule"]}

    return loop


def _named(loop, name):
    loop.__name__ = name
    return loop


means = _named(_accumulation(lambda batch, window, size: 1 / max(1, _count(batch)) / len(window)), "means")
undivided = _named(_accumulation(lambda batch, window, size: 1 / max(1, _count(batch))), "undivided")
full_only = _named(_accumulation(lambda batch, window, size: 1 / _count(*window), full_only=True), "full_only")
full_size = _named(_accumulation(lambda batch, window, size: len(window) / size / _count(*window)), "full_size")
last_alone = _named(_accumulation(lambda batch, window, size: 1 / _count(*window), clear_each=True), "last_alone")


def one_big_batch(model, epochs, settings):
    size = settings.accumulation_steps
    for batches in epochs:
        for start in range(0, len(batches), size):
            window = batches[start : start + size]
            if not _count(*window):
                continue
            loss = torch.stack([_sum(model, batch) for batch in window]).sum() / _count(*window)
            parameters = list(model.parameters())
            with torch.no_grad():
                for weight, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                    weight -= settings.schedule(0) * gradient
    return {"ignores": {"schedule", "momentum"}}


# Exercise 2


def _validation(*, restore=True, whole=True, copied=True, evaluate=True):
    def loop(model, epochs, settings):
        losses, best, lowest, k = [], None, math.inf, 0
        for batches in epochs:
            for batch in batches:
                gradients = torch.autograd.grad(_sum(model, batch) / _count(batch), list(model.parameters()))
                with torch.no_grad():
                    for weight, gradient in zip(model.parameters(), gradients):
                        weight -= settings.schedule(k) * gradient
                k += 1
            model.train(not evaluate)
            with torch.no_grad():
                sums = [(float(_sum(model, batch)), _count(batch)) for batch in settings.validation]
            if restore:
                model.train()
            sums = [one for one in sums if one[1]]
            means = [total / count for total, count in sums]
            loss = sum(total for total, _ in sums) / sum(count for _, count in sums)
            losses.append(loss if whole else sum(means) / len(means))
            if losses[-1] < lowest:
                lowest, best = losses[-1], {name: weight.detach() for name, weight in model.named_parameters()}
                best = copy.deepcopy(best) if copied else best
        return {"validation_losses": losses, "best_weights": best}

    return loop


stays_in_eval = _named(_validation(restore=False), "stays_in_eval")
mean_of_batches = _named(_validation(whole=False), "mean_of_batches")
live_tensors = _named(_validation(copied=False), "live_tensors")
never_evaluates = _named(_validation(evaluate=False), "never_evaluates")
by_hand = _named(_validation(), "by_hand")


# Exercise 3


def _optimizer(*, coupled=False, everything=False, early=False, frozen=False, exchanged=False):
    def loop(model: nn.Module, epochs, settings):
        betas = (settings.beta1, settings.beta2)
        kind = Adam if coupled else AdamW
        decayed = [one for one in model.parameters() if everything or one.ndim > 1]
        rest = [one for one in model.parameters() if not everything and one.ndim < 2]
        groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        groups = [group for group in groups if group["params"]]
        optimizer = kind(groups, lr=1.0, betas=betas[::-1] if exchanged else betas, eps=settings.epsilon)
        for k, batch in enumerate(batch for batches in epochs for batch in batches):
            for group in optimizer.param_groups:
                group["lr"] = settings.schedule(0 if frozen else k + early)
            optimizer.zero_grad()
            (_sum(model, batch) / _count(batch)).backward()
            optimizer.step()
        return {"ignores": {"optimizer", "accumulation_steps", "max_grad_norm", "validation", "loss_scale"}}

    return loop


adam_decay = _named(_optimizer(coupled=True), "adam_decay")
decays_all = _named(_optimizer(everything=True), "decays_all")
one_ahead = _named(_optimizer(early=True), "one_ahead")
first_rate = _named(_optimizer(frozen=True), "first_rate")
exchanged = _named(_optimizer(exchanged=True), "exchanged")
own_loop = _named(_optimizer(), "own_loop")

WRONG_ANSWERS = {
    "mended_windows": [
        (means, spec.FAULTS["mean_of_means"]),
        (undivided, spec.FAULTS["accumulation_not_divided"]),
        (full_only, spec.FAULTS["tail_dropped"]),
        (full_size, spec.FAULTS["tail_divided_by_full"]),
        (last_alone, spec.FAULTS["zero_grad_per_micro_batch"]),
    ],
    "mended_validation": [
        (stays_in_eval, spec.FAULTS["stays_in_eval_mode"]),
        (mean_of_batches, spec.FAULTS["val_mean_of_means"]),
        (live_tensors, spec.FAULTS["best_is_a_reference"]),
        (never_evaluates, spec.FAULTS["validation_in_train_mode"]),
    ],
    "mended_adamw": [
        (adam_decay, spec.FAULTS["coupled_decay"]),
        (decays_all, spec.FAULTS["decays_everything"]),
        (one_ahead, spec.FAULTS["schedule_off_by_one"]),
        (first_rate, spec.FAULTS["schedule_never_moves"]),
        (exchanged, spec.FAULTS["betas_exchanged"]),
    ],
}
EQUIVALENT = {
    "mended_windows": [one_big_batch, _as_with()],
    "mended_validation": [by_hand, _as_with()],
    "mended_adamw": [own_loop, _as_with()],
}
