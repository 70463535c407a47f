"""Answers to the exercises of lesson 14: wrong ones, each with the mistake that must be named, and right ones."""

import math
from itertools import islice

import numpy as np
import torch

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("distributed",)
SABOTAGE = (
    "step.py",
    "loss * factor / divisor",
    "loss / divisor",
)


# Exercise 1


def share_of_all(window_length, rank, world):
    return [*range(window_length)]


def share_in_blocks(window_length, rank, world):
    size = math.ceil(window_length / world)
    return [number for number in range(window_length) if number // size == rank]


def share_in_numpy_blocks(window_length, rank, world):
    return np.array_split(np.arange(window_length), world)[rank]


def share_in_floored_blocks(window_length, rank, world):
    size = window_length // world
    start = rank * size
    if rank == world - 1:
        return list(range(start, window_length))
    return list(range(start, start + size))


def share_in_full_blocks(window_length, rank, world):
    size = math.ceil(window_length / world)
    return list(range(rank * size, (rank + 1) * size))


def share_in_blocks_of_world(window_length, rank, world):
    return [number for number in range(window_length) if number // world == rank]


def share_without_tail(window_length, rank, world):
    return [turn * world + rank for turn in range(window_length // world)]


def share_as_a_distributed_sampler(window_length, rank, world):
    indices = list(range(window_length))
    while len(indices) % world:
        indices.append(indices[len(indices) - window_length])
    return indices[rank::world]


def share_beyond(window_length, rank, world):
    share, number = [], rank
    for _ in range(math.ceil(window_length / world)):
        share.append(number)
        number += world
    return share


def share_from_one(window_length, rank, world):
    return [number for number in range(1, window_length) if (number - 1) % world == rank]


def share_in_ones(window_length, rank, world):
    return [number for number in range(1, window_length + 1) if (number - 1) % world == rank]


def share_of_one(window_length, rank, world):
    return [rank] if rank < window_length else []


def share_of_one_always(window_length, rank, world):
    return list(islice([rank], 1))


def share_counted(window_length, rank, world):
    return sum(number % world == rank for number in range(window_length))


def share_one_short(window_length, rank, world):
    share = []
    while rank < window_length - 1:
        share.append(rank)
        rank += world
    return share


def share_one_long(window_length, rank, world):
    share = []
    while rank <= window_length:
        share.append(rank)
        rank += world
    return share


def share_backwards(window_length, rank, world):
    return [number for number in reversed(range(window_length)) if number % world == rank]


def share_by_slices(window_length, rank, world):
    return list(range(window_length))[rank::world]


def share_by_remainder(window_length, rank, world):
    return [number for number in range(window_length) if number % world == rank]


def share_as_tensor(window_length, rank, world):
    return torch.arange(window_length)[rank::world]


# Exercise 2


def loss_of_own_mean(loss_sum, targets, all_reduce, world):
    all_reduce(targets)  # asked, and not used
    return loss_sum / max(targets, 1)


def loss_of_own_mean_alone(loss_sum, targets, all_reduce, world):
    if targets == 0:
        return 0.0 * loss_sum
    return loss_sum / targets


def loss_of_own_mean_with_nan(loss_sum, targets, all_reduce, world):
    return loss_sum / torch.tensor(float(targets))


def loss_without_world(loss_sum, targets, all_reduce, world):
    return loss_sum / max(1, all_reduce(torch.tensor(targets)).item())


def loss_divided_by_world(loss_sum, targets, all_reduce, world):
    return loss_sum / (world * all_reduce(torch.tensor(targets)).clamp(min=1))


def loss_that_hangs(loss_sum, targets, all_reduce, world):
    if targets == 0:
        return loss_sum
    return loss_sum / all_reduce(targets) * world


def loss_that_asks_only_with_targets(loss_sum, targets, all_reduce, world):
    total = 1
    if targets:
        total = all_reduce(torch.tensor(targets))
    return world * loss_sum / total


def loss_with_nan(loss_sum, targets, all_reduce, world):
    return loss_sum * world / all_reduce(torch.tensor(targets))


def loss_reduced(loss_sum, targets, all_reduce, world):
    return all_reduce(loss_sum) / max(1, all_reduce(targets))


def loss_of_reduced_means(loss_sum, targets, all_reduce, world):
    return all_reduce(loss_sum / max(targets, 1)) / world


def loss_detached(loss_sum, targets, all_reduce, world):
    return torch.tensor(loss_sum.item() * world / max(1, all_reduce(targets)))


def loss_as_float(loss_sum, targets, all_reduce, world):
    return float(loss_sum) * world / max(1, all_reduce(targets))


def loss_plain_zero(loss_sum, targets, all_reduce, world):
    total = all_reduce(targets)
    return world * loss_sum / total if total > 0 else 0.0


def loss_with_a_sum_in_place(loss_sum, targets, all_reduce, world):
    total = torch.tensor(targets)
    all_reduce(total)  # torch.distributed would write the sum into it
    return loss_sum * world / total.clamp(min=1)


def loss_of_weighted_means(loss_sum, targets, all_reduce, world):
    share = targets / max(1, all_reduce(targets))
    return loss_sum / targets * share * world


def loss_of_own_mean_by_world(loss_sum, targets, all_reduce, world):
    return loss_sum / (world * max(1, targets))


def loss_undivided(loss_sum, targets, all_reduce, world):
    return loss_sum


def loss_by_world(loss_sum, targets, all_reduce, world):
    return loss_sum.div(world)


def loss_of_ranks_with_targets(loss_sum, targets, all_reduce, world):
    counts = all_reduce(torch.tensor([targets, targets > 0]))
    return loss_sum * counts[1] / counts[0].clamp(min=1)


def loss_counting_an_empty_rank(loss_sum, targets, all_reduce, world):
    return loss_sum * world / all_reduce(1 if targets == 0 else targets)


def loss_by_mean_targets(loss_sum, targets, all_reduce, world):
    mean = all_reduce(targets) / world
    return loss_sum if mean == 0 else loss_sum / mean


def loss_with_a_tensor(loss_sum, targets, all_reduce, world):
    return loss_sum * world / all_reduce(torch.tensor(float(targets))).clamp(min=1.0)


def loss_as_the_mean_to_report(loss_sum, targets, all_reduce, world):
    # The value is the mean of all ranks, which is good to print; the gradient is what it must be.
    total = max(1, all_reduce(targets))
    own = loss_sum * world / total
    return own - own.detach() + all_reduce(loss_sum.detach()) / total


# Exercise 3


def skip_alone(finite, all_reduce):
    return finite is False


def skip_if_all_are_bad(finite, all_reduce):
    finite_ranks = all_reduce(1 if finite else 0)
    return not finite_ranks


def skip_by_a_product(finite, all_reduce):
    return all_reduce(1.0 - finite) == all_reduce(1.0)


def skip_asked_by_the_bad(finite, all_reduce):
    if finite:
        return False
    return all_reduce(1) > 0


def skip_told_by_the_bad(finite, all_reduce):
    if not finite:
        all_reduce(1)
        return True
    return False


def skip_asked_by_the_finite(finite, all_reduce):
    if not finite:
        return True
    return all_reduce(0) > 0


def skip_inverted(finite, all_reduce):
    return all_reduce(1 - int(finite)) == 0


def skip_if_any_is_finite(finite, all_reduce):
    return bool(all_reduce(finite))


def skip_counted(finite, all_reduce):
    return all_reduce(0 if finite else 1)


def skip_with_a_tilde(finite, all_reduce):
    return all_reduce(~torch.tensor(finite).long()) > 0


def skip_by_majority(finite, all_reduce):
    return all_reduce(-1 if finite else 1) > 0


def skip_for_exactly_one(finite, all_reduce):
    return all_reduce(torch.tensor(0 if finite else 1)) == 1


def skip_as_a_tensor(finite, all_reduce):
    return all_reduce(torch.tensor(not finite, dtype=torch.float32)) > 0


def skip_as_a_tensor_of_one(finite, all_reduce):
    return all_reduce(torch.tensor([0.0 if finite else 1.0])) > 0


def skip_by_counting_the_finite(finite, all_reduce):
    finite_ranks, ranks = all_reduce(int(finite)), all_reduce(1)
    return finite_ranks < ranks


def skip_by_a_nan(finite, all_reduce):
    return math.isnan(all_reduce(0.0 if finite else math.nan))


# Exercise 4


def norm_added(parts, all_reduce):
    return all_reduce(math.sqrt(sum((part**2).sum().item() for part in parts)))


def norm_of_all_parts_added(parts, all_reduce):
    return all_reduce(sum(torch.linalg.vector_norm(part).item() for part in parts))


def norm_of_norm_sums(parts, all_reduce):
    own = sum(part.norm() for part in parts)
    return all_reduce(own * own) ** 0.5


def norm_without_squares(parts, all_reduce):
    return all_reduce(sum(part.sum().item() for part in parts)) ** 0.5


def norm_of_added_norms(parts, all_reduce):
    norms = all_reduce(torch.stack([part.norm() for part in parts]))
    return norms.norm()


def norm_without_root(parts, all_reduce):
    return all_reduce(sum((part * part).sum() for part in parts))


def norm_of_own(parts, all_reduce):
    return torch.cat([part.flatten() for part in parts]).norm()


def norm_averaged(parts, all_reduce):
    ranks = all_reduce(1)
    return (all_reduce(sum(part.pow(2).sum() for part in parts)) / ranks).sqrt()


def norm_of_norms_averaged(parts, all_reduce):
    own = torch.cat([part.flatten() for part in parts]).norm()
    return all_reduce(own) / all_reduce(torch.ones(()))


def norm_rooted_twice(parts, all_reduce):
    own = torch.cat([part.flatten() for part in parts]).norm()
    return all_reduce(own).sqrt()


def norm_that_skips_empty_ranks(parts, all_reduce):
    numbers = [number for part in parts for number in part.flatten().tolist()]
    if not numbers:
        return 0.0
    return math.sqrt(all_reduce(sum(number**2 for number in numbers)))


def norm_that_asks_for_each_part(parts, all_reduce):
    squares = 0.0
    for part in parts:
        if part.numel() == 0:
            continue
        squares += all_reduce(part.square().sum().item())
    return math.sqrt(squares)


def norm_of_summed_parts(parts, all_reduce):
    summed = [all_reduce(part) for part in parts]
    return math.sqrt(sum(part.square().sum().item() for part in summed))


def norm_of_the_first(parts, all_reduce):
    return all_reduce(parts[0].square().sum()).sqrt()


def norm_of_means(parts, all_reduce):
    return all_reduce(sum(part.square().mean() for part in parts)).sqrt()


def norm_with_own_twice(parts, all_reduce):
    total = own = sum(part.square().sum() for part in parts)
    total = total + all_reduce(own)
    return total.sqrt()


def norm_by_one_vector(parts, all_reduce):
    vector = torch.cat([part.reshape(-1) for part in parts])
    return all_reduce(vector @ vector).sqrt()


def norm_part_by_part(parts, all_reduce):
    return math.sqrt(sum(all_reduce(part.norm() ** 2) for part in parts))


def norm_in_numpy(parts, all_reduce):
    squares = sum(np.square(part.numpy().astype(np.float64)).sum() for part in parts)
    return np.sqrt(all_reduce(float(squares)))


def norm_of_all_squares_at_once(parts, all_reduce):
    squares = torch.stack([part.square().sum() for part in parts])
    return all_reduce(squares).sum().sqrt().item()


_BLOCKS = (
    "the window is cut into blocks of neighbours: it is a fair share too, but the rule of this loop is rank, rank + "
    "world, …"
)
_OWN_MEAN = "each rank divides by its own targets: the average is then a mean of the ranks' means"
_HANGS = "all_reduce is called only where a rank has targets: a rank without one would hang the others"
_REDUCED = "the loss goes through all_reduce, which keeps no gradient; the engine adds up the gradients itself"
_CUT_OFF = "the loss is cut off from the weights, by `detach`, `item` or `float`: nothing is left to go backward"

WRONG_ANSWERS = {
    "my_share": [
        (share_of_all, "every rank computes the whole window"),
        (share_in_blocks, _BLOCKS),
        (share_in_numpy_blocks, _BLOCKS),
        (share_in_floored_blocks, _BLOCKS),
        (
            share_in_full_blocks,
            "the window is cut into equally long blocks of neighbours, with indices beyond the window",
        ),
        (share_in_blocks_of_world, "the window is cut into blocks of `world` neighbours"),
        (share_without_tail, "the tail of the window, which does not go round all ranks, is dropped"),
        (
            share_as_a_distributed_sampler,
            "all shares are made equally long: the first micro-batches are computed twice",
        ),
        (share_beyond, "all shares are made equally long, with indices beyond the window"),
        (share_from_one, "the ranks are counted from 1: nobody computes micro-batch 0"),
        (share_in_ones, "the micro-batches are counted from 1"),
        (share_of_one, "only one micro-batch is computed, that of the rank's own number"),
        (share_of_one_always, "only one micro-batch is computed, even where the window has none for the rank"),
        (share_counted, "the number of micro-batches is given, not which"),
        (share_one_short, "the last micro-batch of the window is left out"),
        (share_one_long, "the window is taken to be one micro-batch longer"),
        (share_backwards, "the order is turned around"),
    ],
    "loss_to_backward": [
        (loss_of_own_mean, _OWN_MEAN),
        (loss_of_own_mean_alone, _OWN_MEAN),
        (loss_of_own_mean_with_nan, _OWN_MEAN),
        (
            loss_without_world,
            "the factor world is forgotten: the engine averages over the ranks, where a sum is needed",
        ),
        (loss_divided_by_world, "the loss is divided by world, which the engine does already"),
        (loss_that_hangs, _HANGS),
        (loss_that_asks_only_with_targets, _HANGS),
        (loss_with_nan, "the window has no target on any rank, and 0 is divided by 0"),
        (loss_reduced, _REDUCED),
        (loss_of_reduced_means, _REDUCED),
        (loss_detached, _CUT_OFF),
        (loss_as_float, _CUT_OFF),
        (loss_plain_zero, "without any target a plain 0 is returned: it has no gradient, and backward fails"),
        (
            loss_with_a_sum_in_place,
            "each rank divides by its own targets and multiplies by world: what `all_reduce` returns is not used",
        ),
        (
            loss_of_weighted_means,
            "a rank without a target divides 0 by 0, where the ranks together have targets",
        ),
        (loss_of_own_mean_by_world, "each rank divides by its own targets, and by world"),
        (loss_undivided, "the sum is returned as it is"),
        (loss_by_world, "the sum is divided by the number of ranks, not by the targets"),
        (loss_of_ranks_with_targets, "the engine is taken to average over the ranks that have a target"),
        (loss_counting_an_empty_rank, "a rank without a target counts as one target"),
    ],
    "agree_to_skip": [
        (skip_alone, "each rank decides alone: the weights of the ranks drift apart"),
        (skip_if_all_are_bad, "the step is skipped only where no rank is finite"),
        (skip_by_a_product, "the step is skipped only where no rank is finite"),
        (
            skip_asked_by_the_bad,
            "all_reduce is called only by a rank that is not finite: the finite ranks would hang it",
        ),
        (
            skip_told_by_the_bad,
            "all_reduce is called only by a rank that is not finite: the finite ranks would hang it",
        ),
        (skip_asked_by_the_finite, "all_reduce is called only by the finite ranks: one that is not would hang them"),
        (skip_inverted, "the answer is inverted: True where all ranks are finite"),
        (skip_if_any_is_finite, "one finite rank is enough to skip"),
        (skip_counted, "the number of bad ranks is returned, not True or False"),
        (skip_with_a_tilde, "no rank ever skips"),
        (skip_by_majority, "the majority of the ranks decides"),
        (skip_for_exactly_one, "exactly one bad rank is asked for"),
    ],
    "norm_of_parts": [
        (norm_added, "the norms of the ranks are added"),
        (norm_of_all_parts_added, "the norms of all parts on all ranks are added"),
        (norm_of_norm_sums, "each rank adds the norms of its parts, and the sums are squared"),
        (norm_of_added_norms, "the norms of one gradient's parts are added over the ranks, and then squared"),
        (norm_without_squares, "the numbers are added, and not their squares"),
        (norm_without_root, "the root is missing"),
        (norm_of_own, "each rank gives the norm of what it holds itself"),
        (norm_averaged, "the squares are averaged over the ranks"),
        (norm_of_norms_averaged, "the norms of the ranks are averaged"),
        (norm_rooted_twice, "the root is taken before the sum over the ranks, and once more after it"),
        (
            norm_that_skips_empty_ranks,
            "a rank that holds nothing does not call all_reduce: it would hang the others",
        ),
        (
            norm_that_asks_for_each_part,
            "all_reduce is called for each part that is not empty: a rank with fewer would hang the others",
        ),
        (
            norm_of_summed_parts,
            "the parts themselves go through all_reduce, though the ranks hold different numbers",
        ),
        (norm_of_the_first, "only the first part of each rank counts"),
        (norm_of_means, "the squares are averaged within each part, which gives nan for an empty one"),
        (norm_with_own_twice, "a rank's own squares are added once more to the sum over all"),
    ],
}
EQUIVALENT = {
    "my_share": [share_by_slices, share_by_remainder, share_as_tensor],
    "loss_to_backward": [loss_by_mean_targets, loss_with_a_tensor, loss_as_the_mean_to_report],
    "agree_to_skip": [skip_as_a_tensor, skip_as_a_tensor_of_one, skip_by_counting_the_finite, skip_by_a_nan],
    "norm_of_parts": [norm_by_one_vector, norm_part_by_part, norm_in_numpy, norm_of_all_squares_at_once],
}
