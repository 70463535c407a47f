"""How plain data becomes a section of a configuration, and how a bad key or value is refused.

A section declares beside each key what the key takes: `batch_size: Count = 32`. A refusal is one line that names the
key, the value and what is accepted. Python, files, arguments and the settings of a curriculum's strategy all make the
same sections, so the same mistake has the same message everywhere.
"""

import difflib
import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

Owners = Mapping[str, Sequence[str]]
PLACES: dict[str, list[str]] = {}  # where a key stands in the tree, by its name here or elsewhere: `config` fills it in

SHOWN_CHARACTERS = 120
LARGEST_INT = 2**63 - 1  # what torch and every file format of the package can hold
PLAIN_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def require(holds: bool, key: str, accepted: str, value: object) -> None:
    """Raise ValueError "<key> must be <accepted>, got <value>" unless `holds`."""
    if not holds:
        raise ValueError(f"{key} must be {accepted}, got {shown(value)}")


def is_number(value: object) -> bool:
    """Whether this is a real number; NumPy's are, and True is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require_whole(key: str, value: Any, *, least: int, most: float = math.inf) -> int:
    """The value as Python's own int; ValueError unless it is a whole number from `least` to `most`; True is none."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    accepted = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    require(whole and least <= int(value) <= most, key, f"a whole number {accepted}", value)
    return int(value)


