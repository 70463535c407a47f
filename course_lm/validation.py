"""How plain data becomes a dataclass of settings, and how a bad key or value is refused.

A refusal is one line that names the key, the value and what is accepted. Files, arguments and the settings of a
curriculum's strategy all pass through `updated`, so the same mistake has the same message everywhere.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from numbers import Integral, Real
from types import ModuleType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Section = TypeVar("Section", bound="DataclassInstance")
Owners = Mapping[str, Sequence[str]]

SHOWN_CHARACTERS = 120
LARGEST_INT = 2**63 - 1  # what torch and every file format of the package can hold
PLAIN_KINDS = {int: "an int (of at most 64 bits)", float: "a float", bool: "a bool", str: "a str (of valid Unicode)"}


def require(holds: bool, key: str, accepted: str, value: object) -> None:
    """Raise ValueError "<key> must be <accepted>, got <value>" unless `holds`."""
    if not holds:
        raise ValueError(f"{key} must be {accepted}, got {shown(value)}")


def is_number(value: object) -> bool:
    """Whether this is a real number; NumPy's are, and True is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require_whole(key: str, value: Any, *, least: int) -> None:
    """Raise ValueError unless `value` is a whole number of at least `least`; True is none."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(whole and int(value) >= least, key, f"a whole number of at least {least}", value)


def ensure(holds: bool, problem: str) -> None:
    """Raise ValueError with these words unless `holds`."""
    if not holds:
        raise ValueError(problem)


def updated(base: Section, tree: Any, where: str = "", owners: Owners | None = None) -> Section:
    """The dataclass `base` with the values of `tree` in place of its own, and so on in nested dataclasses.

    Args:
        tree: keys and values; keys that it leaves out keep their values.
        where: precedes the keys in messages, such as "data.".
        owners: see `check_keys`.

    Raises:
        ValueError: an unknown key, or a value that its dataclass refuses.
    """
    check_keys(tree, [part.name for part in fields(base)], where, owners)
    held = vars(base)
    parts = {key: updated(held[key], tree[key], f"{where}{key}.", owners) for key in tree if is_dataclass(held[key])}
    try:
        return replace(base, **{**tree, **parts})
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
            hint = f"it belongs to {' and '.join(others)}{under}; " if others else did_you_mean(key, accepted, where)
            raise ValueError(f"unknown key {where}{one_line(key)}; {hint}accepted: {', '.join(accepted)}")


def did_you_mean(word: object, accepted: Iterable[str], where: str = "") -> str:
    """The question "did you mean …? " for the nearest of `accepted`, or nothing where none is near."""
    close = difflib.get_close_matches(str(word), accepted, n=1)
    return f"did you mean {where}{close[0]}? " if close else ""


def require_kinds(section: type, values: dict[str, Any]) -> None:
    """Raise ValueError unless each of `values` is of the kind that the dataclass `section` declares for its key.

    The one rule for all sections of a configuration: values are plain data, so that what is written to YAML reads
    back the same. An int is also a float; 3.0 is no int and True is no number. A NumPy number, or a tensor that holds
    one, is replaced by the plain number.
    """
    for key, hint in get_type_hints(section).items():
        if key in values:
            if getattr(values[key], "ndim", None) == 0:
                # callers pass vars(self): a frozen dataclass lets itself be changed in no plainer way
                values[key] = values[key].item()
            require_kind(values[key], hint, key)


def require_kind(value: object, hint: Any, key: str) -> None:
    """Raise ValueError unless a value is of the kind that a type hint declares; a misspelt choice gets a suggestion."""
    if not _fits(value, hint):
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
        question = did_you_mean(value, choices).strip() if isinstance(value, str) else ""
        raise ValueError(f"{key} must be {readable(hint)}, got {shown(value)}" + (question and f"; {question}"))


def readable(hint: Any) -> str:
    """What a type hint accepts, in words: "an int (of at most 64 bits) or null"."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return " or ".join(readable(one) for one in arguments)
    if kind is Literal:
        return f"one of {', '.join(arguments)}"
    if kind in (dict, Mapping):
        inside = readable(arguments[1]) if arguments and arguments[1] is not Any else ""
        return f"keys and values{inside and f', each of them {inside}'}"
    if kind in (list, Sequence):
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
    if kind in (list, Sequence):
        return type(value) in (list, kind) and all(_fits(item, arguments[0]) for item in value)  # type: ignore[attr-defined]
    return kind is Any or type(value) is kind
