"""Claims about every key of a configuration: what its section declares holds from Python, YAML and the command line.

The keys are found by walking the sections, and what is wrong for a key follows from its type: a value of each other
kind, what lies just beyond a bound, NaN and the infinities for a float, and the key itself misspelt.
"""

import math
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
import yaml

from course_lm.cli.options import config_parser, parse_config
from course_lm.config import DataConfig, TrainingConfig
from course_lm.curriculum.settings import SETTINGS, CurriculumConfig, DynamicSettings, keys_of
from course_lm.distributed.settings import DistributedConfig
from course_lm.model import ModelConfig
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
    (CurriculumConfig, "end_threshold"): {"start_threshold": 0},
    (CurriculumConfig, "step_thresholds"): {"start_threshold": 0},
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
    return value_of(key, CurriculumConfig(strategy=key.strategy, settings=nested(key.where, values)).settings)


def in_yaml(key: Key, values: Tree, folder: Path) -> Any:
    tree = nested(key.where, values)
    if key.strategy is not None:
        tree = {"curriculum": {"strategy": key.strategy, "settings": tree}}
    (folder / "settings.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return found_in(TrainingConfig.from_yaml(folder / "settings.yaml", DEFAULTS), key)


def in_arguments(key: Key, values: Tree, folder: Path) -> Any:
    if key.strategy is None:
        arguments = {".".join((*key.where, name)): value for name, value in values.items()}
    else:
        tree = nested(key.where, values)
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


def test_every_float_has_a_bound():
    assert [str(key) for key in KEYS if key.is_float and key.bound is None] == []


def test_the_property_has_not_become_smaller():
    """A walk that finds fewer keys, or fewer wrong values for a key, would pass in silence."""
    refused = sum(len(cases(key, [*of_other_kinds(key), *beyond(key), "misspelt"])) for key in KEYS)
    taken = sum(len(cases(key, at_the_bounds(key))) for key in KEYS)
    assert len(KEYS) >= 148 and refused >= 3_946 and taken >= 453, (len(KEYS), refused, taken)
