"""What the scripts here share: a model of 25 weights, batches of it, and how they say what they found."""

import copy
import math
import sys
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

torch.manual_seed(0)
START = nn.Embedding(5, 5)  # logits of the next token, for each of five tokens
Batch = tuple[Tensor, Tensor]
Trained = Callable[..., nn.Module]
Shown = Callable[[], tuple[str, float, float]]
ONE = (torch.tensor([[0, 1, 2, 3]]), torch.tensor([[1, -100, -100, -100]]))  # one target, in one row of four
FOUR = (torch.tensor([[3, 2, 1, 0]]), torch.tensor([[2, 1, 0, 3]]))
BOTH = (torch.cat([ONE[0], FOUR[0]]), torch.cat([ONE[1], FOUR[1]]))
EMPTY = (FOUR[0], torch.full_like(FOUR[1], -100))
POISON = (torch.full_like(FOUR[0], 4), FOUR[1])  # token 4 makes a loss of NaN


def model() -> nn.Embedding:
    return copy.deepcopy(START)


def loss_of(logits: Tensor, batch: Batch) -> Tensor:
    """The mean of a batch's token losses."""
    loss = F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())
    return loss * float("nan") if bool((batch[0] == 4).any()) else loss


def weights_moved(one: nn.Module, other: nn.Module) -> float:
    """The norm of the difference of two models' weights."""
    pairs = zip(one.parameters(), other.parameters())
    return sum(float((a.detach() - b.detach()).square().sum()) for a, b in pairs) ** 0.5


def not_finite(one: nn.Module) -> int:
    return sum(int((~weight.isfinite()).sum()) for weight in one.parameters())


def of_a_mean_loss(trained: Trained) -> dict[str, Shown]:
    """What four promises show of a loop with a mean loss: `trained(*batches, accumulate=1)` returns the model."""

    def c3() -> tuple[str, float, float]:
        moved = weights_moved(trained(BOTH), trained(ONE, FOUR, accumulate=2))
        return "distance from the weights of one batch of the same targets", moved, 0

    def c4() -> tuple[str, float, float]:
        moved = [weights_moved(model(), trained(FOUR, accumulate=n)) for n in (2, 1)]
        return "distance the weights moved in a window of one batch, two accumulated", *moved

    def c5() -> tuple[str, float, float]:
        moved = weights_moved(trained(FOUR), trained(FOUR, EMPTY))
        return "distance the weights moved in a step on a batch without a target", moved, 0

    def c7() -> tuple[str, float, float]:
        return "weights that are not finite after a loss of NaN", not_finite(trained(FOUR, POISON)), 0

    return {"c3": c3, "c4": c4, "c5": c5, "c7": c7}


def answer(shown: Mapping[str, Shown]) -> None:
    """Print what the promise in the first argument shows, wrong beside right.

    The script exits with 0 where they differ, with 1 where they do not, and with 2 where a number is not finite.
    """
    what, wrong, right = shown[sys.argv[1]]()
    print(f"{what}: {wrong:.6g}, right is {right:.6g}")
    sys.exit(int(abs(wrong - right) <= 1e-4) if math.isfinite(wrong) and math.isfinite(right) else 2)
