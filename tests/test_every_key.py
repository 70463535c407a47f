"""Claims about every key of a configuration: what its section declares holds from Python, YAML and the command line.

The keys are found by walking the sections, and what is wrong for a key follows from its type: a value of each other
kind, what lies just beyond a bound, NaN and the infinities for a float, and the key itself misspelt.
"""

import ast
import inspect
import math
from collections.abc import Callable
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
import torch
import yaml

import course_lm
from course_lm.cli.options import config_parser, parse_config
from course_lm.config import DataConfig, TrainingConfig
from course_lm.curriculum import CurriculumTrainingManager
from course_lm.curriculum.settings import SETTINGS, CurriculumConfig, DynamicSettings, keys_of
from course_lm.distributed.settings import DistributedConfig
from course_lm.model import ModelConfig
from course_lm.monitoring import WandbConfig
from course_lm.optim import OPTIMIZERS, OptimizerConfig, build_optimizer
from course_lm.schedules import SCHEDULES, ScheduleConfig, build_schedule
from course_lm.validation import Section, Text, Within, bound_of

Tree = dict[str, Any]


class Key(NamedTuple):
    """A key, the section that declares it, and where that stands: in the tree, or in the settings of a strategy."""

    name: str
    section: type[Section]
    where: tuple[str, ...]
    strategy: str | None

    def __str__(self) -> str:
        place = ".".join((*self.where, self.name))
        return f"{self.strategy}: {place}" if self.strategy else place

    @property
    def bound(self) -> Within | Text | None:
        return bound_of(get_type_hints(self.section, include_extras=True)[self.name])

    @property
    def kinds(self) -> set[Any]:
        """Each kind that it takes, and that of a list's items: list[int] | None is {list, int, NoneType}."""
        hint = get_type_hints(self.section)[self.name]
        kinds = set()
        for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint]:
            kinds |= {dict if is_dataclass(kind) else get_origin(kind) or kind}
        return kinds

    @property
    def is_float(self) -> bool:
        hint = get_type_hints(self.section)[self.name]
        return float in (hint, *get_args(hint), *(item for kind in get_args(hint) for item in get_args(kind)))

    @property
    def is_text(self) -> bool:
        """Whether its argument on the command line is taken as it stands."""
        return self.kinds <= {str, Literal, NoneType}


def walk(section: type[Section], where: tuple[str, ...] = (), strategy: str | None = None) -> list[Key]:
    found = []
    for name, hint in get_type_hints(section).items():
        found.append(Key(name, section, where, strategy))
        if is_dataclass(hint):
            found += walk(hint, (*where, name), strategy)  # type: ignore[arg-type]
    return found


DEFAULTS = TrainingConfig()
PARSER = config_parser("course-lm train", DEFAULTS)
KEYS = walk(TrainingConfig) + [key for strategy, section in SETTINGS.items() for key in walk(section, (), strategy)]
# A value of each kind, and the kinds that take it; the item of the list is one that no list takes.
PROBES: list[tuple[Any, set[Any]]] = [
    (3, {int, float}),
    (2.5, {float}),
    (2**63, set()),
    (True, {bool}),
    ("no such word", {str}),
    ([{}], set()),
    ({"no such key": 1}, {dict}),
    (None, {NoneType}),
]
# What stands beside a key, so that a value at its bound keeps the rules between keys.
BESIDE: dict[tuple[type[Section], str], Tree] = {
    (DataConfig, "test_fraction"): {"val_fraction": 1e-300},
    (ModelConfig, "n_head"): {"d_model": 12},
    (ModelConfig, "d_model"): {"n_head": 1},
    (DistributedConfig, "shard_size"): {"strategy": "hybrid"},
    (OptimizerConfig, "momentum"): {"type": "sgd"},
    **{(ScheduleConfig, key): {"type": "step"} for key in ("milestones", "step_size", "gamma")},
    (ScheduleConfig, "timescale"): {"type": "inverse_sqrt"},
    (ScheduleConfig, "decay_ratio"): {"type": "warmup_stable_decay"},
    (CurriculumConfig, "step_epochs"): {"schedule": "step"},
    **{(CurriculumConfig, key): {"strategy": "dynamic"} for key in ("adaptation_rate", "performance_window")},
    (CurriculumConfig, "end_threshold"): {"start_threshold": 0},
    (CurriculumConfig, "step_thresholds"): {"start_threshold": 0, "schedule": "step"},
    (DynamicSettings, "max_threshold"): {"min_threshold": 0},
}


def of_other_kinds(key: Key) -> list[Any]:
    return [value for value, kinds in PROBES if not kinds & key.kinds]


