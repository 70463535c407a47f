"""Checks of lesson 14: a rank's share, its loss before the engine averages, a skip that all agree on, a global norm."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lm.classroom.checks.report import AnyOf, Edit, Refused, Report, compare
from course_lm.classroom.checks.simulated_ranks import AllReduce, in_lockstep

_WEIGHTS = (0.5, -2.0)  # of the model that the simulated ranks share
Sum = Callable[[Any], Any]


def my_share(fn: Callable[..., object]) -> Report:
    """The micro-batches of a rank: `fn(window_length, rank, world)`, a list of indices."""
    indices = "range(rank, window_length, world)"
    own = f"list({indices})"

    def blocks(length: int, rank: int, world: int, size: int) -> list[int]:
        last = length if rank == world - 1 else (rank + 1) * size
        return list(range(rank * size, min(length, last)))

    def there_and_back(length: int, rank: int, world: int) -> list[int]:
        rounds = range(-(-length // world))
        every = [turn * world + (world - 1 - rank if turn % 2 else rank) for turn in rounds]
        return [one for one in every if one < length]

    return compare(
        fn,
        reference=lambda length, rank, world: list(range(rank, length, world)),
        cases={
            "seven micro-batches on three ranks": (7, 3),
            "eight on four": (8, 4),
            "two on four ranks": (2, 4),
            "three on one rank": (3, 1),
        },
        run=_on_each_rank,
        shown=["eight on four", "three on one rank", "two on four ranks"],
        mistakes={
            "every rank computes the whole window": Edit(indices, "range(window_length)"),
            "the window is cut into blocks of neighbours: it is a fair share too, but the rule of this loop is "
            "rank, rank + world, …": AnyOf(
                lambda length, rank, world: blocks(length, rank, world, -(-length // world)),
                lambda length, rank, world: blocks(length, rank, world, length // world),
                lambda length, rank, world: torch.arange(length).tensor_split(world)[rank].tolist(),
                lambda length, rank, world: [one for one in range(length) if one * world // length == rank],
            ),
            "the window is cut into blocks of neighbours, and the tail is dropped": lambda length, rank, world: list(
                range(rank * (length // world), (rank + 1) * (length // world))
            ),
            "the window is cut into equally long blocks of neighbours, with indices beyond the window": (
                lambda length, rank, world: [rank * -(-length // world) + one for one in range(-(-length // world))]
            ),
            "the window is cut into blocks of `world` neighbours": lambda length, rank, world: list(
                range(rank * world, min(length, (rank + 1) * world))
            ),
            "the tail of the window, which does not go round all ranks, is dropped": Edit(
                indices, "range(rank, window_length // world * world, world)"
            ),
            "all shares are made equally long: the first micro-batches are computed twice": Edit(
                own, "[one % window_length for one in range(rank, -(-window_length // world) * world, world)]"
            ),
            "all shares are made equally long: the last micro-batch is computed again": Edit(
                own, "[min(one, window_length - 1) for one in range(rank, -(-window_length // world) * world, world)]"
            ),
            "all shares are made equally long, with indices beyond the window": Edit(
                own, "[rank + turn * world for turn in range(-(-window_length // world))]"
            ),
            "the last micro-batch of the window is left out": Edit(indices, "range(rank, window_length - 1, world)"),
            "the window is taken to be one micro-batch longer": Edit(indices, "range(rank, window_length + 1, world)"),
            "the ranks are counted from 1: nobody computes micro-batch 0": Edit("(rank,", "(rank + 1,"),
            "the micro-batches are counted from 1": Edit(own, "list(range(rank + 1, window_length + 1, world))"),
            "the order is turned around": Edit(own, f"{own}[::-1]"),
            "only one micro-batch is computed, that of the rank's own number": Edit(
                own, "list(range(rank, min(rank + 1, window_length)))"
            ),
            "only one micro-batch is computed, even where the window has none for the rank": Edit(own, "[rank]"),
            "every rank computes the share of rank 0": Edit("(rank,", "(0,"),
            "every rank computes all from its own number on": Edit(indices, "range(rank, window_length)"),
            "the number of micro-batches is given, not which": Edit(own, f"len({indices})"),
            "each second round goes backwards through the ranks": there_and_back,
            "ranks and micro-batches have changed places": Edit(indices, "range(rank, world, window_length)"),
        },
        hints={
            "range(": "Start at the rank's own number, and step over what the other ranks compute.",
        },
    )


def _on_each_rank(fn: Callable[..., object], length: int, world: int) -> list[object]:
    return [fn(length, rank, world) for rank in range(world)]


def loss_to_backward(fn: Callable[..., object]) -> Report:
    """What a rank calls backward on: `fn(loss_sum, targets, all_reduce, world)`; gradients are averaged after it."""
    total, counted = "all_reduce(targets)", "max(1, total)"
    divided = f"loss_sum * (world / {counted})"
    before = f"    total = {total}\n"
    of_all = f"    return {divided}"
    no_target = "the window has no target on any rank, and 0 is divided by 0"
    through_it = "the loss goes through all_reduce, which keeps no gradient; the engine adds up the gradients itself"
    plain_0 = "without any target a plain 0 is returned: it has no gradient, and backward fails"

    return compare(
        fn,
        reference=_right_loss,
        cases={
            "two ranks, 6 and 2 targets": ([[3.0, 1.5], [-1.0, 0.25]], [6, 2]),
            "three ranks, one without a target": ([[2.0, -0.5], [0.0, 0.0], [1.0, 4.0]], [5, 0, 9]),
            "no rank has a target": ([[0.0, 0.0], [0.0, 0.0]], [0, 0]),
            "three ranks, fewer targets than ranks": ([[0.0, 0.0], [2.0, 1.0], [0.0, 0.0]], [0, 1, 0]),
            "one rank with one target": ([[1.0, -3.0]], [1]),
        },
        run=_gradients,
        shown=["two ranks, 6 and 2 targets", "one rank with one target"],
        mistakes={
            "each rank divides by its own targets: the average is then a mean of the ranks' means": AnyOf(
                Edit(divided, "loss_sum / max(1, targets)"),
                Edit(divided, "loss_sum / targets"),
            ),
            "the factor world is forgotten: the engine averages over the ranks, where a sum is needed": AnyOf(
                Edit(f"(world / {counted})", f"(1 / {counted})"),
                lambda loss_sum, targets, all_reduce, world: loss_sum / all_reduce(targets),
            ),
            "the loss is divided by world, which the engine does already": AnyOf(
                Edit(f"(world / {counted})", f"(1 / {counted} / world)"),
                lambda loss_sum, targets, all_reduce, world: loss_sum / (all_reduce(targets) * world),
            ),
            "the mean number of targets is kept from falling below 1, not their total": Edit(
                divided, "loss_sum / max(1, total / world)"
            ),
            "all_reduce is called only where a rank has targets: a rank without one would hang the others": Edit(
                before, f"    total = {total} if targets else 0\n"
            ),
            no_target: AnyOf(
                Edit(divided, "loss_sum * world / total"),
                Edit(counted, "total"),
            ),
            through_it: Edit(divided, f"all_reduce(loss_sum) * (world / {counted})"),
            "the loss is cut off from the weights, by `detach`, `item` or `float`: nothing is left to go backward": (
                Edit(divided, f"loss_sum.detach() * (world / {counted})")
            ),
            plain_0: Edit(of_all, f"    if not total:\n        return 0.0\n{of_all}"),
            "a rank without a target counts as one target": Edit(total, "all_reduce(max(1, targets))"),
            "the sum is not divided by the targets": Edit(divided, "loss_sum * world"),
            "the sum is returned as it is": Edit(divided, "loss_sum * 1"),
            "the sum is divided by the number of ranks, not by the targets": Edit(divided, "loss_sum / world"),
            "the engine is taken to average over the ranks that have a target": (
                Edit("(world / ", "(ranks / "),
                Edit(before, f"{before}    ranks = all_reduce(int(targets > 0))\n"),
            ),
            "it is divided by the mean number of targets, and multiplied by world once more": Edit(
                f"(world / {counted})", f"(world * world / {counted})"
            ),
            "the targets are multiplied by world and not added up over the ranks": Edit(
                total, "(all_reduce(targets) - targets) * world"
            ),
            "each rank divides by its own targets and multiplies by world: what `all_reduce` returns is not used": Edit(
                total, "0 * all_reduce(targets) + targets"
            ),
            "each rank divides by its own targets, and by world": AnyOf(
                Edit(divided, "loss_sum / max(1, targets) / world"), Edit(divided, "loss_sum / targets / world")
            ),
            "a rank without a target divides 0 by 0, where the ranks together have targets": AnyOf(
                Edit(divided, f"loss_sum / targets * (targets * world / {counted})"),
                Edit(divided, "loss_sum / targets * (targets * world / total)"),
            ),
            "the loss is weighted by the rank's targets twice": Edit(
                divided, f"loss_sum * (world * targets / {counted})"
            ),
            "the loss is multiplied by the targets, not divided": Edit(divided, f"loss_sum * (world * {counted})"),
        },
        hints={
            no_target: "A count of 0 stands for no sum: divide by at least 1.",
            through_it: "The number of targets alone goes through `all_reduce`.",
            plain_0: "`loss_sum` is 0 then: multiplied by any number it keeps its graph.",
            total: "Each rank, also one without a target, asks `all_reduce` for the targets of all.",
            f"world / {counted}": "The engine divides the sum of the gradients by world: multiply by it here.",
        },
    )


def _right_loss(loss_sum: Tensor, targets: int, all_reduce: Sum, world: int) -> Tensor:
    return loss_sum * (world / max(1, all_reduce(targets)))


def _gradients(fn: Callable[..., Any], slopes: Sequence[Sequence[float]], targets: Sequence[int]) -> dict[str, Tensor]:
    """The gradient that each rank's loss gives, and their average, which the optimizer gets; (2,) each.

    Raises Refused for a loss that has no gradient.
    """
    world = len(targets)

    def on_rank(answer: Callable[..., Any], rank: int, all_reduce: AllReduce) -> Tensor:
        weights = torch.tensor(_WEIGHTS, requires_grad=True)
        loss = answer((weights * torch.tensor(slopes[rank])).sum(), targets[rank], all_reduce, world)
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

    found = in_lockstep(
        lambda rank, all_reduce: on_rank(fn, rank, all_reduce),
        world,
        right=lambda rank, all_reduce: on_rank(_right_loss, rank, all_reduce),
    )
    average = torch.stack(found).mean(0)
    return {"the averaged gradient": average, **{f"the gradient of rank {rank}": one for rank, one in enumerate(found)}}


def agree_to_skip(fn: Callable[..., object]) -> Report:
    """Whether all ranks skip the step: `fn(finite, all_reduce)`, True on all where one rank is not finite."""
    bad, answer = "int(not finite)", "all_reduce(int(not finite)) > 0"
    return compare(
        fn,
        reference=_right_skip,
        cases={
            "one bad rank of three": ([True, False, True],),
            "all ranks finite": ([True, True],),
            "no rank finite": ([False, False],),
            "two bad ranks of three": ([False, False, True],),
            "two bad ranks of five": ([True, False, True, False, True],),
        },
        run=_decisions,
        mistakes={
            "each rank decides alone: the weights of the ranks drift apart": Edit(answer, "not finite"),
            "the step is skipped only where no rank is finite": Edit(answer, "all_reduce(int(finite)) == 0"),
            "all_reduce is called only by a rank that is not finite: the finite ranks would hang it": Edit(
                answer, f"not finite and {answer}"
            ),
            "all_reduce is called only by the finite ranks: one that is not would hang them": Edit(
                answer, f"not finite or {answer}"
            ),
            "the answer is inverted: True where all ranks are finite": Edit("> 0", "== 0"),
            "one finite rank is enough to skip": Edit(bad, "int(finite)"),
            "no rank ever skips": Edit("> 0", "< 0"),
            "every step is skipped": Edit("> 0", ">= 0"),
            "the number of bad ranks is returned, not True or False": Edit(" > 0", ""),
            "the number of finite ranks is returned, not True or False": Edit(answer, "all_reduce(int(finite))"),
            "exactly one bad rank is asked for": Edit("> 0", "== 1"),
            "one bad rank is not enough to skip": Edit("> 0", "> 1"),
            "the majority of the ranks decides": Edit(answer, f"2 * all_reduce({bad}) > all_reduce(1)"),
            "a rank asks about the others and not about itself": Edit(answer, f"all_reduce({bad}) - {bad} > 0"),
        },
        hints={
            "not finite": "Count the ranks that are not finite: each gives 0 or 1.",
            "> 0": "One bad rank is enough: compare the count with 0.",
        },
    )


def _right_skip(finite: bool, all_reduce: Sum) -> bool:
    return bool(all_reduce(int(not finite)))


def _decisions(fn: Callable[..., Any], finite: Sequence[bool]) -> list[Any]:
    return in_lockstep(
        lambda rank, all_reduce: _without_dimensions(fn(finite[rank], all_reduce)),
        len(finite),
        right=lambda rank, all_reduce: _right_skip(finite[rank], all_reduce),
    )


def _without_dimensions(value: object) -> object:
    """A tensor of one number without its dimensions: a collective of torch takes either."""
    return value.reshape(()) if isinstance(value, Tensor) and value.numel() == 1 else value


def norm_of_parts(fn: Callable[..., object]) -> Report:
    """The norm of all gradients as one vector: `fn(parts, all_reduce)`, the tensors that a rank holds, some empty."""
    square, squares = "part.square().sum()", "sum(float(part.square().sum()) for part in parts)"
    result, total = "all_reduce(squares) ** 0.5", "all_reduce(squares)"
    full = "[part for part in parts if part.numel()]"
    norms = f"sum(float(part.norm()) for part in {full})"
    return compare(
        fn,
        reference=_right_norm,
        cases={
            "3 on one rank, −4 on the other": ([[torch.tensor([3.0])], [torch.tensor([-4.0])]],),
            "two gradients cut in three, a part is empty": (_parts([(2, 3), (2, 3), (1, 3)], [(2,), (1,), (0,)], 0),),
            "a rank that holds nothing": (_parts([(3, 2), (3, 2), (0, 2)], [(1,), (2,), (0,)], 1),),
            "one rank holds all": (_parts([(2, 2)], [(5,)], 2),),
        },
        run=_norms,
        shown=["3 on one rank, −4 on the other", "one rank holds all"],
        mistakes={
            "the norms of the ranks are added": Edit(result, "all_reduce(squares**0.5)"),
            "the norms of all parts on all ranks are added": (Edit(squares, norms), Edit(result, total)),
            "the norms of one gradient's parts are added over the ranks, and then squared": Edit(
                result, "sum(all_reduce(float(part.norm())) ** 2 for part in parts) ** 0.5"
            ),
            "each rank adds the norms of its parts, and the sums are squared": Edit(squares, f"{norms} ** 2"),
            "the root is taken before the sum over the ranks, and once more after it": Edit(
                total, "all_reduce(squares**0.5)"
            ),
            "the root is missing": Edit(result, total),
            "each rank gives the norm of what it holds itself": Edit(result, "squares**0.5"),
            "the squares are averaged over the ranks": Edit(total, f"({total} / all_reduce(1))"),
            "the norms of the ranks are averaged": Edit(result, "all_reduce(squares**0.5) / all_reduce(1)"),
            "only the largest part of each rank counts": Edit(
                squares, "max([0.0, *(float(part.square().sum()) for part in parts)])"
            ),
            "only the first part of each rank counts": Edit("in parts", "in parts[:1]"),
            "only the last part of each rank counts": Edit("in parts", "in parts[-1:]"),
            "a rank's own squares are added once more to the sum over all": Edit(total, f"(squares + {total})"),
            "the squares of the others alone are added": Edit(total, f"max(0.0, {total} - squares)"),
            "a rank that holds nothing does not call all_reduce: it would hang the others": Edit(
                f"    return {result}", f"    if not squares:\n        return 0.0\n    return {result}"
            ),
            "a rank that holds nothing calls all_reduce, but does not return the norm of all": Edit(
                f"return {result}", f"norm = {result}\n    return norm if squares else 0.0"
            ),
            "all_reduce is called for each part that is not empty: a rank with fewer would hang the others": AnyOf(
                Edit(result, f"sum(all_reduce(float(part.square().sum())) for part in {full}) ** 0.5"),
                Edit(result, f"sum(all_reduce(float(part.norm())) for part in {full})"),
            ),
            "the parts themselves go through all_reduce, though the ranks hold different numbers": AnyOf(
                Edit(square, "all_reduce(part).square().sum()"),
                Edit(square, "all_reduce(part.square()).sum()"),
                (Edit(square, "all_reduce(part).square().sum()"), Edit(result, "squares**0.5")),
                (Edit(square, "all_reduce(part.square()).sum()"), Edit(result, "squares**0.5")),
            ),
            "all numbers of a rank are taken for one vector, and the vectors are added over the ranks": (
                lambda parts, all_reduce: float(all_reduce(torch.cat([part.flatten() for part in parts])).norm())
            ),
            "the squares are averaged within each part, which gives nan for an empty one": Edit(
                square, "part.square().mean()"
            ),
            "the squares are averaged within each part that is not empty": Edit(
                squares, f"sum(float(part.square().mean()) for part in {full})"
            ),
            "the mean square of all numbers is taken": Edit(
                total, f"({total} / max(1, all_reduce(sum(part.numel() for part in parts))))"
            ),
            "absolute values are added instead of squares": (Edit("square()", "abs()"), Edit(result, total)),
            "absolute values are added instead of squares, and the root is taken": Edit("square()", "abs()"),
            "the numbers are added, and not their squares": Edit(".square()", ""),
            "the numbers of a part are added before they are squared": Edit(square, "part.sum().square()"),
            "the sum over the ranks is squared instead of rooted": Edit(result, f"{total} ** 2"),
        },
        hints={
            "part.square": "Squares add up, over the parts of a rank and over the ranks; norms do not.",
            result: "One call of `all_reduce`, on every rank, and one root after it.",
        },
    )


def _right_norm(parts: Sequence[Tensor], all_reduce: Sum) -> float:
    return math.sqrt(all_reduce(sum(float(part.square().sum()) for part in parts)))


def _norms(fn: Callable[..., Any], ranks: Sequence[Sequence[Tensor]]) -> list[Any]:
    def on_rank(answer: Callable[..., Any], rank: int, all_reduce: AllReduce) -> Any:
        norm = _without_dimensions(answer([part.clone() for part in ranks[rank]], all_reduce))
        if isinstance(norm, complex):  # what Python gives for a negative number ** 0.5
            raise Refused("the norm is a complex number, the root of a negative one: were the numbers squared?")
        return norm

    return in_lockstep(
        lambda rank, all_reduce: on_rank(fn, rank, all_reduce),
        len(ranks),
        right=lambda rank, all_reduce: on_rank(_right_norm, rank, all_reduce),
    )


def _parts(first: Sequence[Sequence[int]], second: Sequence[Sequence[int]], seed: int) -> list[list[Tensor]]:
    """Two gradients cut along their rows: for each rank a part of the first and of the second, by their shapes."""
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(*shape, generator=generator) for shape in shapes] for shapes in zip(first, second)]
