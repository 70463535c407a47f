"""Which part of a step runs when: hooks on the modules, the backward graph and the optimizer mark each change of part.

A mark is a reading of some clock and the part that begins there. What lies between two marks belongs to the first, and
so does the work that is counted meanwhile.

In the forward pass modules say where they begin and end. Each operation of the backward pass belongs to the part whose
forward pass made it: a node of autograd's graph carries the number that it got then. A forward pass that gradient
checkpointing repeats belongs to the backward pass, whose time it takes. Torch's older, reentrant checkpointing runs a
backward pass of its own inside a node: that counts as a whole to the part around the checkpoint.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.optim import Optimizer

from course_lm.forward import unwrap
from course_lm.profiling.parts import BACKWARD, Names

DATA, CLIPPING, OPTIMIZER, OTHER = "data", "clipping", "optimizer", "other"
PROFILING = "profiling"  # work of the profiler itself, which no part is charged with
_LEAF = 2**64 - 1  # what autograd numbers the nodes with that add up a parameter's gradient


class Marks:
    """The parts of a step in the order in which they ran, each with the clock's reading where it began.

    Args:
        clock: called at each change of part.
    """

    def __init__(self, clock: Callable[[], Any] = lambda: None) -> None:
        self.clock = clock
        self.part = OTHER
        self.readings: list[tuple[str, Any]] = []

    def switch(self, part: str) -> None:
        """From now on `part` runs."""
        self.part = part
        self.readings.append((part, self.clock()))

    def tell(self, event: str, value: Any = None) -> None:
        """Hear what `Observer` tells; nothing is done with it here."""

    def totals(self, difference: Callable[[Any, Any], float]) -> dict[str, float]:
        """What the clock counted in each part, in the order in which the parts first ran.

        What came after the last mark is left out; `difference(begin, end)` is between two readings.
        """
        counted: dict[str, float] = {}
        for (part, begin), (_, end) in zip(self.readings, self.readings[1:]):
            if part != PROFILING:
                counted[part] = counted.get(part, 0.0) + difference(begin, end)
        return counted


class MarkedScaler(torch.amp.GradScaler):
    """A scaler that tells the observer, where there is one, when the backward pass begins and when clipping does.

    A step passes the loss through its scaler in every precision, see `Precision`.
    """

    observer: "Observer | None" = None

    def __init__(self, scaler: torch.amp.GradScaler) -> None:
        vars(self).update(vars(scaler))  # its scale, where fp16 has one by now

    def scale(self, outputs: Any) -> Any:
        """The scaled loss, whose graph is marked."""
        scaled = super().scale(outputs)
        if self.observer is not None:
            self.observer.begin_backward(scaled)
        return scaled

    def unscale_(self, optimizer: Optimizer) -> None:
        """Unscale the gradients, as the first part of clipping them."""
        if self.observer is not None:
            self.observer.begin_clipping()
        super().unscale_(optimizer)


class Observer:
    """Marks the parts of the steps that are taken inside its context.

    It tells the marks "output", with what the model returned; "backward" before each backward pass; "recomputed" after
    a repeated forward pass; "gradients" when all are there.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, scaler: MarkedScaler, names: Names, marks: Marks
    ) -> None:
        self.model, self.optimizer, self.scaler = unwrap(model), optimizer, scaler
        self.names, self.marks = names, marks
        self.backward = False
        self._enclosing = [OTHER]  # parts of the modules that are running, the innermost last
        self._numbers: list[int] = []  # of autograd's next node, where each part of the forward pass began
        self._parts: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks are in place until the body ends."""
        with ExitStack() as hooks:
            for path, module in self.model.named_modules():
                if path in self.names.inside:
                    enter, leave = partial(self._enter, path), partial(self._leave, path)
                    hooks.enter_context(module.register_forward_pre_hook(enter, prepend=True))
                    # called after an error too: checkpointing breaks off a forward pass that has given all it needs
                    hooks.enter_context(module.register_forward_hook(leave, always_call=True))
            hooks.enter_context(self.optimizer.register_step_pre_hook(lambda *_: self.marks.switch(OPTIMIZER)))
            hooks.enter_context(self.optimizer.register_step_post_hook(lambda *_: self.marks.switch(OTHER)))
            hooks.callback(setattr, self.scaler, "observer", None)
            self.scaler.observer = self
            yield

    def _enter(self, path: str, *_: object) -> None:
        if path == "":  # the whole model: no repeated part of it
            self._end_backward()
        self._enclosing.append(self._named(self.names.inside[path]))
        self._begin(self._enclosing[-1])

    def _leave(self, path: str, _module: nn.Module, _given: Any, output: Any) -> None:
        self._enclosing.pop()
        after = self.names.after.get(path)
        self._begin(self._named(after) if after is not None else self._enclosing[-1])
        if path == "":
            self.marks.tell("output", output)
        elif self.backward and len(self._enclosing) == 1:
            self.marks.tell("recomputed")

    def _named(self, part: str) -> str:
        return part + BACKWARD if self.backward else part

    def _begin(self, part: str) -> None:
        if not self.backward:
            self._numbers.append(torch.autograd._get_sequence_nr())
            self._parts.append(part)
        self.marks.switch(part)

    def begin_backward(self, loss: Tensor) -> None:
        """Mark each node of the loss's graph with its part."""
        self.marks.switch(PROFILING)
        self.marks.tell("backward")
        for node in _nodes(loss):
            number = node._sequence_nr()  # type: ignore[attr-defined]
            if number != _LEAF:  # a gradient is added up right after the node that gave it, and counts to its part
                place = max(0, bisect_right(self._numbers, number) - 1)
                node.register_prehook(partial(self._enter_node, self._parts[place] + BACKWARD))
        self._numbers.clear()
        self._parts.clear()
        self.marks.switch(self.names.loss + BACKWARD)

    def _enter_node(self, part: str, gradients: tuple[Tensor, ...]) -> None:
        if not self.backward:
            self.backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)  # type: ignore[attr-defined]
        self._enclosing[:] = [part]
        if part != self.marks.part:
            self.marks.switch(part)

    def _end_backward(self) -> None:
        self.backward = False
        self._enclosing[:] = [OTHER]
        self.marks.switch(OTHER)

    def begin_clipping(self) -> None:
        """The gradients are complete; what follows up to the optimizer is clipping."""
        self.marks.tell("gradients")
        self.marks.switch(CLIPPING)


def _nodes(loss: Tensor) -> Iterator[Node]:
    """All nodes of autograd's graph of `loss`."""
    seen: set[Node] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)
        yield node
