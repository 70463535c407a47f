"""Claims about a curriculum's settings: where they may stand, which fit each other, and how they follow the run."""

from pathlib import Path

import pytest
import yaml

from course_lm.config import TrainingConfig
from course_lm.curriculum import CurriculumConfig


def read(folder: Path, text: str) -> TrainingConfig:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return TrainingConfig.from_yaml(path)


FLAT = [
    ("morphological", {"case_weight": 1.0}),
    ("length", {"max_length": 40}),
    ("frequency", {"reference": "stories"}),
    ("random", {"seed": 3}),
    ("combined", {"morphological_weight": 0.5, "length": {"max_length": 40}}),
    ("dynamic", {"base_strategy": "length", "min_threshold": 0.3}),
]


@pytest.mark.parametrize(("strategy", "settings"), FLAT)
def test_settings_of_the_strategy_may_stand_beside_the_others_in_yaml(tmp_path, strategy, settings):
    config = read(tmp_path, yaml.safe_dump({"curriculum": {"enabled": True, "strategy": strategy, **settings}}))
    assert config.curriculum == CurriculumConfig(enabled=True, strategy=strategy, settings=settings)
    config.to_yaml(tmp_path / "saved.yaml")
    assert TrainingConfig.from_yaml(tmp_path / "saved.yaml") == config


@pytest.mark.parametrize(
    ("section", "parts"),
    [
        ("strategy: length, case_weight: 1", ["unknown key curriculum.case_weight", "it belongs to morphological"]),
        ("strategy: combined, max_length: 1", ["here under curriculum.length", "it belongs to length"]),
        ("strategy: length, max_lenght: 1", ["did you mean curriculum.max_length?"]),
        ("strategy: length, settings: {case_weight: 1}", ["unknown key case_weight; it belongs to morphological"]),
        (
            "strategy: length, max_length: 1, settings: {max_length: 2}",
            ["curriculum.max_length must be 2, as in settings"],
        ),
        (
            "strategy: dynamic, adaptation_rate: 0.3, settings: {adaptation_rate: 0.4}",
            ["must be 0.3, as adaptation_rate"],
        ),
    ],
)
def test_a_setting_in_the_wrong_place_is_refused_with_the_right_one(tmp_path, section, parts):
    with pytest.raises(ValueError) as caught:
        read(tmp_path, f"curriculum: {{{section}}}")
    for part in parts:
        assert part in str(caught.value), caught.value


@pytest.mark.parametrize("steps", [2, 3, 100, 19_000])
def test_a_run_of_steps_has_a_curriculum_of_steps(steps):
    config = CurriculumConfig().for_run(10, steps)
    assert (config.num_steps, config.total, config.warmup) == (steps // 2, steps // 2, 0)


def test_given_times_mean_what_they_say():
    given = CurriculumConfig(num_epochs=10, warmup_epochs=2)
    assert given.for_run(4, None) == given == given.for_run(4, 100)


@pytest.mark.parametrize(
    ("given", "run", "message"),
    [
        ({"warmup_epochs": 2}, (4, None), r"warmup_epochs must be below half of the run's 4 epochs.* got 2"),
        ({"warmup_epochs": 1}, (4, 100), r"warmup_epochs must be given with num_epochs in a run of max_steps"),
        ({"warmup_steps": 50}, (4, 100), r"warmup_steps must be below half of the run's 100 steps.* got 50"),
    ],
)
def test_a_warm_up_that_leaves_no_time_is_refused(given, run, message):
    with pytest.raises(ValueError, match=message):
        CurriculumConfig(**given).for_run(*run)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start_threshold": 0.5, "end_threshold": 0.4}, r"end_threshold must be in \[start_threshold \(0.5\), 1\]"),
        ({"schedule": "geom", "start_threshold": 0.0}, "start_threshold must be above 0 for schedule geom, got 0.0"),
        ({"num_epochs": 2, "warmup_epochs": 2}, r"warmup_epochs must be in \[0, num_epochs \(2\)\), got 2"),
        ({"num_steps": 5, "warmup_steps": 7}, r"warmup_steps must be in \[0, num_steps \(5\)\), got 7"),
        ({"num_epochs": 5, "warmup_steps": 3}, "warmup_steps must be given with num_steps, not with num_epochs, got 3"),
        ({"schedule": "step", "step_epochs": [3, 1]}, r"step_epochs must be rising numbers, got \[3, 1\]"),
        ({"step_epochs": []}, r"step_epochs must be null, or one number or more, got \[\]"),
        ({"step_epochs": [1, 2], "step_thresholds": [0.4, 0.3]}, r"step_thresholds must be .* got \[0.4, 0.3\]"),
        ({"step_epochs": [1, 2], "step_thresholds": [0.4]}, r"step_thresholds must be 2 numbers, .* got \[0.4\]"),
        ({"strategy": "length", "settings": {"min_lenght": 3}}, "length: unknown key min_lenght; did"),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CurriculumConfig(**settings)
