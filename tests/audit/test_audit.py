"""Claims about `audit`: its three outcomes, settings that a loop does not have, and loops that do something odd."""

import copy
import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from course_lm.audit import PARTS, assert_sound, audit, search, spec
from course_lm.audit.features import FEATURES
from course_lm.audit.locate import PROMISES
from course_lm.audit.outcome import PRECISIONS
from course_lm.audit.play import Player
from course_lm.audit.runs import Constant, count_targets, ladder

from .loops.right import RIGHT

pytestmark = pytest.mark.usefixtures("one_specification")
QUICK = ("loss", "data")  # parts with short runs


class Specified:
    """The specification as a loop, with faults and settings of its own."""

    def __init__(self, *faults: str, ignores: Sequence[str] = (), **changes: Any) -> None:
        self.faults, self.ignores, self.changes = frozenset(faults), ignores, changes

    def __call__(self, model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        for name, value in self.changes.items():
            object.__setattr__(settings, name, value)
        made = spec.train(model, epochs, settings, self.faults)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(made.weights[name])
        returned = {"validation_losses": made.validation_losses, "best_weights": made.best_weights}
        return {**returned, "ignores": set(self.ignores)} if self.ignores else returned


MANY = (
    ("clip_by_value", "coupled_decay", "mean_of_means", "schedule_off_by_one", "unshifted_labels"),
    ("accumulation_not_divided", "clip_before_unscale", "decays_everything", "pads_counted", "stays_in_eval_mode"),
    ("best_is_a_reference", "mask_forgotten", "missing_zero_grad", "schedule_per_micro_batch", "tail_dropped"),
    (
        "betas_exchanged",
        "eos_masked",
        "row_means",
        "steps_on_nonfinite",
        "val_mean_of_means",
        "zero_grad_per_micro_batch",
    ),
)


@pytest.mark.parametrize("faults", MANY, ids=lambda faults: faults[0])
def test_five_or_six_faults_are_named(faults):
    assert audit(Specified(*faults), progress=False).faults == faults


def test_faults_beside_one_that_is_not_known_are_told_up_to_where_it_shows():
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        made = Specified("pads_counted", "mean_of_means")(model, epochs, settings)
        return {**made, "validation_losses": [2 * loss for loss in made["validation_losses"]]}

    report = audit(loop, progress=False)
    assert not report.faults and report.case is not None and report.case.name == "pads on the right"
    (note,) = [note for note in report.notes if "audit again" in note]
    first = "up to the run “validation after each epoch” it does what the specification with"
    assert note == f"{first} mean_of_means and pads_counted does: mend that, and audit again"


@pytest.mark.parametrize(
    ("faults", "parts"),
    [
        (("schedule_never_moves", "unshifted_labels"), ["loss", "schedule"]),
        (("decay_at_peak_rate", "schedule_never_moves"), ["schedule"]),
        (("best_is_a_reference", "schedule_per_epoch"), ["schedule", "validation"]),
    ],
)
def test_a_fault_that_another_one_nearly_hides_is_named_beside_it(faults, parts):
    report = audit(Specified(*faults), parts=parts, progress=False)
    assert report.faults == faults and not report.alternatives and not report.ignored, str(report)


@pytest.mark.parametrize("feature", [name for name in FEATURES if name not in ("document_ids", "optimizer")])
def test_a_feature_that_a_loop_says_it_lacks_is_not_held_against_it(feature):
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        plain = Constant(settings.schedule(0)) if feature == "schedule" else getattr(spec.Settings(), feature)
        return Specified(ignores=[feature], **{feature: plain})(model, epochs, settings)

    report = audit(loop, progress=False)
    assert report.sound and report.ignored == (feature,), str(report)


@pytest.mark.parametrize("without", [{"weight_decay": 0.0}, {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}])
def test_what_a_loop_lacks_in_silence_stands_in_the_verdict(without):
    report = audit(Specified(**without), progress=False)
    assert report.sound and report.ignored == report.undeclared == tuple(without)
    assert report.verdict.startswith(f"sound, without {' and '.join(without)}: equal to")


def test_a_fault_is_named_beside_a_feature_that_is_lacking():
    report = audit(Specified("tail_dropped", max_grad_norm=None), progress=False)
    assert report.faults == ("tail_dropped",) and report.ignored == ("max_grad_norm",)


def test_a_fault_is_named_whatever_a_loop_makes_of_a_validation_batch_without_a_target():
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        kept = [batch for batch in settings.validation if count_targets(batch)]
        return Specified("val_weighted_by_rows")(model, epochs, replace(settings, validation=kept))

    assert audit(loop, parts=["validation"], progress=False).faults == ("val_weighted_by_rows",)


LEAVING: dict[str, tuple[Callable[[], object], str]] = {
    "sys.exit": (partial(sys.exit, 0), "SystemExit: 0"),
    "SystemExit": (partial(sys.exit), "SystemExit"),
    "os._exit": (lambda: os._exit(0), r"SystemExit: os._exit\(0\)"),
    "an error that is none": (lambda: exec("raise GeneratorExit"), "GeneratorExit"),
}


@pytest.mark.parametrize(("leave", "said"), LEAVING.values(), ids=list(LEAVING))
@pytest.mark.parametrize("first", [True, False])
def test_a_loop_that_leaves_the_process_is_told_so(leave, said, first):
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any] | None:
        return leave() if first or len(epochs) > 1 else Specified()(model, epochs, settings)  # type: ignore[return-value]

    report = audit(loop, parts=QUICK, progress=False)
    here = re.escape(__file__)
    assert re.search(rf"^could not be compared: the loop raised {said} \({here}, line \d+\)$", report.verdict)
    assert os._exit.__module__ == "posix"


