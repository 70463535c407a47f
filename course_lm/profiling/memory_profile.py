"""Whose the bytes are when an optimizer step needs the most memory."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lm.forward import AnyBatch, device_of
from course_lm.loss import next_token_loss
from course_lm.packed_forward import logits_of
from course_lm.precision import Precision
from course_lm.profiling.display import Bars, aligned, figure_of
from course_lm.profiling.events import read_events, recorded
from course_lm.profiling.marks import Marks
from course_lm.profiling.subject import Subject, subject_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHTS, GRADIENTS, MOMENTS = "weights", "gradients", "moments"
ACTIVATIONS, LOGITS, BATCHES, TEMPORARIES = "activations", "logits", "batches", "temporaries"
OWNERS = (WEIGHTS, GRADIENTS, MOMENTS, ACTIVATIONS, LOGITS, BATCHES, TEMPORARIES)
WARM_UP = 1  # the first step makes the moments


@dataclass(frozen=True)
class MemoryProfile:
    """The memory of one optimizer step at its peak, in bytes; `str()` is a table.

    Attributes:
        owners: bytes at the peak, by owner. "weights" are parameters and buffers, "moments" all tensors of the
            optimizer's state. "activations" are what the model's forward pass has made and the backward pass still
            needs, autocast's copies of weights among them; "logits" the model's output and what the loss keeps of it.
            "gradients" are those of parameters; gradients of activations and all else that dies within the step are
            "temporaries".
        peak_bytes: the measured peak: from torch's allocator and not from the owners, whose sum it checks.
        moment: the part of the step that was running at the peak.
        totals: bytes of all weights, gradients and moments, whether they are there at the peak or not.
    """

    owners: dict[str, int]
    peak_bytes: int
    moment: str
    totals: dict[str, int]

    @property
    def found_bytes(self) -> int:
        """The sum over all owners. What an operation needs inside itself has none."""
        return sum(self.owners.values())

    def __str__(self) -> str:
        """A table of the owners, their sum, and the measured peak."""

        def row(name: str, count: int) -> tuple[str, ...]:
            whole = f"{self.totals[name] / 2**20:,.1f}" if name in self.totals else "-"
            return name, f"{count / 2**20:,.1f}", f"{count / self.peak_bytes:.1%}", whole

        rows = [row(name, count) for name, count in self.owners.items()]
        total = row("all owners", self.found_bytes)
        peak = f"the peak is {self.peak_bytes / 2**20:,.1f} MiB, in the part: {self.moment}"
        return f"{aligned([('owner', 'MiB', 'of peak', 'MiB in all'), *rows, total])}\n\n{peak}"

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data."""
        return {
            "owners": dict(self.owners),
            "found_bytes": self.found_bytes,
            "peak_bytes": self.peak_bytes,
            "moment": self.moment,
            "totals": dict(self.totals),
        }

    def plot(self) -> "Figure":
        """Draw a bar for each owner."""
        return figure_of(self.bars())

    def bars(self) -> Bars:
        """What `plot` draws."""
        return Bars(
            title=f"a peak of {self.peak_bytes / 2**20:,.1f} MiB, in: {self.moment}",
            unit="MiB",
            names=list(self.owners),
            lengths=[count / 2**20 for count in self.owners.values()],
            labels=[f"{count / self.peak_bytes:.0%}" for count in self.owners.values()],
        )


def profile_memory(
    model: nn.Module,
    micro_batches: Iterable[AnyBatch],
    optimizer: Optimizer,
    *,
    accumulation_steps: int | None = None,
    precision: Precision | None = None,
    max_grad_norm: float | None = 1.0,
    loss_fn: Callable[..., Tensor] = next_token_loss,
) -> MemoryProfile:
    """Measure the peak memory of one optimizer step, and whose it is; afterwards nothing has changed.

    One step is taken under a mode that sees each tensor's memory come and go; another measures the peak by itself: on a
    CPU from the allocator's own events, in which tensors that live inside one operation are too. Weights, moments and
    the step's batches, which were there before, are added to that. Other tensors of the process do not count, and
    neither does what the allocator keeps for later.

    On CUDA the peak is `torch.cuda.max_memory_allocated`. That is written and was never measured.

    Args and errors: as of `profile_step`.
    """
    with subject_of(model, micro_batches, optimizer, accumulation_steps, precision, max_grad_norm, loss_fn) as subject:
        subject.warm_up(WARM_UP)
        _drop_gradients(subject)
        subject.source = repeat(next(subject.source))  # the same batches in each pass, made before it
        tracker = _Tracker(subject)
        with tracker:
            subject.marked_step(tracker.marks, tracker.tell)
        subject.result = None
        gradients = sum(one.grad.nbytes for one in _parameters(subject) if one.grad is not None)
        _drop_gradients(subject)
        peak = tracker.before + _measured_peak(subject, device_of(model))
    owners = dict.fromkeys(OWNERS, 0)
    for block in tracker.at_peak:
        owners[block.owner or TEMPORARIES] += block.bytes
    kept = {WEIGHTS: tracker.known[WEIGHTS], GRADIENTS: gradients, MOMENTS: tracker.known[MOMENTS]}
    return MemoryProfile(owners, peak, tracker.moment, kept)


