"""Checks of lesson 00: the floor, a schedule, and the loop itself."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from course_lm import schedules, spec
from course_lm.batching import Batch, pad_rows
from course_lm.classroom.checks.report import Report, compare
from course_lm.model import GPT, ModelConfig

Schedule = Callable[[int], float]

_MAX_GRAD_NORM = 1.0
# What goes wrong, as the specification's faults and as settings that differ.
_LOOP_MISTAKES: dict[str, tuple[str | None, dict[str, Any]]] = {
    "the loss is not shifted: position t is scored against token t": ("unshifted_labels", {}),
    "padding counts as a target": ("pads_counted", {}),
    "the gradients are never cleared": ("missing_zero_grad", {}),
    "the learning rate is one step ahead: lr_at(k + 1)": ("schedule_off_by_one", {}),
    "the gradient is not clipped before the step": (None, {"max_grad_norm": None}),
    "lr_at is not used and the optimizer keeps its own rate": (None, {"schedule": lambda k: _OWN_LR}),
}
_OWN_LR = 0.05


def floor(fn: Callable[..., object]) -> Report:
    """The lowest loss in nats per token: `fn(neg_log_p, documents)`, −log p of each document and its token ids."""

    def reference(neg_log_p: list[float], documents: list[list[int]]) -> float:
        return sum(neg_log_p) / sum(len(document) - 1 for document in documents)

    return compare(
        fn,
        reference=reference,
        cases={
            "one document": ([12.0], [[1, 7, 8, 9, 1]]),
            "documents of different lengths": ([4.0, 30.0, 9.5], [[1, 7, 1], [1] + [5] * 19 + [1], [1, 8, 9, 1]]),
        },
        mistakes={
            "the first <eos>, which nothing predicts, counts as a target": lambda costs, documents: (
                sum(costs) / sum(len(document) for document in documents)
            ),
            "neither <eos> counts as a target, although the model predicts the last one": lambda costs, documents: (
                sum(costs) / sum(len(document) - 2 for document in documents)
            ),
            "each document weighs the same, however long it is": lambda costs, documents: (
                sum(cost / (len(document) - 1) for cost, document in zip(costs, documents)) / len(costs)
            ),
            "the sum is divided by the number of documents: nats per document, not per token": (
                lambda costs, documents: sum(costs) / len(costs)
            ),
            "the sum is not divided by the number of targets": lambda costs, documents: sum(costs),
        },
    )


def linear_schedule(fn: Callable[..., object]) -> Report:
    """Warm-up, then a straight line to 0: `fn(step, peak_lr, total_steps, warmup_steps)`."""

    def reference(step: int, peak_lr: float, total_steps: int, warmup_steps: int) -> float:
        return schedules.linear(step, peak_lr=peak_lr, total_steps=total_steps, warmup_steps=warmup_steps)

    def whole_run(fn: Callable[..., Any], *numbers: Any) -> list[float] | None:
        _, total_steps, _ = numbers
        rates = [fn(step, *numbers) for step in range(total_steps + 1)]
        return None if rates[0] in (None, ...) else rates

    return compare(
        fn,
        reference=reference,
        cases={
            "10 steps, 4 of them warm-up": (1.0, 10, 4),
            "another peak": (3e-4, 25, 5),
            "no warm-up": (0.5, 4, 0),
        },
        mistakes={
            "there is no warm-up": lambda step, peak, total, warmup: peak * (1 - step / total),
            "the line falls over all steps instead of those after the warm-up": lambda step, peak, total, warmup: (
                peak * step / warmup if step < warmup else peak * (1 - step / total)
            ),
            "the line never falls: the rate stays at its peak": lambda step, peak, total, warmup: (
                peak * min(1.0, step / warmup if warmup else 1.0)
            ),
            "the peak is left out": lambda step, peak, total, warmup: reference(step, 1.0, total, warmup),
            "the schedule is one step ahead": lambda step, peak, total, warmup: reference(
                min(step + 1, total), peak, total, warmup
            ),
        },
        run=whole_run,
    )


def train_steps(fn: Callable[..., object]) -> Report:
    """The loop: `fn(model, batches, optimizer, lr_at)` makes one optimizer step for each batch.

    The weights that it leaves are compared with those that the executable specification leaves, without and with
    its faults (see `spec.FAULTS`), alone and in pairs.
    """
    batches = [_batch([5, 3], seed) for seed in range(3)]
    mistakes = {}
    for size in (1, 2):
        for clauses in combinations(_LOOP_MISTAKES, size):
            mistakes["; and ".join(clauses)] = _as_specified(*clauses)
    return compare(
        fn,
        reference=_as_specified(),
        cases={
            "three batches with padding": (batches, lambda k: 0.02 / (1 + k)),
            "one batch": (batches[:1], lambda k: 0.01 + 0.02 * k),
        },
        mistakes=mistakes,
        run=_weights_after,
        close=(1e-7, 1e-9),
    )


def _batch(lengths: list[int], seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, _VOCAB_SIZE, (sum(lengths),), generator=generator)
    return pad_rows(tokens, torch.tensor(lengths), width=max(lengths), pad_id=0)


_VOCAB_SIZE = 11


def _model() -> GPT:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=0.0), _VOCAB_SIZE, max_length=8).double()
        for weight in model.parameters():
            nn.init.normal_(weight, std=1.0)  # gradients long enough that clipping matters
    return model


def _weights_after(fn: Callable[..., object], batches: Sequence[Batch], lr_at: Schedule) -> dict[str, Tensor] | None:
    """The weights that training leaves; None where it changes none of them."""
    model = _model()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    fn(model, batches, AdamW(model.parameters(), lr=_OWN_LR, weight_decay=0.0), lr_at)
    after = dict(model.state_dict())
    return None if all(torch.equal(before[name], after[name]) for name in before) else after


def _as_specified(*clauses: str) -> Callable[..., None]:
    """The loop as the specification makes it, with the named mistakes."""
    chosen = [_LOOP_MISTAKES[clause] for clause in clauses]
    faults = {fault for fault, _ in chosen if fault}
    changed = {key: value for _, settings in chosen for key, value in settings.items()}

    def train(model: nn.Module, batches: Sequence[Batch], optimizer: Optimizer, lr_at: Schedule) -> None:
        settings = spec.Settings(**{"schedule": lr_at, "max_grad_norm": _MAX_GRAD_NORM, **changed})
        model.load_state_dict(spec.train(model, [batches], settings, faults).weights)

    return train
