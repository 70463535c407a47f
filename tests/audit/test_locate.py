"""Claims about the part that a departing run is put down to, and the words for it; no fault is named by mistake."""

import math
from functools import partial

import pytest

from course_lm.audit import audit, spec
from course_lm.audit.locate import BREAKS, PROMISES, odd_rows, times_as_far
from course_lm.audit.outcome import PRECISIONS
from course_lm.audit.play import Loop, Player
from course_lm.audit.runs import ladder

from .loops.outside import OUTSIDE, ClipsByLargestNumber
from .loops.plain import Plain
from .loops.right import RIGHT
from .loops.textbook import train

pytestmark = pytest.mark.usefixtures("one_specification")


def oddness(loop: Loop, run: str) -> dict[str, str]:
    """What is odd about the rows that a loop trains on in a run."""
    case = next(one for one in ladder() if one.name == run)
    return odd_rows(Player(loop, PRECISIONS["float64"], 30.0), case)


def test_nothing_is_odd_about_a_right_loop():
    assert not any(oddness(RIGHT["RowByRow"].loop, case.name) for case in ladder() if case.part != "finite")


@pytest.mark.parametrize(
    ("name", "run", "words"),
    [
        ("DropsLastRow", "rows of equal length", "1 of 3 rows is not trained on when it is due"),
        ("SkipsLastBatch", "two SGD steps", "2 of 4 rows are not trained on when they are due"),
        ("LastMicroBatchTwice", "two equal micro-batches", "1 row is trained on more often than it is due"),
        ("TrainsOnValidation", "validation after each epoch", "8 rows are trained on that are not due"),
        ("EpochsReversed", "two epochs", "the loop trains on the rows in another order"),
    ],
)
def test_odd_rows_are_counted(name, run, words):
    assert list(oddness(OUTSIDE[name].loop, run).values()) == [words]


def test_rows_without_a_target_are_not_due():
    steps_on_them = partial(train, faults={"steps_on_empty_window"})
    assert not oddness(steps_on_them, "a window without a target")
    assert not oddness(RIGHT["MeansByTheirShares"].loop, "a micro-batch without a target")


def test_a_loop_that_runs_each_row_twice_is_not_odd():
    assert not oddness(RIGHT["Checkpointed"].loop, "two epochs")


def test_what_is_odd_about_the_rows_of_right_runs_is_no_evidence_against_the_data():
    class TwiceOver(ClipsByLargestNumber):
        """The first row of each batch is run once more, for nothing."""

        def accumulate(self, window):
            self.logits({name: value[:1] for name, value in window[0].items()})
            super().accumulate(window)

    assert oddness(TwiceOver.loop, "rows of equal length")
    assert audit(TwiceOver.loop, parts=["clipping"], progress=False).part == "clipping"


@pytest.mark.parametrize(
    ("name", "part", "words"),
    [
        ("HalfRateForBiases", "optimizer", "norm1.weight moves 0.5 times as far"),
        ("FrozenBias", "optimizer", "head.bias does not move"),
        ("HalfWeights", "precision", "each weight that the loop leaves is a number of float16"),
        ("HalfLogits", "precision", "as if something were rounded to few digits"),
        ("TrainsInBits", "loss", "the weights go the right way, but 1.4427 times as far"),
        ("NoisyGradients", "loss", ""),
        ("ZLoss", "loss", ""),
    ],
)
def test_one_step_tells_the_optimizer_and_the_precision_from_the_loss(name, part, words):
    report = audit(OUTSIDE[name].loop, parts=["loss"], progress=False)
    assert report.part == part and not report.faults
    assert any(words in note for note in report.notes) or not words, report.notes


@pytest.mark.parametrize("name", ["SkipsTheNextWindowToo", "TakesNaNForZero"])
def test_a_gradient_that_is_not_finite_comes_before_an_overflow(name):
    assert audit(OUTSIDE[name].loop, parts=["precision", "finite"], progress=False).part == "finite"


def test_right_weights_are_not_said_to_go_too_far():
    report = audit(OUTSIDE["ValidatesInBits"].loop, parts=["validation"], progress=False)
    assert report.part == "validation" and not any("times as far" in note for note in report.notes)


@pytest.mark.parametrize(("ratio", "words"), [(0.5, "0.5"), (1.4427, "1.4427"), (1.0000213, "1.000021")])
def test_a_proportion_is_said_with_digits_enough(ratio, words):
    assert times_as_far(ratio) == f"{words} times as far"


# The promises that these mistakes break and that their runs show; for the others none is quoted.
BROKEN = {
    "C3": ("TrainsInBits", "WeighsByRows"),
    "C4": ("DividesByFullWindowOfTokens",),
    "C6": ("ClipsByLargestNumber", "CheckpointedAndClippedByLargestNumber"),
    "C8": ("HalfSpeed", "RestartsEachEpoch", "OneBigBatchAtHalfSpeed"),
    "C11": ("ValidatesOnFirstBatch", "ValidatesInBits"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_mistake_outside_the_list_is_found_in_its_part(name: str) -> None:
    kind = OUTSIDE[name]
    report = audit(kind.loop, progress=False)
    assert not report.sound, f"{name} passes for right"
    assert not report.faults, f"{name} is none of {report.faults}: {report}"
    assert report.part == kind.part, f"{name} is looked for in {report.part}: {report}"
    assert report.case is not None, f"no run shows {name}"
    expected = next((promise for promise, names in BROKEN.items() if name in names), None)
    quoted = report.promise and report.promise.partition(":")[0]
    assert quoted == expected, f"{name} breaks {expected}: {report}"


def test_a_promise_is_quoted_for_what_differs():
    class KeepsLiveTensors(Plain):
        def train(self, epochs):
            return {**(super().train(epochs) or {}), "best_weights": dict(self.model.named_parameters())}

        def validation_loss(self):
            return super().validation_loss() if self.settings.validation else math.nan

    report = audit(KeepsLiveTensors.loop, parts=["validation"], progress=False)
    assert report.promise is not None and report.promise.startswith("C12"), str(report)
    report = audit(partial(train, faults={"schedule_never_moves", "steps_on_nonfinite"}), progress=False)
    assert report.promise is not None and report.promise.startswith("C8"), str(report)


def test_each_fault_breaks_one_promise_or_none():
    listed = [fault for faults in BREAKS.values() for fault in faults]
    assert len(listed) == len({*listed}) and {*listed} <= {*spec.FAULTS} and {*BREAKS} <= {*PROMISES}
    kept = {"mask_forgotten", "bf16_gradients", "optimizer_per_epoch", "betas_exchanged"}
    assert {*spec.FAULTS} - {*listed} == kept | {"no_bias_correction", "decay_at_peak_rate"}
