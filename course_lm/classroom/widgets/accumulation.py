"""Cut one ragged batch into micro-batches, and see what two ways of dividing make of its gradient."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, buttons, explorer, slider
from course_lm.forward import AnyBatch, forward_logits
from course_lm.loss import count_targets, next_token_loss
from course_lm.model import evaluation_mode

_LOWEST_ERROR = 1e-9  # the left end of the axis; an error of 0 is drawn there


def row_gradients(model: nn.Module, batch: AnyBatch) -> tuple[Tensor, Tensor]:
    """The gradient of each row's *sum* of losses, and its number of targets.

    Sums add up: the gradient of any group of rows is the sum of theirs, so that no cut needs another backward pass.
    Dropout is off, and the model keeps its own gradients.

    Returns:
        (B, P) for P weights, and (B,) int64.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows, counts = [], []
    with evaluation_mode(model):
        for row in range(len(batch["labels"])):
            one = {name: part[row : row + 1] for name, part in batch.items() if isinstance(part, Tensor)}
            loss = next_token_loss(forward_logits(model, one), one["labels"], reduction="sum")
            rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, parameters)]))
            counts.append(count_targets(one["labels"]))
    return torch.stack(rows), torch.stack(counts)


def draw_accumulation(gradients: Tensor, counts: Tensor, cuts: Sequence[int]) -> tuple[Figure, str]:
    """One batch cut into micro-batches: its rows, and how far two accumulated gradients are from the whole batch's.

    Args:
        gradients: (B, P), of each row's sum of losses, see `row_gradients`.
        counts: (B,), targets of each row.
        cuts: rows at which a new micro-batch begins; 0, B and repeated ones cut nothing.

    Returns:
        The figure; and in words the micro-batches, the weight of a token in each, and the two errors.
    """
    bounds = [0, *sorted({cut for cut in cuts if 0 < cut < len(counts)}), len(counts)]
    sizes = [end - start for start, end in pairwise(bounds)]
    sums = torch.stack([part.sum(0) for part in gradients.split(sizes)])  # (M, P)
    targets = torch.stack([part.sum() for part in counts.split(sizes)])  # (M,)
    total = targets.sum().clamp(min=1)
    weights = total / (len(sizes) * targets.clamp(min=1))  # (M,) of a token in the mean of means; 1 would be right
    at_once = gradients.sum(0) / total
    errors = {
        "divided once": _relative_error((sums / total).sum(0), at_once),
        "mean of means": _relative_error((sums * weights[:, None] / total).sum(0), at_once),
    }
    figure = Figure(figsize=(8.8, 3.3))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_rows(left, counts, bounds, weights)
    _draw_errors(right, errors)
    return figure, "\n".join(
        [
            f"micro-batches of {_listed(sizes)} rows with {_listed(targets.tolist())} targets",
            f"in the mean of means a token weighs {_listed([f'{weight:.2f}' for weight in weights.tolist()])} "
            "times what it should",
            "error of the gradient: " + ", ".join(f"{name} {error:.2g}" for name, error in errors.items()),
        ]
    )


def accumulation_explorer(model: nn.Module, batch: AnyBatch) -> Explorer:
    """Move three cuts through the rows of a batch, as they came or by length; every control works by keyboard."""
    gradients, counts = row_gradients(model, batch)
    orders = {"as they came": torch.arange(len(counts)), "by length": counts.argsort(stable=True)}
    last = len(counts) - 1
    controls = {f"cut {n}": slider(f"cut {n} at row", len(counts) * n // 4, range(1, last + 1)) for n in (1, 2, 3)} | {
        "order": buttons("rows", list(orders))
    }

    def draw(order: str, **cuts: int) -> tuple[Figure, str]:
        figure, words = draw_accumulation(gradients[orders[order]], counts[orders[order]], list(cuts.values()))
        return figure, f"rows {order}: {words}"

    return explorer(draw, controls)


def _relative_error(gradient: Tensor, expected: Tensor) -> float:
    return float((gradient - expected).norm() / expected.norm())


def _listed(values: Sequence[object]) -> str:
    return ", ".join(str(value) for value in values)


def _draw_rows(axes: Axes, counts: Tensor, bounds: Sequence[int], weights: Tensor) -> None:
    """A bar for each row; a colour, a line below and a weight for each micro-batch."""
    widest = int(counts.max())
    for number, (start, end) in enumerate(pairwise(bounds)):
        colour = plots.PALETTE[number % len(plots.PALETTE)]
        axes.barh(range(start, end), counts[start:end].tolist(), color=colour, height=0.8)
        axes.text(1.08 * widest, (start + end - 1) / 2, f"× {weights[number]:.2f}", va="center")
        if start:
            axes.axhline(start - 0.5, color=plots.INK, linestyle="--", linewidth=1.2)
    axes.set(xlabel="targets of the row", ylabel="row", xlim=(0, 1.35 * widest), ylim=(len(counts) - 0.4, -0.6))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_title("weight of a token in the mean of means", fontsize=12)
    axes.grid(False)


def _draw_errors(axes: Axes, errors: dict[str, float]) -> None:
    for height, ((name, error), colour) in enumerate(zip(errors.items(), (plots.BLUE, plots.RED), strict=True)):
        length = max(error, _LOWEST_ERROR)
        axes.plot([_LOWEST_ERROR, length], [height, height], color=colour, linewidth=10, solid_capstyle="butt")
        axes.plot(length, height, "o", color=colour, markersize=11)
        axes.text(_LOWEST_ERROR * 1.5, height - 0.16, f"{name}: {error:.1g}", va="bottom", color=colour, weight="bold")
    axes.set(xscale="log", xlim=(_LOWEST_ERROR, 10), ylim=(1.4, -0.6), yticks=[])
    ticks = ["1e-8", "1e-6", "1e-4", "1e-2", "1"]  # set as text, they draw faster than as powers
    axes.set_xticks([float(tick) for tick in ticks], ticks)
    axes.set_xlabel("relative error of the gradient")
