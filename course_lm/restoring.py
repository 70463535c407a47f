"""A trial on a live model: afterwards model, optimizer, data and random generators are what they were, bit for bit.

And what reading a loader takes elsewhere: its generators, its epoch, and random draws that leave no trace.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from course_lm.rng import rng_state, set_rng_state

Undo = Callable[[], None]


@contextmanager
def restored(model: nn.Module, optimizer: Optimizer, loader: Iterable[Any]) -> Iterator[Iterable[Any]]:
    """Let the body train; when it ends, by an error or an interrupt too, undo all that it did.

    Put back are weights, buffers, gradients, `requires_grad` and each module's mode; the optimizer's state (one that
    was empty is empty again), hyper-parameters and attributes; the global random generators; the loader's position
    and the generators that it draws from.

    Yields:
        A second reader over the same data, from the loader's position on. Read it in place of the loader.
    """
    # the random state is taken first and put back last: to ask a loader for its position may draw a seed
    undo = [_random(loader), _position(loader), _weights(model, optimizer), _modules(model), _optimizer(optimizer)]
    try:
        _put_aside(model, optimizer)
        yield _second_reader(loader)
    finally:
        for put_back in reversed(undo):
            put_back()


@contextmanager
def read_from_start(loader: Iterable[Any]) -> Iterator[Iterable[Any]]:
    """Read a loader's epoch 0 from its start, the same batches each time, whoever else is reading it.

    When the body ends, by an error too, the global generators, those of the loader, its epoch and its position are what
    they were. Inside, the global generators of Python, NumPy and torch start from a fixed seed.

    Yields:
        What to read in place of the loader.
    """
    undo = [_random(loader), _position(loader), _epochs(loader)]
    try:
        with RandomStream(0):
            from_start = getattr(loader, "from_start", None)
            if from_start is None:
                set_epoch(loader, 0)
            yield from_start() if from_start is not None else _second_reader(loader)
    finally:
        for put_back in reversed(undo):
            put_back()


class RandomStream:
    """In its `with` blocks the global generators of Python, NumPy and torch's CPU give a sequence of its own.

    It begins with `seed`; each block goes on where the one before ended, and what is drawn outside does not matter.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._inside: Any = None  # before the first block
        self._outside: Any = None

    def __enter__(self) -> None:
        self._outside = _host_state()
        if self._inside is None:
            random.seed(self.seed)
            np.random.seed(self.seed % 2**32)
            torch.default_generator.manual_seed(self.seed)
        else:
            _set_host_state(self._inside)

    def __exit__(self, *error: object) -> None:
        self._inside = _host_state()
        _set_host_state(self._outside)

    def state_dict(self) -> dict[str, Any]:
        """Where the sequence stands, as plain data."""
        with self:
            return {**rng_state(), "cuda": None, "mps": None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` stood."""
        with self:
            set_rng_state(state)


def generator_states(loader: Any) -> list[Tensor]:
    """The states of the generators that a loader, its samplers and its dataset hold."""
    return [generator.get_state() for generator in _generators(loader)]


def set_generator_states(loader: Any, states: list[Tensor]) -> None:
    """Restore what `generator_states` returned; ValueError where the loader does not hold as many generators."""
    generators = _generators(loader)
    if len(generators) != len(states):
        raise ValueError(
            f"the training loader holds {len(generators)} torch.Generator objects, the one that the checkpoint was "
            f"saved with held {len(states)}: build it as it was"
        )
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state.cpu())


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the epoch to the loader, its samplers and its dataset, those that want to know it."""
    for part in _parts(loader):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def may_hide_state(loader: Any) -> bool:
    """Whether an epoch may depend on more than its number, the generators in sight and the global ones."""
    if not isinstance(loader, DataLoader):
        return not hasattr(loader, "set_epoch")
    told = [part for part in _parts(loader) if not hasattr(part, "set_epoch")]
    foreign = [part for part in told if part is not loader.dataset and not type(part).__module__.startswith("torch.")]
    return bool(foreign) or (isinstance(loader.dataset, IterableDataset) and loader.dataset in told)


def with_fresh_workers(loader: Any) -> Any:
    """The loader, or a copy of one whose worker processes persist: they would keep their last random state."""
    return _second_reader(loader) if isinstance(loader, DataLoader) and loader.persistent_workers else loader


def digest_of(batch: Any) -> str:
    """16 hex digits that change with the content of a batch; of a tensor on an accelerator only its form is read."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            if value.device.type == "cpu":  # elsewhere reading would wait for the device
                digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            for key in value:
                add(key)
                add(value[key])
        elif isinstance(value, list | tuple):
            for part in value:
                add(part)
        elif isinstance(value, np.ndarray):
            add(torch.from_numpy(value)) if value.dtype.kind in "biuf" else add(value.tolist())
        else:
            plain = isinstance(value, str | bytes | int | float | None)
            digest.update(f"{type(value).__name__} {value if plain else ''};".encode())

    add(batch)
    return digest.hexdigest()[:16]


def _host_state() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_host_state(state: tuple[Any, ...]) -> None:
    in_python, in_numpy, in_torch = state
    random.setstate(in_python)
    np.random.set_state(in_numpy)
    torch.set_rng_state(in_torch)


def _put_aside(model: nn.Module, optimizer: Optimizer) -> None:
    """Give the body no gradients and copies of the optimizer's state and groups, so that none of theirs is touched."""
    for parameter in _parameters(model, optimizer):
        parameter.grad = None
    optimizer.state = copy(optimizer.state)
    for parameter, state in optimizer.state.items():
        optimizer.state[parameter] = deepcopy(state)
    optimizer.param_groups = [
        {key: value if key == "params" else deepcopy(value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]


def _weights(model: nn.Module, optimizer: Optimizer) -> Undo:
    parameters = [(one, one.requires_grad, one.grad) for one in _parameters(model, optimizer)]
    tensors = [*(one for one, _, _ in parameters), *model.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]

    @torch.no_grad()
    def put_back() -> None:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
        for parameter, requires_grad, gradient in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient

    return put_back


def _modules(model: nn.Module) -> Undo:
    modules = [(module, module.training, dict(module._buffers)) for module in model.modules()]

    def put_back() -> None:
        for module, training, buffers in modules:
            module.training = training
            module._buffers.clear()  # a forward pass may have put another tensor in a buffer's place
            module._buffers.update(buffers)

    return put_back


def _optimizer(optimizer: Optimizer) -> Undo:
    attributes = dict(vars(optimizer))

    def put_back() -> None:
        vars(optimizer).clear()  # a scheduler leaves a wrapped `step` behind
        vars(optimizer).update(attributes)

    return put_back


def _position(loader: Any) -> Undo:
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return lambda: None
    position = deepcopy(loader.state_dict())

    def put_back() -> None:
        if not _equal(loader.state_dict(), position):  # loading a position that holds would end a running pass
            loader.load_state_dict(position)

    return put_back


def _random(loader: Any) -> Undo:
    state = rng_state()
    generators = [(generator, generator.get_state()) for generator in _generators(loader)]

    def put_back() -> None:
        for generator, generator_state in generators:
            generator.set_state(generator_state)
        set_rng_state(state)

    return put_back


def _parameters(model: nn.Module, optimizer: Optimizer) -> list[Tensor]:
    """Those of the model, and those that only the optimizer knows: a loss may have weights of its own."""
    held = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return list({id(parameter): parameter for parameter in (*model.parameters(), *held)}.values())


def _epochs(loader: Any) -> Undo:
    """What the samplers and the dataset of a loader, which copies of it share, were told as their epoch."""
    epochs = [(part, part.epoch) for part in _parts(loader) if hasattr(part, "set_epoch") and hasattr(part, "epoch")]

    def put_back() -> None:
        for part, epoch in epochs:
            if part.epoch != epoch:
                part.set_epoch(epoch)

    return put_back


def _second_reader(loader: Any) -> Any:
    if isinstance(loader, Iterator):  # there is but one pass, and some kinds cannot be copied
        return loader
    reader = copy(loader)
    if isinstance(reader, DataLoader):
        reader._iterator = None  # worker processes that persist belong to the loader's own pass
    return reader


def _generators(loader: Any) -> list[torch.Generator]:
    held = (value for part in _parts(loader) for value in getattr(part, "__dict__", {}).values())
    return list({id(value): value for value in held if isinstance(value, torch.Generator)}.values())


def _parts(loader: Any) -> list[Any]:
    """The loader, its samplers and its dataset: what an epoch is made by."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler, inner = getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)
    parts = (loader, sampler, batch_sampler, inner, getattr(loader, "dataset", None))
    return list({id(part): part for part in parts if part is not None}.values())


def _equal(state: Any, other: Any) -> bool:
    try:
        return bool(state == other)
    except (RuntimeError, ValueError):  # an array has no single truth value
        return digest_of(state) == digest_of(other)
