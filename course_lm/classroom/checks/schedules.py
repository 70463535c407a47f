"""Checks of lesson 05: the steps of a run, a schedule in tokens, a cooldown, and a loop that counts right."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from course_lm.classroom.checks.report import AnyOf, Edit, Report, compare
from course_lm.schedules import cosine

Schedule = Callable[[int], float]
MicroBatch = Callable[[], Tensor]


def optimizer_steps(fn: Callable[..., object]) -> Report:
    """Steps of a run: `fn(num_documents, batch_size, accumulation_steps, num_epochs)`, smaller tails included."""
    batches, steps = "math.ceil(num_documents / batch_size)", "math.ceil(micro_batches / accumulation_steps)"
    return compare(
        fn,
        reference=lambda documents, size, accumulation, epochs: epochs * _ceil(_ceil(documents, size), accumulation),
        cases={
            "one epoch that divides evenly": ([96, 32, 64], 8, 4, 1),
            "full batches, a smaller last window": ([88, 40, 80], 8, 4, 3),
            "a smaller last batch that completes its window": ([95, 90, 57], 8, 4, 2),
            "a smaller last batch, alone in its window": ([97, 103, 33, 71], 8, 4, 5),
            "a smaller last batch in a smaller last window": ([82, 75, 109, 42, 22], 8, 4, 2),
            "less than one window in an epoch": ([10, 7, 1, 12], 4, 8, 7),
        },
        run=_for_each_number,
        shown=[
            "one epoch that divides evenly",
            "full batches, a smaller last window",
            "a smaller last batch that completes its window",
        ],
        mistakes={
            "micro-batches are counted instead of optimizer steps": Edit(steps, "micro_batches"),
            "the last, smaller window of each epoch is dropped": Edit(steps, "(micro_batches // accumulation_steps)"),
            "the last, smaller batch of each epoch is dropped": Edit(batches, "num_documents // batch_size"),
            "both tails of each epoch are dropped": (
                Edit(batches, "num_documents // batch_size"),
                Edit(steps, "(micro_batches // accumulation_steps)"),
            ),
            "the steps of the whole run are rounded once, as if a window went on into the next epoch": Edit(
                f"num_epochs * {steps}", "math.ceil(num_epochs * micro_batches / accumulation_steps)"
            ),
            "the documents of all epochs are cut into batches together, as if a batch went on into the next epoch": (
                Edit(batches, "math.ceil(num_epochs * num_documents / batch_size)"),
                Edit("num_epochs * math.ceil(micro", "math.ceil(micro"),
            ),
            "only one epoch is counted": Edit("num_epochs * ", ""),
            "nothing is rounded": (
                Edit(batches, "num_documents / batch_size"),
                Edit(steps, "micro_batches / accumulation_steps"),
            ),
            "the whole run is rounded once, and down": Edit(
                f"num_epochs * {steps}", "num_epochs * num_documents // (batch_size * accumulation_steps)"
            ),
            "the windows are rounded to the nearest number, not up": Edit(
                steps, "round(micro_batches / accumulation_steps)"
            ),
            "the batches are rounded to the nearest number, not up": Edit(batches, "round(num_documents / batch_size)"),
            "batches and windows are rounded to the nearest number, not up": (
                Edit(batches, "round(num_documents / batch_size)"),
                Edit(steps, "round(micro_batches / accumulation_steps)"),
            ),
            "one window is added for the tail even where there is none": Edit(
                steps, "(micro_batches // accumulation_steps + 1)"
            ),
            "one batch is added for the tail even where there is none": Edit(
                batches, "num_documents // batch_size + 1"
            ),
            "a batch and a window are added for the tails even where there are none": (
                Edit(batches, "num_documents // batch_size + 1"),
                Edit(steps, "(micro_batches // accumulation_steps + 1)"),
            ),
            "smaller tails are dropped, unless there is nothing else": (
                Edit(batches, "num_documents // batch_size"),
                Edit(steps, "max(1, micro_batches // accumulation_steps)"),
            ),
            "the last, smaller window is dropped, unless there is nothing else": Edit(
                steps, "max(1, micro_batches // accumulation_steps)"
            ),
            "the documents are divided by accumulation_steps alone: batch_size is not used": Edit(
                batches, "num_documents"
            ),
            "micro-batches are multiplied by accumulation_steps": Edit(steps, "micro_batches * accumulation_steps"),
        },
        hints={
            "micro_batches = ": "The last batch may be smaller, and counts: round up.",
            "num_epochs *": "An epoch's last window may be smaller, and counts: round up, then multiply by the epochs.",
        },
    )


def _for_each_number(fn: Callable[..., object], documents: Sequence[int], *numbers: int) -> list[object]:
    return [fn(number, *numbers) for number in documents]


def _ceil(whole: int, part: int) -> int:
    return -(-whole // part)


def rate_by_tokens(fn: Callable[..., object]) -> Report:
    """Warm-up, half a cosine to a tenth: `fn(tokens, peak_lr, warmup_tokens, decay_tokens)`, all counts in tokens."""
    progress, wave = "(tokens - warmup_tokens) / (decay_tokens - warmup_tokens)", "(1 + math.cos(math.pi * progress))"
    ramp = "    if tokens < warmup_tokens:\n        return peak_lr * tokens / warmup_tokens\n"
    held = "    if tokens >= decay_tokens:\n        return 0.1 * peak_lr\n    progress = "

    def reference(tokens: int, peak: float, warmup: int, decay: int) -> float:
        return cosine(tokens, peak_lr=peak, total_steps=decay, warmup_steps=warmup, min_lr=0.1 * peak)

    return compare(
        fn,
        reference=reference,
        cases={
            "few tokens": (2.0, 4, 12),
            "no warm-up": (1.0, 0, 1_000),
            "the numbers of GPT-3": (6e-5, 375_000_000, 260_000_000_000),
        },
        shown=["the numbers of GPT-3"],
        mistakes={
            "the cosine makes a full wave instead of half a wave": AnyOf(
                (Edit("    progress = ", held), Edit("math.pi *", "2 * math.pi *")),
                Edit("math.pi *", "2 * math.pi *"),
            ),
            "π is missing": AnyOf(
                (Edit("    progress = ", held), Edit("math.pi * ", "")),
                Edit("math.pi * ", ""),
            ),
            "the cosine takes degrees for radians": Edit("math.pi * progress", "180 * progress"),
            "the warm-up is not subtracted: the cosine runs over all tokens": Edit(progress, "tokens / decay_tokens"),
            "decay_tokens is taken as the length of the cosine, not as its end": AnyOf(
                Edit(progress, "(tokens - warmup_tokens) / decay_tokens"),
                Edit(f"    progress = min(1.0, {progress})", f"{held}(tokens - warmup_tokens) / decay_tokens"),
            ),
            "the warm-up is subtracted above and not below: the cosine ends early": Edit(
                progress, "tokens / (decay_tokens - warmup_tokens)"
            ),
            "the rate falls to 0, not to a tenth of the peak": Edit("0.1 + 0.9 * ", ""),
            "the rate falls to 0 and is a tenth of the peak beyond decay_tokens": AnyOf(
                (Edit("    progress = ", held), Edit("0.1 + 0.9 * ", "")),
                (Edit("    progress = ", held.replace(">=", ">")), Edit("0.1 + 0.9 * ", "")),
            ),
            "the cosine falls to 0 and is cut off at a tenth": Edit("(0.1 + 0.9 * 0.5 * (", "max(0.1, 0.5 * ("),
            "the tenth is added to a cosine of full height": Edit("0.9 * ", ""),
            "the cosine has a tenth of its height, and the tenth is not added": Edit("0.1 + 0.9 *", "0.1 *"),
            "the cosine has nine tenths of its height, and the tenth is not added": Edit("0.1 + ", ""),
            "0.1 is taken as the lowest rate itself, not as a share of the peak": AnyOf(
                Edit("peak_lr * (0.1 + 0.9 * 0.5 * (1", "(0.1 + (peak_lr - 0.1) * 0.5 * (1"),
                Edit("peak_lr * (0.1 + 0.9 * 0.5 * (1", "(0.1 + peak_lr * 0.9 * 0.5 * (1"),
                Edit("    progress = ", held.replace(" * peak_lr", "")),
                Edit("    progress = ", held.replace(" * peak_lr", "").replace(">=", ">")),
            ),
            "the wave goes on after decay_tokens, and the rate rises again": Edit(f"min(1.0, {progress})", progress),
            "the rate is 0 after decay_tokens": Edit(
                "    progress = ", "    if tokens > decay_tokens:\n        return 0.0\n    progress = "
            ),
            "the rate is 0 from decay_tokens on": Edit(
                "    progress = ", "    if tokens >= decay_tokens:\n        return 0.0\n    progress = "
            ),
            "there is no warm-up": Edit(ramp, "    tokens = max(tokens, warmup_tokens)\n"),
            "there is no warm-up, and the cosine begins before its start": Edit(ramp, ""),
            "the rate at 0 tokens is 0 even if there is no warm-up": Edit(
                "tokens < warmup_tokens:\n        return peak_lr * tokens / warmup_tokens",
                "tokens <= warmup_tokens:\n        return peak_lr * tokens / max(1, warmup_tokens)",
            ),
            "the rate is 0 during the warm-up": Edit("return peak_lr * tokens / warmup_tokens", "return 0.0"),
            "the warm-up climbs from a tenth of the peak, not from 0": Edit(
                "peak_lr * tokens / warmup_tokens", "peak_lr * (0.1 + 0.9 * tokens / warmup_tokens)"
            ),
            "the warm-up climbs over decay_tokens": Edit("tokens / warmup_tokens", "tokens / decay_tokens"),
            "a straight line falls instead of a cosine": Edit(f"0.5 * {wave}", "(1 - progress)"),
            "the cosine rises: it starts at a tenth and ends at the peak": Edit("1 + math.cos", "1 - math.cos"),
            "the cosine swings about a tenth: 1 is not added to it": Edit(
                "0.5 * (1 + math.cos(math.pi * progress))", ("math.cos(math.pi * progress)")
            ),
            "a quarter of a cosine wave falls": Edit(f"0.5 * {wave}", "math.cos(math.pi / 2 * progress)"),
            "a sine stands for the cosine": Edit("math.cos", "math.sin"),
            "an exponential falls to a tenth, not a cosine": Edit(f"0.1 + 0.9 * 0.5 * {wave}", "0.1 ** progress"),
            "the peak is left out: this is the share of the peak": (
                Edit("peak_lr * tokens", "tokens"),
                Edit("peak_lr * (0.1", "(0.1"),
            ),
            "the factor 0.5 is left out: the cosine is twice as high": Edit("0.5 * ", ""),
        },
        run=_on_a_grid,
        hints={
            "if tokens < warmup": "Below `warmup_tokens` a straight line climbs from 0.",
            "progress = ": "`progress` goes from 0 at `warmup_tokens` to 1 at `decay_tokens`, and stays there.",
            "0.1 + 0.9": "The cosine spans what lies between the tenth and the peak: 0.9 of the peak, on 0.1 of it.",
        },
    )


def _on_a_grid(fn: Callable[..., Any], peak: float, warmup: int, decay: int) -> list[Any]:
    """The rate at token counts from 0 to beyond the decay, those beside its corners among them."""
    counts = [warmup * part // 4 for part in range(4)] + [warmup + (decay - warmup) * part // 8 for part in range(12)]
    corners = [count + step for count in (warmup, decay) for step in (-1, 1) if count]
    return [fn(tokens, peak, warmup, decay) for tokens in sorted({*counts, *corners})]


def cooldown_rate(fn: Callable[..., object]) -> Report:
    """Warm-up, plateau, 1 − sqrt cooldown: `fn(step, peak_lr, total_steps, warmup_steps, decay_steps)`."""

    def right(step: int, peak: float, total: int, warmup: int, decay: int) -> float:
        if step < warmup:
            return peak * step / warmup
        return peak * (1 - math.sqrt(max(0, decay - (total - step)) / decay))

    ramp = "    if step < warmup_steps:\n        return peak_lr * step / warmup_steps\n"
    passed, shape = "(step - (total_steps - decay_steps)) / decay_steps", "1 - math.sqrt(p)"
    clamped = f"max(0.0, {passed})"
    return compare(
        fn,
        reference=right,
        cases={
            "another peak, a short decay": (1.0, 24, 4, 3),
            "50 steps, the last 20 of them decay": (3e-3, 50, 10, 20),
            "no warm-up": (0.5, 30, 0, 10),
        },
        shown=["no warm-up"],
        mistakes={
            "the root is left out: the decay is a straight line": Edit("math.sqrt(p)", "p"),
            "the root is taken of the steps that remain: sqrt(1 − progress)": Edit(shape, "math.sqrt(1 - p)"),
            "p is the share of the steps that remain: the decay rises from 0 to the peak": Edit(
                clamped, "(total_steps - step) / decay_steps if step > total_steps - decay_steps else 0.0"
            ),
            "the decay runs over everything after the warm-up": Edit(
                passed, "(step - warmup_steps) / (total_steps - warmup_steps)"
            ),
            "p counts from the end of the warm-up, over decay_steps": Edit(
                clamped, "min(1.0, (step - warmup_steps) / decay_steps)"
            ),
            "decay_steps is taken as the step at which the decay begins, not as its length": Edit(
                passed, "(step - decay_steps) / (total_steps - decay_steps)"
            ),
            "the decay is one step early": Edit(
                clamped, "min(1.0, max(0.0, (step + 1 - (total_steps - decay_steps)) / decay_steps))"
            ),
            "the decay is one step late": Edit("(step - (total", "(step - 1 - (total"),
            "the decay ends one step early, at total_steps − 1": Edit(
                clamped, "min(1.0, max(0.0, (step - (total_steps - decay_steps)) / max(1, decay_steps - 1)))"
            ),
            "p is a share of the whole run: it is divided by total_steps": Edit(") / decay_steps", ") / total_steps"),
            "the decay rises from 0 to the peak: sqrt(progress)": AnyOf(
                Edit(shape, "math.sqrt(p) if p > 0 else 1.0"),
                Edit(shape, "math.sqrt(p) if step >= total_steps - decay_steps else 1.0"),
            ),
            "the root is taken before the division by decay_steps": Edit(
                "math.sqrt(p)", "math.sqrt(p * decay_steps) / decay_steps"
            ),
            "a cosine falls instead of 1 − sqrt": Edit(shape, "0.5 * (1 + math.cos(math.pi * p))"),
            "the square stands for the root: 1 − p²": Edit("math.sqrt(p)", "p * p"),
            "the line is squared: (1 − p)²": Edit(shape, "(1 - p) ** 2"),
            "the root is taken of the whole, sqrt(1 − p²)": Edit(shape, "math.sqrt(1 - p * p)"),
            "the line is squared after the root: (1 − sqrt p)²": Edit(shape, "(1 - math.sqrt(p)) ** 2"),
            "there is no warm-up": Edit(ramp, ""),
            "the warm-up is one step ahead: (k + 1) / warmup_steps": Edit("peak_lr * step /", "peak_lr * (step + 1) /"),
            "the rate at step 0 is 0 even if there is no warm-up": Edit(
                "step < warmup_steps:\n        return peak_lr * step / warmup_steps",
                "step <= warmup_steps:\n        return peak_lr * step / max(1, warmup_steps)",
            ),
            "the rate is 0 during the warm-up": Edit("return peak_lr * step / warmup_steps", "return 0.0"),
            "there is no plateau: the rate stays at 0 until the cooldown": Edit(
                f"    return peak_lr * ({shape})", f"    return peak_lr * ({shape}) if p > 0 else 0.0"
            ),
            "there is no cooldown: the rate stays at its peak": Edit(f" * ({shape})", ""),
            "the peak is left out: this is the share of the peak": (
                Edit("peak_lr * step", "step"),
                Edit("peak_lr * (1", "(1"),
            ),
        },
        run=_at_every_step,
        hints={
            "if step < warmup": "Below `warmup_steps` the rate is k / `warmup_steps` of the peak, 0 at step 0.",
            "p = max": "p is 0 at `total_steps - decay_steps`, and before; it is 1 at `total_steps`.",
            "math.sqrt": "The factor is 1 minus the root of p: 1 where p is 0, and 0 where p is 1.",
        },
    )


def _at_every_step(fn: Callable[..., Any], peak: float, total: int, *numbers: int) -> list[Any]:
    return [fn(step, peak, total, *numbers) for step in range(total + 1)]


def scheduled_steps(fn: Callable[..., object]) -> Report:
    """A loop with accumulation: `fn(micro_batches, optimizer, accumulation_steps, lr_at)`, judged by its weights."""
    first = "    for k, window in enumerate(windows(micro_batches, accumulation_steps)):\n"
    rate = 'lr_at(k) * group.get("lr_scale", 1.0)'
    set_rates = f'        for group in optimizer.param_groups:\n            group["lr"] = {rate}\n'
    backward = "            (micro_batch() / len(window)).backward()\n"
    step = "        optimizer.step()"

    def reference(batches: Sequence[MicroBatch], optimizer: Optimizer, accumulation: int, lr_at: Schedule) -> None:
        for k, start in enumerate(range(0, len(batches), accumulation)):
            optimizer.zero_grad()
            torch.stack([batch() for batch in batches[start : start + accumulation]]).mean().backward()
            for group in optimizer.param_groups:
                group["lr"] = lr_at(k) * group.get("lr_scale", 1.0)
            optimizer.step()

    return compare(
        fn,
        reference=reference,
        cases={
            "no accumulation": (3, 1, lambda k: 0.3 - 0.05 * k),
            "seven micro-batches: the last window is smaller": (7, 3, lambda k: 0.1 * (k + 1)),
            "eight micro-batches in windows of four": (8, 4, lambda k: 0.5 / (k + 2)),
        },
        shown=["no accumulation", "eight micro-batches in windows of four"],
        mistakes={
            "the schedule counts micro-batches: a step runs at the rate of its last micro-batch": Edit(
                "lr_at(k)", "lr_at(min((k + 1) * accumulation_steps, len(micro_batches)) - 1)"
            ),
            "the schedule counts micro-batches: a step runs at the rate of its first micro-batch": Edit(
                "lr_at(k)", "lr_at(k * accumulation_steps)"
            ),
            "the learning rate is one step ahead: lr_at(k + 1)": Edit("lr_at(k)", "lr_at(k + 1)"),
            "an lr_scale of 0, which holds a group still, is taken for a missing one": Edit(
                'group.get("lr_scale", 1.0)', '(group.get("lr_scale") or 1.0)'
            ),
            "the rate is set after the step, so that each step runs at the one before": (
                Edit(set_rates, ""),
                Edit(step, f"{step}\n{set_rates.rstrip()}"),
            ),
            "the rate is set after the step: the first one runs at the optimizer's own": (
                Edit(set_rates, ""),
                Edit(step, f"{step}\n{set_rates.replace('lr_at(k)', 'lr_at(k + 1)').rstrip()}"),
            ),
            "the rate is the same at every step: lr_at(0)": Edit("lr_at(k)", "lr_at(0)"),
            "lr_at is not used: the optimizer keeps its own rate": Edit(set_rates, ""),
            "the rate of the schedule is multiplied onto the rate that the group has": Edit(
                f"= {rate}", f'= group["lr"] * {rate}'
            ),
            "lr_scale is ignored": Edit(' * group.get("lr_scale", 1.0)', ""),
            "the rate is divided by lr_scale": Edit("* group.get", "/ group.get"),
            "lr_scale is applied once more at every step": Edit(
                set_rates, set_rates + '            group["lr_scale"] = group.get("lr_scale", 1.0) ** 2\n'
            ),
            "only the first parameter group gets the rate": Edit(
                "optimizer.param_groups:", "optimizer.param_groups[:1]:"
            ),
            "the last, smaller window is dropped": Edit(
                first, f"{first}        if len(window) < accumulation_steps:\n            break\n"
            ),
            "the gradients are summed, not averaged over the window": Edit(" / len(window)", ""),
            "the gradients are never cleared": Edit("        optimizer.zero_grad()\n", ""),
            "the gradients are cleared before each micro-batch, so that the last one alone counts": (
                Edit("        optimizer.zero_grad()\n", ""),
                Edit(backward, f"            optimizer.zero_grad()\n{backward}"),
            ),
            "the last, smaller window is divided by accumulation_steps, not by its own size": Edit(
                "len(window)", "accumulation_steps"
            ),
            "every micro-batch is divided by the number of all of them": Edit("len(window)", "len(micro_batches)"),
            "only the last micro-batch of a window is used": (
                Edit("in window", "in window[-1:]"),
                Edit(" / len(window)", ""),
            ),
            "only the first micro-batch of a window is used": (
                Edit("in window", "in window[:1]"),
                Edit(" / len(window)", ""),
            ),
            "there is a step after every micro-batch": (
                Edit(step, f"    {step}"),
                Edit("        optimizer.zero_grad()\n", ""),
                Edit(backward, f"            optimizer.zero_grad()\n{backward}"),
            ),
            "there is a step after every micro-batch, without clearing in between": Edit(step, f"    {step}"),
        },
        run=_weights_after,
        unchanged="the weights do not move: is `optimizer.step()` called while the gradients are there?",
        hints={
            "lr_at(k)": "Step k runs at `lr_at(k)` times `lr_scale`; set it before the step, in every group.",
            "len(window)": "The mean of the window: each loss divided by the number of micro-batches in it.",
            "zero_grad": "Gradients add up until they are cleared: clear them once for each window.",
            "enumerate": "k counts windows from 0, and the last one may be smaller.",
        },
    )


def _weights_after(fn: Callable[..., object], batches: int, accumulation: int, lr_at: Schedule) -> list[Tensor] | None:
    """The weights that a loop leaves; None where it changes none of them."""
    weights = [torch.full((size,), start, dtype=torch.float64) for size, start in ((2, 1.0), (3, 0.0), (1, 2.0))]
    for weight in weights:
        weight.requires_grad_()
    scales = ({}, {"lr_scale": 0.5}, {"lr_scale": 0.0})
    optimizer = SGD([{"params": [weight], **scale} for weight, scale in zip(weights, scales)], lr=0.7)
    fn([_bowl(weights, seed) for seed in range(batches)], optimizer, accumulation, lr_at)
    after = [weight.detach() for weight in weights]
    return None if bool((after[0] == 1).all() and (after[1] == 0).all()) else after


def _bowl(weights: Sequence[Tensor], seed: int) -> MicroBatch:
    """A micro-batch: the squared distance to a point of its own."""
    generator = torch.Generator().manual_seed(seed)
    points = [torch.randn(weight.shape, generator=generator, dtype=weight.dtype) for weight in weights]
    return lambda: sum((((weight - point) ** 2).mean() for weight, point in zip(weights, points)), torch.tensor(0.0))
