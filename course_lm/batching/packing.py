"""Encoded documents as rows: cut into pieces, packed together, grouped by length.

Nothing here depends on an epoch: a corpus becomes rows once, and an epoch only orders them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from course_lm.tokenizer import bytes_per_token, encode_documents

BATCHES_PER_BUCKET = 2  # fewer pad less, more mix the rows better from epoch to epoch
ENCODE_AT_ONCE = 16_384  # documents; bounds the memory that Python lists of ids take
CUT_AT_ONCE = 2**20  # documents; bounds the memory that int64 tensors take for a moment


class StoredTokens(Protocol):
    """Token ids that lie on the disk."""

    digest: str  # changes with the ids

    def gather(self, starts: Tensor, lengths: Tensor) -> Tensor:
        """The ids of spans, one after the other, (sum of `lengths`,) int64."""
        ...


@dataclass(frozen=True)
class Rows:
    """The encoded corpus: R rows of one or more of its P pieces, each a span of one flat sequence of N ids.

    The tensors of pieces and rows are int64, or int32 where the ids lie on the disk and are few enough for it.
    """

    tokens: Tensor | StoredTokens  # (N,) int32
    starts: Tensor  # (P,) where each piece begins in tokens; pieces stand row after row
    lengths: Tensor  # (P,) tokens of each piece
    token_bytes: Tensor  # (V,) UTF-8 bytes that each id stands for
    documents: Tensor  # (P,) which of the given documents each piece is from
    offsets: Tensor  # (R + 1,) row r holds the pieces from offsets[r] up to offsets[r + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row_lengths(self) -> Tensor:
        """Tokens in each row, (R,)."""
        total = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])  # (P + 1,), before each piece
        return total[self.offsets].diff().to(self.lengths.dtype)

    def select(self, pieces: Tensor) -> "Rows":
        """The pieces with the numbers `pieces` (Q,), one a row; the tokens are shared with this corpus."""
        starts, lengths, documents = (part[pieces] for part in (self.starts, self.lengths, self.documents))
        offsets = torch.arange(len(pieces) + 1, dtype=self.offsets.dtype)
        return Rows(self.tokens, starts, lengths, self.token_bytes, documents, offsets)

    def ids_of(self, pieces: Tensor) -> Tensor:
        """The ids of the pieces with these numbers, one after the other, int64."""
        starts, lengths = self.starts[pieces].long(), self.lengths[pieces].long()
        if isinstance(self.tokens, Tensor):
            return self.tokens[ranges(starts, lengths)].long()  # kept as int32 to save memory
        return self.tokens.gather(starts, lengths)

    def num_bytes(self, tokens: Tensor, lengths: Tensor) -> int:
        """UTF-8 bytes of the targets among the ids of pieces of `lengths`: of each piece all but its first."""
        sizes = self.token_bytes[tokens]
        return int(sizes.sum() - sizes[lengths.cumsum(0) - lengths].sum())


def encode_pieces(documents: Iterable[str], tokenizer: Tokenizer, max_length: int) -> Rows:
    """Encode `documents` and cut them into pieces of at most `max_length` tokens, one piece a row."""
    # A string is an iterable of strings too, one for each character.
    if isinstance(documents, str):
        raise ValueError(f"documents must be a list of strings, got one string: {documents[:20]!r}")
    documents = list(documents)
    tokens, lengths, numbers = _encode(documents, tokenizer)
    if not len(lengths):
        raise ValueError(f"no documents left: none of the {len(documents)} given holds text")
    return cut(tokens, lengths, numbers, bytes_per_token(tokenizer), max_length, torch.int64)


def cut(
    tokens: Tensor | StoredTokens,
    lengths: Tensor,
    numbers: Tensor,
    token_bytes: Tensor,
    max_length: int,
    dtype: torch.dtype,
) -> Rows:
    """Documents of `lengths` (D,) tokens, one after the other, as pieces of at most `max_length`, one piece a row.

    Args:
        numbers: (D,) what each document is called in `Rows.documents`.
        dtype: of the tensors of pieces and rows.
    """
    first, parts = 0, []
    for held, called in zip(lengths.split(CUT_AT_ONCE), numbers.split(CUT_AT_ONCE), strict=True):
        starts, piece_lengths, number = _cut(held.long(), max_length)
        parts.append(((starts + first).to(dtype), piece_lengths.to(dtype), called[number].to(dtype)))
        first += int(held.sum())
    starts, piece_lengths, documents = (torch.cat(part) for part in zip(*parts, strict=True))
    return Rows(tokens, starts, piece_lengths, token_bytes, documents, torch.arange(len(starts) + 1, dtype=dtype))


def _cut(lengths: Tensor, max_length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Start and length of each piece, and the document that it is from."""
    ends = lengths.cumsum(0)  # (D,) where each document ends in tokens
    counts = -(-(lengths - 1) // (max_length - 1))  # pieces of each document, of max_length - 1 targets each
    number = ranges(torch.zeros_like(counts), counts)
    # A step is max_length - 1, since the last token of a piece is the first of the next.
    starts = (ends - lengths).repeat_interleave(counts) + number * (max_length - 1)
    piece_lengths = (ends.repeat_interleave(counts) - starts).clamp(max=max_length)
    return starts, piece_lengths, torch.repeat_interleave(counts)


def pack(rows: Rows, width: int) -> Rows:
    """Put the pieces of `rows` (one a row) together into as few rows of at most `width` tokens as it can."""
    row_of_piece = torch.from_numpy(best_fit_rows(rows.lengths.numpy(), width))
    order = row_of_piece.argsort(stable=True)  # stable: pieces of a row stay in corpus order
    counts = row_of_piece.bincount()
    del row_of_piece  # of a large text each of these tensors is large
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).to(rows.offsets.dtype)
    return replace(rows.select(order), offsets=offsets)


