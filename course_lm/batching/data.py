"""Any training loader, read from any place of a run: the epoch, and the batches of it whose step is done.

    training loader                               the batch at a place
    our Loader and CurriculumLoader               jumps to it; refused over other data
    list or tuple of batches                      jumps to it; refused where the last one differs
    DataLoader: any sampler, generator, workers   reads the epoch again, up to it
      and datasets that draw at random
    any other iterable                            the same
    one with `state_dict` and `load_state_dict`   gets back the state that it made itself, and is believed
    an iterator, such as a generator              one pass, within which a new one is read again up to it;
                                                  a second pass is refused

Reading again is checked: the last batch before the place must be the one that the run had trained on, else the loader
does not repeat itself and ValueError is raised before a step is taken. At the start of an epoch there is no such batch:
a loader that may hide what its next epoch depends on (an iterable of one's own, a sampler of one's own without
`set_epoch`, an IterableDataset) goes on with a warning.

What a loader draws at random, from the global generators of the CPU or from a `torch.Generator` that it, its samplers
or its dataset hold, follows from (seed, epoch, batch) and the seed that such a generator came with. So nothing of it
has to be saved, and nothing that is drawn elsewhere changes the data. Worker processes start anew with each epoch.

Only `__iter__` must be there. What else a loader may offer: `__len__`, batches of an epoch, or
`length_of_epoch(epoch)`, where epochs differ; `set_epoch(epoch)` and `epoch`, also of its samplers and its dataset;
`fingerprint`, a text that changes with the data; `from_start()`, what a validation reads, the same at every call;
`report_performance(val_loss)`, told of each validation; `describe_epoch()`, numbers of this epoch for the history.
What a wrapper passes on counts as its own, but for `read_from`, which would pass by what the wrapper does.
"""

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from course_lm.batching.batch import AnyBatch, with_own_memory
from course_lm.reproducibility import seed_of, seeded
from course_lm.validation import one_line, shown

_T = TypeVar("_T")
_END: Any = object()  # not None, which a loader might yield
NEW_RUN = "choose another experiment_name, or set training.resume to never"


@dataclass(frozen=True)
class Share:
    """Rank `rank` of `world` computes batches `rank`, `rank + world`, … of each window of `window` batches.

    A window is one optimizer step. Where a window has no batch for a rank, the rank reads its first one: it takes part
    in the step with an empty batch of the same form.
    """

    rank: int = 0
    world: int = 1
    window: int = 1

    def needs(self, index: int, length: int) -> bool:
        """Whether this rank reads batch `index` of an epoch of `length` batches."""
        place = index % self.window
        size = min(self.window, length - (index - place))  # the last window of an epoch may be shorter
        return place % self.world == self.rank or (place == 0 and self.rank >= size)

    def of_epoch(self, batches: list[_T], start: int = 0) -> list[_T | None]:
        """The batches from `start` on, with None in place of each that this rank does not read."""
        length = len(batches)
        return [batches[index] if self.needs(index, length) else None for index in range(start, length)]


EVERYTHING = Share()


class DataState(TypedDict):
    """What a place in the data of a loader is besides its epoch and its batch, as plain data."""

    fingerprint: str | None  # of the loader's data, where it has one
    last: str | None  # digest of the last batch that was taken, where that one will be read again
    own: dict[str, Any] | None  # the loader's own state, where it keeps one
    # Of a loader that keeps its place or has one pass, and may be ahead of the run:
    untaken: list[AnyBatch]  # the batches that it has given and whose step is not done
    ended: bool  # whether it has said that the epoch holds no more


