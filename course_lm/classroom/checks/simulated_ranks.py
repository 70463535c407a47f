"""Simulated ranks: a function is run once for each of them, and the check adds up what they give to `all_reduce`.

No process and no thread is started. A rank that calls `all_reduce` is stopped there; when all ranks have been stopped,
each is run again from its beginning, with the sums that are known by then. So a rank that hangs the others is found at
once, and not by waiting for it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lm.classroom.checks.outcomes import Refused

_MOST_CALLS = 50  # of all_reduce by one rank


class AllReduce:
    """`all_reduce(value)`: the sum over all ranks of a number or of a tensor; the sum of tensors has no graph.

    After the simulation it adds what the other ranks give to their first call where they do all right, so that the one
    call that a report shows can be made again.

    Attributes:
        had_gradient: whether it was given a tensor with a gradient.
        waits: whether its rank was stopped at a call whose sum was not known yet.
    """

    def __init__(self, sums: Sequence[Any], others: Callable[[], Sequence[Any]]) -> None:
        self.had_gradient = self.waits = False
        self._sums, self._others = sums, others
        self._calls = 0
        self._is_simulated = True

    def __call__(self, value: Any) -> Any:
        """The sum. Raises TypeError for what is neither a number nor a tensor."""
        value = value.item() if isinstance(value, np.generic) else value
        if not isinstance(value, int | float | Tensor):
            raise TypeError(f"all_reduce takes a number or a tensor, got {type(value).__name__}")
        if isinstance(value, Tensor):
            self.had_gradient |= value.requires_grad
            value = value.detach().clone()
        if not self._is_simulated:
            return sum(self._others(), start=value)
        self._calls += 1
        if self._calls > len(self._sums):
            self.waits = True
            raise _Waits(value)
        known = self._sums[self._calls - 1]
        return known.clone() if isinstance(known, Tensor) else known

    def end_simulation(self) -> None:
        """From now on the other ranks do all right."""
        self._is_simulated = False


class _Waits(BaseException):
    """A rank has called all_reduce and waits for the others; no `except Exception` of an answer holds it."""

    def __init__(self, value: Any) -> None:
        self.value = value


def in_lockstep(
    answer: Callable[[int, AllReduce], Any], world: int, right: Callable[[int, AllReduce], Any] | None = None
) -> list[Any]:
    """What `answer(rank, all_reduce)` gives on each of `world` ranks.

    `answer` is called several times for a rank, and makes its arguments anew each time. `right` is an answer that does
    all right, and calls `all_reduce` once; the default is `answer`. Raises Refused where a rank calls `all_reduce` less
    often than another, which would wait for it, and where the ranks give values of different shapes.
    """
    sums: list[Any] = []
    results: dict[int, Any] = {}
    while len(results) < world:
        waiting = {}
        for rank in range(world):
            if rank in results:
                continue
            all_reduce = AllReduce(sums, lambda rank=rank: _first_values(right or answer, world, rank))
            try:
                results[rank] = answer(rank, all_reduce)
                if all_reduce.waits:
                    raise Refused("an `except:` also catches what stops a rank at all_reduce here: name the exception")
            except _Waits as waits:
                waiting[rank] = waits.value
            finally:
                all_reduce.end_simulation()
        if waiting:
            _refuse_a_hang(waiting, results, len(sums))
            sums.append(_sum_of(waiting))
    return [results[rank] for rank in range(world)]


def _first_values(answer: Callable[[int, AllReduce], Any], world: int, rank: int) -> list[Any]:
    """What all ranks but this one give to their first call of all_reduce."""
    values = []
    for other in range(world):
        if other != rank:
            try:
                answer(other, AllReduce([], list))
            except _Waits as waits:
                values.append(waits.value)
    return values


def _refuse_a_hang(waiting: dict[int, Any], returned: dict[int, Any], calls: int) -> None:
    if returned:
        done, waits = min(returned), min(waiting)
        before = f"after {calls} calls of" if calls > 1 else "after one call of" if calls else "without calling"
        again = "once more" if calls else "it"
        raise Refused(
            f"rank {done} returns {before} all_reduce, and rank {waits} calls {again} and waits for ever: "
            f"rank {done} would hang the others"
        )
    if calls == _MOST_CALLS:
        raise Refused(f"each rank calls all_reduce more than {_MOST_CALLS} times")


def _sum_of(given: dict[int, Any]) -> Any:
    shapes = {rank: tuple(value.shape) if isinstance(value, Tensor) else () for rank, value in given.items()}
    for rank, shape in shapes.items():
        if shape != shapes[0]:
            raise Refused(f"all_reduce adds values of one shape: rank 0 gives {shapes[0]}, rank {rank} gives {shape}")
    values = list(given.values())
    if any(isinstance(value, Tensor) for value in values):
        return torch.stack([torch.as_tensor(value) for value in values]).sum(0)
    return sum(values)
