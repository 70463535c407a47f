"""Where a run stands in its data: the epoch, and the batches whose step is done.

How a stopped run goes on with each kind of training loader; "to the bit" holds for any step of any epoch:

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

Random numbers follow from the place, so none are saved. What a loader draws from the global generators of Python, NumPy
and torch's CPU depends on (seed, epoch, batch) alone, and neither dropout nor validation can change the data.
`torch.Generator`s that the loader, its samplers or its dataset hold are seeded from (seed, epoch) and the seed that
they came with. `set_epoch` of any of these is called. Worker processes start anew with each epoch, persistent ones too.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from course_lm.batching import EVERYTHING, AnyBatch, Share
from course_lm.batching.capabilities import describe_epoch, fingerprint_of, length_of, report_performance
from course_lm.batching.reading import END, digest_of, set_epoch
from course_lm.reproducibility import seed_of, seeded
from course_lm.trainer.sources import AnyIterable, Place, Source, place_of, source_of


class DataPosition:
    """Reads epochs from a loader, and goes on at the first batch that no finished step has taken.

    The position is counted here, so that reading the same loader elsewhere cannot move it. The module's docstring says
    what is promised for which loader.

    Args:
        seed: of the run; with the place it fixes what a loader draws from the global generators.
        share: what this one of several ranks needs. Our own loaders give None in place of the other batches; any other
            loader is read whole on each rank.

    Attributes:
        epoch: complete passes over the data. batch: batches taken from the current one.
    """

    def __init__(self, seed: int = 0, share: Share = EVERYTHING) -> None:
        self.seed, self.share = seed, share
        self._length: int | None = None  # what the loader says
        self._ended = False  # the iterator is exhausted: a tail window asks for more than there is
        self._told_of_length = False
        self._rest_at(place_of(0), resumed=False)

    def go_to(self, loader: Any) -> None:
        """Find the place in this loader where the rest of the epoch begins.

        Raises:
            ValueError: the loader holds other data than that over which the position was saved, does not repeat
                itself, or is an iterator that has made its pass.
        """
        if self._broken or (self._source.loader is not None and loader is not self._source.loader):
            self._leave_loader(successor=loader)
        if self._batches is None or self._source.jumps:  # a jump costs nothing, so no iterator is kept
            self._open(loader)

    def rest_of_epoch(self, loader: Any) -> Iterator[AnyBatch]:
        """The batches of this epoch that no finished step has taken: those of a step that failed come first.

        Raises ValueError as `go_to` does.
        """
        self.go_to(loader)
        # a copy of the list, which `take` shortens while it is read
        yield from [batch for batch, _ in self._untaken]
        while (batch := self._read()) is not END:
            self._untaken.append((batch, digest_of(batch) if self._source.repeats else None))
            self._compare_with_length(at_end=False)
            yield batch
        self._compare_with_length(at_end=True)

    def take(self, window: Sequence[AnyBatch]) -> None:
        """Count the batches of a window, whose step is done."""
        self._last = self._untaken[len(window) - 1][1]
        del self._untaken[: len(window)]
        self.batch += len(window)

    def pause(self) -> None:
        """Let worker processes end where the position can be reached again without them."""
        if self._source.can_pause():
            self._batches, self._untaken = None, []

    def end_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch, self.batch, self._batches = self.epoch + 1, 0, None
        set_epoch(self._source.loader, self.epoch)

    def report_performance(self, val_loss: float) -> None:
        """Tell a loader that listens to it the loss of a validation."""
        report_performance(self._source.loader, val_loss)

    def describe_epoch(self) -> dict[str, Any] | None:
        """What a loader whose epochs differ says of this one."""
        return describe_epoch(self._source.loader)

    def state_dict(self) -> Place:
        """The position as plain data."""
        if self._saved is not None:  # nothing was read since
            return self._saved
        source, ahead = self._source, self._source.runs_ahead and self._batches is not None
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "loader": source.state(self.epoch, self.batch),
            "data": fingerprint_of(source.loader),
            "last": self._last,
            "untaken": [batch for batch, _ in self._untaken] if source.runs_ahead else [],
            "ended": ahead and self._ended,
        }

    def load_state_dict(self, state: Place) -> None:
        """Go to a saved position when the next epoch is read."""
        self._rest_at(state, resumed=True)

    def _rest_at(self, place: Place, *, resumed: bool) -> None:
        """Stay at a place until a loader is given, which may be another one."""
        self.epoch, self.batch, self._last = place["epoch"], place["batch"], place["last"]
        self._saved: Place | None = place  # None while a loader is read
        self._resumed = resumed
        self._source: Source = AnyIterable(None)
        self._batches: Iterator[AnyBatch] | None = None  # of the running epoch
        self._untaken: list[tuple[AnyBatch, str | None]] = []  # read, but their step is not done; with their digests
        self._broken = False  # the iterator has raised

    def _leave_loader(self, successor: Any) -> None:
        """Let another loader object, or the same one after it raised, take up the position as after a stop."""
        data = fingerprint_of(successor)
        same_data = data is not None and data == fingerprint_of(self._source.loader)
        if isinstance(successor, list | tuple):  # lists have no fingerprint: the same last batch means the same data
            same_data = len(successor) > 0 and digest_of(successor[-1]) == self._last
        between_epochs = not self.batch and not self._broken
        may_turn = between_epochs and not same_data  # there a run may turn to other data
        self._rest_at(place_of(self.epoch, data=data) if may_turn else self.state_dict(), resumed=False)

    def _open(self, loader: Any) -> None:
        """Start reading at the position; where that is refused, the position stays as it is."""
        source = self._source if loader is self._source.loader else source_of(loader, self.share, self.seed)
        place = self._saved or place_of(self.epoch, self.batch, last=self._last)
        if self._saved is not None:  # before anything changes
            _check_data(place, loader)
        with seeded(seed_of(self.seed, self.epoch)):  # an iterator may draw a seed for its worker processes
            if not source.jumps:
                set_epoch(loader, self.epoch)
            if self._saved is not None:
                source.take_over(place, resumed=self._resumed)
            batches = source.read_from(place)
        # set only when nothing can be refused any more
        self._source, self._batches, self._saved = source, batches, None
        self._untaken = [(batch, None) for batch in place["untaken"]]
        self._ended = place["ended"]
        self._length = None if source.jumps else length_of(loader)

    def _read(self) -> Any:
        assert self._batches is not None
        try:
            batch = next(self._batches, END)
            self._ended = batch is END
            return batch
        except BaseException:
            self._broken = True  # a generator that has raised gives nothing more, even if its loader has more
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


def _check_data(place: Place, loader: Any) -> None:
    """Refuse other data: a saved position means nothing there, nor do the weights over another vocabulary."""
    data = fingerprint_of(loader)
    if (place["epoch"] or place["batch"]) and place["data"] != data:
        raise ValueError(
            f"the checkpoint was saved over other data: the text, its vocabulary or its batches changed since "
            f"(fingerprint {place['data']} then, {data} now); change it back, choose another experiment_name, or set "
            "training.resume to never"
        )
