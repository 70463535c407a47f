"""Exercises of lesson 14: a window exchanged once, a rank's loss, a skip for all, a global norm."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lm.classroom.checks import Refused, exercise
from course_lm.classroom.checks.simulated_ranks import AllReduce, in_lockstep


def _exchanged(
    fn: Callable[..., Any], gradients: Sequence[Sequence[Tensor]], targets: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """What each rank returns, and how often it sends something of a gradient's size."""
    sendings: dict[int, int] = {}

    def on_rank(answer: Callable[..., Any], rank: int, all_reduce: AllReduce) -> Any:
        sendings[rank] = 0

        def counted(value: Any) -> Any:
            sendings[rank] += isinstance(value, Tensor) and value.numel() >= gradients[0][0].numel()
            return all_reduce(value)

        return answer([one.clone() for one in gradients[rank]], list(targets[rank]), counted)

    found = in_lockstep(partial(on_rank, fn), len(targets), right=partial(on_rank, exchange_once.solution))
    sent = {f"gradients that rank {rank} sends": sendings[rank] for rank in range(len(targets))}
    return {**{f"the gradient on rank {rank}": one for rank, one in enumerate(found)}, **sent}


def _window(targets: Sequence[Sequence[int]], seed: int) -> tuple[list[list[Tensor]], list[list[int]]]:
    """For each rank the gradients of its micro-batches, (3,) each, 0 where there is no target; and their targets."""
    generator = torch.Generator().manual_seed(seed)
    draw = [[torch.randn(3, generator=generator) * bool(count) for count in counts] for counts in targets]
    return draw, [list(counts) for counts in targets]


@exercise(
    cases={
        "two ranks, two micro-batches each": _window([[6, 1], [2, 3]], 0),
        "seven micro-batches on three ranks": _window([[4, 9, 2], [1, 7], [5, 3]], 1),
        "a rank without a target": _window([[8, 2], [0]], 2),
        "no target in the window": _window([[0], [0], [0]], 3),
        "one rank": _window([[2, 5, 4]], 4),
        "one target on three ranks": _window([[0], [1], [0, 0]], 5),
    },
    run=_exchanged,
)
def exchange_once(gradients, targets, all_reduce):
    """The step's gradient: `fn(gradients, targets, all_reduce)`, lists of this rank's micro-batches."""
    gradient = all_reduce(sum(gradients))
    total = all_reduce(sum(targets))
    return gradient / max(1, total)


def _gradients(fn: Callable[..., Any], slopes: Sequence[Sequence[float]], targets: Sequence[int]) -> dict[str, Tensor]:
    """The gradient that each rank's loss gives, and their average, which the optimizer gets; (2,) each.

    Raises Refused for a loss that has no gradient.
    """
    world = len(targets)

    def on_rank(answer: Callable[..., Any], rank: int, all_reduce: AllReduce) -> Tensor:
        weights = torch.tensor([0.5, -2.0], requires_grad=True)
        loss = answer((weights * torch.tensor(slopes[rank])).sum(), targets[rank], all_reduce, world)
        if isinstance(loss, tuple | list | dict):
            raise Refused(f"rank {rank} returns a {type(loss).__name__}: return the loss alone, one tensor")
        if not isinstance(loss, Tensor) or not loss.requires_grad:
            reason = "all_reduce was given the loss, and its sum" if all_reduce.had_gradient else "what it returns"
            raise Refused(f"rank {rank} has nothing to call backward on: {reason} has no gradient")
        if loss.numel() != 1:
            raise Refused(f"backward needs one number, and rank {rank} returns the shape {tuple(loss.shape)}")
        if weights.grad is not None:
            raise Refused("it calls backward itself: return the loss, on which the caller does")
        gradient = torch.autograd.grad(loss.sum(), weights, allow_unused=True)[0]
        if gradient is None:
            raise Refused(f"what rank {rank} returns does not depend on the weights: backward gives it no gradient")
        return gradient

    found = in_lockstep(partial(on_rank, fn), world, right=partial(on_rank, loss_to_backward.solution))
    average = torch.stack(found).mean(0)
    return {"the averaged gradient": average, **{f"the gradient of rank {rank}": one for rank, one in enumerate(found)}}


