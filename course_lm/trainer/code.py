"""What the functions and modules of a user compute, as digests: another loss in the same folder is another run.

A digest is made of the instructions that Python runs, not of the source: a file may have been edited since it was
imported, and the source of a lambda is a part of a line. So comments, docstrings and the form of the text are no part
of it. It follows what the code reads: functions, methods and modules of the user's, and values that stay as they are
(numbers, text, tuples, dicts, tensors without a gradient). It does not look into lists and sets, which code fills while
it runs, and takes what libraries bring by its name: their versions are compared beside it.
"""

import dis
import hashlib
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from course_lm.checkpoints.form import bytes_of
from course_lm.checkpoints.own_state import is_full, is_library

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype)


def digest_of(part: object) -> str | None:
    """A digest of a function, or of anything else that is called; None where all of it is a library's.

    It begins with the Python whose instructions these are: those of another one cannot be compared.
    """
    walk = _Walk()
    text = repr(walk.value(part, set()))
    return _digest(text) if walk.found else None


def digests_of_modules(model: nn.Module) -> dict[str, str]:
    """A digest of what each class of modules computes in this model, by the name of the class; none of libraries'."""
    texts: dict[str, list[Any]] = {}
    for name, module in model.named_modules():
        kind = next((kind for kind in type(module).__mro__ if not is_library(kind.__module__)), None)
        if kind is not None:
            texts.setdefault(kind.__qualname__, []).append((name, _Walk().instance(module, {"forward"})))
    return {kind: _digest(repr(text)) for kind, text in texts.items()}


def library_of(kind: type) -> str | None:
    """The name and version of the library that a class is from; None for one of the user's."""
    top = kind.__module__.partition(".")[0]
    return f"{top} {getattr(sys.modules.get(top), '__version__', '')}".strip() if is_library(kind.__module__) else None


def _digest(text: str) -> str:
    return f"{sys.implementation.cache_tag} {hashlib.sha256(text.encode()).hexdigest()}"


class _Walk:
    """Turns what code reads into plain nested values; a part that comes again, as in a circle, is its number."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, Any]] = {}  # the value too: while it is held, its id is no other's
        self.found = False  # code of the user's

    def value(self, value: Any, names: Set[str]) -> Any:
        """A value that code reads; `names`: the attributes that the code reads of whatever it has."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, Tensor):
            numbers = None if value.requires_grad else hashlib.sha256(bytes_of(value)).hexdigest()
            return value.dtype, tuple(value.shape), numbers
        if isinstance(value, tuple):
            return [self.value(part, names) for part in value]
        if id(value) in self.seen:
            return self.seen[id(value)][0]
        self.seen[id(value)] = (len(self.seen), value)
        if isinstance(value, dict):
            return [(str(key), self.value(part, names)) for key, part in value.items()]
        if isinstance(value, partial):
            return self.value((value.func, value.args, value.keywords), names)
        if isinstance(value, FunctionType):
            return self.function(value)
        if isinstance(value, MethodType):
            return self.instance(value.__self__, {value.__name__})
        if isinstance(value, ModuleType):
            inside = set() if is_library(value.__name__) else names & vars(value).keys()
            return [(name, self.value(vars(value)[name], names)) for name in sorted(inside)]
        kind = value if isinstance(value, type) else type(value)
        if is_library(kind.__module__):
            return repr(value) if isinstance(value, nn.Module) else getattr(value, "__name__", kind.__qualname__)
        if isinstance(value, type):
            return value.__qualname__, self.instance(value, vars(value).keys())
        parts = value.modules() if isinstance(value, nn.Module) else [value]
        return [self.instance(part, {"__call__", "forward", *names}) for part in parts]

    def function(self, function: FunctionType) -> Any:
        """What a function computes: its instructions, and the values that it reads from outside."""
        code = _read_code(function.__code__)
        cells = zip(code.free, function.__closure__ or ())
        held = {name: cell.cell_contents for name, cell in cells if is_full(cell)}
        given = (function.__defaults__, function.__kwdefaults__, _kept(held, held.keys(), code.changed))
        if is_library(function.__globals__.get("__name__", "")):
            return function.__qualname__, self.value(given, code.attributes)
        self.found = True
        return code.text, self.value((*given, _kept(function.__globals__, code.globals, code.changed)), code.attributes)

    def instance(self, one: Any, names: Set[str]) -> Any:
        """What the methods of these names compute, with all that they reach: other methods, and plain attributes."""
        classes = (one if isinstance(one, type) else type(one)).__mro__
        places = [getattr(one, "__dict__", {}), *(vars(kind) for kind in classes if not is_library(kind.__module__))]
        told, waiting, reached, changed = list[Any](), sorted(names), {*names}, set[str]()
        for name in waiting:  # which grows
            for member in (place[name] for place in places if name in place):
                member = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
                if isinstance(member, FunctionType):
                    told.append((name, self.function(member)))
                    code = _read_code(member.__code__)
                    waiting += sorted(code.attributes - reached)
                    reached |= code.attributes
                    changed |= code.changed
        plain = {name for name in reached if not name.startswith("__") and name != "training"}
        for place in places:
            for name, value in _kept(place, plain, changed).items():
                if not isinstance(value, _TOLD_ELSEWHERE):
                    told.append((name, self.value(value, reached)))
        return told


_TOLD_ELSEWHERE = (FunctionType, staticmethod, classmethod, property, nn.Module, nn.Parameter)


def _kept(values: Mapping[str, Any], names: Set[str], changed: Set[str]) -> dict[str, Any]:
    """The values of these names that the code does not change: what it counts is no part of what it computes."""
    kept = {name: values[name] for name in sorted(names - changed) if name in values}
    # where the code sets items, it may fill any dict
    return {name: value for name, value in kept.items() if "STORE_SUBSCR" not in changed or not isinstance(value, dict)}


class _Code(NamedTuple):
    text: str
    free: tuple[str, ...]
    globals: Set[str]
    attributes: Set[str]
    changed: Set[str]


@cache
def _read_code(code: CodeType) -> _Code:
    """The instructions of a function and of those within it."""
    text: list[Any] = []
    read, attributes, changed = set[Any](), set[Any](), set[Any]()
    for one in _instructions(code):
        constant = sorted(map(repr, one.argval)) if isinstance(one.argval, frozenset) else one.argval
        text.append((one.opname, "" if isinstance(constant, CodeType) else constant))
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(one.argval)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            attributes.add(one.argval)
        elif one.opname in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
            changed.add(one.argval)
        elif one.opname == "STORE_SUBSCR":
            changed.add(one.opname)
    return _Code(repr(text), code.co_freevars, read, attributes, changed)


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    for one in dis.get_instructions(code):
        yield one
        if isinstance(one.argval, CodeType):
            yield from _instructions(one.argval)
