"""What a training loader may be able to do besides being iterated, and the one place where it is asked.

A loader is any iterable of batches. `TrainingLoader` names all that training can make use of; our Loader has what an
unchanging loader needs, CurriculumLoader has everything, and one of your own may have any part of it. Attributes that a
wrapper passes on from the loader inside count as its own.
"""

from collections.abc import Iterable, Iterator, Sized
from typing import Any, Protocol, TypeGuard

from course_lm.batching.batch import AnyBatch
from course_lm.batching.share import EVERYTHING, Share


class EpochAware(Protocol):
    """A loader, sampler or dataset that is told the epoch before it is read."""

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration read this epoch."""


class EpochCounter(EpochAware, Protocol):
    """One that also says which epoch it was told."""

    epoch: int


class Positioned(Protocol):
    """A loader that keeps its own position, as torchdata's StatefulDataLoader does."""

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain data."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration start at a position that `state_dict` returned."""


class TrainingLoader(EpochCounter, Positioned, Protocol):
    """All that training can make use of; only `__iter__` must be there."""

    def __iter__(self) -> Iterator[AnyBatch]:
        """The batches of an epoch."""
        ...

    def __len__(self) -> int:
        """Batches of this epoch; without it a run needs `max_steps`."""
        ...

    def length_of_epoch(self, epoch: int) -> int:
        """Batches of an epoch, where they differ between epochs."""
        ...

    @property
    def fingerprint(self) -> str:
        """A text that changes with the data, so that a run that goes on can refuse other data."""
        ...

    def from_start(self, share: Share = EVERYTHING) -> Iterable[AnyBatch]:
        """What a validation reads: the same batches at every call. The loader's position neither matters nor moves.

        A `share` is given to loaders alone that have `read_share`.
        """
        ...

    def read_share(self, share: Share) -> Iterator[AnyBatch]:
        """As iteration, for one of several ranks: None in place of each batch that it does not need."""
        ...

    def report_performance(self, val_loss: float) -> None:
        """Take the loss of one validation, in nats per token."""

    def describe_epoch(self) -> dict[str, float]:
        """Numbers that describe this epoch, for the history."""
        ...


def takes_epoch(part: object) -> TypeGuard[EpochAware]:
    """Whether a loader, sampler or dataset wants to be told the epoch."""
    # Not isinstance of a runtime protocol: from Python 3.12 on that misses what a wrapper's __getattr__ passes on.
    return hasattr(part, "set_epoch")


def counts_epochs(part: object) -> TypeGuard[EpochCounter]:
    """Whether it also says which epoch it was told."""
    return takes_epoch(part) and hasattr(part, "epoch")


def keeps_position(loader: object) -> TypeGuard[Positioned]:
    """Whether a loader keeps its own position."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def length_of(loader: object) -> int | None:
    """Batches in an epoch, or None where the loader cannot tell."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:  # a DataLoader over an iterable dataset has a __len__ that raises
        return None


def has_lengths(loader: object) -> bool:
    """Whether the epochs of a loader have lengths of their own."""
    return hasattr(loader, "length_of_epoch")


def length_of_epoch(loader: Any, epoch: int) -> int:
    """Batches in one epoch of a loader that has a length."""
    return loader.length_of_epoch(epoch) if has_lengths(loader) else len(loader)


def fingerprint_of(loader: object) -> str | None:
    """The loader's fingerprint, which changes with its data, or None where it has none."""
    return getattr(loader, "fingerprint", None)


def from_start(loader: Any, share: Share = EVERYTHING) -> Iterable[Any] | None:
    """The batches that a validation reads, or None where they have to be read from the loader itself.

    A loader that can leave out batches has None in place of each that this rank does not need.
    """
    if hasattr(loader, "from_start"):
        return loader.from_start(share) if hasattr(loader, "read_share") else loader.from_start()
    return None


def report_performance(loader: Any, val_loss: float) -> None:
    """Tell the loss of a validation to a loader that listens to it."""
    if hasattr(loader, "report_performance"):
        loader.report_performance(val_loss)


def describe_epoch(loader: Any) -> dict[str, float] | None:
    """What the loader says of its current epoch, or None where it says nothing: then its epochs are alike."""
    return loader.describe_epoch() if hasattr(loader, "describe_epoch") else None


def parts_of(loader: object) -> list[Any]:
    """The loader, its samplers and its dataset, each once: all that decide what an epoch holds."""
    # A DataLoader that was given a batch_sampler has an unused `sampler`: the real one is held by the batch sampler.
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    parts = (loader, *samplers, getattr(loader, "dataset", None))
    # By identity: a sampler or a dataset may be equal to another, or not hashable.
    return list({id(part): part for part in parts if part is not None}.values())