class Data:
    """A training loader of any kind; the module's docstring says what each kind is good for.

    Args:
        loader: an iterable of batches.
        seed: of the run; with the place it fixes what the loader draws at random.
        share: what this one of several ranks needs. Our own loaders give None in place of the other batches; any other
            loader is read whole on each rank.
        state: of the place from which it is read first, as `state_dict` returned it for this or another loader object.
        resumed: whether that was in another process.

    Attributes:
        keeps_place: whether the loader is not ours and keeps its own place, which reading moves.

    Raises ValueError for a single batch, or what cannot be iterated over.
    """

    def __init__(
        self,
        loader: Any,
        seed: int = 0,
        share: Share = EVERYTHING,
        *,
        state: DataState | None = None,
        resumed: bool = False,
    ) -> None:
        check_holds_batches(loader, "training")
        self.loader, self.seed, self.share = loader, seed, share
        self.fingerprint = fingerprint_of(loader)
        self._jumps = hasattr(type(loader), "read_from")
        self.keeps_place = not self._jumps and _has_state(loader)
        self._has_one_pass = not self.keeps_place and isinstance(loader, Iterator)
        self._is_list = isinstance(loader, list | tuple)
        self._state, self._resumed = state, resumed  # until it is read from
        self._last = None if state is None else state["last"]
        self._untaken: list[AnyBatch] = [] if state is None else list(state["untaken"])
        self._ended = False
        self._given = 0  # batches that the one pass of an iterator has given
        self._has_failed = False  # that iterator: a generator that has raised gives nothing more
        self._told_of_length = False

    def over(self, loader: Any, epoch: int, batch: int) -> "Data":
        """The place in another loader object, which must hold the same data, but between two epochs of one process."""
        if loader is self.loader:
            return self
        state, running = self.state_dict(epoch, batch), self._state is None
        other = Data(loader, self.seed, self.share, state=state, resumed=not running and self._resumed)
        if running and not batch and not state["untaken"] and not other._holds_data_of(state):
            return Data(loader, self.seed, self.share)
        return other

    def length(self, epoch: int) -> int | None:
        """Batches of an epoch; None where the loader cannot tell."""
        return length_of_epoch(self.loader, epoch)

    def read_from(self, epoch: int, batch: int) -> Iterator[AnyBatch]:
        """The rest of an epoch, from a number of taken batches on.

        Raises:
            ValueError: at once, where this loader cannot give it, or gives another one than before.
        """
        state = self._state
        if state is not None:
            self._check_data(state, epoch, batch)
        elif self.keeps_place and (batch or self._untaken):  # a step has failed, or the run has stopped
            state = self.state_dict(epoch, batch)
        if self._jumps:
            if state is not None and state["own"] is not None:
                self._load(state["own"] | {"epoch": epoch, "batch": batch})
            batches = self.loader.read_from(epoch, batch, self.share)
        elif self._is_list:
            at_place = 0 < len(self.loader) >= batch  # at batch 0 it is the last one of the epoch before
            if batch or (state is not None and self._last is not None):
                self._compare(self.loader[batch - 1] if at_place else _END, epoch, batch)
            batches = iter(self.loader[batch:])
        else:
            set_epoch(self.loader, epoch)
            batches = self._put_back(state, epoch, batch) if self.keeps_place else self._read_again(epoch, batch)
        # only now, when nothing can be refused any more; of an epoch that has ended, nothing more is read
        self._state, self._ended = state if state is not None and state["ended"] and batch else None, False
        return self._note(batches, epoch, batch)

    def take(self, window: list[AnyBatch]) -> None:
        """Note the batches of a window, whose step is done."""
        del self._untaken[: len(window)]
        self._last = None if self._jumps or self.keeps_place else digest_of(window[-1])

    def report_performance(self, val_loss: float) -> None:
        """Tell the loss of a validation to a loader that listens to it."""
        if hasattr(self.loader, "report_performance"):
            self.loader.report_performance(val_loss)

    def describe_epoch(self) -> dict[str, float] | None:
        """What the loader says of its current epoch, or None where it says nothing: then its epochs are alike."""
        return self.loader.describe_epoch() if hasattr(self.loader, "describe_epoch") else None

    def state_dict(self, epoch: int, batch: int) -> DataState:
        """All that is known of this place, which the run has reached, besides these two numbers."""
        if self._state is not None:  # nothing was read since
            return {**self._state, "untaken": list(self._untaken)}
        own = None
        if self._jumps:  # with the place of the run: reading the loader elsewhere moves its own
            own = deepcopy(self.loader.state_dict()) | {"epoch": epoch, "batch": batch}
        elif self.keeps_place:
            with seeded(self.seed):  # to be asked may start an iterator, which draws a seed
                own = deepcopy(self.loader.state_dict())
        return {
            "fingerprint": self.fingerprint,
            "last": self._last,
            "own": own,
            "untaken": list(self._untaken) if self.keeps_place else [],
            "ended": self.keeps_place and self._ended and batch > 0,  # at its start, an epoch has not ended
        }

    def _note(self, batches: Iterator[AnyBatch], epoch: int, read: int) -> Iterator[AnyBatch]:
        """The batches, those first whose step is not done; warns of a loader whose len() is not their number."""
        length = None if self._jumps else self.length(epoch)
        read += len(self._untaken)
        yield from list(self._untaken)  # a copy, since `take` shortens it
        for batch in batches:
            read += 1
            if self.keeps_place or self._has_one_pass:  # it is ahead of the run until the step is done
                self._untaken.append(batch)
            if length is not None and read > length:
                self._tell_of_length(f"at least {read}", length, epoch)
            yield batch
        self._ended = True
        if length is not None and read < length:
            self._tell_of_length(f"only {read}", length, epoch)

    def _tell_of_length(self, given: str, length: int, epoch: int) -> None:
        if not self._told_of_length:
            self._told_of_length = True
            warnings.warn(
                f"the training loader gave {given} batches in epoch {epoch}, its len() is {length}: "
                "the steps of the run and its learning rates are reckoned from len()",
                stacklevel=3,
            )

    def _put_back(self, state: DataState | None, epoch: int, batch: int) -> Iterator[AnyBatch]:
        """What a loader gives that keeps its own place."""
        if state is not None and state["ended"] and batch:  # to ask for more would begin an epoch
            return iter(())
        if state is not None and state["own"] is not None:
            self._load(deepcopy(state["own"]))
        # at the start of a run, or of an epoch while it runs, there is no position to lose
        elif state is not None and (batch or (self._resumed and epoch)):
            raise ValueError(
                f"the checkpoint holds no state of this {type(self.loader).__name__}: the training loader was another "
                f"kind; change it back, {NEW_RUN}"
            )
        return self._opened(self.loader, epoch, batch + len(self._untaken))

    def _read_again(self, epoch: int, batch: int) -> Iterator[AnyBatch]:
        """The rest of an epoch that is read from its start; the last batch that was taken must come again."""
        loader, start = self.loader, 0
        if self._has_one_pass:
            if epoch:
                raise ValueError(
                    f"the training loader is an iterator ({type(loader).__name__}): it gives one pass over its data, "
                    "which the run has made; give a loader that can be read again, or set training.max_steps to what "
                    "one pass has"
                )
            if self._has_failed:
                raise ValueError("the training loader is an iterator that has raised an error: give a new one")
            start = self._given
        else:
            loader = second_reader(loader, fresh_workers=True)
        batches, last = self._opened(loader, epoch, start), _END
        for _ in range(batch - start):
            last = next(batches, _END)
        if batch > start:
            self._compare(last, epoch, batch)
        elif self._state is not None and self._resumed and epoch and may_hide_state(self.loader):
            warnings.warn(
                f"it cannot be checked that epoch {epoch} of this {type(self.loader).__name__} is the one that an "
                "unstopped run would read: give the loader set_epoch(), or state_dict() and load_state_dict()",
                stacklevel=4,
            )
        return batches

    def _opened(self, loader: Any, epoch: int, start: int) -> Iterator[AnyBatch]:
        """The batches that a loader gives from now on, the first of which is number `start`."""
        # it may draw a seed for its worker processes
        with seeded(seed_of(self.seed, epoch)), _seeded_own(self.loader, self.seed, epoch):
            return self._by_place(iter(loader), epoch, start)

    def _by_place(self, batches: Iterator[AnyBatch], epoch: int, start: int) -> Iterator[AnyBatch]:
        """The batches from number `start` on, each read with the random numbers of its place."""
        while True:
            # 1: other numbers than a step draws with (seed, epoch, batch)
            with seeded(seed_of(self.seed, epoch, start, 1)), _seeded_own(self.loader, self.seed, epoch, start):
                self._has_failed = True
                batch = with_own_memory(next(batches, _END))
                self._has_failed = False
            if batch is _END:
                return
            start = self._given = start + 1
            yield batch

    def _load(self, state: dict[str, Any]) -> None:
        try:
            self.loader.load_state_dict(state)
        except (KeyError, TypeError, AttributeError) as error:  # a state of another loader has no other sign
            reason = f"{type(error).__name__}: {one_line(error)}"
            raise ValueError(f"the training loader does not take the position that was saved: {reason}") from error

    def _holds_data_of(self, state: DataState) -> bool:
        if self._is_list:  # lists have no fingerprint: the same last batch means the same data
            return len(self.loader) > 0 and digest_of(self.loader[-1]) == state["last"]
        return self.fingerprint is not None and self.fingerprint == state["fingerprint"]

    def _check_data(self, state: DataState, epoch: int, batch: int) -> None:
        """Refuse other data: a saved place means nothing there, nor do the weights over another vocabulary."""
        if (epoch or batch) and state["fingerprint"] != self.fingerprint:
            raise ValueError(
                "the checkpoint was saved over other data: the text, its vocabulary or its batches changed since "
                f"(fingerprint {state['fingerprint']} then, {self.fingerprint} now); change it back, {NEW_RUN}; to "
                "train on with its weights, give a new run training.init_from"
            )
        if state["untaken"] and not self.keeps_place:
            raise ValueError(
                "the checkpoint was saved over a loader that keeps its place, and had given batches that no step has "
                f"taken; this {type(self.loader).__name__} keeps none: change it back, {NEW_RUN}"
            )

    def _compare(self, last: Any, epoch: int, batch: int) -> None:
        """ValueError where the last batch before the place is not the one that was taken."""
        where = f"batch {batch} of epoch {epoch}" if batch else f"the last batch of epoch {epoch - 1}"
        remedy = f"give the same data in the same order, {NEW_RUN}"
        if last is _END:
            raise ValueError(f"the training loader ends before {where}, which the run had reached: {remedy}")
        if digest_of(last) != self._last:
            raise ValueError(
                f"the training loader does not repeat itself: {where} is not what the run had trained on; {remedy}"
            )


