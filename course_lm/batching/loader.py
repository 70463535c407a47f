"""Documents to batches: fixed, dynamic, bucketed and packed.

A document is encoded as `<eos> tokens <eos>` and cut, where it is longer than `max_length`, into pieces that
overlap by one token: the last token of a piece is the context-only first token of the next. So every token of
every document is a target exactly once an epoch, whatever the mode. The modes differ in three things only:

    mode      a row holds   rows of a batch come from   width of a batch
    fixed     one piece     anywhere                    max_length
    dynamic   one piece     anywhere                    its longest row
    bucketed  one piece     one range of lengths        its longest row
    packed    many pieces   anywhere                    max_length

Text is tokenised once, into one flat tensor. The order of an epoch is computed from (seed, epoch) alone, so a
position in the data is two integers and is reached without reading what comes before it.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Int64, Shaped
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from course_lm.batching.batch import AnyBatch, Batch
from course_lm.batching.data import EVERYTHING, Share
from course_lm.batching.packing import Rows, encode_pieces, length_buckets, pack, ranges
from course_lm.batching.token_store import StoredDocuments
from course_lm.batching.workers import heed_parent_alone, signals_held_back
from course_lm.tokenizer import pad_id
from course_lm.validation import require, require_whole

IGNORE_INDEX = -100  # the default of torch's cross-entropy
MODES = ("fixed", "dynamic", "bucketed", "packed")


def make_loader(
    documents: Iterable[str] | StoredDocuments,
    tokenizer: Tokenizer,
    *,
    mode: str = "fixed",
    batch_size: int | None = None,
    tokens_per_batch: int | None = None,
    max_length: int,
    seed: int = 0,
    shuffle: bool = True,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> "Loader":
    """A `Loader` over `documents`; empty ones are dropped, a last smaller batch is kept.

    `documents` are strings, or one split of a token store, with the store's tokenizer: the batches are the same.
    Give either `batch_size` (rows) or `tokens_per_batch` (positions of a batch, padding included, at least
    `max_length`). Bucketed batches of short rows then hold more rows; the other modes hold
    `tokens_per_batch // max_length`. Without `shuffle` rows come in corpus order (fixed, dynamic), shortest
    first (bucketed) or as packed, in every epoch. `pin_memory` has no effect where there is no accelerator.
    Raises ValueError for settings that cannot work, and where no document holds text.
    """
    require(mode in MODES, "mode", f"one of {', '.join(MODES)}", mode)
    max_length = require_whole("max_length", max_length, least=2)  # a token and the next
    num_workers, seed = require_whole("num_workers", num_workers, least=0), require_whole("seed", seed, least=0)
    require(shuffle in (True, False), "shuffle", "True or False", shuffle)
    # Before the text is encoded, which is the slow part: a bad size is refused at once.
    rows_at = _rows_at(batch_size, tokens_per_batch, max_length)
    is_stored = isinstance(documents, StoredDocuments)
    cut = documents.pieces(tokenizer, max_length) if is_stored else encode_pieces(documents, tokenizer, max_length)
    return Loader(
        cut,
        mode=mode,
        rows_at=rows_at,
        max_length=max_length,
        pad_id=pad_id(tokenizer),
        seed=seed,
        shuffle=bool(shuffle),
        num_workers=num_workers,
        pin_memory=pin_memory,
    )


def labels_of(
    input_ids: Int64[Tensor, "B T"],
    attention_mask: Shaped[Tensor, "B T"],
    document_ids: Shaped[Tensor, "B T"] | None = None,
) -> Int64[Tensor, "B T"]:
    """Labels (B, T), not shifted: `input_ids` with -100 wherever a token is no target.

    No target is: PAD, where `attention_mask` (B, T) is 0 (ids do not matter: PAD may share its id with EOS);
    a real token right after PAD (left padding: nothing precedes it); with `document_ids` (B, T) each
    document's first token. Position 0 of an unpacked row keeps its id, since the loss's shift drops it.
    Raises ValueError where the shapes differ.
    """
    if input_ids.shape != attention_mask.shape:
        raise ValueError(
            f"attention_mask must have the shape of input_ids {tuple(input_ids.shape)}, "
            f"got {tuple(attention_mask.shape)}"
        )
    # A token is a target only where the token before it belongs to the same segment: there it can be predicted.
    segments = attention_mask if document_ids is None else document_ids
    ignored = attention_mask == 0
    ignored[:, 1:] |= segments[:, 1:] != segments[:, :-1]  # (B, T - 1)
    if document_ids is not None:
        # The shift drops position 0 anyway; marked, the first document of a row is like all others.
        ignored[:, :1] = True
    return input_ids.masked_fill(ignored, IGNORE_INDEX)


def pad_rows(tokens: Tensor, lengths: Tensor, *, width: int, pad_id: int) -> Batch:
    """A batch (B, width), padded on the right: `tokens` holds rows of `lengths` (B,) one after the other."""
    real = torch.arange(width) < lengths[:, None]  # (B, width)
    # masked_scatter_ fills the marked places row by row, in the order in which `tokens` holds the rows.
    input_ids = torch.full(real.shape, pad_id).masked_scatter_(real, tokens)
    attention_mask = real.long()
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "labels": labels_of(input_ids, attention_mask),
    }


def pack_rows(tokens: Tensor, lengths: Tensor, counts: Tensor, *, width: int, pad_id: int) -> Batch:
    """A packed batch (B, width): `tokens` holds pieces of `lengths` (P,); row b takes the next `counts[b]`.

    Adds `document_ids` (0, 1, … in each row, -1 at PAD) and `position_ids` (from 0 in each piece, 0 at PAD).
    """
    row_of_piece = torch.repeat_interleave(counts)
    row_lengths = torch.zeros_like(counts).index_add_(0, row_of_piece, lengths)
    batch = pad_rows(tokens, row_lengths, width=width, pad_id=pad_id)
    real = batch["attention_mask"].bool()
    documents = ranges(torch.zeros_like(counts), counts).repeat_interleave(lengths)
    positions = ranges(torch.zeros_like(lengths), lengths)
    document_ids = torch.full(real.shape, -1).masked_scatter_(real, documents)
    position_ids = torch.zeros(real.shape, dtype=torch.int64).masked_scatter_(real, positions)
    labels = labels_of(batch["input_ids"], batch["attention_mask"], document_ids)
    return {**batch, "labels": labels, "document_ids": document_ids, "position_ids": position_ids}


class Loader:
    """Batches in an order that is a pure function of (seed, epoch). `make_loader` builds one.

    `len(loader)` is the number of batches of every epoch. Each batch is a dict with `input_ids`,
    `attention_mask` and `labels` (B, T) int64, in packed mode `document_ids` and `position_ids` (B, T), and
    `num_bytes`, the UTF-8 bytes of its target tokens.

    Args:
        pieces: documents that are encoded already, one piece a row.
        rows_at: the rows of a batch that is so many tokens wide.
        mode, max_length, seed, shuffle, num_workers, pin_memory: as for `make_loader`.
    """

    def __init__(
        self,
        pieces: Rows,
        *,
        mode: str,
        rows_at: Callable[[int], int],
        max_length: int,
        pad_id: int,
        seed: int = 0,
        shuffle: bool = True,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.mode, self.rows_at, self.max_length, self.pad_id = mode, rows_at, max_length, pad_id
        self.seed, self.shuffle, self.num_workers = seed, shuffle, num_workers
        # torch warns at every iteration where memory is to be pinned and there is no accelerator.
        self.pin_memory = pin_memory and torch.accelerator.is_available()
        self.packed = mode == "packed"
        self.width = max_length if mode in ("fixed", "packed") else None  # None: that of the batch's longest row
        self.rows = pack(pieces, max_length) if self.packed else pieces
        self.row_lengths = self.rows.row_lengths()
        self.groups = [(torch.arange(len(self.rows)), rows_at(max_length))]  # see `length_buckets`
        if mode == "bucketed":
            self.groups = length_buckets(self.row_lengths, rows_at)
        self.num_targets = int((pieces.lengths - 1).sum())  # target tokens of an epoch
        self.epoch = 0
        self._batch = 0  # yielded so far in the running iteration
        self._next_start = 0  # a loaded position is used by one iteration

    def select(self, documents: Tensor) -> "Loader":
        """A loader like this one over some of its documents: those whose number in `documents` (D,) is True."""
        return self._of(documents[self.rows.documents].nonzero().flatten())

    def sample(self, num_targets: int, seed: int) -> "Loader":
        """A loader like this one over documents that are drawn by `seed` until they hold `num_targets` target tokens.

        The last document that is drawn is cut where it holds more: so one long document is no longer a reading than
        many short ones. Where all documents hold no more, it is this loader.
        """
        if self.num_targets <= num_targets:
            return self
        rows, in_corpus_order = self.rows, self.rows.starts.argsort()
        drawn = torch.randperm(self.num_documents, generator=torch.Generator().manual_seed(seed))  # (D,) their places
        order = in_corpus_order[drawn[rows.documents[in_corpus_order].long()].argsort(stable=True)]
        targets = rows.lengths[order].long() - 1
        return self._of(order[targets.cumsum(0) - targets < num_targets])  # what the pieces before it hold

    def _of(self, pieces: Tensor) -> "Loader":
        # In corpus order, which packing has changed: so it equals a loader that was made of these documents alone.
        return Loader(
            self.rows.select(pieces[self.rows.starts[pieces].argsort()]),
            mode=self.mode,
            rows_at=self.rows_at,
            max_length=self.max_length,
            pad_id=self.pad_id,
            seed=self.seed,
            shuffle=self.shuffle,
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
        )

    @property
    def num_documents(self) -> int:
        """The largest number of a document, plus one: how many were given, but for empty ones at their end."""
        return int(self.rows.documents.max()) + 1

    def documents_of(self, batch_rows: Tensor, batch: AnyBatch) -> Tensor:
        """The number of the document at each position (B, T) of the batch made of these rows, any number at PAD."""
        first = self.rows.offsets[batch_rows][:, None]  # (B, 1) the first piece of each row
        pieces = first + batch["document_ids"].clamp(min=0) if "document_ids" in batch else first
        return self.rows.documents[pieces].long().expand_as(batch["labels"])

    def __len__(self) -> int:
        return sum(-(-len(rows) // size) for rows, size in self.groups)  # rounded up: a last smaller batch is kept

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the loaded position, or else from the start of the epoch."""
        start, self._next_start = self._next_start, 0
        return self.read_from(self.epoch, start)

    def read_from(self, epoch: int, batch: int, share: Share = EVERYTHING) -> Iterator[Batch]:
        """The batches of an epoch from number `batch` on, where the loader stands from now on.

        For one of several ranks: None in place of each batch that its `share` does not need, which is not made.
        """
        # Here: the body of a generator, such as `_run`, does not begin before the first batch is asked for.
        self.load_state_dict({"epoch": epoch, "batch": batch})
        self._next_start = 0
        return self._run(epoch, batch, share)

    def from_start(self, share: Share = EVERYTHING) -> Iterable[Batch]:
        """The batches of epoch 0, whatever the loader's position, which stays."""
        return self.read(share.of_epoch(self.order(0)))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position loaded for this same epoch is kept."""
        if epoch != self.epoch:
            self.load_state_dict({"epoch": epoch, "batch": 0})

    def state_dict(self) -> dict[str, int]:
        """The position: the epoch, and how many of its batches have been yielded."""
        return {"epoch": self.epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Let the next iteration start at this position; what lies before it is not read."""
        epoch, batch = state["epoch"], state["batch"]
        require(epoch >= 0, "epoch", "at least 0", epoch)
        # len(self) is the end of the epoch: nothing is left to read
        require(0 <= batch <= len(self), "batch", f"in [0, {len(self)}], the batches of this loader", batch)
        self.epoch, self._batch, self._next_start = epoch, batch, batch

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that change with the text, its tokens, and how they are batched and ordered."""
        digest = hashlib.blake2b(repr((self.seed, self.shuffle, self.width, self.pad_id)).encode(), digest_size=16)
        rows = self.rows
        if isinstance(rows.tokens, Tensor):
            digest.update(rows.tokens.numpy().data)
        else:
            digest.update(rows.tokens.digest.encode())  # they may be more than memory holds
        for part in (rows.starts, rows.lengths, rows.offsets, *(numbers for numbers, _ in self.groups)):
            digest.update(part.numpy().data)
        digest.update(repr([size for _, size in self.groups]).encode())
        return digest.hexdigest()

    def order(self, epoch: int) -> list[Tensor]:
        """The row numbers of each batch of an epoch."""
        generator = epoch_generator(self.seed, epoch)
        batches: list[Tensor] = []
        for rows, size in self.groups:
            shuffled = rows[torch.randperm(len(rows), generator=generator)] if self.shuffle else rows
            batches += shuffled.split(size)
        if self.shuffle and len(self.groups) > 1:
            batches = [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
        return batches

    def width_of(self, batch_rows: Tensor) -> int:
        """T of the batch made of these rows."""
        return self.width or int(self.row_lengths[batch_rows].max())

    def collate(self, batch_rows: Tensor) -> Batch:
        """The batch made of these rows."""
        rows = self.rows
        first = rows.offsets[batch_rows].long()
        counts = rows.offsets[batch_rows + 1] - first  # (B,) pieces of each row
        pieces = ranges(first, counts)  # (P,) row after row
        lengths, tokens = rows.lengths[pieces].long(), rows.ids_of(pieces)
        width = self.width_of(batch_rows)
        if self.packed:
            batch = pack_rows(tokens, lengths, counts, width=width, pad_id=self.pad_id)
        else:
            batch = pad_rows(tokens, lengths, width=width, pad_id=self.pad_id)
        return {**batch, "num_bytes": rows.num_bytes(tokens, lengths)}

    def read(self, batches: list[Tensor | None]) -> Iterable[Batch]:
        """The batches made of these rows, in this order, by the loader's worker processes if it has any."""
        return _Reader(
            _Batches(self.collate, batches),
            batch_size=None,  # an item is a whole batch, see `_Batches`
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            worker_init_fn=heed_parent_alone,
            generator=torch.Generator(),  # by default it draws from the global one, which dropout uses
        )

    def _run(self, epoch: int, start: int, share: Share) -> Iterator[Batch]:
        batches = self.read(share.of_epoch(self.order(epoch), start))
        # Counted before the batch is handed out: in the caller's loop `state_dict` is already the position after it.
        for self._batch, batch in enumerate(batches, start + 1):
            yield batch


