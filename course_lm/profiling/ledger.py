"""Whose each block of memory is, from the moment when torch's allocator gives it until it is freed.

A step is recorded with the allocator's events, and with notes among them of what the step has come to. Replaying both
in their order settles each block's owner by what it survives: what the forward pass made and the backward pass finds is
an activation, so that one which checkpointing made anew counts like one that was kept. A block that is freed inside the
operation that asked for it was that operation's workspace.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import record_function

from course_lm.forward import logits_of
from course_lm.profiling.events import operations
from course_lm.profiling.marks import OTHER, Marks

WEIGHTS, GRADIENTS, MOMENTS, BATCHES = "weights", "gradients", "moments", "batches"
ACTIVATIONS, LOGITS, TEMPORARIES, WORKSPACES = "activations", "logits", "temporaries", "workspaces"
_DEVICE_NUMBERS = {"cpu": 0, "cuda": 1}  # torch's, in the events
_NOTE = "memory note "


@dataclass(eq=False)
class Block:
    """Memory that the allocator has given.

    Attributes:
        owner: settled while it lives, or later; None for a block that died without one.
        operation: number of the operation that asked for it; None outside of all operations.
        of_loss: made between the model and the backward pass.
    """

    bytes: int
    owner: str | None = None
    operation: int | None = None
    of_loss: bool = False


class Note(NamedTuple):
    """What a step has come to: the event's name as `Observer` tells it or "part", and what it is about."""

    event: str
    part: str = OTHER
    addresses: tuple[int, ...] = ()


class Notes(Marks):
    """The parts of a step and what `Observer` tells, each with its moment among the events of torch's profiler.

    Args:
        parameters: gives those whose gradients are looked for when all are there.
    """

    def __init__(self, parameters: Callable[[], list[Tensor]]) -> None:
        super().__init__(lambda: None)
        self.parameters = parameters
        self.notes: list[Note] = []

    def switch(self, part: str) -> None:
        """From now on `part` runs."""
        super().switch(part)
        self._add(Note("part", part=part))

    def tell(self, event: str, value: Any) -> None:
        """Note an event of `Observer`, with the addresses of the tensors that it is about."""
        about = {"output": lambda: [logits_of(value)], "gradients": lambda: [one.grad for one in self.parameters()]}
        tensors = about[event]() if event in about else []
        self._add(Note(event, addresses=tuple(filter(None, map(address_of, tensors)))))

    def _add(self, note: Note) -> None:
        with record_function(f"{_NOTE}{len(self.notes)}"):
            self.notes.append(note)

    def found_in(self, events: list[dict[str, Any]]) -> Iterator[tuple[float, Note]]:
        """Each note with its moment, microseconds."""
        for event in events:
            if event.get("cat") == "user_annotation" and event["name"].startswith(_NOTE):
                yield event["ts"], self.notes[int(event["name"].removeprefix(_NOTE))]


class Ledger:
    """The blocks that are live at a moment of a step, and those that were when they held the most bytes.

    Args:
        known: what is there before the step, by address. A block that is freed without being known or given within
            the step is somebody else's, and does not count.

    Attributes:
        peak, at_peak, moment: the most bytes, the blocks that held them, and the part that ran.
    """

    def __init__(self, known: Mapping[int, Block]) -> None:
        self.live = {address: replace(block) for address, block in known.items()}
        self.total = self.peak = sum(block.bytes for block in known.values())
        self.at_peak = list(self.live.values())
        self.part = self.moment = OTHER
        self.after_model = False

    def replay(self, events: list[dict[str, Any]], device: torch.device, notes: Notes | None = None) -> None:
        """Follow a recorded step from its begin to its end."""
        story: list[tuple[float, Any]] = list(notes.found_in(events)) if notes is not None else []
        number = _DEVICE_NUMBERS[device.type]
        story += [
            (event["ts"], event["args"])
            for event in events
            if event["name"] == "[memory]" and event["args"]["Device Type"] == number
        ]
        running = operations(events)
        begins = [begin for begin, _ in running]
        for moment, what in sorted(story, key=lambda one: one[0]):
            if isinstance(what, Note):
                self._settle(what)
                continue
            place = bisect_right(begins, moment) - 1
            inside = place >= 0 and moment <= running[place][1]
            self._change(what["Addr"], what["Bytes"], place if inside else None)

    def _change(self, address: int, count: int, operation: int | None) -> None:
        """Count bytes that the allocator has given, or where `count` is negative got back."""
        if count > 0:
            if address in self.live:  # another thread has freed it, whose events are not recorded
                self.total -= self.live.pop(address).bytes
            self.live[address] = Block(count, None, operation, self.after_model)
            self.total += count
        elif address in self.live:
            block = self.live.pop(address)
            self.total -= block.bytes
            if operation is not None and block.operation == operation:
                block.owner = block.owner or WORKSPACES
        if self.total > self.peak:
            self.peak, self.moment, self.at_peak = self.total, self.part, list(self.live.values())

    def _settle(self, note: Note) -> None:
        if note.event == "part":
            self.part = note.part
        elif note.event == "output":
            self._own(note.addresses, LOGITS)
            self.after_model = True
        elif note.event in ("backward", "recomputed"):
            for block in self.live.values():
                block.owner = block.owner or (LOGITS if block.of_loss else ACTIVATIONS)
            self.after_model = False
        elif note.event == "gradients":
            self._own(note.addresses, GRADIENTS)

    def _own(self, addresses: tuple[int, ...], owner: str) -> None:
        for address in addresses:
            if address in self.live:
                self.live[address].owner = owner


def address_of(tensor: Any) -> int:
    """Where a tensor's memory begins, as the allocator gave it; 0 for what is no tensor or has no memory of its own."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        return 0
    storage = tensor.untyped_storage()
    return storage.data_ptr() if storage.nbytes() else 0
