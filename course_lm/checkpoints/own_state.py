"""What the parts of a run keep beside the model's weights and the optimizer's moments: counts, weights of a loss.

A module, a loss, a clip or an optimizer of the user's own may hold what decides the rest of a run and stands in no
`state_dict`. It is looked for in attributes of modules and of objects of the user's classes, in hyper-parameters, parts
of partial functions, and variables of closures. An object in a list, and a global variable, are out of sight.
"""

import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.checkpoints.form import as_plain
from course_lm.reproducibility import GENERATORS, keep_generator
from course_lm.shards import is_expanded, is_sharded, map_tensors
from course_lm.validation import ensure

Member = tuple[str, Any, Callable[[Any], object]]  # its name, its value, and what puts another value there
_PLAIN = (type(None), bool, int, float, str, np.generic, np.ndarray, Tensor, list, tuple, dict, deque)
_MODULES_OWN = vars(nn.Module()).keys()  # whether it trains, and what it holds, which is looked at by itself
_OPTIMIZERS_OWN = ("state", "param_groups", "params", "lr")  # see `optimizer_state`
_LIBRARIES = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib")]


class OwnState:
    """The plain values that parts of a run keep, but for what is in the `state_dict` of the part named `model`.

    Of tensors all are saved, but for those within a graph; of other values those that have changed since this was made,
    as the rest is what the user has chosen now.

    Attributes:
        generators: those of random numbers that the parts hold. They have no state here: each place seeds them.
    """

    def __init__(self, **parts: Any) -> None:
        self._parts = parts
        self._first: dict[str, Any] = {}
        self._loaded: set[str] = set()  # has changed since the run began, which may be before this was made
        self._first = {name: value for name, value in self.state_dict().items() if not _tensors_of(value)}
        self.generators = [value for _, value, _ in self._walk() if isinstance(value, GENERATORS)]

    def state_dict(self) -> dict[str, Any]:
        """The values by their places, such as "loss_fn.calls"; tensors are the live ones."""
        model, state = self._parts.get("model", nn.Module()), {}
        known = {id(tensor) for tensor in (*model.state_dict(keep_vars=True).values(), *model.parameters())}
        for name, value, _ in self._walk():
            if isinstance(value, _PLAIN) and id(value) not in known and not self._is_as_at_first(name, value):
                try:
                    state[name] = as_plain(_plain(value))
                except (TypeError, ValueError):  # it holds what no checkpoint can
                    continue
        return state

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; ValueError where a value has no place here."""
        model, places = self._parts.get("model", nn.Module()), {name: part for name, *part in self._walk()}
        device = next((one.device for one in model.parameters()), None)
        for name in dict.fromkeys([*self._first, *saved]):
            owner, _, key = name.rpartition(".")
            ensure(name in places or owner in places, f"the checkpoint holds {name}, which this run does not have")
            # what a step makes is not there before the first one
            now, put = places.get(name) or (None, partial(setattr, places[owner][0], key))
            if name in saved or not self._is_as_at_first(name, now):
                filled = _filled(now, saved.get(name, self._first.get(name)), device)
                if filled is not now:
                    put(filled)
        self._loaded |= saved.keys()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put the values and the generators back when the body ends, by an error too."""
        values = map_tensors(self.state_dict(), torch.clone)
        undo = [keep_generator(one) for one in self.generators]
        try:
            yield
        finally:
            self.load_state_dict(values)
            for put_back in undo:
                put_back()

    def _is_as_at_first(self, name: str, value: Any) -> bool:
        try:
            return name in self._first and name not in self._loaded and bool(_plain(value) == self._first[name])
        except (RuntimeError, TypeError, ValueError):  # a tensor has come in, which has no single truth value
            return False

    def _walk(self) -> Iterator[Member]:
        """All that the parts are made of, by places; what stands in several is given once."""
        waiting, seen = [(name, part, _nowhere) for name, part in self._parts.items()], dict[int, str]()
        for name, value, put in waiting:  # which grows
            is_value = isinstance(value, _PLAIN) and not isinstance(value, Tensor)  # two may be one by chance
            if is_value or seen.setdefault(id(value), name) == name:
                yield name, value, put
                waiting += [(f"{name}.{key}", part, put) for key, part, put in _members_of(value)]


