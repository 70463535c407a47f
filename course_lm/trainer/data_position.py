"""Where a run stands in its data: the epoch, and the batches whose step is done.

What stopping and going on does with each kind of training loader; "to the bit" holds for any step of any epoch:

    training loader                               a run that goes on
    our Loader and CurriculumLoader               to the bit: jumps to the batch; refused over other data
    list or tuple of batches                      to the bit: jumps to the batch; refused where the last one differs
    DataLoader: any sampler, generator, workers   to the bit: reads the epoch again up to the batch
      and datasets that draw at random
    any other iterable                            the same
    one with `state_dict` and `load_state_dict`   gets back the state that it made itself, and is believed
    an iterator, such as a generator              one pass, within which a new one is read again up to the batch;
                                                  a second pass is refused

Reading again is checked: the last batch before the position must be the one that the run had trained on, else the
loader does not repeat itself and ValueError is raised before a step is taken. At the start of an epoch there is no such
batch: a loader that may hide what its next epoch depends on (an iterable of one's own, a sampler of one's own without
`set_epoch`, an IterableDataset) goes on with a warning.

Whatever a loader draws from the global generators of Python, NumPy and torch it draws from a stream that depends on
(seed, epoch) alone, so that neither dropout nor validation can change the data. `torch.Generator`s that the loader,
its samplers or its dataset hold are saved as they were when the epoch began. `set_epoch` of any of these is called.
Worker processes start anew with each epoch, persistent ones too: these would go on with the random state of the last.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

from torch.utils.data import DataLoader

from course_lm.batching import Loader, epoch_generator
from course_lm.batching.reading import (
    RandomStream,
    digest_of,
    generator_states,
    may_hide_state,
    set_epoch,
    set_generator_states,
    with_fresh_workers,
)
from course_lm.checkpoints import as_plain
from course_lm.curriculum.loader import CurriculumLoader
from course_lm.forward import Batch
from course_lm.trainer.run import length_of
from course_lm.validation import one_line

_END: Any = object()


class DataPosition:
    """Reads epochs from a loader, and goes on at the first batch that no finished step has taken.

    The position is counted here, so that reading the same loader elsewhere cannot move it. The module's docstring says
    what is promised for which loader.

    Args:
        seed: of the run; with the epoch it fixes what a loader draws from the global generators.

    Attributes:
        epoch: complete passes over the data. batch: batches taken from the current one.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.epoch = self.batch = 0
        self._loader: Any = None
        self._batches: Iterator[Batch] | None = None  # of the running epoch
        self._untaken: list[tuple[Batch, str | None]] = []  # read, but their step is not done; with their digests
        self._last: str | None = None  # digest of the last batch taken
        self._generators: list[Any] | None = None  # of the loader, at the start of the epoch
        self._stream = RandomStream(seed)
        self._length: int | None = None  # what the loader says
        self._ended = False  # the iterator is exhausted: a tail window asks for more than there is
        self._given_back: dict[str, Any] | None = None  # a state that a foreign loader holds and has not used yet
        self._broken = self._resumed = self._told_of_length = False
        self._saved: dict[str, Any] | None = self._start_of_epoch(data=None)

    def go_to(self, loader: Any) -> None:
        """Find the place in this loader where the rest of the epoch begins.

        Raises:
            ValueError: the loader holds other data than that over which the position was saved, does not repeat
                itself, or is an iterator that has made its pass.
        """
        if self._broken or (self._loader is not None and loader is not self._loader):
            self._leave_loader(successor=loader)
        if self._batches is None or _jumps(loader):
            self._open(loader)

    def rest_of_epoch(self, loader: Any) -> Iterator[Batch]:
        """The batches of this epoch that no finished step has taken: those of a step that failed come first.

        Raises ValueError as `go_to` does.
        """
        self.go_to(loader)
        yield from [batch for batch, _ in self._untaken]
        while (batch := self._read()) is not _END:
            self._untaken.append((batch, None if _keeps_position(loader) else digest_of(batch)))
            self._compare_with_length(at_end=False)
            yield batch
        self._compare_with_length(at_end=True)

    def take(self, window: Sequence[Batch]) -> None:
        """Count the batches of a window, whose step is done."""
        self._last = self._untaken[len(window) - 1][1]
        del self._untaken[: len(window)]
        self.batch += len(window)

    def pause(self) -> None:
        """Let worker processes end where the position can be reached again without them."""
        with_workers = (
            isinstance(self._loader, DataLoader) and self._loader.num_workers and not _keeps_position(self._loader)
        )
        if _jumps(self._loader) or with_workers:
            self._batches, self._untaken = None, []

    def end_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch, self.batch = self.epoch + 1, 0
        self._batches = self._generators = None
        set_epoch(self._loader, self.epoch)

    def report_performance(self, val_loss: float) -> None:
        """Tell a loader that listens to it the loss of a validation."""
        if hasattr(self._loader, "report_performance"):
            self._loader.report_performance(val_loss)

    def describe_epoch(self) -> dict[str, Any] | None:
        """What a loader whose epochs differ says of this one."""
        return self._loader.describe_epoch() if hasattr(self._loader, "describe_epoch") else None

    def state_dict(self) -> dict[str, Any]:
        """The position as plain data.

        "loader": the loader's own state, and "data": the fingerprint of its data, where it has them. "generators": what
        they were when the epoch began. "last": the digest of the last batch taken. "untaken", "ended" and
        "stream": where a foreign loader keeps its own position, the batches that it is ahead, whether it has said that
        there are no more, and its random stream.
        """
        if self._saved is not None:  # nothing was read since
            return self._saved
        loader = self._loader
        foreign = _keeps_position(loader) and not _is_ours(loader)
        started = self._batches is not None
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "loader": self._state_of_loader(),
            "data": getattr(loader, "fingerprint", None),
            "generators": generator_states(loader) if self._generators is None else self._generators,
            "last": self._last,
            "untaken": [batch for batch, _ in self._untaken] if foreign else [],
            "ended": foreign and started and self._ended,
            "stream": self._stream.state_dict() if foreign and started else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position when the next epoch is read."""
        self.epoch, self.batch, self._saved = state["epoch"], state["batch"], state
        self._loader, self._batches, self._untaken = None, None, []
        self._broken, self._resumed = False, True

    def _start_of_epoch(self, data: str | None) -> dict[str, Any]:
        nothing = {"loader": None, "generators": None, "last": None, "untaken": [], "ended": False, "stream": None}
        return {"epoch": self.epoch, "batch": 0, "data": data, **nothing}

    def _state_of_loader(self) -> dict[str, Any] | None:
        if not _keeps_position(self._loader):
            return None
        if self._given_back is not None:
            return self._given_back
        with RandomStream(self.seed):  # to be asked may start an iterator, which draws a seed
            state = deepcopy(self._loader.state_dict())
        return {**state, "epoch": self.epoch, "batch": self.batch} if _is_ours(self._loader) else state

    def _leave_loader(self, successor: Any) -> None:
        """Let another loader object, or the same one after it raised, take up the position as after a stop."""
        data = getattr(successor, "fingerprint", None)
        same_data = data is not None and data == getattr(self._loader, "fingerprint", None)
        between_epochs = not self.batch and not self._broken
        if between_epochs and not same_data:  # there a run may turn to other data
            self.load_state_dict(self._start_of_epoch(data))
        else:
            self.load_state_dict(self.state_dict())
        self._resumed = False

    def _open(self, loader: Any) -> None:
        """Start reading at the position; where that is refused, the position stays as it is."""
        saved = self._saved
        if isinstance(loader, Mapping):
            raise ValueError("the training loader must be an iterable of batches, got a single batch: put it in a list")
        if saved is not None:
            _check_data(saved, loader)
        stream = RandomStream(epoch_generator(self.seed, self.epoch).initial_seed())
        with stream:
            if _is_ours(loader):
                batches = self._open_ours(loader, saved)
            elif isinstance(loader, list | tuple):
                batches = self._open_list(loader, saved)
            elif _keeps_position(loader):
                batches = self._open_foreign(loader, saved)
            else:
                batches = self._read_again(loader, saved)
        if saved is not None and saved["stream"] is not None:
            stream.load_state_dict(saved["stream"])
        self._untaken = [] if saved is None else [(batch, None) for batch in saved["untaken"]]
        self._last = self._last if saved is None else saved["last"]
        self._loader, self._batches, self._stream = loader, batches, stream
        self._saved, self._resumed = None, False
        self._ended = saved is not None and saved["ended"]
        self._given_back = saved["loader"] if saved is not None and saved["ended"] else None

    def _open_ours(self, loader: Any, saved: dict[str, Any] | None) -> Iterator[Batch]:
        state = None if saved is None else saved["loader"]
        _set_to(loader, {**(state or {}), "epoch": self.epoch, "batch": self.batch})
        self._length = None
        return iter(loader)

    def _open_list(self, loader: Sequence[Batch], saved: dict[str, Any] | None) -> Iterator[Batch]:
        if saved is not None and saved["last"] is not None:  # at the start of an epoch, the last one of the list
            self._check_repeated(loader[self.batch - 1] if 0 < len(loader) >= self.batch else _END, saved)
        self._length = None
        return iter(loader[self.batch :])

    def _open_foreign(self, loader: Any, saved: dict[str, Any] | None) -> Iterator[Batch]:
        """Give a loader with a position of its own the state that it made, and never another."""
        self._length = length_of(loader)
        set_epoch(loader, self.epoch)
        if saved is not None:
            if saved["loader"] is not None:
                _set_to(loader, deepcopy(saved["loader"]))
            elif self.batch or (self._resumed and self.epoch):
                raise ValueError(
                    f"the checkpoint holds no state of this {type(loader).__name__}: the training loader was another "
                    "kind; change it back, choose another experiment_name, or set training.resume to never"
                )
            else:
                as_plain({"the training loader's state_dict()": loader.state_dict()})
            if saved["ended"]:  # to ask once more would begin the next epoch
                return iter(())
        return iter(loader)

    def _read_again(self, loader: Any, saved: dict[str, Any] | None) -> Iterator[Batch]:
        """Read the epoch from its start and throw away the batches that were taken; the last one is checked."""
        if self.epoch and isinstance(loader, Iterator):
            raise ValueError(
                f"the training loader is an iterator ({type(loader).__name__}): it gives one pass over its data, which "
                "the run has made; give a loader that can be read again, or set training.max_steps to what one pass has"
            )
        if self._resumed and self.epoch and not self.batch and may_hide_state(loader):
            warnings.warn(
                f"it cannot be checked that epoch {self.epoch} of this {type(loader).__name__} is the one that an "
                "unstopped run would read: give the loader set_epoch(), or state_dict() and load_state_dict()",
                stacklevel=2,
            )
        self._length = length_of(loader)
        set_epoch(loader, self.epoch)
        at_start = self._generators if saved is None else saved["generators"]
        if at_start is not None:
            set_generator_states(loader, at_start)
        generators = generator_states(loader)
        batches, last = iter(with_fresh_workers(loader)), _END
        for _ in range(self.batch):
            last = next(batches, _END)
            if last is _END:
                break
        if self.batch:
            self._check_repeated(last, saved)
        self._generators = generators
        return batches

    def _check_repeated(self, last: Any, saved: dict[str, Any] | None) -> None:
        """ValueError where the last batch before the position is not the one that was taken."""
        place = (
            f"batch {self.batch} of epoch {self.epoch}" if self.batch else f"the last batch of epoch {self.epoch - 1}"
        )
        remedy = "give the same data in the same order, choose another experiment_name, or set training.resume to never"
        if last is _END:
            raise ValueError(f"the training loader ends before {place}, which the run had reached: {remedy}")
        if digest_of(last) != (self._last if saved is None else saved["last"]):
            raise ValueError(
                f"the training loader does not repeat itself: {place} is not what the run had trained on; {remedy}"
            )

    def _read(self) -> Any:
        assert self._batches is not None
        try:
            with nullcontext() if _jumps(self._loader) else self._stream:  # those draw nothing
                batch = next(self._batches, _END)
            self._ended = batch is _END
            return batch
        except BaseException:
            self._broken = True  # an iterator that has raised is at its end
            raise

    def _compare_with_length(self, *, at_end: bool) -> None:
        """Warn, once, of a loader whose len() is not the number of its batches."""
        read = self.batch + len(self._untaken)
        wrong = self._length is not None and (read < self._length if at_end else read > self._length)
        if wrong and not self._told_of_length:
            self._told_of_length = True
            given = f"only {read}" if at_end else f"at least {read}"
            warnings.warn(
                f"the training loader gave {given} batches in epoch {self.epoch}, its len() is {self._length}: "
                "the steps of the run and its learning rates are reckoned from len()",
                stacklevel=2,
            )


def _check_data(saved: dict[str, Any], loader: Any) -> None:
    """A saved position means nothing in other data, nor do weights over another vocabulary."""
    data = getattr(loader, "fingerprint", None)
    if (saved["epoch"] or saved["batch"]) and saved["data"] != data:
        raise ValueError(
            f"the checkpoint was saved over other data: the text, its vocabulary or its batches changed since "
            f"(fingerprint {saved['data']} then, {data} now); change it back, choose another experiment_name, or set "
            "training.resume to never"
        )


def _set_to(loader: Any, state: dict[str, Any]) -> None:
    try:
        loader.load_state_dict(state)
    except (KeyError, TypeError, AttributeError) as error:  # a state of another loader has no other sign
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"the training loader does not take the position that was saved: {reason}") from error


def _is_ours(loader: Any) -> bool:
    return isinstance(loader, Loader | CurriculumLoader)


def _jumps(loader: Any) -> bool:
    """Whether any batch is reached without reading those before it, so that no iterator need be kept."""
    return _is_ours(loader) or isinstance(loader, list | tuple)


def _keeps_position(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