def expanded(path: str | Path) -> Path:
    """The path with the home folder in place of `~`; ValueError where there is none: a folder `~` is nobody's wish."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"there is no home folder for {one_line(path)}") from None


def ensure(holds: bool, problem: str) -> None:
    """Raise ValueError with these words unless `holds`."""
    if not holds:
        raise ValueError(problem)


@dataclass(frozen=True)
class Within:
    """Numbers from `low` to `high`, declared beside the kind: `Annotated[float, Within(0, 1, "[)")]` is [0, 1).

    NaN is within nothing. Without `high` there is no upper bound, which is for ints: a float could be infinite.
    """

    low: float
    high: float | None = None
    ends: Literal["[]", "[)", "(]", "()"] = "[]"

    def takes(self, number: float) -> bool:
        """Whether a number is one of these."""
        above = number >= self.low if self.ends[0] == "[" else number > self.low
        return above and (self.high is None or (number <= self.high if self.ends[1] == "]" else number < self.high))

    def __str__(self) -> str:
        low, high = self.ends
        return f"at least {self.low}" if self.high is None else f"in {low}{self.low}, {self.high}{high}"


@dataclass(frozen=True)
class Text:
    """A text that matches `pattern`, declared in the same way; by default one that is not empty.

    Args:
        words: what such a text is, such as "a folder".
    """

    words: str
    pattern: str = r"[^\0]+"  # a shell's unset variable is empty, and no file has a NUL in its name

    def takes(self, text: str) -> bool:
        """Whether the whole text matches."""
        return re.fullmatch(self.pattern, text) is not None

    def __str__(self) -> str:
        return self.words


Count = Annotated[int, Within(1)]
Positive = Annotated[float, Within(0, math.inf, "()")]
NotNegative = Annotated[float, Within(0, math.inf, "[)")]


def bound_of(hint: Any) -> Within | Text | None:
    """What a type hint declares beside the kind; of a list, of its items."""
    return hint if isinstance(hint, Within | Text) else next(filter(None, map(bound_of, get_args(hint))), None)


@dataclass(frozen=True)
class Section:
    """A part of a configuration: each value is of the kind, and within the bound, that is declared for its key.

    Values are plain data, so that what is written to YAML reads back the same. An int is also a float; 3.0 is no int
    and True is no number. A NumPy number, or a tensor that holds one, is replaced by the plain number.

    A word among choices may have capitals. `enabled` left out is true where another key has a value of its own.

    Raises ValueError naming key, value and what is accepted.
    """

    def __new__(cls, *arguments: Any, **values: Any) -> Self:
        """Refuse a key that the section does not have, as in a file."""
        check_keys(values, [part.name for part in fields(cls)])
        return super().__new__(cls)

    def __post_init__(self) -> None:
        values = vars(self)
        for key, hint in get_type_hints(type(self), include_extras=True).items():
            if getattr(values[key], "ndim", None) == 0:
                values[key] = values[key].item()  # a frozen dataclass lets itself be changed in no plainer way
            if isinstance(values[key], str) and not _fits(values[key], hint) and _fits(values[key].lower(), hint):
                values[key] = values[key].lower()
            require_kind(values[key], hint, key)
            if isinstance(values[key], Section):
                values[key].require_read(f"{key}.")
        if values.get("enabled", False) is None:
            # pyrefly: ignore[unexpected-keyword]
            values["enabled"] = replace(self, enabled=False) != type(self)(enabled=False)

    def unread(self) -> dict[str, str]:
        """The keys that nothing looks at beside the values of others, and which these are: "type sgd"."""
        return {}

    def require_read(self, where: str = "") -> None:
        """Raise ValueError for an unread key whose value is not the default."""
        defaults = vars(type(self)())
        for key, why in self.unread().items():
            value, accepted = vars(self)[key], f"left out, as nothing reads it beside {why}"
            require(value == defaults[key], f"{where}{key}", accepted, value)


SectionType = TypeVar("SectionType", bound=Section)


def updated(base: SectionType, tree: Any, where: str = "", owners: Owners | None = None) -> SectionType:
    """The section `base` with the values of `tree` in place of its own, and so on in nested sections.

    Args:
        tree: keys and values; keys that it leaves out keep their values, where these are still read. One that holds
            all keys is the record of a run, and may hold values that nothing reads. What is not empty switches a
            section on that has a key `enabled`, unless it says otherwise.
        where: precedes the keys in messages, such as "data.".
        owners: see `check_keys`.

    Raises:
        ValueError: an unknown key, or a value that its section refuses.
    """
    check_keys(tree, [part.name for part in fields(base)], where, owners)
    held, defaults = vars(base), vars(type(base)())
    parts = {key: updated(held[key], tree[key], f"{where}{key}.", owners) for key in tree if is_dataclass(held[key])}
    switch = {"enabled": True} if "enabled" in held and tree else {}
    try:
        made = replace(base, **{**switch, **tree, **parts})
        # what the new values leave unread, and the tree does not hold, is as if nobody had ever given it; nor has
        # anybody asked for it in a section that holds all keys, as a run's own file does
        whole = len(tree) == len(held)
        return replace(made, **{key: defaults[key] for key in made.unread() if whole or key not in tree})
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None


def check_keys(tree: Any, accepted: Sequence[str], where: str = "", owners: Owners | None = None) -> None:
    """Raise ValueError unless `tree` is a mapping and each of its keys is `accepted`.

    `where` precedes the keys in the message; `owners` names those that have a key which is not accepted here.
    """
    require(isinstance(tree, Mapping), where.rstrip(".") or "it", "keys and values", tree)
    for key in tree:
        if key not in accepted:
            others = (owners or {}).get(key, [])
            under = next((f", here under {where}{other}" for other in others if other in accepted), "")
            hint = f"it belongs to {' and '.join(others)}{under}; " if others else place_of(key)
            hint = hint or did_you_mean(key, accepted, where)
            raise ValueError(f"unknown key {where}{one_line(key)}; {hint}accepted: {', '.join(accepted)}")


def place_of(key: object, among: Iterable[str] | None = None, before: str = "") -> str:
    """The hint "here it is …; " for a key of another section, or of another tool; or nothing.

    among: names of which alone it speaks, `before` included.
    """
    places = [f"{before}{place}" for place in PLACES.get(str(key), ())]
    known = [place for place in places if among is None or place in among]
    return f"here it is {' or '.join(known)}; " if known else ""


def did_you_mean(word: object, accepted: Iterable[str], where: str = "") -> str:
    """The question "did you mean …? " for the nearest of `accepted`, or nothing where none is near."""
    close = difflib.get_close_matches(str(word), accepted, n=1)
    return f"did you mean {where}{close[0]}? " if close else ""


def require_kind(value: object, hint: Any, key: str) -> None:
    """Raise ValueError unless a value is what a type hint declares; a misspelt choice gets a suggestion."""
    if not _fits(value, hint):
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        question = did_you_mean(value, choices).strip() if isinstance(value, str) else ""
        accepted = readable(hint)  # what the kinds leave unsaid, where it may be what is wrong
        if type(value) is int:
            accepted = accepted.replace("a whole number", "a whole number of at most 64 bits")
        elif type(value) is str:
            accepted = accepted.replace("text", "text of valid Unicode")
        raise ValueError(f"{key} must be {accepted}, got {shown(value)}" + (question and f"; {question}"))
    bound = bound_of(hint)
    given = value if isinstance(value, list) else [value]
    within = bound is None or all(one is None or bound.takes(one) for one in given)
    accepted = f"{'a list, each item ' * isinstance(value, list)}{bound}{', or null' * (NoneType in get_args(hint))}"
    require(within, key, accepted, value)


def readable(hint: Any) -> str:
    """What a type hint accepts, in words: "a whole number, at least 1, or null"."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return (", or " if bound_of(hint) else " or ").join(readable(one) for one in arguments)
    if kind is Annotated:
        return f"{readable(arguments[0])}, {arguments[1]}"
    if kind is Literal:
        return f"one of {', '.join(arguments)}"
    if kind in (dict, Mapping):
        inside = readable(arguments[1]) if arguments and arguments[1] is not Any else ""
        return f"keys and values{inside and f', each of them {inside}'}"
    if kind is list:
        return f"a list, each item {readable(arguments[0])}"
    return "null" if kind is NoneType else PLAIN_KINDS.get(kind, getattr(kind, "__name__", str(kind)))


