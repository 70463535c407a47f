"""Read one range test in many ways: smooth it more or less, skip points, pretend that it was shorter."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Control, Explorer, buttons, explorer, slider, steps
from course_lm.lr_finder import LRFinderResult, smooth


def draw_lr_reading(
    result: LRFinderResult,
    *,
    smoothing: float | None = None,
    skip_start: int | None = None,
    skip_end: int | None = None,
    points: tuple[int, int] | None = None,
    others: Sequence[LRFinderResult] = (),
    unigram: float | None = None,
) -> tuple[Figure, str]:
    """A range test as it reads with these settings, by default the result's own.

    Args:
        smoothing, skip_start, skip_end: see `lr_finder.suggest`.
        points: the first and the last point, counted from 1, as if the sweep had been that short; by default all.
            The others are drawn as rings. Dotted lines stand at the first and the last point that is not skipped.
        others: tests whose smoothed lines are drawn beside it.
        unigram: a loss, such as that of a model that knows how often each token comes and nothing else.

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
    axes = figure.axes[0]
    for other in others:
        axes.plot(other.lrs, smooth(other.losses, part.smoothing), color=plots.GREY, linewidth=1, alpha=0.6, zorder=1)
    if unigram is not None:
        axes.axhline(unigram, color=plots.INK, linestyle="--", linewidth=1.2)
        axes.text(1.01, unigram, "unigram", transform=axes.get_yaxis_transform(), va="center")
    read = part.lrs[part.skip_start : max(len(part.lrs) - part.skip_end, part.skip_start)]
    # Slices, since nothing may be left to read; a set, since the first point may be the last.
    for lr in {*read[:1], *read[-1:]}:
        # Not to the top, where a label stands.
        axes.axvline(lr, ymax=0.9, color=plots.GREY, linestyle=":", linewidth=1.2)
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


def lr_finder_explorer(tests: LRFinderResult | Mapping[str, LRFinderResult], unigram: float | None = None) -> Explorer:
    """Change how a range test is read, and see what becomes of its suggestion; every control works by keyboard.

    Args:
        tests: one, or several by their names, such as those of several lengths: the first is read at first.
        unigram: see `draw_lr_reading`.
    """
    named = {"test": tests} if isinstance(tests, LRFinderResult) else dict(tests)
    first = next(iter(named.values()))
    count = max(1, *(len(each.lrs) for each in named.values()))

    def draw(first: int, last: int, test: str = next(iter(named)), **settings: Any) -> tuple[Figure, str]:
        read, others = named[test], [each for name, each in named.items() if name != test]
        most = max(1, len(read.lrs))
        points = (min(first, most), min(max(first, last), most))
        figure, words = draw_lr_reading(read, points=points, others=others, unigram=unigram, **settings)
        return figure, words if len(named) == 1 else f"{test}, {words}"

    def skips(value: int, where: str) -> Control:
        return slider(f"skip at {where}", value, range(max(40, value) + 1))

    controls = {"test": buttons("test", list(named))} if len(named) > 1 else {}
    controls |= {
        "smoothing": slider("smoothing", first.smoothing, sorted({*steps(0, 0.98, 0.02), first.smoothing}), "{:.2f}"),
        "skip_start": skips(first.skip_start, "start"),
        "skip_end": skips(first.skip_end, "end"),
        "first": slider("first point", 1, range(1, count + 1), stored=2),
        "last": slider("last point", count, range(1, count + 1), stored=3),
    }
    return explorer(draw, controls)