def check_holds_batches(loader: Any, which: str) -> None:
    """Raise ValueError for a "training" or "validation" loader that is a single batch, or nothing to iterate over."""
    if isinstance(loader, Mapping):
        raise ValueError(f"the {which} loader must be an iterable of batches, got a single batch: put it in a list")
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise ValueError(f"the {which} loader must be an iterable of batches, got {shown(loader)}")


def _has_state(loader: Any) -> bool:
    loader = getattr(loader, "base_dataloader", loader)  # accelerate's hand it on, whether it has one or not
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


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
    with seeded(0), kept(loader):  # seeded around all: to ask a loader for its position may draw a seed
        if hasattr(loader, "from_start"):
            yield loader.from_start(share) if hasattr(type(loader), "read_from") else loader.from_start()
        else:
            set_epoch(loader, 0)
            yield second_reader(loader)


@contextmanager
def kept(loader: Any) -> Iterator[None]:
    """Set the position, the epochs and the generators of a loader back when the body ends, by an error too.

    A copy of a loader shares its samplers and its dataset, so what the copy is told or draws is told to them.
    """
    epochs = [(part, part.epoch) for part in _parts_of(loader) if hasattr(part, "set_epoch") and hasattr(part, "epoch")]
    keeps_place = _has_state(loader)
    with _own_generators_kept(loader):
        position = deepcopy(loader.state_dict()) if keeps_place else None  # it may return what it goes on changing
        try:
            yield
        finally:
            for part, epoch in epochs:
                if part.epoch != epoch:
                    part.set_epoch(epoch)
            if keeps_place and not _equal(loader.state_dict(), position):  # loading it anew would end a running pass
                loader.load_state_dict(position)