def best_fit_rows(lengths: np.ndarray, width: int) -> np.ndarray:
    """The row of each piece (P,): longest pieces first, each into the fullest row that still has room for it.

    Pieces of one length are placed together. The fullest row with room takes as many of them as fit, since with each
    it becomes fuller, and of rows that are equally full the one that was filled last comes first.
    Source: Johnson 1973, "Near-optimal bin packing algorithms" (at most 11/9 of the fewest rows, plus 4).
    """
    row_of_piece = np.empty(len(lengths), dtype=np.int32)
    order = np.argsort(-lengths, kind="stable")  # longest first, pieces of one length in their order
    rows = _RowsBySpace(width)
    for length, count in zip(*(part[::-1] for part in np.unique(lengths, return_counts=True)), strict=True):
        pieces, order = order[:count], order[count:]
        row_of_piece[pieces] = np.concatenate(list(rows.fill(int(length), int(count))))
    return row_of_piece


class _RowsBySpace:
    """Rows that are being filled, by the space that they have left; of each space the last one is taken first."""

    def __init__(self, width: int) -> None:
        self.width, self.num_rows = width, 0
        self.rows: list[list[np.ndarray]] = [[] for _ in range(width + 1)]

    def fill(self, length: int, count: int) -> Iterator[np.ndarray]:
        """Place `count` pieces of one length; the rows of the first ones, of the next ones and so on."""
        while count:
            # The least space that suffices is that of the fullest row.
            space = next((space for space in range(length, self.width + 1) if self.rows[space]), None)
            if space is None:
                space, taken = self.width, self._open(-(-count // (self.width // length)))
            else:
                taken = self.rows[space].pop()[::-1]
            each = space // length
            whole = min(len(taken), count // each)  # rows that take as many as they can
            yield taken[:whole].repeat(each)
            self._put(taken[:whole], space - each * length)
            count -= whole * each
            rest = taken[whole:]
            if count and len(rest):  # too few are left to fill the next one
                yield rest[:1].repeat(count)
                self._put(rest[:1], space - count * length)
                count, rest = 0, rest[1:]
            self._put(rest[::-1], space)

    def _open(self, count: int) -> np.ndarray:
        self.num_rows += count
        return np.arange(self.num_rows - count, self.num_rows, dtype=np.int32)

    def _put(self, rows: np.ndarray, space: int) -> None:
        if len(rows):
            self.rows[space].append(rows)


def length_buckets(lengths: Tensor, rows_at: Callable[[int], int]) -> list[tuple[Tensor, int]]:
    """Rows of similar length, shortest first: (row numbers, rows of a batch) for each range of lengths.

    A range grows until it holds a few batches; `rows_at(width)` is the rows that a batch of that width has.
    """
    bounds, held = [], 0
    values, counts = lengths.unique(return_counts=True)
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        held += count
        if held >= BATCHES_PER_BUCKET * rows_at(value):
            bounds.append(value)
            held = 0
    if held:
        # The longest rows are too few for a full range and get a smaller one of their own.
        bounds.append(int(values[-1]))
    bucket = torch.bucketize(lengths, torch.tensor(bounds))  # bounds[i - 1] < length <= bounds[i]
    members = bucket.argsort(stable=True).split(bucket.bincount().tolist())
    return [(rows, rows_at(width)) for rows, width in zip(members, bounds, strict=True)]


def ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """The lengths[i] integers from starts[i] on, for each i in turn: (2, 7), (3, 2) → 2 3 4 7 8."""
    before = lengths.cumsum(0) - lengths  # integers in all the ranges before each
    total = int(lengths.sum())
    return torch.arange(total) + (starts - before).repeat_interleave(lengths, output_size=total)


def _encode(documents: list[str], tokenizer: Tokenizer) -> tuple[Tensor, Tensor, Tensor]:
    """All ids in one tensor, the length of each document that holds text, and its number among `documents`."""
    tokens, lengths, numbers = [], [], []
    for first in range(0, len(documents), ENCODE_AT_ONCE):
        encoded = encode_documents(tokenizer, documents[first : first + ENCODE_AT_ONCE])
        kept = [number for number, ids in enumerate(encoded) if len(ids) > 2]  # else two <eos> and nothing between them
        # int32 holds the ids of any vocabulary in half the memory of int64.
        tokens.append(torch.tensor(list(chain.from_iterable(encoded[n] for n in kept)), dtype=torch.int32))
        lengths += [len(encoded[number]) for number in kept]
        numbers += [first + number for number in kept]
    flat = torch.cat(tokens) if tokens else torch.empty(0)
    return flat, torch.tensor(lengths, dtype=torch.int64), torch.tensor(numbers, dtype=torch.int64)
