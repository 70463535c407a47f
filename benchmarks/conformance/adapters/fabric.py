"""Lightning's Fabric in the loop of its page on gradient accumulation.

The page counts iterations from 0, steps where `iteration % n != 0` is false, and leaves the loss to the reader, here
the mean of a batch. The second line counts from 1, divides the loss by n, and calls `clip_gradients` in every step,
with a bound of infinity where nothing is to be clipped: it refuses a norm that is not finite. Loss, optimizer, schedule
and validation are the user's; the rate moves after each step.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.fabric import Fabric  # pyrefly: ignore[missing-import]
from torch import nn
from torch.utils.data import DataLoader

from course_lm.audit.adapters.parts import Loop, build_optimizer, build_rates, mean_loss
from course_lm.audit.spec import Batches, Settings

USERS = "the user writes it"
PACKAGE = "lightning"
NOT_OFFERED = {"C1": USERS, "C2": USERS, "C8": USERS, "C9": USERS, "C11": USERS, "C12": USERS}
NOT_OFFERED |= {"C4": "the page does not speak of an epoch's end", "C13": "the page stops no run"}
CALLED = {"C5": "not guarded", "C7": "not guarded"}  # the user calls `optimizer.step()`


def fabric(*, first: int, divides: bool, clips_always: bool) -> Loop:
    """The loop of the documentation, its iterations counted from `first`."""

    def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
        peer = Fabric(accelerator="cpu", devices=1)
        rates = build_rates(plain := build_optimizer(model, settings), settings)
        wrapped, optimizer = peer.setup(model, plain)
        bound = math.inf if clips_always and settings.max_grad_norm is None else settings.max_grad_norm
        for batches in epochs:
            loader = peer.setup_dataloaders(DataLoader(list(batches), batch_size=None))  # type: ignore[arg-type]
            for iteration, batch in enumerate(loader, first):
                is_accumulating = iteration % settings.accumulation_steps != 0
                with peer.no_backward_sync(wrapped, enabled=is_accumulating):
                    peer.backward(mean_loss(wrapped, batch) / (settings.accumulation_steps if divides else 1))
                if is_accumulating:
                    continue
                if bound is not None:
                    peer.clip_gradients(wrapped, optimizer, max_norm=bound)
                optimizer.step()
                optimizer.zero_grad()
                rates.step()
        return {"ignores": {"loss_scale", "overflow_steps", "validation"}}

    return loop


LOOPS = {
    "Fabric, the page's loop": fabric(first=0, divides=False, clips_always=False),
    "Fabric, our loop: counted from 1, divided, always clipped": fabric(first=1, divides=True, clips_always=True),
}