def _members_of(part: Any) -> Iterator[Member]:
    """What a part is made of; of an object of a library's, which is neither module nor optimizer, nothing."""
    values: dict[str, Any] = getattr(part, "__dict__", {})
    if isinstance(part, nn.Module):
        values = values | part._buffers | part._parameters | part._modules
    elif isinstance(part, Optimizer):
        for number, group in enumerate(part.param_groups):
            yield from ((f"parameter {place} of {number}", one, _nowhere) for place, one in enumerate(group["params"]))
            keys = [key for key in group if key not in _OPTIMIZERS_OWN]
            yield from ((f"{key} of {number}", group[key], partial(group.__setitem__, key)) for key in keys)
    elif isinstance(part, partial):
        values = {"func": part.func, **{str(place): one for place, one in enumerate(part.args)}, **part.keywords}
    elif isinstance(part, MethodType):
        values = {"self": part.__self__}
    elif isinstance(part, FunctionType):
        cells = zip(part.__code__.co_freevars, part.__closure__ or ())
        full = [(name, cell) for name, cell in cells if is_full(cell)]
        yield from ((name, cell.cell_contents, partial(setattr, cell, "cell_contents")) for name, cell in full)
    elif is_library(type(part).__module__):
        return
    own = _MODULES_OWN if isinstance(part, nn.Module) else _OPTIMIZERS_OWN if isinstance(part, Optimizer) else ()
    yield from ((name, one, partial(setattr, part, name)) for name, one in values.items() if name not in own)


def _nowhere(value: Any) -> None:
    raise ValueError("the checkpoint holds a loss, clip or optimizer of another form")


def _plain(value: Any) -> Any:
    """The value as a checkpoint holds it; ValueError for a tensor that is sharded, or within a graph."""
    value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    value = list(value) if isinstance(value, deque) else value
    ensure(all(one.is_leaf and not is_sharded(one) for one in _tensors_of(value)), "")
    return value


def _tensors_of(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(value, found.append)
    return found


def _filled(now: Any, saved: Any, device: torch.device | None) -> Any:
    """`saved` in the memory, and of the kind, of what stands in its place now."""
    if isinstance(now, Tensor) and isinstance(saved, Tensor):
        if (now.shape, now.dtype) == (saved.shape, saved.dtype) and not is_expanded(now):
            return now if torch.equal(now, saved) else now.copy_(saved)  # a graph may need it as it is
        device = now.device
    if isinstance(now, np.ndarray) and isinstance(saved, Tensor):
        return saved.numpy().copy()
    if isinstance(now, dict) and isinstance(saved, dict):
        filled: Any = {key: _filled(now.get(key), value, device) for key, value in saved.items()}
        now.clear()
        now.update(filled)
        return now
    if isinstance(now, list | deque) and isinstance(saved, list):
        filled = [_filled(one, value, device) for one, value in zip_longest([*now][: len(saved)], saved)]
        now.clear()
        now.extend(filled)
        return now
    return map_tensors(saved, lambda tensor: tensor.to(device, copy=True))  # in dicts and lists of its own


@cache
def is_library(module: str) -> bool:
    """Whether a module is course_lm's or an installed one, and no file of the user's."""
    top = module.partition(".")[0]
    if top in ("course_lm", "builtins") or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if module == "__main__" or file is None:  # a launcher of the user's code, such as a notebook's kernel; a notebook
        return False
    return any(Path(file).resolve().is_relative_to(folder) for folder in _LIBRARIES)


def is_full(cell: CellType) -> bool:
    """Whether the variable of a closure has a value yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