def shown(value: object) -> str:
    """A value as part of an error message: its `repr` in one line; never an error of its own."""
    try:
        return one_line(repr(value))
    except (ValueError, RecursionError):  # an int of more than 4,300 digits, or lists within lists within lists
        return f"{type(value).__name__} too large to be shown"


def one_line(text: object) -> str:
    """`text` without line breaks, cut where it is long."""
    line = " ".join(str(text).split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its class where it says nothing, as a MemoryError may."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def named(error: BaseException) -> str:
    """The same after the class of the error, whose words may need it: that of a KeyError is the key alone."""
    kind, line = type(error).__name__, first_line(error)
    return line if line == kind else f"{kind}: {line}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, which tells nothing of what was tried; torch has no class for that on the CPU."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in _EXHAUSTED)


_EXHAUSTED = ("out of memory", "can't allocate memory", "not enough memory")


class Explained:
    """A class that answers arguments which it does not take with the names of those that it takes."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """Raise TypeError, in one line."""
        signature = inspect.signature(cls.__init__)
        try:
            signature.bind_partial(None, *arguments, **keywords)  # partly, as a copy is made without any
        except TypeError as error:
            raise TypeError(f"{error}; {cls.__name__} takes {', '.join([*signature.parameters][1:])}") from None
        return super().__new__(cls)


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module of an optional dependency; ImportError says which extra of this package brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f'{module} is not installed: pip install "course-lm[{extra}]"') from error


def _fits(value: object, hint: Any) -> bool:
    """Kinds are compared exactly: by isinstance numpy.float64 would be a float, and True an int."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in arguments)
    if kind is Annotated:
        return _fits(value, arguments[0])
    if kind is Literal:
        return type(value) is str and value in arguments
    if kind is float:
        return type(value) is float or _fits(value, int)
    if kind is int:
        return type(value) is int and abs(value) <= LARGEST_INT
    if kind is str:
        # a lone surrogate cannot be written as UTF-8
        return type(value) is str and not any("\ud800" <= character <= "\udfff" for character in value)
    if kind in (dict, Mapping):
        inside = arguments[1] if arguments else Any
        return type(value) is dict and all(type(key) is str and _fits(item, inside) for key, item in value.items())
    if kind is list:
        return type(value) is list and all(_fits(item, arguments[0]) for item in value)
    return kind is Any or type(value) is kind
