"""Reading any loader a second time without a trace, and reading one with the random numbers of each place.

With it comes what else training must know of a loader of any kind: whether it may hide state that nobody can save, and
a digest that tells two batches apart.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from course_lm.batching.capabilities import counts_epochs, from_start, keeps_position, parts_of, takes_epoch
from course_lm.batching.share import EVERYTHING, Share
from course_lm.reproducibility import seed_of, seeded

Undo = Callable[[], None]
END: Any = object()  # not None, which a loader might yield

# the seed that a generator of a loader came with, and the one that it was given last
_SEEDS: WeakKeyDictionary[torch.Generator, tuple[int, int]] = WeakKeyDictionary()


@contextmanager
def read_from_start(loader: Iterable[Any], share: Share = EVERYTHING) -> Iterator[Iterable[Any]]:
    """Read a loader's epoch 0 from its start, the same batches each time, whoever else is reading it.

    When the body ends, by an error too, the global generators of the CPU, those of the loader, its epoch and its
    position are what they were. Inside, the global generators start from a fixed seed.

    Args:
        share: what this one of several ranks needs; a loader that can leave out batches has None for the others.

    Yields:
        What to read in place of the loader.
    """
    with seeded(0):  # around all: to ask a loader for its position may draw a seed
        undo = [keep_generators(loader), keep_position(loader), keep_epochs(loader)]
        try:
            batches = from_start(loader, share)
            if batches is None:
                set_epoch(loader, 0)
                batches = second_reader(loader)
            yield batches
        finally:
            for put_back in reversed(undo):
                put_back()


def read_by_place(batches: Iterator[Any], seed: int, epoch: int, start: int) -> Iterator[Any]:
    """The batches of an epoch from number `start` on, each read with random numbers of its place alone.

    What a loader draws from the global generators of the CPU follows from the run's seed, the epoch and the number of
    the batch. So it depends on nothing else that draws, and a run that goes on reads the same.
    """
    while True:
        with seeded(seed_of(seed, epoch, start, 1)):  # 1: other numbers than a step draws with (seed, epoch, batch)
            batch = next(batches, END)
        if batch is END:
            return
        yield batch
        start += 1


def second_reader(loader: Any) -> Any:
    """A reader of the same data that leaves the pass of the loader itself alone."""
    if isinstance(loader, Iterator):  # there is but one pass, and some kinds cannot be copied
        return loader
    reader = copy(loader)  # shallow: a position moves in the copy, the data are shared
    if isinstance(reader, DataLoader):
        reader._iterator = None  # worker processes that persist belong to the loader's own pass
    return reader


def keep_generators(loader: Any) -> Undo:
    """A function that sets the generators that a loader holds back to their states of now."""
    generators = [(generator, generator.get_state()) for generator in _generators(loader)]

    def put_back() -> None:
        for generator, state in generators:
            generator.set_state(state)

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


def seed_own_generators(loader: Any, seed: int, epoch: int) -> None:
    """Seed the `torch.Generator`s that a loader holds for an epoch; the seed that each came with still matters."""
    for number, generator in enumerate(_generators(loader)):
        own, last = _SEEDS.get(generator, (0, None))
        if generator.initial_seed() != last:  # it is new here, or its owner has seeded it since
            own = generator.initial_seed()
        last = seed_of(seed, epoch, own, number)
        generator.manual_seed(last)
        _SEEDS[generator] = own, last


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the epoch to the loader, its samplers and its dataset, those that want to know it."""
    for part in filter(takes_epoch, parts_of(loader)):
        part.set_epoch(epoch)


def set_next_epoch(loader: Any) -> None:
    """Tell the next epoch to a loader that counts them."""
    if counts_epochs(loader):
        loader.set_epoch(loader.epoch + 1)


def may_hide_state(loader: Any) -> bool:
    """Whether an epoch may depend on more than its place and the run's seed.

    An epoch may depend on its number, on the generators that the loader's parts hold, and on the global ones.
    """
    if not isinstance(loader, DataLoader):
        return not takes_epoch(loader)
    # torch's own samplers hold no state but a generator; a map-style dataset is read in the order of the sampler.
    untold = [part for part in parts_of(loader) if not takes_epoch(part)]
    foreign = [part for part in untold if part is not loader.dataset and not type(part).__module__.startswith("torch.")]
    return bool(foreign) or (isinstance(loader.dataset, IterableDataset) and loader.dataset in untold)


def with_fresh_workers(loader: Any) -> Any:
    """The loader, or, where its worker processes persist, a copy that starts new ones.

    Persistent workers would go on with the random numbers of the last epoch.
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


def _generators(loader: Any) -> list[torch.Generator]:
    # Attributes alone: a generator in a list or a closure is out of sight.
    held = (value for part in parts_of(loader) for value in getattr(part, "__dict__", {}).values())
    return list({id(value): value for value in held if isinstance(value, torch.Generator)}.values())


def _equal(state: Any, other: Any) -> bool:
    try:
        return bool(state == other)
    except (RuntimeError, ValueError):  # an array has no single truth value
        return digest_of(state) == digest_of(other)
