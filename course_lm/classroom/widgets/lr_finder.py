"""Read one range test in many ways: smooth it more or less, skip points, pretend that it was shorter."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Control, Explorer, explorer, slider, steps
from course_lm.lr_finder import LRFinderResult


def draw_lr_reading(
    result: LRFinderResult,
    *,
    smoothing: float | None = None,
    skip_start: int | None = None,
    skip_end: int | None = None,
    points: tuple[int, int] | None = None,
) -> tuple[Figure, str]:
    """A range test as it reads with these settings, by default the result's own.

    Args:
        smoothing, skip_start, skip_end: see `lr_finder.suggest`.
        points: the first and the last point, counted from 1, as if the sweep had been that short; by default all.
            The others are drawn as rings. Dotted lines stand at the first and the last point that is not skipped.

    Returns:
        The figure; and the reading in words, with the suggestion and the range in numbers.
    """
    first, last = points or (1, len(result.lrs))
    given: dict[str, Any] = {"smoothing": smoothing, "skip_start": skip_start, "skip_end": skip_end}
    part = replace(
        result,
        lrs=result.lrs[first - 1 : last],
        losses=result.losses[first - 1 : last],
        stopped=result.stopped if last == len(result.lrs) else None,
        **{name: value for name, value in given.items() if value is not None},
    )
    figure = part.plot()
    read = part.lrs[part.skip_start : max(len(part.lrs) - part.skip_end, part.skip_start)]
    # Slices, since nothing may be left to read; a set, since the first point may be the last.
    for lr in {*read[:1], *read[-1:]}:
        # Not to the top, where a label stands.
        figure.axes[0].axvline(lr, ymax=0.9, color=plots.GREY, linestyle=":", linewidth=1.2)
    _add_left_out(figure, result, [*range(first - 1), *range(last, len(result.lrs))])
    suggestion = f"{part.suggestion:.2e}" if part.suggestion else "none"
    low_high = "{:.2e} to {:.2e}".format(*part.range) if part.range else "none"
    words = f"points {first} to {last} of {len(result.lrs)}, smoothing {part.smoothing:.2f}, "
    words += f"without {part.skip_start} at the start and {part.skip_end} at the end"
    return figure, f"{words}\nsuggestion {suggestion}, range {low_high}\n{part.message}"


def _add_left_out(figure: Figure, result: LRFinderResult, places: Sequence[int]) -> None:
    """Rings for the points that are not read, on an axis that shows the whole sweep whatever is read of it."""
    axes = figure.axes[0]
    lrs, losses = ([values[at] for at in places] for values in (result.lrs, result.losses))
    axes.scatter(lrs, losses, s=12, facecolors="none", edgecolors=plots.GREY, alpha=0.6)
    if result.lrs:
        axes.set_xlim(result.lrs[0] / 1.5, result.lrs[-1] * 1.5)


def lr_finder_explorer(result: LRFinderResult) -> Explorer:
    """Change how a range test is read, and see what becomes of its suggestion; every control works by keyboard."""
    count = max(1, len(result.lrs))

    def draw(first: int, last: int, **settings: Any) -> tuple[Figure, str]:
        return draw_lr_reading(result, points=(first, max(first, last)), **settings)

    def skips(value: int, where: str) -> Control:
        return slider(f"skip at {where}", value, range(max(40, value) + 1))

    smoothings = sorted({*steps(0, 0.98, 0.02), result.smoothing})
    controls = {
        "smoothing": slider("smoothing", result.smoothing, smoothings, "{:.2f}", stored=8),
        "skip_start": skips(result.skip_start, "start"),
        "skip_end": skips(result.skip_end, "end"),
        "first": slider("first point", 1, range(1, count + 1), stored=2),
        "last": slider("last point", count, range(1, count + 1), stored=3),
    }
    return explorer(draw, controls)
