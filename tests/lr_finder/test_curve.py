"""Reading a range test: where the loss falls, and the plain statement that it does not."""

import dataclasses
import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

from course_lm.lr_finder import LRFinderResult, Suggestion, suggest
from course_lm.monitoring import smooth

RATES = np.geomspace(1e-6, 1.0, 100).tolist()
STEP = RATES[1] / RATES[0]


def descent(centre: float = 1e-3, width: float = 0.5, noise: float = 0.0, seed: int = 0) -> list[float]:
    """From 7 to 4 nats around a rate, a sigmoid in log(lr): steepest at `centre`, in decades `width` wide."""
    draw = np.random.default_rng(seed)
    fallen = 1 / (1 + np.exp(-(np.log10(RATES) - math.log10(centre)) / width))
    return (7 - 3 * fallen + noise * draw.normal(size=len(RATES))).tolist()


def flat(noise: float, seed: int, count: int = 100) -> list[float]:
    return (6 + noise * np.random.default_rng(seed).normal(size=count)).tolist()


def between(reading: Suggestion, low: float, high: float) -> bool:
    assert reading.lr is not None, reading.message
    return low <= reading.lr <= high


# A clear descent


@pytest.mark.parametrize("centre", [1e-5, 1e-4, 1e-3, 1e-2])
def test_the_suggestion_is_where_the_loss_falls_steepest(centre):
    reading = suggest(RATES, descent(centre, width=0.2), smoothing=0.0)
    assert between(reading, centre / STEP, centre * STEP)


@pytest.mark.parametrize("seed", range(20))
def test_noise_moves_the_suggestion_only_a_little(seed):
    reading = suggest(RATES, descent(1e-3, width=0.2, noise=0.03, seed=seed))
    assert between(reading, 1e-3 / 4, 1e-3 * 4)


def test_the_range_reaches_from_a_tenth_of_the_fall_to_nine_tenths():
    low, high = suggest(RATES, descent(1e-3, width=0.2), smoothing=0.0).range or (0, 0)
    reach = 10 ** (0.2 * math.log(9))  # a sigmoid makes 80 % of its way over 2 ln 9 widths
    assert low == pytest.approx(1e-3 / reach, rel=STEP - 1) and high == pytest.approx(1e-3 * reach, rel=STEP - 1)


@given(
    st.floats(-5, -1), st.floats(0.1, 0.6), st.floats(0, 0.1), st.integers(0, 99), st.sampled_from([0.0, 0.5, 0.7, 0.9])
)
def test_a_suggestion_is_one_of_the_rates_and_lies_in_its_range(centre, width, noise, seed, smoothing):
    reading = suggest(RATES, descent(10**centre, width, noise, seed), smoothing=smoothing)
    assume(reading.lr is not None)
    assert reading.lr in RATES and reading.lr is not None and reading.range is not None
    assert reading.range[0] <= reading.lr <= reading.range[1]


def test_the_slope_is_taken_over_the_logarithm_of_the_rate_and_not_over_the_index():
    rates = np.concatenate([np.geomspace(1e-6, 1e-4, 50, endpoint=False), np.geomspace(1e-4, 1.0, 20)])
    values = 7 - np.log10(rates / 1e-6)  # the same slope everywhere, a sixth as many points in the second half
    values[30:40] -= np.linspace(0, 0.3, 10)
    values[40:] -= 0.3
    reading = suggest(rates.tolist(), values.tolist(), smoothing=0.0)
    assert between(reading, rates[30], rates[39])
    assert np.gradient(values).argmin() >= 50


def test_the_recovery_from_a_spike_is_no_descent():
    values = descent(1e-3, width=0.3)
    values[70] = 12.0
    for smoothing in (0.0, 0.7, 0.9):
        reading = suggest(RATES, values, smoothing=smoothing)
        assert between(reading, 2e-4, 5e-3)


def test_what_happens_after_the_descent_changes_nothing():
    values = descent(1e-4, width=0.2)
    diverging = values[:80] + [4 + 0.5 * step for step in range(20)]
    reading, other = suggest(RATES, values), suggest(RATES, diverging)
    assert (reading.lr, reading.range) == (other.lr, other.range)