def test_a_worker_that_a_loop_has_forked_may_end_by_os_exit():
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        if not (worker := os.fork()):
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == 7
        return Specified()(model, epochs, settings)

    assert audit(loop, parts=["loss"], progress=False).sound


def cut(epochs: Any, *, rows: int | None = None, width: int | None = None) -> Any:
    return [[{name: part[:rows, :width] for name, part in batch.items()} for batch in epoch] for epoch in epochs]


LIMITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "three epochs": (lambda epochs: epochs[:3], "120 steps"),
    "1024 tokens of a row": (partial(cut, width=1024), "a row of 1100 tokens"),
    "64 rows of a batch": (partial(cut, rows=64), "a row of 1100 tokens, and a batch of 70 rows"),
}


@pytest.mark.parametrize(("limited", "shown"), LIMITS.values(), ids=list(LIMITS))
def test_a_loop_that_reads_no_more_than_a_limit_of_its_own_is_unsound(limited, shown):
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        return Specified()(model, limited(epochs), settings)

    report = audit(loop, parts=["data"], progress=False)
    assert report.part == "data" and report.case is not None and report.case.name.startswith(shown)
    assert any("not trained on when" in note for note in report.notes)


def test_a_feature_that_a_loop_has_in_one_run_is_not_missing_in_another():
    cases = ladder(parts=["optimizer"])
    right, without_sgds = search.Specification(), Specified(weight_decay=0.0)
    outcomes = {case.name: right.outcome(case, search.Explanation((), ())) for case in cases}
    sgd = next(case for case in cases if case.settings.optimizer == "sgd" and case.settings.weight_decay)
    outcomes[sgd.name] = Player(without_sgds, PRECISIONS["float64"], 30.0).play(sgd).outcome
    lacking, first = search.Search(cases, outcomes, right, PRECISIONS["float64"]).furthest(search.Explanation((), ()))
    assert first is sgd and "weight_decay" not in lacking.ignored


