"""Checks of lesson 00: the floor, a schedule, and the loop itself."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from course_lm import schedules
from course_lm.audit import spec
from course_lm.batching import Batch, pad_rows
from course_lm.classroom.checks.report import AnyOf, Edit, Report, compare

Schedule = Callable[[int], float]

_MAX_GRAD_NORM = 1.0
_OWN_LR = 0.05
_MOMENTUM = 0.9
_VOCAB_SIZE = 11


def floor(fn: Callable[..., object]) -> Report:
    """What the true distribution pays per token: `fn(neg_log_p, documents)`, −log p of each document and its ids."""
    each = "sum(len(document) - 1 for document in documents)"

    def reference(neg_log_p: list[float], documents: list[list[int]]) -> float:
        return sum(neg_log_p) / sum(len(document) - 1 for document in documents)

    def mean_of_ratios(ends: int) -> Callable[..., float]:
        return lambda costs, documents: fmean(
            cost / max(1, len(document) - ends) for cost, document in zip(costs, documents)
        )

    def weighted(costs: list[float], documents: list[list[int]]) -> float:
        counts = [len(document) - 1 for document in documents]
        return sum(cost * count for cost, count in zip(costs, counts)) / sum(counts)

    return compare(
        fn,
        reference=reference,
        cases={
            "one document": ([12.0], [[1, 7, 8, 9, 1]]),
            "documents of different lengths": ([4.0, 30.0, 9.5], [[1, 7, 1], [1] + [5] * 19 + [1], [1, 8, 9, 1]]),
            "an empty document among others": ([6.0, 1.0, 8.0], [[1, 4, 5, 5, 6, 1], [1, 1], [1, 9, 6, 1]]),
        },
        shown=["one document", "documents of different lengths"],
        mistakes={
            "the first <eos>, which nothing predicts, counts as a target": Edit("len(document) - 1", "len(document)"),
            "neither <eos> counts as a target, although the model predicts the last one": Edit(
                "len(document) - 1", "len(document) - 2"
            ),
            "each document weighs the same, however long it is": mean_of_ratios(1),
            "each document weighs the same, and its first <eos> counts as a target": mean_of_ratios(0),
            "each document weighs the same, and neither <eos> counts as a target": mean_of_ratios(2),
            "the sum is divided by the number of documents: nats per document, not per token": Edit(
                "/ targets", "/ len(documents)"
            ),
            "the sum is not divided by the number of targets": Edit(" / targets", ""),
            "one <eos> is left out for all documents together, not one for each": Edit(
                each, "sum(len(document) for document in documents) - 1"
            ),
            "two <eos> are left out for all documents together, not one for each": Edit(
                each, "sum(len(document) for document in documents) - 2"
            ),
            "the mean of neg_log_p is divided by all targets: it is divided twice": Edit(
                "/ targets", "/ len(documents) / targets"
            ),
            "the fraction is turned around: targets per nat": Edit(
                "sum(neg_log_p) / targets", "targets / sum(neg_log_p)"
            ),
            "the logarithm has base 2: this is bits per token, not nats": Edit(
                "/ targets", "/ targets / 0.6931471805599453"
            ),
            "the exponential is taken: this is the perplexity": Edit(
                "sum(neg_log_p) / targets", "2.718281828459045 ** (sum(neg_log_p) / targets)"
            ),
            "the sign is wrong: neg_log_p is positive as it stands": Edit("return sum", "return -sum"),
            "a logarithm is taken of neg_log_p, which is one already": lambda costs, documents: (
                -sum(map(math.log, costs)) / sum(len(document) - 1 for document in documents)
            ),
            "neg_log_p is weighted with the targets, but is the sum over its document already": weighted,
            "neg_log_p is weighted with the targets, but each is a sum already, and nothing is divided": (
                lambda costs, documents: weighted(costs, documents) * sum(len(document) - 1 for document in documents)
            ),
            "different ids are counted, not all of them": Edit("len(document)", "len(set(document))"),
            "every document counts as long as the longest: padding is counted": Edit(
                each, "len(documents) * (max(len(document) for document in documents) - 1)"
            ),
            "only the first document is looked at": (
                Edit("sum(neg_log_p)", "neg_log_p[0]"),
                Edit("in documents)", "in documents[:1])"),
            ),
            "only the last document is looked at": (
                Edit("sum(neg_log_p)", "neg_log_p[-1]"),
                Edit("in documents)", "in documents[-1:])"),
            ),
            "the lowest of the documents' own floors is returned": lambda costs, documents: min(
                cost / (len(document) - 1) for cost, document in zip(costs, documents)
            ),
            "the documents' own floors are added up, not averaged": lambda costs, documents: sum(
                cost / (len(document) - 1) for cost, document in zip(costs, documents)
            ),
        },
        hints={
            "len(document) - 1": "A document of n ids has n − 1 targets: all but its first `<eos>`.",
            "sum(neg_log_p)": "Two sums over all documents, and one division at the end: nats over targets.",
        },
    )


def linear_schedule(fn: Callable[..., object]) -> Report:
    """Warm-up, then a straight line to 0: `fn(step, peak_lr, total_steps, warmup_steps)`."""
    ramp = "    if step < warmup_steps:\n        return peak_lr * step / warmup_steps\n"
    line, left, span = (
        "(total_steps - step) / (total_steps - warmup_steps)",
        "(total_steps - step)",
        "(total_steps - warmup_steps)",
    )

    def reference(step: int, peak_lr: float, total_steps: int, warmup_steps: int) -> float:
        return schedules.linear(step, peak_lr=peak_lr, total_steps=total_steps, warmup_steps=warmup_steps)

    def moved(by: int) -> Callable[..., float]:
        return lambda step, peak, total, warmup: reference(min(max(0, step + by), total), peak, total, warmup)

    def warm_up(step: int, warmup: int) -> float:
        return min(1.0, step / warmup) if warmup else 1.0

    return compare(
        fn,
        reference=reference,
        cases={
            "10 steps, 4 of them warm-up": (1.0, 10, 4),
            "another peak": (3e-4, 25, 5),
            "no warm-up": (0.5, 4, 0),
        },
        run=_whole_run,
        shown=["another peak"],
        mistakes={
            "there is no warm-up": lambda step, peak, total, warmup: peak * (1 - step / total),
            "there is no warm-up: the rate stands at its peak until the line falls": Edit(
                "return peak_lr * step / warmup_steps", "return peak_lr"
            ),
            "there is no warm-up: the line begins above the peak": Edit(ramp, ""),
            "the line falls over all steps instead of those after the warm-up": Edit(span, "total_steps"),
            "the line falls over all steps, and the warm-up is multiplied onto it": (
                Edit(span, "total_steps"),
                Edit("peak_lr * step / warmup_steps", "peak_lr * step / warmup_steps * (1 - step / total_steps)"),
            ),
            "the smaller of two lines is taken, of which the falling one runs over all steps": (
                lambda step, peak, total, warmup: peak * min(warm_up(step, warmup), 1 - step / total)
            ),
            "the warm-up is multiplied onto the falling line, which begins above the peak": AnyOf(
                lambda step, peak, total, warmup: peak * warm_up(step, warmup) * (total - step) / (total - warmup),
                lambda step, peak, total, warmup: (
                    peak * min(1.0, step / max(1, warmup)) * (total - step) / (total - warmup)
                ),
            ),
            "the line never falls: the rate stays at its peak": Edit(f" * {line}", ""),
            "the line falls by the steps after the warm-up, but over total_steps: it ends above 0": Edit(
                line, "(1 - (step - warmup_steps) / total_steps)"
            ),
            "the line counts from step 0, not from the end of the warm-up: it reaches 0 too early": AnyOf(
                Edit(left, "(total_steps - warmup_steps - step)"),
                Edit(left, "max(0, total_steps - warmup_steps - step)"),
            ),
            "the line rises: 1 − progress is progress": Edit(left, "(step - warmup_steps)"),
            "the peak is left out": (Edit("peak_lr * step", "step"), Edit("return peak_lr * (", "return (")),
            "the schedule is one step ahead": AnyOf(
                moved(1),
                lambda step, peak, total, warmup: (
                    reference(step + 1, peak, total, warmup) if step < total else -peak / (total - warmup)
                ),
            ),
            "the schedule is one step behind": moved(-1),
            "the warm-up is one step ahead: it begins above 0": Edit("peak_lr * step /", "peak_lr * (step + 1) /"),
            "the warm-up is one step ahead and lasts one more: (step + 1) / (warmup_steps + 1)": Edit(
                "peak_lr * step / warmup_steps", "peak_lr * (step + 1) / (warmup_steps + 1)"
            ),
            "the warm-up lasts one step more: it is divided by warmup_steps + 1": Edit(
                "peak_lr * step / warmup_steps", "peak_lr * step / (warmup_steps + 1)"
            ),
            "the warm-up climbs over total_steps": Edit("step / warmup_steps", "step / total_steps"),
            "the rate is 0 during the warm-up": Edit("return peak_lr * step / warmup_steps", "return 0.0"),
            "the rate is 0 at step 0 even if there is no warm-up": Edit(
                ramp, f"    if step == 0:\n        return 0.0\n{ramp}"
            ),
            "the line reaches 0 one step early, at total_steps − 1": AnyOf(
                Edit(line, "(total_steps - 1 - step) / (total_steps - 1 - warmup_steps)"),
                Edit(line, "max(0, total_steps - 1 - step) / (total_steps - 1 - warmup_steps)"),
            ),
            "the line reaches 0 one step late, at total_steps + 1": Edit(
                line, "(total_steps + 1 - step) / (total_steps + 1 - warmup_steps)"
            ),
            "a cosine falls instead of a straight line": lambda step, peak, total, warmup: schedules.cosine(
                step, peak_lr=peak, total_steps=total, warmup_steps=warmup
            ),
            "a power of the line falls, not the line": AnyOf(
                Edit(line, f"({line}) ** 2"), Edit(line, f"({line}) ** 0.5")
            ),
            "the line ends at a tenth of the peak, not at 0": Edit(line, f"(0.1 + 0.9 * {line})"),
            "the rate falls from the peak already during the warm-up, and climbs after it": (
                Edit("peak_lr * step / warmup_steps", "peak_lr * (1 - step / warmup_steps)"),
                Edit(left, "(step - warmup_steps)"),
            ),
            "warm-up and line are exchanged": Edit("step < warmup_steps", "warmup_steps and step > warmup_steps"),
            "the warm-up is a share of the peak that is added to the line": (
                lambda step, peak, total, warmup: (
                    peak * (warm_up(step, warmup) + 1 - step / total)
                    if step < warmup
                    else reference(step, peak, total, warmup)
                )
            ),
        },
        hints={
            "if step < warmup": "Two pieces: below `warmup_steps` the rate climbs from 0, from there on it falls.",
            "step / warmup_steps": "The warm-up goes from 0 at step 0 to the peak at `warmup_steps`.",
            "(total_steps - step)": "`total_steps - step` steps are to go, of `total_steps - warmup_steps`.",
        },
    )


def _whole_run(fn: Callable[..., Any], peak_lr: float, total_steps: int, warmup_steps: int) -> list[Any]:
    return [fn(step, peak_lr, total_steps, warmup_steps) for step in range(total_steps + 1)]


def train_steps(fn: Callable[..., object]) -> Report:
    """The loop: `fn(model, batches, optimizer, lr_at)` makes one optimizer step for each batch.

    The weights that it leaves are compared with those that the executable specification leaves.
    """
    set_rates = '        for group in optimizer.param_groups:\n            group["lr"] = lr_at(k)\n'
    zero, step = "        optimizer.zero_grad()\n", "        optimizer.step()"
    scored, targets = "logits[:, :-1]", 'batch["labels"][:, 1:]'
    clip = "        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)\n"
    end, bounded = "targets.flatten())", "clip_grad_norm_(model.parameters(), max_norm=1.0)"
    return compare(
        fn,
        reference=_as_specified,
        cases={
            "one batch": (1, lambda k: 0.01 + 0.02 * k, 0.8),
            "long gradients": (3, lambda k: 0.01 * (3 - k), 3.0),
            "short gradients": (4, lambda k: 0.03 - 0.005 * k, 0.1),
        },
        run=_weights_after,
        shown=["one batch"],
        close=(1e-6, 1e-8),  # an exact clip, without torch's 1e-6, is as good
        unchanged="the weights do not move: is `optimizer.step()` called while the gradients are there?",
        mistakes={
            "the loss is not shifted: position t is scored against token t": (
                Edit(scored, "logits"),
                Edit(targets, 'batch["labels"]'),
            ),
            "padding counts as a target": Edit(targets, 'batch["input_ids"][:, 1:]'),
            "the gradients are never cleared": Edit(zero, ""),
            "the learning rate is one step ahead: lr_at(k + 1)": Edit("lr_at(k)", "lr_at(k + 1)"),
            "the gradient is not clipped before the step": Edit(clip, ""),
            "lr_at is not used and the optimizer keeps its own rate": Edit(set_rates, ""),
            "the shift goes the wrong way: position t is scored against token t − 1": (
                Edit(scored, "logits[:, 1:]"),
                Edit(targets, 'batch["labels"][:, :-1]'),
            ),
            "the shift is made twice: position t is scored against token t + 2": (
                Edit(scored, "logits[:, :-2]"),
                Edit(targets, 'batch["labels"][:, 2:]'),
            ),
            "there is no shift: the first position is cut off logits and labels alike": Edit(scored, "logits[:, 1:]"),
            "there is no shift: the last position is cut off logits and labels alike": Edit(
                targets, 'batch["labels"][:, :-1]'
            ),
            "the shift wraps around: the last position is scored against the row's first token": (
                Edit(scored, "logits"),
                Edit(targets, 'batch["labels"].roll(-1, 1)'),
            ),
            "the rate is set after the step: the first one runs at the optimizer's own": (
                Edit(set_rates, ""),
                Edit(step, f"{step}\n{set_rates.rstrip().replace('lr_at(k)', 'lr_at(k + 1)')}"),
            ),
            "the rate is set after the step, so that each step runs at the one before": (
                Edit(set_rates, ""),
                Edit(step, f"{step}\n{set_rates.rstrip()}"),
            ),
            "the learning rate is one step behind: lr_at(k − 1)": AnyOf(
                Edit("lr_at(k)", "lr_at(k - 1)"), Edit("lr_at(k)", "lr_at(max(0, k - 1))")
            ),
            "the rate is the same at every step: lr_at(0)": Edit("lr_at(k)", "lr_at(0)"),
            "the rate is the same at every step: that of the last one": Edit("lr_at(k)", "lr_at(len(batches) - 1)"),
            "only the first parameter group gets the rate": Edit(
                "optimizer.param_groups:", "optimizer.param_groups[:1]:"
            ),
            "only the last parameter group gets the rate": Edit(
                "optimizer.param_groups:", "optimizer.param_groups[-1:]:"
            ),
            "lr_at(k) is multiplied onto the optimizer's own rate (`LambdaLR` does so)": AnyOf(
                Edit("= lr_at(k)", '= optimizer.defaults["lr"] * lr_at(k)'),
                Edit("= lr_at(k)", '= group["lr"] * lr_at(k)'),
            ),
            "each element of the gradient is clipped, not its norm": Edit(
                bounded, "clip_grad_value_(model.parameters(), 1.0)"
            ),
            "each parameter's gradient is clipped alone, not the norm of all together": Edit(
                clip,
                f"        for parameter in model.parameters():\n    {clip.replace('model.parameters()', 'parameter')}",
            ),
            "a short gradient is made longer: its norm is set to 1, not bounded by 1": Edit(
                clip,
                "        norm = torch.stack([one.grad.norm() for one in model.parameters()]).norm()\n"
                "        for one in model.parameters():\n"
                "            one.grad /= norm\n",
            ),
            "the sum of the gradient's magnitudes is clipped, not its norm": Edit(
                "max_norm=1.0", "max_norm=1.0, norm_type=1"
            ),
            "the largest element of the gradient is clipped, not its norm": Edit(
                "max_norm=1.0", 'max_norm=1.0, norm_type=float("inf")'
            ),
            "the losses are summed, not averaged": Edit(end, 'targets.flatten(), reduction="sum")'),
            "the mean divides by all positions, ignored ones too": Edit(
                end, 'targets.flatten(), reduction="sum").div(targets.numel())'
            ),
            "the mean divides by all positions, ignored ones and the last one too": Edit(
                end, 'targets.flatten(), reduction="sum").div(batch["labels"].numel())'
            ),
            "every row weighs the same: a mean of means": Edit(
                end,
                'targets.flatten(), reduction="none").view(len(targets), -1).sum(1)'
                ".div((targets != -100).sum(1)).mean()",
            ),
            "the softmax comes before cross_entropy, which takes logits and makes a softmax itself": Edit(
                ".flatten(0, 1)", ".flatten(0, 1).softmax(-1)"
            ),
            "the sign is wrong: the loss is made larger": Edit(".backward()", ".neg().backward()"),
            "there is one step for all batches together, at the end": AnyOf(
                Edit(step, "    optimizer.step()"),
                (Edit(zero, ""), Edit(f"{clip}{step}", f"{clip[4:]}    optimizer.step()")),
                (Edit(zero, ""), Edit(step, "    optimizer.step()")),
            ),
            "the function ends after the first batch": Edit(step, f"{step}\n        return"),
            "the step is made twice for each batch": Edit(step, f"{step}\n{step}"),
            "all batches are gone through twice": Edit("enumerate(batches)", "enumerate([*batches, *batches])"),
            "the weights are moved by hand, by −lr · gradient: `optimizer.step()` is not used": Edit(
                step,
                "        with torch.no_grad():\n"
                "            for parameter in model.parameters():\n"
                "                parameter -= lr_at(k) * parameter.grad",
            ),
            "a new optimizer is made for each batch, so that its averages begin anew": Edit(
                zero, f"        optimizer = {_NEW_OPTIMIZER}\n{zero}"
            ),
            "a new optimizer is made: the given one is not used": Edit(
                "    for k, batch", f"    optimizer = {_NEW_OPTIMIZER.replace('lr_at(k)', '0.05')}\n    for k, batch"
            ),
        },
        hints={
            "optimizer.zero_grad": "Gradients add up until they are cleared: once a batch, before the backward pass.",
            "lr_at(k)": "Step k runs at `lr_at(k)`: set it before the step, in each of `optimizer.param_groups`.",
            'batch["labels"][:, 1:]': "Position t predicts token t + 1: cut the last logits off, and the first labels.",
            "logits[:, :-1]": "Position t predicts token t + 1: cut the last logits off, and the first labels.",
            "clip_grad_norm_": "One norm over all gradients, bounded by 1 after the backward pass and before the step.",
            "optimizer.step()": "One step for each batch, at the end of its round.",
            "enumerate": "k counts the batches from 0.",
        },
    )


_NEW_OPTIMIZER = "torch.optim.AdamW(model.parameters(), lr=lr_at(k), weight_decay=0.0)"


@lru_cache
def _batches(count: int) -> list[Batch]:
    """Batches whose numbers of targets differ; they must be copied before they are given away."""
    return [_batch([6, 2 + seed, 4 - seed // 2], seed) for seed in range(count)]


def _batch(lengths: list[int], seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, _VOCAB_SIZE, (sum(lengths),), generator=generator)
    return pad_rows(tokens, torch.tensor(lengths), width=max(lengths), pad_id=0)


def _tensors(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor) for name, tensor in batch.items() if isinstance(tensor, Tensor))


class _TinyModel(nn.Module):
    """The smallest model with a use for every part of the loop: it reads the last token alone."""

    def __init__(self, embedding: Tensor, head: Tensor) -> None:
        super().__init__()
        self.embedding, self.head = nn.Parameter(embedding), nn.Parameter(head)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Tensor) -> Tensor:
        return self.embedding[input_ids] @ self.head


@lru_cache
def _first_weights(std: float) -> tuple[Tensor, Tensor]:
    """An embedding and a head; `std` decides whether their gradients are long or short."""
    generator = torch.Generator().manual_seed(0)
    shapes = (_VOCAB_SIZE, 4), (4, _VOCAB_SIZE)
    embedding, head = (std * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return embedding, head


def _weights_after(fn: Callable[..., object], num_batches: int, lr_at: Schedule, std: float) -> list[Tensor] | None:
    """The weights that training leaves; None where it changes none of them."""
    before = _first_weights(std)
    model = _TinyModel(*(weight.clone() for weight in before))
    optimizer = SGD([{"params": [model.embedding]}, {"params": [model.head]}], lr=_OWN_LR, momentum=_MOMENTUM)
    batches = [{name: tensor.clone() for name, tensor in _tensors(batch)} for batch in _batches(num_batches)]
    fn(model, batches, optimizer, lr_at)
    after = [model.embedding.detach(), model.head.detach()]
    return None if all(map(torch.equal, before, after)) else after


def _as_specified(model: nn.Module, batches: Sequence[Batch], optimizer: Optimizer, lr_at: Schedule) -> None:
    """The loop as the executable specification makes it."""
    settings = spec.Settings(optimizer="sgd", momentum=_MOMENTUM, schedule=lr_at, max_grad_norm=_MAX_GRAD_NORM)
    model.load_state_dict(spec.train(model, [batches], settings).weights)