def test_a_loss_that_jumps_about_after_the_descent_is_no_noise_in_it():
    values = descent(1e-5, width=0.1)[:35] + [4.1 + 8 * (step % 2) for step in range(65)]
    assert between(suggest(RATES, values), 5e-6, 5e-5)


def test_points_that_are_not_finite_are_left_out():
    values, bad = descent(), {3: math.nan, 60: math.inf, 99: math.nan}
    spoilt = [bad.get(index, value) for index, value in enumerate(values)]
    kept = [index for index in range(100) if index not in bad]
    assert suggest(RATES, spoilt) == suggest([RATES[i] for i in kept], [values[i] for i in kept])


def test_skipped_points_do_not_count():
    values = descent(1e-3, width=0.2)
    spoilt = [9.0] + values[1:-1] + [0.5]
    assert suggest(RATES, spoilt, smoothing=0.0).lr == suggest(RATES, values, smoothing=0.0).lr
    assert suggest(RATES, spoilt, smoothing=0.0, skip_start=0, skip_end=0).lr in (RATES[0], RATES[-2], RATES[-1])


def test_a_sweep_that_starts_too_high_says_so():
    message = suggest(RATES, descent(5e-6, width=0.3)).message
    assert "; it falls from the first points on" in message
    assert "first points" not in suggest(RATES, descent(1e-3, width=0.3)).message


def test_a_sweep_that_ends_too_low_says_so():
    assert suggest(RATES, descent(0.3)).message.endswith("at the last point it has not risen again")
    risen = descent(1e-3)[:85] + [5.0 + 0.2 * step for step in range(15)]
    assert "risen" not in suggest(RATES, risen).message
    half_way = descent(1e-4)[:85] + [4.0 + 0.1 * min(step, 10) for step in range(15)]
    assert "risen" not in suggest(RATES, half_way).message


# No usable slope


def less(level: float) -> list[float]:
    """From this level down by 0.05, where the descent is half-way."""
    return [level - 0.05 * (loss < 5.5) for loss in descent()]