def beyond(key: Key) -> list[Any]:
    """What lies just beyond the bounds of a key: the next int or float, and for a float what is no number."""
    bound, outside = key.bound, [math.nan, math.inf, -math.inf] if key.is_float else []
    if isinstance(bound, Text):
        outside = ["", *(["..", "a/b", "a\\b"] if key.name == "experiment_name" else [])]
    elif bound is not None:
        outside.append(bound.low if bound.ends[0] == "(" else next_to(key, bound.low, -1))
        if bound.high is not None and math.isfinite(bound.high):
            outside.append(bound.high if bound.ends[1] == ")" else next_to(key, bound.high, 1))
    return [[value] if list in key.kinds else value for value in outside]


def at_the_bounds(key: Key) -> list[Any]:
    """The least and the largest that a key takes."""
    bound, inside = key.bound, []
    if isinstance(bound, Text):
        inside = ["x"]
    elif bound is not None:
        inside.append(bound.low if bound.ends[0] == "[" else next_to(key, bound.low, 1))
        if bound.high is not None:
            inside.append(bound.high if bound.ends[1] == "]" else next_to(key, bound.high, -1))
    return [[value] if list in key.kinds else value for value in inside]


def next_to(key: Key, number: float, direction: int) -> float:
    return math.nextafter(number, direction * math.inf) if key.is_float else number + direction


# Where a value comes from. Each source returns what the key then is.


def in_python(key: Key, values: Tree, folder: Path) -> Any:
    if key.strategy is None:
        return getattr(key.section(**values), key.name)
    config = CurriculumConfig(strategy=key.strategy, settings=settings_of(key, values))  # type: ignore[arg-type]
    return value_of(key, config.settings)


