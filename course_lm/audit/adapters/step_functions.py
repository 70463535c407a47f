"""A function that makes one step, as a loop that the audit can run."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from course_lm.audit.adapters.parts import Loop, build_optimizer, build_rates
from course_lm.audit.spec import Batches, Settings
from course_lm.validation import ensure, require

# A second parameter of one of these names takes the list of a window's batches, any other one batch.
WINDOWS = ("batches", "micro_batches", "window")

# What a step function may name beside its first three parameters.
OFFERED: Mapping[str, str] = {
    "scheduler": "the schedule as torch's LambdaLR, which the function then advances itself",
    "lr": "the learning rate of the coming step, which the optimizer has as well",
    "epoch": "the number of the epoch, from 0",
    "step": "the index of the batch, or of the window, in its epoch, from 0",
    "steps_per_epoch": "how many batches, or windows, the epoch has",
    "accumulation_steps": "how many batches make one optimizer step",
    "max_grad_norm": "the bound on the gradient's norm; inf where nothing is to be clipped",
    "loss_scale": "the factor of the loss, which the gradient is to be freed of",
    "on_nonfinite": '"raise" or "skip"',
    "settings": "all of them, as a spec.Settings",
}


def step_function(fn: Callable[..., object]) -> Loop:
    """A plain loop that calls `fn(model, batch, optimizer, …)` for each batch of each epoch.

    The loop builds torch's own optimizer with the settings' numbers, matrices with decay and the rest without. It moves
    the rates after each call in which the optimizer has stepped, unless `fn` takes the scheduler. Where the second
    parameter is named "batches", "micro_batches" or "window", `fn` is called once for each window. Further parameters
    of the names in `OFFERED` are passed by name. The loop ignores settings that no parameter of `fn` can carry.

    Raises:
        TypeError: `fn` cannot be called.
        ValueError: `fn` takes fewer than three arguments, or needs one that is not offered.
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable as fn(model, batch, optimizer), got {type(fn).__name__}")
    names, takes_windows = _read_signature(fn)
    ignores = {"validation", "overflow_steps"}  # which are no business of a step
    if "settings" not in names:
        ignores |= {"max_grad_norm", "loss_scale"} - {*names}
        ignores |= set() if takes_windows else {"accumulation_steps"} - {*names}

    def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
        optimizer = build_optimizer(model, settings)
        rates, made = build_rates(optimizer, settings), []
        optimizer.register_step_post_hook(lambda *_: made.append(True))
        for epoch, batches in enumerate(epochs):
            items = list(_windows(batches, settings.accumulation_steps)) if takes_windows else batches
            # no other setting is read: the audit takes one that is read for one that the function has
            asked = {name: getattr(settings, name) for name in names if hasattr(Settings, name)}
            if "max_grad_norm" in asked and asked["max_grad_norm"] is None:
                asked["max_grad_norm"] = math.inf
            for step, item in enumerate(items):
                offered = asked | {
                    "scheduler": rates,
                    "lr": rates.get_last_lr()[0],
                    "epoch": epoch,
                    "step": step,
                    "steps_per_epoch": len(items),
                    "settings": settings,
                }
                made.clear()
                fn(model, item, optimizer, **{name: offered[name] for name in names})
                for _ in made if "scheduler" not in names else ():
                    rates.step()
        return {"ignores": ignores}

    return loop


def _read_signature(fn: Callable[..., object]) -> tuple[tuple[str, ...], bool]:
    """The names that a step function is passed, and whether it takes windows."""
    name = getattr(fn, "__name__", type(fn).__name__)
    parameters = list(inspect.signature(fn).parameters.values())
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    enough = len(positional) >= 3 or takes_any
    ensure(enough, f"{name} must take model, batch and optimizer, it takes {len(positional)} positional arguments")
    rest = [
        one for one in parameters if one not in positional[:3] and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    for one in rest:
        if one.default is one.empty or one.name in OFFERED:
            is_offered = one.name in OFFERED and one.kind is not one.POSITIONAL_ONLY
            require(is_offered, f"a further parameter of {name}", f"one of {', '.join(OFFERED)}", one.name)
    takes_windows = len(positional) > 1 and positional[1].name in WINDOWS
    return tuple(one.name for one in rest if one.name in OFFERED), takes_windows


def _windows(batches: Batches, size: int) -> Iterator[Batches]:
    for start in range(0, len(batches), size):
        yield batches[start : start + size]