@pytest.mark.parametrize("smoothing", [0.0, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("count", [20, 100, 300])
def test_flat_noise_is_hardly_ever_taken_for_a_descent(count, smoothing):
    rates = np.geomspace(1e-6, 1, count).tolist()
    taken = [suggest(rates, flat(0.5, seed, count), smoothing=smoothing).lr is not None for seed in range(600)]
    assert sum(taken) <= 2


UNUSABLE: dict[str, tuple[list[float], str]] = {
    "noise": (flat(0.5, 0), "which noise alone can do"),
    "a fall of less than a hundredth": (less(6), "falls by 0.050 from 6.000, less than 1% of it"),
    "such a fall below zero": (less(-6), "falls by 0.050 from -6.000, less than 1% of it"),
    "constant": ([6.0] * 100, "falls by 0.000 from"),
    "rising": ([6 + step / 10 for step in range(100)], "falls by 0.000 from"),
    "no points": ([], "0 points are left to read, 5 are needed"),
    "8 points": (descent()[:8], "0 points are left to read, 5 are needed"),
    "14 points": (descent()[:14], "4 points are left to read, 5 are needed"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_has_no_usable_slope_is_told_with_the_reason(case):
    values, reason = UNUSABLE[case]
    reading = suggest(RATES[: len(values)], values)
    assert (reading.lr, reading.range) == (None, None)
    assert reading.message.startswith("no usable slope: ") and reason in reading.message, reading.message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smoothing": 1.0}, r"smoothing must be in \[0, 1\), got 1.0"),
        ({"skip_start": -1}, "skip_start must be a whole number of at least 0, got -1"),
        ({"skip_end": 2.5}, "skip_end must be a whole number of at least 0, got 2.5"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        suggest(RATES, descent(), **options)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (RATES[:-1], r"as many as the losses \(100\), got 99"),
        ([0.0, *RATES[1:]], "positive and rising, got '0 after 0'"),
        ([1e-3] * 100, "positive and rising, got '0.001 after 0.001'"),
        (RATES[::-1], "positive and rising, got '0.8"),
    ],
)
def test_rates_that_do_not_fit_are_refused(rates, message):
    with pytest.raises(ValueError, match=f"lrs must be {message}"):
        suggest(rates, descent())


# The result


def test_the_result_reads_its_own_points():
    result, reading = LRFinderResult(RATES, descent(), smoothing=0.5), suggest(RATES, descent(), smoothing=0.5)
    assert (result.suggestion, result.range, result.message) == (reading.lr, reading.range, reading.message)


def test_other_settings_read_the_same_points_anew():
    result = LRFinderResult(RATES, descent(width=0.2))
    smoother = dataclasses.replace(result, smoothing=0.95)
    assert result.suggestion is not None and smoother.suggestion is not None
    assert smoother.suggestion > result.suggestion


def test_a_result_can_be_stored_as_plain_data():
    result = LRFinderResult(RATES, descent(), "diverged")
    assert LRFinderResult(**json.loads(json.dumps(dataclasses.asdict(result)))) == result


@pytest.mark.parametrize(
    ("stopped", "ending"),
    [
        ("diverged", "stopped where the loss diverged"),
        ("not finite", "stopped where the loss or its gradient was not finite"),
    ],
)
def test_the_message_says_why_the_sweep_ended_early(stopped, ending):
    assert LRFinderResult(RATES, descent(), stopped).message.endswith(ending)
    assert "stopped" not in LRFinderResult(RATES, descent()).message


# The figure


def texts(result: LRFinderResult) -> list[str]:
    axes = result.plot().axes[0]
    return [text.get_text() for text in axes.texts] + [axes.get_title()]


def test_the_figure_has_both_axes_named_and_the_rates_on_a_logarithmic_one():
    (axes,) = LRFinderResult(RATES, descent()).plot().axes
    assert axes.get_xscale() == "log"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("learning rate", "loss (nats per token)")


def test_the_figure_names_the_suggestion_and_the_range_where_they_are():
    result = LRFinderResult(RATES, descent())
    assert result.suggestion is not None and result.range is not None
    low, high = result.range
    assert f"steepest at {result.suggestion:.1e}" in texts(result)
    assert f"falls from {low:.1e} to {high:.1e}" in texts(result)
    (band,) = result.plot().axes[0].patches
    assert isinstance(band, Rectangle)
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx(result.range)


def test_the_figure_shows_every_point_and_the_smoothed_curve():
    (axes,) = LRFinderResult(RATES, descent(), smoothing=0.9).plot().axes
    assert np.allclose(axes.collections[0].get_offsets(), np.array([RATES, descent()]).T)
    assert np.allclose(axes.lines[0].get_ydata(), smooth(descent(), 0.9))


def test_the_figure_leaves_out_what_would_flatten_the_descent_and_counts_it():
    values = descent(1e-3)[:90] + [20.0, 30.0, 40.0]
    result = LRFinderResult(RATES[:93], values)
    assert "3 points lie higher" in texts(result)
    assert result.plot().axes[0].get_ylim()[1] < 10
    from_the_first = LRFinderResult(RATES[:93], values, skip_start=0)
    assert from_the_first.plot().axes[0].get_ylim()[1] < 10


def test_a_figure_without_a_usable_slope_says_so_and_shows_all():
    result = LRFinderResult(RATES, flat(0.1, 0))
    assert "no usable slope" in texts(result)
    low, high = result.plot().axes[0].get_ylim()
    assert low < min(result.losses) and high > max(result.losses)


@pytest.mark.parametrize("count", [0, 1, 12])
def test_a_sweep_of_no_or_few_points_can_be_drawn(count, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LRFinderResult(RATES[:count], descent()[:count], "not finite").plot().savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 0


def test_drawing_leaves_no_figure_open():
    before = plt.get_fignums()
    LRFinderResult(RATES, descent()).plot()
    assert plt.get_fignums() == before
