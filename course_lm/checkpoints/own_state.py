"""What the parts of a run keep beside the model's weights and the optimizer's moments: counts, weights of a loss.

A module, a loss, a clip or an optimizer of the user's own may hold what decides the rest of a run and stands in no
`state_dict`. Kept are weights and buffers of modules, weights that the optimizer alone holds, and of numbers, text and
None those that change: attributes of modules and of objects of the user's classes, hyper-parameters, variables of
closures. Other tensors, arrays and collections, and global variables, are the user's own data, and left alone.
"""

import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.reproducibility import GENERATORS, keep_generator
from course_lm.shards import is_expanded, is_sharded

Member = tuple[str, Any, Callable[[Any], object]]  # its name, its value, and what puts another value there
_PLAIN = (type(None), bool, int, float, str)
_MODULES_OWN = vars(nn.Module()).keys()  # whether it trains, and what it holds, which is looked at by itself
# see `optimizer_state`; the last is a mark of `optim`, which each process sets
_OPTIMIZERS_OWN = ("state", "param_groups", "params", "lr", "lr_scale", "initial_lr", "_rates_set_by_course_lm")
_LIBRARIES = [Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib", "stdlib")]


class OwnState:
    """What parts of a run keep, but for what is in the `state_dict` of the part named `model`.

    Of tensors all are saved, but for those within a graph; of other values those that have changed since this was made,
    as the rest is what the user has chosen now.

    Attributes:
        generators: those of random numbers that the parts hold. They have no state here: each place seeds them.
    """

    def __init__(self, **parts: Any) -> None:
        self._parts = parts
        self._first: dict[str, Any] = {}
        self._loaded: set[str] = set()  # has changed since the run began, which may be before this was made
        self._first = {name: value for name, value in self.state_dict().items() if not isinstance(value, Tensor)}
        self.generators = [value for _, value, _ in self._walk() if isinstance(value, GENERATORS)]

    def state_dict(self) -> dict[str, Any]:
        """The values by their places, such as "loss_fn.calls"; tensors are the live ones."""
        model = self._parts.get("model", nn.Module())
        known = {id(tensor) for tensor in (*model.state_dict(keep_vars=True).values(), *model.parameters())}
        state = {}
        for name, value, _ in self._walk():
            if isinstance(value, Tensor):
                if id(value) not in known and value.is_leaf and not is_sharded(value):
                    state[name] = value
            elif type(value) in _PLAIN and not self._is_as_at_first(name, value):
                state[name] = value
        return state

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; warns of what has no place here."""
        places = {name: part for name, *part in self._walk()}
        for name in dict.fromkeys([*self._first, *saved]):
            owner, _, key = name.rpartition(".")
            if name not in places and not hasattr(places.get(owner, (None,))[0], "__dict__"):
                warnings.warn(f"{name} of the checkpoint begins anew: this run does not have it yet", stacklevel=2)
                continue
            # what a step makes is not there before the first one
            now, put = places.get(name) or (None, partial(setattr, places[owner][0], key))
            if name in saved or not self._is_as_at_first(name, now):
                value = saved.get(name, self._first.get(name))
                if isinstance(now, Tensor) and isinstance(value, Tensor):
                    _fill(now, value, put)
                else:
                    put(value)
        self._loaded |= saved.keys()

    def moves(self) -> bool:
        """Whether a step may change more than buffers of the model, which one that fails puts back by itself."""
        buffers = set(map(id, self._parts["model"].buffers()))
        return any(id(value) not in buffers for value in self.state_dict().values())

    def kept(self) -> ExitStack:
        """What puts the values and the generators back to where they are now, when its body ends or it is closed."""
        values = {name: one.clone() if isinstance(one, Tensor) else one for name, one in self.state_dict().items()}
        undo = ExitStack()
        for put_back in (partial(self.load_state_dict, values), *map(keep_generator, self.generators)):
            undo.callback(put_back)
        return undo

    def _is_as_at_first(self, name: str, value: Any) -> bool:
        return name in self._first and name not in self._loaded and value == self._first[name]

    def _walk(self) -> Iterator[Member]:
        """All that the parts are made of, by places; what stands in several is given once."""
        waiting, seen = [(name, part, _nowhere) for name, part in self._parts.items()], dict[int, str]()
        for name, value, put in waiting:  # which grows
            if type(value) in _PLAIN or seen.setdefault(id(value), name) == name:  # two numbers may be one by chance
                yield name, value, put
                waiting += [(f"{name}.{key}", part, put) for key, part, put in _members_of(value)]


def _members_of(part: Any) -> Iterator[Member]:
    """What a part is made of; of an object of a library's, which is neither module nor optimizer, nothing."""
    values: dict[str, Any] = getattr(part, "__dict__", {})
    held: dict[str, Any] = {}
    if isinstance(part, nn.Module):
        held = {**part._buffers, **part._parameters, **part._modules}
    elif isinstance(part, Optimizer):
        for number, group in enumerate(part.param_groups):
            yield from ((f"parameter {place} of {number}", one, _nowhere) for place, one in enumerate(group["params"]))
            keys = [key for key in group if key not in _OPTIMIZERS_OWN and not isinstance(group[key], Tensor)]
            yield from ((f"{key} of {number}", group[key], partial(group.__setitem__, key)) for key in keys)
    elif isinstance(part, partial):
        values = {"func": part.func, **{str(place): one for place, one in enumerate(part.args)}, **part.keywords}
    elif isinstance(part, MethodType):
        values = {"self": part.__self__}
    elif isinstance(part, FunctionType):
        cells = zip(part.__code__.co_freevars, part.__closure__ or ())
        full = [(name, cell, cell.cell_contents) for name, cell in cells if is_full(cell)]
        inside = [(name, cell, one) for name, cell, one in full if not isinstance(one, Tensor)]
        yield from ((name, one, partial(setattr, cell, "cell_contents")) for name, cell, one in inside)
    elif is_library(type(part).__module__):
        return
    own = _MODULES_OWN if isinstance(part, nn.Module) else _OPTIMIZERS_OWN if isinstance(part, Optimizer) else ()
    others = {name: one for name, one in values.items() if name not in own and not isinstance(one, Tensor)}
    yield from ((name, one, partial(setattr, part, name)) for name, one in {**others, **held}.items())


def _nowhere(value: Any) -> None:
    raise ValueError("the checkpoint holds a loss, clip or optimizer of another form")


def _fill(now: Tensor, saved: Tensor, put: Callable[[Any], object]) -> None:
    if (now.shape, now.dtype) != (saved.shape, saved.dtype) or is_expanded(now):
        put(saved.to(now.device, copy=True))
    elif not torch.equal(now, saved):  # else a graph may need it as it is
        now.copy_(saved)


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
