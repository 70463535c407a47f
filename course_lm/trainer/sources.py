"""The kinds of training loader, and how each of them reaches the batch at which a run goes on.

Our own loaders are told the batch, a list is cut, a foreign loader that keeps its position is given the state that it
made, and any other iterable is read again. `data_position` says what a run may rely on.
"""

import warnings
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, TypedDict

from torch.utils.data import DataLoader

from course_lm.batching import EVERYTHING, AnyBatch, Loader, Share
from course_lm.batching.capabilities import keeps_position
from course_lm.batching.reading import (
    END,
    digest_of,
    may_hide_state,
    read_by_place,
    seed_own_generators,
    with_fresh_workers,
)
from course_lm.checkpoints import as_plain
from course_lm.curriculum.loader import CurriculumLoader
from course_lm.reproducibility import seeded
from course_lm.validation import one_line


class Place(TypedDict):
    """A place in the data of a loader, as plain data."""

    epoch: int  # complete passes over the data
    batch: int  # batches taken from the current one
    loader: dict[str, Any] | None  # the loader's own state, where it has one
    data: str | None  # the fingerprint of its data, where it has one
    last: str | None  # digest of the last batch taken, where that one will be read again
    # Only of a foreign loader that keeps its position; that one may be ahead of the place:
    untaken: list[AnyBatch]  # the batches between the place and the loader's position
    ended: bool  # whether the loader has said that there are no more


def place_of(epoch: int, batch: int = 0, data: str | None = None, last: str | None = None) -> Place:
    """A place of which nothing else is known."""
    return {
        "epoch": epoch,
        "batch": batch,
        "loader": None,
        "data": data,
        "last": last,
        "untaken": [],
        "ended": False,
    }


class Source:
    """A training loader of one kind; it lives as long as a run reads the same loader object.

    Args:
        seed: of the run; with a place it fixes what the loader draws from the global generators.

    Attributes:
        jumps: any batch is reached without reading those before it. So no iterator is kept, nothing is drawn at random,
            and the loader is told its epoch with the batch.
        repeats: the last batch taken is read again, and has to be the same.
        runs_ahead: the loader's state tells of the batches that it has given, not of those that were taken.
    """

    jumps = repeats = runs_ahead = False

    def __init__(self, loader: Any, seed: int = 0) -> None:
        self.loader, self.seed = loader, seed

    def take_over(self, place: Place, *, resumed: bool) -> None:
        """Get ready for a place that another loader object has reached, in this run or, if `resumed`, in a stopped one.

        Raises ValueError where this loader cannot go on there.
        """

    def read_from(self, place: Place) -> Iterator[AnyBatch]:
        """The rest of the epoch; ValueError where this loader cannot give it."""
        raise NotImplementedError

    def state(self, epoch: int, batch: int) -> dict[str, Any] | None:
        """The loader's own state at this place, where it has one."""
        return None

    def can_pause(self) -> bool:
        """Whether its iterator, with worker processes, can be let go within an epoch."""
        return self.jumps