def second_reader(loader: Any, *, fresh_workers: bool = False) -> Any:
    """A reader of the same data that leaves the pass of the loader itself alone.

    With `fresh_workers` it is the loader itself, unless its worker processes persist: these would go on with the random
    numbers of the last epoch.
    """
    if isinstance(loader, Iterator):  # there is but one pass, and some kinds cannot be copied
        return loader
    if fresh_workers and not getattr(loader, "persistent_workers", False):
        return loader
    reader = copy(loader)  # shallow: a position moves in the copy, the data are shared
    if isinstance(reader, DataLoader):
        reader._iterator = None  # worker processes that persist belong to the loader's own pass
    return reader


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the epoch to the loader, its samplers and its dataset, those that want to know it."""
    for part in _parts_of(loader):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def set_next_epoch(loader: Any) -> None:
    """Tell the next epoch to a loader that counts them."""
    if hasattr(loader, "set_epoch") and hasattr(loader, "epoch"):
        loader.set_epoch(loader.epoch + 1)


def length_of(loader: object) -> int | None:
    """Batches in an epoch, or None where the loader cannot tell."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:  # no len(), or one that raises, as that of a DataLoader over an iterable dataset
        return None


def length_of_epoch(loader: Any, epoch: int) -> int | None:
    """Batches in one epoch, where epochs may differ; None where the loader cannot tell."""
    return loader.length_of_epoch(epoch) if hasattr(loader, "length_of_epoch") else length_of(loader)


