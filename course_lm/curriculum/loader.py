"""A loader whose epochs admit more and more of the text."""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor

from course_lm.batching import EVERYTHING, Batch, Loader, Share
from course_lm.batching.data import NEW_RUN
from course_lm.curriculum.difficulty import Example
from course_lm.curriculum.manager import CurriculumTrainingManager


class CurriculumLoader:
    """The batches of another loader, over the documents that the curriculum admits: at least one full batch, always.

    An epoch is one pass over the admitted documents, so that early epochs are short. Where the threshold follows the
    validation loss, nobody knows how short, yet the length of a run has to be known beforehand: then each epoch has as
    many batches as one pass over everything, and reads the admitted documents again as often as that takes.
    The order is a pure function of (seed, epoch) and the losses reported before the epoch.

    Args:
        loader: from `make_loader`; over all documents.
        examples: the documents it was made of, in the same order.
        manager: decides which of them an epoch admits.
        accumulation_steps: batches in an optimizer step, for a curriculum that counts steps.

    Raises:
        ValueError: not as many examples as the loader was made of.
    """

    def __init__(
        self,
        loader: Loader,
        examples: Sequence[Example],
        manager: CurriculumTrainingManager,
        *,
        accumulation_steps: int = 1,
    ) -> None:
        last = int(loader.rows.documents.max())
        if last >= len(examples):
            raise ValueError(f"the loader holds document number {last}, but there are only {len(examples)} examples")
        self.whole, self.manager, self.accumulation_steps = loader, manager, accumulation_steps
        self.difficulty = manager.difficulty(examples)
        self.epoch = 0
        self._easiest = self.difficulty.argsort(stable=True)  # (D,) document numbers, equally hard ones in order
        self._least = self._documents_of_one_batch()  # admitted whatever the threshold is
        self._admitted = len(examples)  # documents of `_loader`
        self._loader = loader
        self._lengths = {self._admitted: len(loader)}  # batches of a pass, by the number of documents
        self._threshold: float | None = None  # of the running epoch
        self._batch = self._next_start = 0
        self._starts = [0]  # see `CurriculumTrainingManager.start_of_epoch`

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the loader over all documents: see `Loader.fingerprint`."""
        return self.whole.fingerprint

    def __len__(self) -> int:
        """Batches of this epoch."""
        return self._length_at(self.threshold)

    @property
    def threshold(self) -> float:
        """What this epoch admits: fixed when it starts, whatever is reported until its end."""
        return self._threshold_of(self.epoch) if self._threshold is None else self._threshold

    def length_of_epoch(self, epoch: int) -> int:
        """Batches of an epoch, now and whenever it is read: no validation loss changes this number."""
        return self._length_at(self._threshold_of(epoch))

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the loaded position, or else from the start of the epoch."""
        start, self._next_start = self._next_start, 0
        return self._read(start, EVERYTHING)

    def read_from(self, epoch: int, batch: int, share: Share = EVERYTHING) -> Iterator[Batch]:
        """The batches of an epoch from number `batch` on, where the loader stands from now on.

        For one of several ranks: None in place of each batch that its `share` does not need, which is not made.
        """
        self.load_state_dict({"epoch": epoch, "batch": batch})
        self._next_start = 0
        return self._read(batch, share)

    def from_start(self, share: Share = EVERYTHING) -> Iterable[Batch]:
        """Every document, admitted or not, in the order of epoch 0; the loader's position stays."""
        return self.whole.from_start(share)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position loaded for this same epoch is kept."""
        if epoch != self.epoch:
            self.epoch, self._batch, self._next_start, self._threshold = epoch, 0, 0, None

    def report_performance(self, val_loss: float) -> None:
        """Take the loss of one validation, nats per token; it counts from the next epoch on."""
        self.manager.report_performance(val_loss)

    def end_of_run(self, num_epochs: int, max_steps: int | None) -> tuple[int, int]:
        """How many examples the last epoch of a run admits, and how many the curriculum admits in the end.

        The run has `num_epochs` epochs or, where given, `max_steps` optimizer steps. Not for a threshold that follows
        the validation loss, which nobody knows beforehand.
        """
        final = self._count(self.manager.threshold(math.inf))  # by then every schedule has reached its end
        epoch = steps = 0
        while True:
            threshold = self._threshold_of(epoch)
            steps, epoch = steps + self._steps_at(threshold), epoch + 1
            over = steps >= max_steps if max_steps is not None else epoch >= num_epochs
            # Thresholds never fall, so that what is admitted now stays the most.
            if over or self._count(threshold) == final:
                return self._count(threshold), final

    def describe_epoch(self) -> dict[str, float]:
        """What this epoch admits: "threshold", "examples", and the "batches" and target "tokens" that it reads."""
        threshold = self.threshold
        loader, batches = self._plan(threshold)
        rows = torch.cat(batches)
        first, after = loader.rows.offsets[rows], loader.rows.offsets[rows + 1]
        return {
            "threshold": threshold,
            "examples": len(loader.rows.documents.unique()),  # one document may be many pieces
            "batches": len(batches),
            "tokens": int(loader.row_lengths[rows].sum() - (after - first).sum()),  # no target: a piece's first token
        }

    def state_dict(self) -> dict[str, Any]:
        """The position, the threshold of the running epoch, the pace, and what the manager has learned."""
        return {
            "epoch": self.epoch,
            "batch": self._batch,
            "threshold": self._threshold,
            "pace": self._pace,
            "manager": self.manager.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration start at this position; what lies before it is not read.

        Raises ValueError where the state was saved under another pace.
        """
        if state.get("pace", self._pace) != self._pace:  # a bare position has no pace
            raise ValueError(
                f"the checkpoint was saved under a curriculum with {state['pace']}, this run has {self._pace}: "
                f"where they are null they follow the length of the run; change it back, {NEW_RUN}"
            )
        # At its start an epoch asks anew, since a validation may have been reported after the last one ended.
        if state["batch"] == 0 or state["epoch"] != self.epoch:
            self._threshold = None
        self.epoch = state["epoch"]
        self._batch = self._next_start = state["batch"]
        if "manager" in state:  # else a bare position in this same run
            self._threshold = state["threshold"] if state["batch"] else None
            self.manager.load_state_dict(state["manager"])

    @property
    def _pace(self) -> str:
        config = self.manager.config
        unit = "epochs" if config.num_steps is None else "steps"
        return f"num_{unit} {config.total} and warmup_{unit} {config.warmup}"

    def _threshold_of(self, epoch: int) -> float:
        return self.manager.threshold(self.manager.start_of_epoch(epoch, self._steps_at, self._starts))

    def _steps_at(self, threshold: float) -> int:
        return math.ceil(self._length_at(threshold) / self.accumulation_steps)

    def _length_at(self, threshold: float) -> int:
        # Losses decide how many documents are admitted, so the length must not depend on their number.
        if self.manager.listens:
            return len(self.whole)
        admitted = self._count(threshold)
        if admitted not in self._lengths:
            self._lengths[admitted] = len(self._pass_over(admitted))
        return self._lengths[admitted]

    def _count(self, threshold: float) -> int:
        return max(self._least, int((self.difficulty <= threshold).sum()))

    def _pass_over(self, admitted: int) -> Loader:
        """A loader over so many documents, the easiest; the last one is kept, since an epoch asks more than once."""
        if admitted != self._admitted:
            chosen = torch.zeros(len(self.difficulty), dtype=torch.bool)
            chosen[self._easiest[:admitted]] = True
            self._admitted, self._loader = admitted, self.whole.select(chosen)
        return self._loader

    def _plan(self, threshold: float) -> tuple[Loader, list[Tensor]]:
        """The loader of an epoch, and the rows of each of its batches."""
        loader = self._pass_over(self._count(threshold))
        if not self.manager.listens:
            return loader, loader.order(self.epoch)
        length = len(self.whole)
        # An epoch has at most `length` passes, so no two epochs share the number of a pass, and thereby an order.
        passes = (loader.order(self.epoch * length + number) for number in count())
        return loader, list(islice(chain.from_iterable(passes), length))

    def _documents_of_one_batch(self) -> int:
        """How many of the easiest documents fill a batch."""
        rows = max(size for _, size in self.whole.groups)  # bucketed batches of short rows may hold more rows
        pieces = self.whole.rows
        room = torch.zeros(len(self.difficulty), dtype=torch.int64)
        weights = pieces.lengths if self.whole.packed else torch.ones_like(pieces.lengths)  # (P,) tokens, or rows
        # (D,) how much the easiest 1, 2, … documents fill.
        filled = room.index_add_(0, pieces.documents, weights)[self._easiest].cumsum(0)
        needed = rows * (self.whole.width or 1) if self.whole.packed else rows
        return min(len(filled), int((filled < needed).sum()) + 1)  # + 1: the document that reaches it

    def _read(self, start: int, share: Share) -> Iterator[Batch]:
        # Not in epoch 0, before which nothing can be reported, and not where a running epoch goes on.
        if self._threshold is None and self.epoch > 0 and self.manager.hears_nothing:
            warnings.warn("the curriculum waits for validation losses, and none was reported", stacklevel=2)
        self._threshold = self.threshold  # fixed until the epoch ends
        self._batch = start
        return self._run(start, share)

    def _run(self, start: int, share: Share) -> Iterator[Batch]:
        assert self._threshold is not None
        loader, batches = self._plan(self._threshold)
        for self._batch, batch in enumerate(loader.read(share.of_epoch(batches, start)), start + 1):
            yield batch