def test_what_the_first_optimizer_of_a_process_imports_is_no_time_of_the_loop():
    program = (
        "import sys; from course_lm.audit.outcome import PRECISIONS; from course_lm.audit.play import Player; "
        "Player(lambda *_: None, PRECISIONS['float64'], 30.0); assert 'torch._dynamo' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_place_of_a_crash_is_the_loops_own_line_and_not_the_librarys():
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> None:
        if settings.momentum:
            model(epochs[0][0]["input_ids"].float())
        Specified()(model, epochs, settings)

    report = audit(loop, progress=False)
    assert not report.compared and report.problem is not None
    assert report.problem.endswith(f"({__file__}, line {loop.__code__.co_firstlineno + 2})"), report.problem
    assert report.case is not None and report.case.name == "SGD with momentum" and not report.notes[:-1]


def test_a_run_that_departs_before_a_crash_is_told_beside_it():
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> None:
        Specified("mean_of_means")(model, epochs, settings)
        assert not settings.momentum

    report = audit(loop, progress=False)
    assert not report.compared and "AssertionError" in str(report.problem)
    assert "before that, it departs in the run “micro-batches of unequal tokens”" in report.notes


def test_a_loop_that_reads_logits_from_an_object_is_given_objects():
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        _ = model(epochs[0][0]["input_ids"]).logits
        return Specified()(model, epochs, settings)

    assert audit(loop, parts=["loss"], progress=False).sound


def test_a_loop_that_hangs_is_stopped():
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> None:
        while True:
            try:
                time.sleep(60)
            except Exception:
                continue

    report = audit(loop, timeout=0.3, progress=False)
    assert report.problem == "the loop had not returned after 0.3 seconds" and not report.sound


def test_a_loop_that_keeps_state_between_calls_is_told_so():
    calls: list[int] = []

    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> None:
        calls.append(1)
        Specified(schedule=lambda k: 0.3 if len(calls) == 1 else 0.1)(model, epochs, settings)

    report = audit(loop, parts=["loss"], progress=False)
    assert not report.faults and report.problem is not None and "from one call to the next" in report.problem


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([1.0], "the loop returned list"),
        ({"val_losses": []}, "did you mean validation_losses?"),
        ({"validation_losses": ["low"]}, "validation_losses must be a list of numbers"),
        ({"best_weights": {"tokens": 1}}, "best_weights has no tensor"),
        ({"ignores": ["max_grad_nrm"]}, "did you mean max_grad_norm?"),
    ],
)
def test_a_loop_that_returns_something_else_is_told_what_it_may_return(returned, words):
    report = audit(lambda model, epochs, settings: returned, progress=False)
    assert not report.sound and report.problem is not None and words in report.problem


def test_a_loop_that_needs_float32_is_told_so():
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> None:
        sum(weight.sum() for weight in model.parameters()).backward()  # type: ignore[union-attr]
        assert all(weight.dtype is torch.float32 for weight in model.parameters()), "expected dtype float32"

    report = audit(loop, progress=False)
    assert report.part == "precision" and report.problem is not None and 'precision="float32"' in report.problem


def test_rounding_of_float32_is_told_from_a_fault():
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        made = Specified()(model, epochs, settings)
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.float())
        return made

    report = audit(loop, parts=["loss"], progress=False)
    assert report.part == "precision" and report.problem is not None and "float32" in report.problem


def test_an_audit_leaves_the_random_generators_as_they_were():
    before = torch.get_rng_state()
    audit(Specified(), parts=["loss"], progress=False)
    assert torch.equal(before, torch.get_rng_state())


