"""Whose each block of memory is, from the moment when torch's allocator gives it until it is freed.

A step is recorded with the allocator's events, and with notes among them of what the step has come to. Replaying both
in their order settles each block's owner by what it survives: what the forward pass made and the backward pass finds is
an activation, so that one which checkpointing made anew counts like one that was kept. A block that is freed inside the
operation that asked for it was that operation's workspace.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from course_lm.forward import logits_of
from course_lm.profiling.events import operations
from course_lm.profiling.marks import OTHER, Marks

WEIGHTS, GRADIENTS, MOMENTS, BATCHES = "weights", "gradients", "moments", "batches"
ACTIVATIONS, LOGITS, TEMPORARIES, WORKSPACES = "activations", "logits", "temporaries", "workspaces"
OWNERS = (WEIGHTS, GRADIENTS, MOMENTS, ACTIVATIONS, LOGITS, BATCHES, TEMPORARIES, WORKSPACES)
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


class Notes(Marks):
    """The parts of a step, and what `Observer` tells, as events of torch's profiler.

    Args:
        parameters: gives those whose gradients are looked for when all are there.
    """

    def __init__(self, parameters: Callable[[], list[Tensor]]) -> None:
        super().__init__()
        self.parameters = parameters

    def switch(self, part: str) -> None:
        """From now on `part` runs."""
        super().switch(part)
        self._note("part", part)

    def tell(self, event: str, value: Any = None) -> None:
        """Note an event of `Observer`, with the addresses of the tensors that it is about."""
        tensors: list[Any] = []
        if event == "output":
            tensors = [logits_of(value)]
        elif event == "gradients":
            tensors = [one.grad for one in self.parameters()]
        self._note(event, *(str(address) for address in map(address_of, tensors) if address))

    @staticmethod
    def _note(*words: str) -> None:
        with record_function(_NOTE + ";".join(words)):
            pass


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

    def replay(self, events: list[dict[str, Any]], device: torch.device) -> None:
        """Follow a recorded step from its begin to its end."""
        number, running = _DEVICE_NUMBERS[device.type], operations(events)
        begins = [begin for begin, _ in running]
        told = [one for one in events if one["name"] == "[memory]" or one["name"].startswith(_NOTE)]
        for event in sorted(told, key=lambda one: one["ts"]):
            if event["name"] != "[memory]":
                self._settle(*event["name"].removeprefix(_NOTE).split(";"))
            elif event["args"]["Device Type"] == number:
                place = bisect_right(begins, event["ts"]) - 1
                inside = place >= 0 and event["ts"] <= running[place][1]
                self._change(event["args"]["Addr"], event["args"]["Bytes"], place if inside else None)

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

    def _settle(self, event: str, *about: str) -> None:
        """Give blocks the owner that an event of `Observer` shows; `about`: the part, or addresses."""
        if event == "part":
            (self.part,) = about
        elif event in ("output", "gradients"):
            for block in (self.live.get(int(address)) for address in about):
                if block is not None:
                    block.owner = LOGITS if event == "output" else GRADIENTS
            self.after_model = event == "output"
        else:  # "backward", or "recomputed"
            for block in self.live.values():
                block.owner = block.owner or (LOGITS if block.of_loss else ACTIVATIONS)
            self.after_model = False


def address_of(tensor: Any) -> int:
    """Where a tensor's memory begins, as the allocator gave it; 0 for what is no tensor or has no memory of its own."""
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
        return 0
    storage = tensor.untyped_storage()
    return storage.data_ptr() if storage.nbytes() else 0