class _Reader(DataLoader):
    """A `DataLoader` whose workers outlive a signal that comes while they start."""

    def __iter__(self) -> Any:
        with signals_held_back():
            return super().__iter__()


class _Batches(Dataset):
    """One item is one whole batch, so that workers and pinning are DataLoader's business and rows are not."""

    def __init__(self, collate: Callable[[Tensor], Batch], batches: list[Tensor | None]) -> None:
        self.collate, self.batches = collate, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch | None:
        rows = self.batches[index]
        return None if rows is None else self.collate(rows)


def padding_share(loader: Loader) -> float:
    """Share of the positions that are padding in the loader's current epoch, reckoned without making a batch."""
    batches = loader.order(loader.epoch)
    positions = sum(len(batch) * loader.width_of(batch) for batch in batches)
    return 1 - int(loader.row_lengths.sum()) / positions


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """A generator for one epoch's order; hashed, so that seed 0, epoch 1 is not seed 1, epoch 0."""
    digest = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)  # 63 bits fit a signed int64 too


def _rows_at(batch_size: int | None, tokens_per_batch: int | None, max_length: int) -> Callable[[int], int]:
    if (batch_size is None) == (tokens_per_batch is None):
        raise ValueError(
            f"give either batch_size or tokens_per_batch, got batch_size={batch_size} "
            f"and tokens_per_batch={tokens_per_batch}"
        )
    name, size = ("batch_size", batch_size) if tokens_per_batch is None else ("tokens_per_batch", tokens_per_batch)
    size = require_whole(name, size, least=1)
    if tokens_per_batch is not None and tokens_per_batch < max_length:
        raise ValueError(f"tokens_per_batch must be at least max_length ({max_length}), got {tokens_per_batch}")
    # A partial and no closure: a loader is pickled for worker processes that are spawned.
    return partial(_rows_of_batch, size, batch_size is None)


def _rows_of_batch(size: int, in_tokens: bool, width: int) -> int:
    return size // width if in_tokens else size