@exercise(
    cases={
        "two ranks, 6 and 2 targets": ([[3.0, 1.5], [-1.0, 0.25]], [6, 2]),
        "three ranks, one without a target": ([[2.0, -0.5], [0.0, 0.0], [1.0, 4.0]], [5, 0, 9]),
        "no rank has a target": ([[0.0, 0.0], [0.0, 0.0]], [0, 0]),
        "three ranks, fewer targets than ranks": ([[0.0, 0.0], [2.0, 1.0], [0.0, 0.0]], [0, 1, 0]),
        "one rank with one target": ([[1.0, -3.0]], [1]),
    },
    run=_gradients,
    close=(5e-7, 1e-9),  # four roundings in float32, and no 1e-6 that is added to the targets
)
def loss_to_backward(loss_sum, targets, all_reduce, world):
    """What a rank calls backward on: `fn(loss_sum, targets, all_reduce, world)`; gradients are averaged after it."""
    total = all_reduce(targets)
    return loss_sum * (world / max(1, total))


def _decisions(fn: Callable[..., Any], finite: Sequence[bool]) -> list[Any]:
    def on_rank(answer: Callable[..., Any], rank: int, all_reduce: AllReduce) -> Any:
        return _without_dimensions(answer(finite[rank], all_reduce))

    return in_lockstep(partial(on_rank, fn), len(finite), right=partial(on_rank, agree_to_skip.solution))


def _without_dimensions(value: object) -> object:
    """A tensor of one number without its dimensions: a collective of torch takes either."""
    return value.reshape(()) if isinstance(value, Tensor) and value.numel() == 1 else value


@exercise(
    cases={
        "one bad rank of three": ([True, False, True],),
        "all ranks finite": ([True, True],),
        "no rank finite": ([False, False, False],),
        "two bad ranks of three": ([False, False, True],),
        "two bad ranks of five": ([True, False, True, False, True],),
    },
    run=_decisions,
)
def agree_to_skip(finite, all_reduce):
    """Whether all ranks skip the step: `fn(finite, all_reduce)`, True on all where one rank is not finite."""
    return all_reduce(int(not finite)) > 0


def _norms(fn: Callable[..., Any], ranks: Sequence[Sequence[Tensor]]) -> list[Any]:
    def on_rank(answer: Callable[..., Any], rank: int, all_reduce: AllReduce) -> Any:
        norm = _without_dimensions(answer([part.clone() for part in ranks[rank]], all_reduce))
        if isinstance(norm, complex):  # what Python gives for a negative number ** 0.5
            raise Refused("the norm is a complex number, the root of a negative one: were the numbers squared?")
        return norm

    return in_lockstep(partial(on_rank, fn), len(ranks), right=partial(on_rank, norm_of_parts.solution))


def _parts(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]], seed: int) -> list[list[Tensor]]:
    """Two gradients cut along their rows: for each rank a part of the first and of the second, by their shapes."""
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(*shape, generator=generator) for shape in shapes] for shapes in zip(first, second)]


@exercise(
    cases={
        "3 on one rank, −4 on the other": ([[torch.tensor([3.0])], [torch.tensor([-4.0])]],),
        "two gradients cut in three, a part is empty": (_parts([(2, 3), (2, 3), (1, 3)], [(2,), (1,), (0,)], 0),),
        "a rank that holds nothing": (_parts([(3, 2), (3, 2), (0, 2)], [(1,), (2,), (0,)], 1),),
        "one rank holds all": (_parts([(2, 2)], [(5,)], 2),),
    },
    run=_norms,
)
def norm_of_parts(parts, all_reduce):
    """The norm of all gradients as one vector: `fn(parts, all_reduce)`, the tensors that a rank holds, some empty."""
    squares = sum(float(part.square().sum()) for part in parts)
    return all_reduce(squares) ** 0.5
