"""A trial on a live model: afterwards model, optimizer, data and random generators are what they were, bit for bit."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from course_lm.batching.data import kept, second_reader
from course_lm.checkpoints import OwnState
from course_lm.checkpoints.state import keep
from course_lm.reproducibility import generators_kept
from course_lm.step import all_parameters


@contextmanager
def restored(
    model: nn.Module, optimizer: Optimizer, loader: Iterable[Any], *functions: object
) -> Iterator[Iterable[Any]]:
    """Let the body train; when it ends, by an error or an interrupt too, undo all that it did.

    Put back are model and optimizer, see `checkpoints.state.keep`; what these and `functions`, such as a loss, keep
    beside, see `OwnState`; the global random generators; the loader's position and the generators that it draws from.
    The body finds no gradients.

    Yields:
        A second reader over the same data, from the loader's position on. Read it in place of the loader.
    """
    named = {f"function {number}": function for number, function in enumerate(functions)}
    own = OwnState(model=model, optimizer=optimizer, **named)
    # generators around all: to ask a loader for its position may draw a seed
    with generators_kept(), own.kept(), kept(loader):
        put_back = keep(model, optimizer)
        try:
            for parameter in all_parameters(model, optimizer):
                parameter.grad = None
            yield second_reader(loader)
        finally:
            put_back()