def test_assert_sound_raises_the_report():
    assert_sound(Specified(), parts=["loss"])
    with pytest.raises(AssertionError, match=r"^unsound: unshifted_labels"):
        assert_sound(Specified("unshifted_labels"), parts=["loss"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "fp8"}, "precision must be one of float64, float32, bf16, got 'fp8'"),
        ({"parts": ["lose"]}, "parts must be some of"),
        ({"parts": []}, "got none"),
        ({"timeout": 0}, "timeout must be above 0"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        audit(Specified(), **options)


@pytest.mark.parametrize(
    ("loop", "error", "words"),
    [
        ("train", TypeError, "got str"),
        (lambda a: None, ValueError, r"as <lambda>\(model, epochs, settings\), it takes \(a\)$"),
    ],
)
def test_what_cannot_be_called_with_three_arguments_is_refused(loop, error, words):
    with pytest.raises(error, match=words):
        audit(loop)


def test_the_second_epoch_of_the_run_that_contradicts_the_first_is_worse_with_any_seed():
    for seed in range(5):
        case = next(one for one in ladder(seed) if one.name == "an epoch that contradicts the first")
        first, second = spec.train(case.model(), case.epochs, case.settings).validation_losses
        assert second > first + 0.1


def test_each_part_has_runs_and_each_run_a_name_of_its_own():
    cases = ladder()
    assert {case.part for case in cases} == set(PARTS)
    assert len({case.name for case in cases}) == len(cases)
    assert all(case.promise is None or case.promise in PROMISES for case in cases)


def test_the_promises_are_lines_of_the_contract():
    lines = (Path(__file__).parents[2] / "docs" / "contract.md").read_text().splitlines()
    for number, promise in PROMISES.items():
        (line,) = [line for line in lines if line.startswith(f"| **{number} ")]
        assert promise in line


def test_the_plain_data_of_a_report_is_json():
    report = audit(Specified("pads_counted"), parts=["data"], progress=False)
    data = json.loads(json.dumps(report.to_dict()))
    assert data["faults"] == ["pads_counted"] and data["case"]["name"] == "pads on the right"


IDLE = [
    ("max_grad_norm", None, "clipping"),
    ("momentum", 0.0, "optimizer"),
    ("weight_decay", 0.0, "optimizer"),
    ("accumulation_steps", 1, "accumulation"),
    ("on_nonfinite", "skip", "finite"),
]


@pytest.mark.parametrize(("name", "without", "part"), IDLE)
@pytest.mark.parametrize("is_read", [True, False])
def test_a_setting_that_is_read_and_changes_nothing_is_no_lacking_one(name, without, part, is_read):
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        _ = is_read and getattr(settings, name)
        return Specified()(model, epochs, replace(settings, **{name: without}))

    report = audit(loop, parts=[part], progress=False)
    said = f"unsound: the loop reads {name}, and it changes nothing"
    assert (report.verdict, report.part) == (said, part) if is_read else report.sound, str(report)
    assert [one.partition("=")[0] for one in report.ignored] == ([] if is_read else [name])


@pytest.mark.parametrize(
    "look", [repr, hash, asdict, copy.deepcopy, pickle.dumps, lambda settings: settings == replace(settings)]
)
def test_to_show_to_copy_and_to_compare_settings_is_not_to_read_them(look):
    def loop(model: nn.Module, epochs: Any, settings: spec.Settings) -> Mapping[str, Any]:
        look(replace(settings, validation=(), schedule=Constant(0.1)))  # which can be hashed and pickled
        return Specified()(model, epochs, replace(settings, max_grad_norm=None))

    assert audit(loop, parts=["clipping"], progress=False).ignored == ("max_grad_norm",)


def test_what_a_loop_needs_it_must_have():
    assert_sound(Specified(), parts=["clipping"], needs={"max_grad_norm"})
    lacking = [Specified(max_grad_norm=None), Specified(max_grad_norm=None, ignores=["max_grad_norm"])]
    for loop in lacking:
        assert_sound(loop, parts=["clipping"])
        with pytest.raises(AssertionError, match=r"^the loop needs max_grad_norm, and does not have it\nsound"):
            assert_sound(loop, parts=["clipping"], needs=["max_grad_norm"])
    with pytest.raises(AssertionError, match=r"^the loop needs validation, and does not have it"):
        silent = RIGHT["ReturnsNothing"].loop
        assert_sound(silent, parts=["validation"], needs=["validation"])


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        (
            ["max_grad_nrm"],
            r"^needs must be some of document_ids, .*, got 'max_grad_nrm'; did you mean max_grad_norm\?$",
        ),
        (["momentum"], r"^needs has momentum, which no run of the parts clipping is about$"),
        ("max_grad_norm", r"^needs must be a collection of names, got 'max_grad_norm'$"),
    ],
)
def test_a_need_that_cannot_be_looked_at_is_refused(needs, words):
    with pytest.raises(ValueError, match=words):
        assert_sound(Specified(), parts=["clipping"], needs=needs)


def test_a_search_whose_time_is_up_says_what_it_knows(monkeypatch):
    monkeypatch.setattr(search.Search, "seconds", 0.0)
    report = audit(Specified("mean_of_means", "coupled_decay"), progress=False)
    assert not report.sound and not report.faults and report.part == "accumulation"
    assert "the search for faults was ended after 0 s" in report.notes