@dataclass(eq=False)
class _Block:
    """Memory of a storage. `owner` is settled while it lives, or later; None for one that died without an owner."""

    bytes: int
    owner: str | None = None
    of_loss: bool = False  # made between the model and the backward pass


class _Tracker(TorchDispatchMode):
    """Follows every storage from the operation that makes it until it is freed.

    Owners are told apart by what survives: what the forward pass made and the backward pass finds is an activation.
    So an activation that checkpointing made anew counts like one that was kept.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject, self.marks = subject, Marks(lambda: None)
        self.device = device_of(subject.model).type
        self.live: dict[int, _Block] = {}
        self.total = self.peak = 0
        self.at_peak: list[_Block] = []
        self.moment = self.marks.part
        self.after_model = False
        self._watched: dict[int, weakref.ref[Any]] = {}
        state = tree_leaves([list(one.values()) for one in subject.optimizer.state.values()])
        batches = [list(batch.values()) for batch in next(subject.source)]
        owned = {
            WEIGHTS: [*_parameters(subject), *subject.model.buffers()],
            MOMENTS: state,
            BATCHES: tree_leaves(batches),
        }
        self.known = {owner: self._see_all(tensors, owner) for owner, tensors in owned.items()}
        self.before = self.total

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation, and look at what it gives."""
        out = func(*args, **(kwargs or {}))
        self._see_all(tree_leaves(out), None)
        return out

    def tell(self, event: str, value: Any) -> None:
        """Settle owners, as `Observer` says what has happened."""
        if event == "output":
            self._own(logits_of(value), LOGITS)
            self.after_model = True
        elif event in ("backward", "recomputed"):
            for block in self.live.values():
                block.owner = block.owner or (LOGITS if block.of_loss else ACTIVATIONS)
            self.after_model = False
        elif event == "gradients":
            for parameter in _parameters(self.subject):
                self._own(parameter.grad, GRADIENTS)

    def _own(self, tensor: Any, owner: str) -> None:
        block = self.live.get(_key(tensor)) if isinstance(tensor, Tensor) else None
        if block is not None:
            block.owner = owner

    def _see_all(self, tensors: Iterable[Any], owner: str | None) -> int:
        """Take note of storages that are new; return their bytes."""
        before = self.total
        for tensor in tensors:
            # on a GPU nothing that lies on the host counts
            if isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.device.type == self.device:
                self._see(tensor, owner)
        if self.total > self.peak:
            self.peak, self.moment, self.at_peak = self.total, self.marks.part, list(self.live.values())
        return self.total - before

    def _see(self, tensor: Tensor, owner: str | None) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        if key in self.live or not storage.nbytes():
            return
        self.live[key] = _Block(storage.nbytes(), owner, self.after_model)
        self.total += storage.nbytes()
        # the object lives as long as the memory, whoever holds it
        self._watched[key] = weakref.ref(storage, lambda _: self._forget(key))

    def _forget(self, key: int) -> None:
        self._watched.pop(key, None)
        block = self.live.pop(key, None)
        self.total -= block.bytes if block is not None else 0


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _parameters(subject: Subject) -> list[Tensor]:
    """Those of the model, and those that only the optimizer knows."""
    held = (parameter for group in subject.optimizer.param_groups for parameter in group["params"])
    return list({id(one): one for one in (*subject.model.parameters(), *held)}.values())


def _drop_gradients(subject: Subject) -> None:
    for parameter in _parameters(subject):
        parameter.grad = None


def _measured_peak(subject: Subject, device: torch.device) -> int:
    """Bytes by which the allocated memory grows in a step, at its most."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        subject.step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    events = read_events(recorded(subject.step, memory=True))
    changes = sorted((one["ts"], one["args"]["Bytes"]) for one in events if one["name"] == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most