class OwnLoader(Source):
    """Our Loader or CurriculumLoader; of several ranks each lets it make its own batches alone."""

    jumps = True

    def __init__(self, loader: Any, share: Share = EVERYTHING) -> None:
        super().__init__(loader)
        self._share = share

    def read_from(self, place: Place) -> Iterator[AnyBatch]:
        """Tell the loader the epoch and the batch, and at a saved place the rest of its saved state."""
        _load_state(self.loader, {**(place["loader"] or {}), "epoch": place["epoch"], "batch": place["batch"]})
        return self.loader.read_share(self._share)

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The loader's state, with the epoch and the batch of the run instead of the loader's own."""
        return {**deepcopy(self.loader.state_dict()), "epoch": epoch, "batch": batch}  # reading it elsewhere moves it


class BatchList(Source):
    """A list or tuple of batches."""

    jumps = repeats = True

    def take_over(self, place: Place, *, resumed: bool) -> None:
        """Compare the batch before the place; at the start of an epoch, that is the last one of the list."""
        if place["last"] is not None:
            there = 0 < len(self.loader) >= place["batch"]
            # at batch 0 the index is -1: the last batch of the epoch before
            _check_repeated(self.loader[place["batch"] - 1] if there else END, place)

    def read_from(self, place: Place) -> Iterator[AnyBatch]:
        """The rest of the list."""
        return iter(self.loader[place["batch"] :])


class PositionedLoader(Source):
    """A foreign loader that keeps its position: it gets back the state that it made itself, and never another."""

    runs_ahead = True

    def __init__(self, loader: Any, seed: int) -> None:
        super().__init__(loader, seed)
        self._unused: dict[str, Any] | None = None  # the state at the end of an epoch, from which nothing was read yet

    def take_over(self, place: Place, *, resumed: bool) -> None:
        """Give the loader its state; where there is none yet, see before the first step that its state can be saved."""
        if place["loader"] is not None:
            _load_state(self.loader, deepcopy(place["loader"]))
        # at the start of a run, or of an epoch while it runs, there is no position to lose
        elif place["batch"] or (resumed and place["epoch"]):
            raise ValueError(
                f"the checkpoint holds no state of this {type(self.loader).__name__}: the training loader was another "
                "kind; change it back, choose another experiment_name, or set training.resume to never"
            )
        else:
            as_plain({"the training loader's state_dict()": self.loader.state_dict()})

    def read_from(self, place: Place) -> Iterator[AnyBatch]:
        """What the loader gives; nothing where it has said that there is no more: asking again would begin an epoch."""
        self._unused = place["loader"] if place["ended"] else None
        if place["ended"]:
            return iter(())
        given = place["batch"] + len(place["untaken"])
        return read_by_place(iter(self.loader), self.seed, place["epoch"], given)

    def state(self, epoch: int, batch: int) -> dict[str, Any]:
        """The state that the loader makes, or the one that it was given and has not used."""
        if self._unused is not None:
            return self._unused
        with seeded(self.seed):  # to be asked may start an iterator, which draws a seed
            return deepcopy(self.loader.state_dict())


class AnyIterable(Source):
    """Any other iterable: the epoch is read from its start, and the batches that were taken are thrown away."""

    repeats = True

    def take_over(self, place: Place, *, resumed: bool) -> None:
        """Warn where nothing can be compared."""
        at_start_of_epoch = place["epoch"] and not place["batch"]  # within one, the last batch taken is compared
        if resumed and at_start_of_epoch and not isinstance(self.loader, Iterator) and may_hide_state(self.loader):
            warnings.warn(
                f"it cannot be checked that epoch {place['epoch']} of this {type(self.loader).__name__} is the one "
                "that an unstopped run would read: give the loader set_epoch(), or state_dict() and load_state_dict()",
                stacklevel=2,
            )

    def read_from(self, place: Place) -> Iterator[AnyBatch]:
        """Read the epoch from its start up to the place, and compare the last batch."""
        if place["epoch"] and isinstance(self.loader, Iterator):
            raise ValueError(
                f"the training loader is an iterator ({type(self.loader).__name__}): it gives one pass over its data, "
                "which the run has made; give a loader that can be read again, or set training.max_steps to what one "
                "pass has"
            )
        seed_own_generators(self.loader, self.seed, place["epoch"])
        batches = read_by_place(iter(with_fresh_workers(self.loader)), self.seed, place["epoch"], 0)
        last = END
        for _ in range(place["batch"]):
            last = next(batches, END)
            if last is END:
                break
        if place["batch"]:
            _check_repeated(last, place)
        return batches

    def can_pause(self) -> bool:
        """Only where worker processes would be left running: to read again takes time."""
        return isinstance(self.loader, DataLoader) and self.loader.num_workers > 0


def source_of(loader: Any, share: Share = EVERYTHING, seed: int = 0) -> Source:
    """The loader as one of its kind, read for a rank that needs this share; ValueError for a single batch."""
    if isinstance(loader, Mapping):
        raise ValueError("the training loader must be an iterable of batches, got a single batch: put it in a list")
    if isinstance(loader, Loader | CurriculumLoader):
        return OwnLoader(loader, share)  # first: ours keep a position too, and can jump
    if isinstance(loader, list | tuple):
        return BatchList(loader)
    return PositionedLoader(loader, seed) if keeps_position(loader) else AnyIterable(loader, seed)


def _check_repeated(last: Any, place: Place) -> None:
    """ValueError where the last batch before the place is not the one that was taken."""
    epoch, batch = place["epoch"], place["batch"]
    where = f"batch {batch} of epoch {epoch}" if batch else f"the last batch of epoch {epoch - 1}"
    remedy = "give the same data in the same order, choose another experiment_name, or set training.resume to never"
    if last is END:
        raise ValueError(f"the training loader ends before {where}, which the run had reached: {remedy}")
    if digest_of(last) != place["last"]:
        raise ValueError(
            f"the training loader does not repeat itself: {where} is not what the run had trained on; {remedy}"
        )


def _load_state(loader: Any, state: dict[str, Any]) -> None:
    try:
        loader.load_state_dict(state)
    except (KeyError, TypeError, AttributeError) as error:  # a state of another loader has no other sign
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"the training loader does not take the position that was saved: {reason}") from error
