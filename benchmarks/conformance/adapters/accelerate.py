"""accelerate's `Accelerator` in the loops of its guide to gradient accumulation.

The first line is the guide's finished code: `with accelerator.accumulate(model)` around the mean loss of a batch, with
the clipping that the API's page shows. The second is the guide's section on samples of variable size: the targets of a
window are counted first, its losses are summed and divided by that count. Loss, optimizer and validation
are the user's.

A run that stops calls `save_state`; the next calls `load_state` and reads the epoch on by `skip_first_batches`, as the
guide to checkpoints does. The place is in the folder's name. In the second line the loader's `set_epoch` is called
before each epoch.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from accelerate import Accelerator  # pyrefly: ignore[missing-import]
from accelerate.state import AcceleratorState, GradientState, PartialState  # pyrefly: ignore[missing-import]
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.conformance.resume import Resumed, loader_of
from course_lm.audit.adapters.parts import Batch, Loop, build_optimizer, build_rates, logits_for, mean_loss
from course_lm.audit.spec import Batches, Settings

USERS = "the user writes it"
PACKAGE = "accelerate"
NOT_OFFERED = {"C1": USERS, "C2": USERS, "C9": USERS, "C11": USERS, "C12": USERS}
CALLED = {"C5": "not guarded", "C7": "not guarded"}  # the user calls `optimizer.step()`
IGNORES = {"loss_scale", "overflow_steps", "validation"}
Epoch = Callable[[Any, Any, Any, Any, Any, Settings], None]


def driven_by(train_epoch: Epoch) -> Loop:
    """A loop that prepares everything once and calls `train_epoch` for each epoch."""

    def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
        peer = new_accelerator(settings)
        plain = build_optimizer(model, settings)
        prepared, optimizer, rates = peer.prepare(model, plain, build_rates(plain, settings))
        for batches in epochs:
            loader = peer.prepare(DataLoader(list(batches), batch_size=None))  # type: ignore[arg-type]
            train_epoch(peer, prepared, optimizer, rates, loader, settings)
        return {"ignores": IGNORES}

    return loop


def new_accelerator(settings: Settings) -> Any:
    """An `Accelerator` that accumulates as the settings say."""
    for state in (AcceleratorState, GradientState, PartialState):  # accelerate keeps one of each in a process
        state._reset_state()
    return Accelerator(gradient_accumulation_steps=settings.accumulation_steps, cpu=True)


def accumulate(peer: Any, model: Any, optimizer: Any, rates: Any, loader: Any, settings: Settings) -> None:
    """The finished code of the guide."""
    for batch in loader:
        with peer.accumulate(model):
            peer.backward(mean_loss(model, batch))
            if peer.sync_gradients and settings.max_grad_norm is not None:
                peer.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            rates.step()
            optimizer.zero_grad()


def count_first(peer: Any, model: Any, optimizer: Any, rates: Any, loader: Any, settings: Settings) -> None:
    """The guide's code for samples of variable size."""
    size, batches = settings.accumulation_steps, list(loader)
    for start in range(0, len(batches), size):
        window = batches[start : start + size]
        targets = sum(int((batch["labels"][..., 1:] != -100).sum()) for batch in window)
        for batch in window:
            peer.backward(summed_loss(model, batch) * size * peer.num_processes / targets)
        if settings.max_grad_norm is not None:
            peer.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()


def summed_loss(model: nn.Module, batch: Batch) -> Any:
    """The sum of the token losses of a batch, in nats."""
    logits = logits_for(model, batch)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")


def resumes(train_epoch: Epoch, *, sets_epoch: bool) -> Resumed:
    """A loop that goes on from the state in its folder."""

    def resumed(
        model: nn.Module, epochs: Sequence[Batches], settings: Settings, folder: Path, stop_after: int | None
    ) -> Mapping[str, Any]:
        peer = new_accelerator(settings)
        plain = build_optimizer(model, settings)
        prepared, optimizer, rates, loader = peer.prepare(model, plain, build_rates(plain, settings), loader_of(epochs))
        saved = next(folder.glob("step_*"), None)
        read = int(saved.name.removeprefix("step_")) if saved else 0
        if saved:
            peer.load_state(str(saved))
        stop = len(epochs) * len(loader) if stop_after is None else stop_after * settings.accumulation_steps
        for epoch in range(read // len(loader), len(epochs)):
            if sets_epoch:
                loader.set_epoch(epoch)
            skipped = read - epoch * len(loader)
            batches = peer.skip_first_batches(loader, skipped) if skipped > 0 else loader
            train_epoch(peer, prepared, optimizer, rates, islice(batches, stop - read), settings)
            read = min(stop, (epoch + 1) * len(loader))
            if read == stop:
                break
        if stop_after is not None:
            peer.save_state(str(folder / f"step_{read}"))
        return {"ignores": IGNORES}

    return resumed


LOOPS = {"`accumulate`": driven_by(accumulate), "targets counted first": driven_by(count_first)}
RESUMES = {
    "`accumulate`": resumes(accumulate, sets_epoch=False),
    "targets counted first": resumes(count_first, sets_epoch=True),
}
