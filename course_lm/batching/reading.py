"""Reading any loader a second time without a trace: generators, epoch and position are put back as they were.

With it comes what else training must know of a loader of any kind: the states of its generators, whether it may hide
more state than that, a stream of random numbers for it alone, and a digest that tells two batches apart.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from course_lm.batching.capabilities import counts_epochs, from_start, keeps_position, parts_of, takes_epoch
from course_lm.batching.share import EVERYTHING, Share
from course_lm.checkpoints import rng_state, set_rng_state

Undo = Callable[[], None]


@contextmanager
def read_from_start(loader: Iterable[Any], share: Share = EVERYTHING) -> Iterator[Iterable[Any]]:
    """Read a loader's epoch 0 from its start, the same batches each time, whoever else is reading it.

    When the body ends, by an error too, the global generators, those of the loader, its epoch and its position are what
    they were. Inside, the global generators of Python, NumPy and torch start from a fixed seed.

    Args:
        share: what this one of several ranks needs; a loader that can leave out batches has None for the others.

    Yields:
        What to read in place of the loader.
    """
    # The random state is taken first and put back last: asking a loader for its position may draw a seed.
    undo = [keep_random_state(loader), keep_position(loader), keep_epochs(loader)]
    try:
        with RandomStream(0):
            batches = from_start(loader, share)
            if batches is None:
                set_epoch(loader, 0)
                batches = second_reader(loader)
            yield batches
    finally:
        for put_back in reversed(undo):
            put_back()


def second_reader(loader: Any) -> Any:
    """A reader of the same data that leaves the pass of the loader itself alone."""
    if isinstance(loader, Iterator):  # there is but one pass, and some kinds cannot be copied
        return loader
    reader = copy(loader)  # shallow: a position moves in the copy, the data are shared
    if isinstance(reader, DataLoader):
        reader._iterator = None  # worker processes that persist belong to the loader's own pass
    return reader


def keep_random_state(loader: Any) -> Undo:
    """A function that sets the global generators, and those that a loader holds, back to their states of now."""
    state = rng_state()
    generators = [(generator, generator.get_state()) for generator in _generators(loader)]

    def put_back() -> None:
        for generator, generator_state in generators:
            generator.set_state(generator_state)
        set_rng_state(state)

    return put_back


def keep_position(loader: Any) -> Undo:
    """A function that sets a loader that keeps its position back to where it is now."""
    if not keeps_position(loader):
        return lambda: None
    position = deepcopy(loader.state_dict())  # a loader may return the very object that it goes on changing

    def put_back() -> None:
        if not _equal(loader.state_dict(), position):  # loading a position that holds would end a running pass
            loader.load_state_dict(position)

    return put_back


def keep_epochs(loader: Any) -> Undo:
    """A function that sets a loader, its samplers and its dataset back to the epochs that they were last told.

    A copy of the loader shares its samplers and its dataset, so an epoch that the copy is told is told to them.
    """
    epochs = [(part, part.epoch) for part in parts_of(loader) if counts_epochs(part)]

    def put_back() -> None:
        for part, epoch in epochs:
            if part.epoch != epoch:
                part.set_epoch(epoch)

    return put_back


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
            np.random.seed(self.seed % 2**32)  # NumPy takes no more than 32 bits
            torch.default_generator.manual_seed(self.seed)  # torch.manual_seed would seed accelerators too
        else:
            _set_host_state(self._inside)

    def __exit__(self, *error: object) -> None:
        self._inside = _host_state()
        _set_host_state(self._outside)

    def state_dict(self) -> dict[str, Any]:
        """Where the sequence stands, as plain data."""
        with self:
            return {**rng_state(), "cuda": None, "mps": None}  # the stream is of the CPU's generators only

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` returned."""
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
        generator.set_state(state.cpu())  # loading may have moved it to a device; set_state takes the CPU's


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the epoch to the loader, its samplers and its dataset, those that want to know it."""
    for part in filter(takes_epoch, parts_of(loader)):
        part.set_epoch(epoch)


def set_next_epoch(loader: Any) -> None:
    """Tell the next epoch to a loader that counts them."""
    if counts_epochs(loader):
        loader.set_epoch(loader.epoch + 1)


def may_hide_state(loader: Any) -> bool:
    """Whether an epoch may depend on state that nobody can save.

    What can be saved is the number of the epoch, the generators that the loader's parts hold, and the global ones.
    """
    if not isinstance(loader, DataLoader):
        return not takes_epoch(loader)
    # torch's own samplers hold no state but a generator; a map-style dataset is read in the order of the sampler.
    untold = [part for part in parts_of(loader) if not takes_epoch(part)]
    foreign = [part for part in untold if part is not loader.dataset and not type(part).__module__.startswith("torch.")]
    return bool(foreign) or (isinstance(loader.dataset, IterableDataset) and loader.dataset in untold)


def with_fresh_workers(loader: Any) -> Any:
    """The loader, or, where its worker processes persist, a copy that starts new ones.

    Persistent workers would go on with the random state in which the last epoch left them.
    """
    return second_reader(loader) if isinstance(loader, DataLoader) and loader.persistent_workers else loader


def digest_of(batch: Any) -> str:
    """16 hex digits that change with the content of a batch; of a tensor on an accelerator only dtype and shape."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            if value.device.type == "cpu":  # elsewhere reading would wait for the device
                # As bytes, since NumPy has no bfloat16; flat first, since a 0-d tensor cannot be viewed as bytes.
                digest.update(value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, Mapping):
            for key in value:
                add(key)
                add(value[key])
        elif isinstance(value, list | tuple):
            for part in value:
                add(part)
        elif isinstance(value, np.ndarray):
            # Bools, ints and floats; torch has no strings and no objects.
            add(torch.from_numpy(value)) if value.dtype.kind in "biuf" else add(value.tolist())
        else:
            # The repr of any other object may hold its address, which differs from run to run.
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


def _generators(loader: Any) -> list[torch.Generator]:
    # Attributes alone: a generator in a list or a closure is out of sight.
    held = (value for part in parts_of(loader) for value in getattr(part, "__dict__", {}).values())
    return list({id(value): value for value in held if isinstance(value, torch.Generator)}.values())


def _equal(state: Any, other: Any) -> bool:
    try:
        return bool(state == other)
    except (RuntimeError, ValueError):  # an array has no single truth value
        return digest_of(state) == digest_of(other)