def in_yaml(key: Key, values: Tree, folder: Path) -> Any:
    tree = nested(key.where, values)
    if key.strategy is not None:
        tree = {"curriculum": {"strategy": key.strategy, "settings": settings_of(key, values)}}
    (folder / "settings.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return found_in(TrainingConfig.from_yaml(folder / "settings.yaml", DEFAULTS), key)


def in_arguments(key: Key, values: Tree, folder: Path) -> Any:
    if key.strategy is None:
        arguments = {".".join((*key.where, name)): value for name, value in values.items()}
    else:
        tree = settings_of(key, values)
        apart = tree.keys().isdisjoint(keys_of(CurriculumConfig))
        tree = {f"curriculum.{name}": value for name, value in tree.items()} if apart else {"curriculum.settings": tree}
        arguments = {"curriculum.strategy": key.strategy, **tree}
    words = [f"--{name}={spelt(value)}" for name, value in arguments.items()]
    return found_in(parse_config(PARSER, DEFAULTS, words)[0], key)


SOURCES: dict[str, Callable[[Key, Tree, Path], Any]] = {
    "python": in_python,
    "yaml": in_yaml,
    "arguments": in_arguments,
}
# What a message of each source begins with.
SOURCE_NAMED = {"python": "", "yaml": "{folder}/settings.yaml: ", "arguments": "command line: "}


def nested(where: tuple[str, ...], values: Tree) -> Tree:
    for name in reversed(where):
        values = {name: values}
    return values


def settings_of(key: Key, values: Tree) -> Tree:
    """The settings of the key's strategy; a strategy within "dynamic" is the one that scores, so that they are read."""
    base = {"base_strategy": key.where[0]} if key.strategy == "dynamic" and key.where else {}
    return {**base, **nested(key.where, values)}


def found_in(config: TrainingConfig, key: Key) -> Any:
    if key.strategy is not None:
        return value_of(key, config.curriculum.settings)
    part: Any = config
    for name in (*key.where, key.name):
        part = getattr(part, name)
    return part


def value_of(key: Key, settings: Tree) -> Any:
    for name in (*key.where, key.name):
        settings = settings[name]
    return settings


def spelt(value: Any) -> str:
    """A value as an argument: text as it stands, anything else as YAML in one line."""
    return value if isinstance(value, str) else yaml.safe_dump([value], default_flow_style=True, width=9999)[1:-2]


def values_from(source: str, key: Key, values: list[Any]) -> list[Any]:
    """Those that can be given: an argument for text is text, and a whole section has no option."""
    if source == "arguments" and dict in key.kinds and key.strategy is None and key.section is TrainingConfig:
        return []
    return [value for value in values if isinstance(value, str)] if source == "arguments" and key.is_text else values


def cases(key: Key, values: list[Any]) -> list[tuple[str, Any]]:
    return [(source, value) for source in SOURCES for value in values_from(source, key, values)]


def refusal(source: str, key: Key, values: Tree, folder: Path) -> str:
    """The one line with which values are refused, without the name of their source."""
    with pytest.raises((ValueError, TypeError)) as caught:
        kept = SOURCES[source](key, values, folder)
        pytest.fail(f"{key} took {values}: it is {kept!r}")
    message, begins = str(caught.value), SOURCE_NAMED[source].format(folder=folder)
    assert message.startswith(begins) and "\n" not in message and len(message) < 1000, message
    return message.removeprefix(begins)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_value_of_another_kind_is_refused(key, tmp_path):
    for source, value in cases(key, of_other_kinds(key)):
        message = refusal(source, key, {key.name: value}, tmp_path)
        assert f"{key.name if source == 'python' else key} must be " in message, message
        assert f", got {value!r}" in message, message


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_value_just_beyond_a_bound_is_refused(key, tmp_path):
    for source, value in cases(key, beyond(key)):
        message = refusal(source, key, {key.name: value}, tmp_path)
        assert f"{key.name if source == 'python' else key} must be " in message, message
        assert f"{key.bound}" in message and message.endswith(f", got {value!r}"), message


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_value_at_a_bound_is_taken(key, tmp_path):
    for source, value in cases(key, at_the_bounds(key)):
        values = {**BESIDE.get((key.section, key.name), {}), key.name: value}
        assert SOURCES[source](key, values, tmp_path) == value


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_misspelt_key_is_refused_by_name(key, tmp_path):
    misspelt = key.name + key.name[-1]
    for source, value in cases(key, ["word"]):
        message = refusal(source, key, {misspelt: value}, tmp_path)
        # a constructor's refusal is Python's own
        assert misspelt in message and (source == "python" or key.name in message.replace(misspelt, "")), message


# A value other than the default for each key that only some choices read.
OTHER: dict[type[Section], Tree] = {
    OptimizerConfig: {"learning_rate": 0.5, "beta1": 0.5, "beta2": 0.5, "epsilon": 0.5, "weight_decay": 0.5}
    | {"momentum": 0.5},
    ScheduleConfig: {"warmup_ratio": 0.5, "warmup_steps": 7, "num_cycles": 1.5, "min_lr": 0.5, "milestones": [20]}
    | {"step_size": 3, "gamma": 0.5, "timescale": 3, "decay_ratio": 0.5},
    CurriculumConfig: {"start_threshold": 0.4, "end_threshold": 0.7, "num_epochs": 4, "warmup_epochs": 3}
    | {"num_steps": 5, "warmup_steps": 2, "step_epochs": [2, 5], "step_thresholds": [0.3, 0.6, 0.9]}
    | {"adaptation_rate": 0.3, "performance_window": 1},
}
CHOICES: dict[str, list[Section]] = {
    "optimizer": [OptimizerConfig(type=name) for name in OPTIMIZERS],
    "lr_scheduler": [ScheduleConfig("step", milestones=[9]), *(ScheduleConfig(name) for name in SCHEDULES)],
    "curriculum": [
        CurriculumConfig(schedule="step", step_epochs=[2, 4, 6]),
        CurriculumConfig(num_steps=9),
        *(
            CurriculumConfig(schedule=schedule, strategy=strategy)
            for schedule in ("linear", "root", "exponential", "geom", "step")
            for strategy in ("length", "dynamic")
        ),
        CurriculumConfig(schedule="performance"),
    ],
}
CHOSEN = [
    pytest.param(name, choice, key, value, id=f"{name}-{number}-{key}")
    for name, choices in CHOICES.items()
    for number, choice in enumerate(choices)
    for key, value in OTHER[type(choice)].items()
]


def outcome_of(section: Any) -> Any:
    """What a run would see of a section: the optimizer that is built, the rates, or the thresholds."""
    if isinstance(section, OptimizerConfig):
        built = build_optimizer(torch.nn.Linear(2, 2), section)
        return built.defaults, [{**group, "params": None} for group in built.param_groups]
    if isinstance(section, ScheduleConfig):
        return [build_schedule(section, peak_lr=1.0, total_steps=40)(step) for step in range(40)]
    seen: list[Any] = []
    for run in ((10, None), (10, 12)):
        try:
            settled = section.for_run(*run)
        except ValueError as refused:  # of a warm-up that does not fit the run
            seen.append(str(refused))
            continue
        manager = CurriculumTrainingManager(settled.strategy, settled.schedule, asdict(settled))
        starts = [manager.start_of_epoch(epoch, lambda threshold: 3, [0]) for epoch in range(13)]  # in epochs, or steps
        for loss in (5.0, 4.0, 3.0, 2.9, 3.5, 3.2, *(2 - 0.1 * number for number in range(12))):
            manager.report_performance(loss)
            seen.append([manager.threshold(start) for start in starts])
    return seen


@pytest.mark.parametrize(("name", "choice", "key", "value"), CHOSEN)
def test_a_key_that_changes_nothing_beside_a_choice_is_refused_and_no_other(name, choice, key, value, monkeypatch):
    given = replace(choice, **{key: value})
    tree = {name: {part: what for part, what in asdict(given).items() if what != getattr(type(choice)(), part)}}
    if key not in given.unread():
        assert TrainingConfig().updated(tree, "here") == TrainingConfig(**{name: given})
    else:
        said = rf"{name}\.{key} must be left out, as nothing reads it beside .*, got "
        with pytest.raises(ValueError, match=f"^here: {said}"):
            TrainingConfig().updated(tree, "here")
        with pytest.raises(ValueError, match=f"^{said}"):
            TrainingConfig(**{name: given})
        default = getattr(type(choice)(), key)
        TrainingConfig().updated({name: {**tree[name], key: default}}, "a run's own file, which lists all keys")
    monkeypatch.setattr(Section, "require_read", lambda self, where="": None)
    assert (outcome_of(given) == outcome_of(choice)) is (key in given.unread())


@pytest.mark.parametrize(("name", "choice", "key", "value"), [one for one in CHOSEN if one.values[0] == "optimizer"])
def test_a_choice_of_the_command_line_drops_what_it_does_not_read_of_a_file(name, choice, key, value):
    readers = [kind for kind in OPTIMIZERS if key not in OptimizerConfig(type=kind).unread()]
    file = TrainingConfig().updated({name: {"type": readers[0], key: value}}, "the file")
    config = file.updated({name: {"type": choice.type}}, "command line")
    assert getattr(config.optimizer, key) == (value if choice.type in readers else getattr(OptimizerConfig(), key))


# Some keys are read and win over no other, as they say: `warmup_ratio` beside `warmup_steps`, `num_epochs` beside
# `max_steps`; `early_stopping_threshold` waits for a patience, which may be given later; schedule "none" admits all.
# Keys that the code does not look at by their names, and what does.
READ_TOGETHER = {
    **dict.fromkeys(("label_smoothing", "z_loss"), "loss.build_loss gives all to the loss"),
    **dict.fromkeys(("length", "frequency", "morphological", "combined", "random"), "settings of strategies, by name"),
    **dict.fromkeys(("morphological_weight", "frequency_weight"), "CombinedCurriculum, by the strategies' names"),
    **dict.fromkeys(("tensorboard", "wandb"), "run.default_observers, all that are trackers"),
}


def test_every_key_is_looked_at_by_some_code():
    package = Path(course_lm.__file__).parent
    nodes = [node for file in package.rglob("*.py") for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    looked_at = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    looked_at |= {name for function in SCHEDULES.values() for name in inspect.signature(function).parameters}
    assert {key.name for key in KEYS} - looked_at <= READ_TOGETHER.keys()


@pytest.mark.parametrize("name", ["curriculum", "tensorboard", "wandb"])
def test_a_section_that_gives_anything_is_on_unless_it_says_otherwise(name, tmp_path):
    for key in walk(type(getattr(DEFAULTS, name)), (name,)):
        default = getattr(getattr(DEFAULTS, name), key.name)
        for tree in ({key.name: default}, {"enabled": False, key.name: default}):
            if key.name != "enabled":
                given = getattr(DEFAULTS.updated({name: tree}, "here"), name)
                assert given.enabled is ("enabled" not in tree), tree
    assert getattr(DEFAULTS.updated({name: {}}, "here"), name).enabled is False
    assert TrainingConfig(wandb=WandbConfig(project="mine")).wandb.enabled
    assert CurriculumConfig(strategy="length").enabled and not CurriculumConfig(False, "length").enabled


def test_every_float_has_a_bound():
    assert [str(key) for key in KEYS if key.is_float and key.bound is None] == []


def test_the_property_has_not_become_smaller():
    """A walk that finds fewer keys, or fewer wrong values for a key, would pass in silence."""
    refused = sum(len(cases(key, [*of_other_kinds(key), *beyond(key), "misspelt"])) for key in KEYS)
    taken = sum(len(cases(key, at_the_bounds(key))) for key in KEYS)
    assert len(KEYS) >= 148 and refused >= 3_946 and taken >= 453, (len(KEYS), refused, taken)
