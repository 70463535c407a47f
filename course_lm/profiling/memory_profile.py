"""Whose the bytes are when an optimizer step needs the most memory."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from course_lm.clipping import clip_gradients
from course_lm.display import table
from course_lm.forward import AnyBatch, device_of
from course_lm.loss import next_token_loss
from course_lm.precision import Precision
from course_lm.profiling.display import draw_bars
from course_lm.profiling.events import read_events, recorded
from course_lm.profiling.ledger import (
    BATCHES,
    GRADIENTS,
    MOMENTS,
    OWNERS,
    TEMPORARIES,
    WEIGHTS,
    Block,
    Ledger,
    Notes,
    address_of,
)
from course_lm.profiling.subject import Subject, subject_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WARM_UP = 1  # the first step makes the moments


@dataclass(frozen=True)
class MemoryProfile:
    """The memory of one optimizer step at its peak, in bytes; `str()` is a table.

    Attributes:
        owners: bytes at the peak, by owner. "weights" are parameters and buffers, "moments" all tensors of the
            optimizer's state. "activations" are what the model's forward pass has made and the backward pass still
            needs, autocast's copies of weights and the random states of checkpoints among them; "logits" the model's
            output and what the loss keeps of it. "gradients" are those of parameters. "workspaces" are what a single
            operation asks for inside itself and frees before it ends, such as the buffers of a matrix product, whose
            size depends on the processor and the number of threads. Gradients of activations and all else that dies
            within the step are "temporaries".
        peak_bytes: the peak of another step, one without hooks, which checks the sum over the owners.
        moment: the part of the step that was running at the peak.
        totals: bytes of all weights, gradients and moments, whether they are there at the peak or not.
    """

    owners: dict[str, int]
    peak_bytes: int
    moment: str
    totals: dict[str, int]

    @property
    def found_bytes(self) -> int:
        """The sum over all owners."""
        return sum(self.owners.values())

    def __str__(self) -> str:
        """A table of the owners, their sum, and the measured peak."""

        def row(name: str, count: int) -> tuple[str, ...]:
            whole = f"{self.totals[name] / 2**20:,.1f}" if name in self.totals else "-"
            return name, f"{count / 2**20:,.1f}", f"{count / self.peak_bytes:.1%}", whole

        rows = [row(name, count) for name, count in self.owners.items()]
        total = row("all owners", self.found_bytes)
        peak = f"the peak is {self.peak_bytes / 2**20:,.1f} MiB, in the part: {self.moment}"
        return f"{table([('owner', 'MiB', 'of peak', 'MiB in all'), *rows, total])}\n\n{peak}"

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data."""
        return {**asdict(self), "found_bytes": self.found_bytes}

    def draw(self, axes: "Axes") -> None:
        """Draw a bar for each owner."""
        shares = [f"{count / self.peak_bytes:.0%}" for count in self.owners.values()]
        draw_bars(axes, list(self.owners), [count / 2**20 for count in self.owners.values()], shares)
        axes.set(xlabel="MiB", title=f"a peak of {self.peak_bytes / 2**20:,.1f} MiB, in: {self.moment}")


def profile_memory(
    model: nn.Module,
    micro_batches: Iterable[AnyBatch],
    optimizer: Optimizer,
    *,
    accumulation_steps: int | None = None,
    precision: Precision | None = None,
    max_grad_norm: float | None = 1.0,
    clip: Callable[..., object] = clip_gradients,
    loss_fn: Callable[..., Tensor] = next_token_loss,
) -> MemoryProfile:
    """Measure the peak memory of one optimizer step, and whose it is; afterwards nothing has changed.

    One step is recorded with each allocation and each free that torch's allocator makes, and the moments at which the
    parts of the step begin; another, without hooks, measures the peak by itself. Weights, moments and the step's
    batches, which were there before, are added. Other tensors of the process do not count, and neither does what the
    allocator keeps for later.

    On CUDA the peak is `torch.cuda.max_memory_allocated`, and the batches' copies on the GPU count as activations. That
    is written and was never measured.

    Args and errors: as of `profile_step`.
    """
    given = (model, micro_batches, optimizer, accumulation_steps, precision, max_grad_norm, loss_fn, clip)
    with subject_of(*given) as subject:
        device = device_of(model)
        subject.warm_up(WARM_UP)
        subject.result = None
        _drop_gradients(subject)
        subject.source = repeat(next(subject.source))  # the same batches in each pass, made before it
        known = _known_blocks(subject, device)
        ledger, notes = Ledger(known), Notes(subject.parameters)
        ledger.replay(read_events(recorded(lambda: subject.marked_step(notes), memory=True)), device)
        subject.result = None
        gradients = sum(one.grad.nbytes for one in subject.parameters() if one.grad is not None)
        _drop_gradients(subject)
        peak = _measured_peak(subject, device, known)
    owners = dict.fromkeys(OWNERS, 0)
    for block in ledger.at_peak:
        owners[block.owner or TEMPORARIES] += block.bytes
    totals = {WEIGHTS: 0, GRADIENTS: gradients, MOMENTS: 0}
    for block in known.values():
        if block.owner in totals:
            totals[block.owner] += block.bytes
    return MemoryProfile(owners, peak, ledger.moment, totals)


def _known_blocks(subject: Subject, device: torch.device) -> dict[int, Block]:
    """The memory of what is there before a step, by its address; on a GPU nothing that lies on the host counts."""
    state = [list(one.values()) for one in subject.optimizer.state.values()]
    batches = [list(batch.values()) for batch in next(subject.source)]
    owned = {WEIGHTS: [*subject.parameters(), *subject.model.buffers()], MOMENTS: state, BATCHES: batches}
    blocks: dict[int, Block] = {}
    for owner, tensors in owned.items():
        for tensor in tree_leaves(tensors):
            address = address_of(tensor)
            if address and tensor.device.type == device.type:
                blocks.setdefault(address, Block(tensor.untyped_storage().nbytes(), owner))
    return blocks


def _drop_gradients(subject: Subject) -> None:
    for parameter in subject.parameters():
        parameter.grad = None


def _measured_peak(subject: Subject, device: torch.device, known: dict[int, Block]) -> int:
    """Bytes that are allocated in a step without hooks, at their most, what was there before among them."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        others = torch.cuda.memory_allocated(device) - sum(block.bytes for block in known.values())
        subject.step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - others
    ledger = Ledger(known)
    ledger.replay(read_events(recorded(subject.step, memory=True)), device)
    return ledger.peak