def fingerprint_of(loader: object) -> str | None:
    """The loader's fingerprint, which changes with its data, or None where it has none."""
    return getattr(loader, "fingerprint", None)


def may_hide_state(loader: Any) -> bool:
    """Whether an epoch may depend on more than its place and the run's seed.

    An epoch may depend on its number, on the generators that the loader's parts hold, and on the global ones.
    """
    if not isinstance(loader, DataLoader):
        return not hasattr(loader, "set_epoch")
    # torch's own samplers hold no state but a generator; a map-style dataset is read in the order of the sampler.
    untold = [part for part in _parts_of(loader) if not hasattr(part, "set_epoch")]
    foreign = [part for part in untold if part is not loader.dataset and not type(part).__module__.startswith("torch.")]
    return bool(foreign) or (isinstance(loader.dataset, IterableDataset) and loader.dataset in untold)


def digest_of(batch: Any) -> str:
    """16 hex digits that change with a batch; of a tensor that is sparse or elsewhere only with dtype and shape."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            # elsewhere reading would wait for the device
            if value.device.type == "cpu" and value.layout == torch.strided:
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


@contextmanager
def _seeded_own(loader: Any, *place: int) -> Iterator[None]:
    """Let the generators that a loader holds begin with seeds of this place and of their own for a while."""
    with _own_generators_kept(loader) as generators:
        for number, generator in enumerate(generators):
            generator.manual_seed(seed_of(*place, generator.initial_seed(), number))
        yield


@contextmanager
def _own_generators_kept(loader: Any) -> Iterator[list[torch.Generator]]:
    """The generators that a loader holds, which have their states back when the body ends.

    Attributes alone: a generator in a list or a closure is out of sight.
    """
    held = (value for part in _parts_of(loader) for value in getattr(part, "__dict__", {}).values())
    generators = list({id(value): value for value in held if isinstance(value, torch.Generator)}.values())
    states = [generator.get_state() for generator in generators]
    try:
        yield generators
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _parts_of(loader: object) -> list[Any]:
    """The loader, its samplers and its dataset, each once: all that decide what an epoch holds."""
    # A DataLoader that was given a batch_sampler has an unused `sampler`: the real one is held by the batch sampler.
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    parts = (loader, *samplers, getattr(loader, "dataset", None))
    # By identity: a sampler or a dataset may be equal to another, or not hashable.
    return list({id(part): part for part in parts if part is not None}.values())


def _equal(state: Any, other: Any) -> bool:
    try:
        return bool(state == other)
    except (RuntimeError, ValueError):  # an array has no single truth value
        return digest_of(state) == digest_of(other)
