"""Encoded documents as rows: cut into pieces, packed together, grouped by length.

Nothing here depends on an epoch: a corpus becomes rows once, and an epoch only orders them.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from tokenizers import Tokenizer
from torch import Tensor

from course_lm.tokenizer import bytes_per_token, encode_documents

BATCHES_PER_BUCKET = 2  # fewer pad less, more mix the rows better from epoch to epoch
ENCODE_AT_ONCE = 16_384  # documents; bounds the memory that Python lists of ids take


@dataclass(frozen=True)
class Rows:
    """The encoded corpus: R rows of one or more of its P pieces, each a span of one flat tensor of ids."""

    tokens: Tensor  # (N,) int32
    starts: Tensor  # (P,) where each piece begins in tokens; pieces stand row after row
    lengths: Tensor  # (P,) tokens of each piece
    num_bytes: Tensor  # (P,) UTF-8 bytes of its targets: all but its first token
    documents: Tensor  # (P,) which of the given documents each piece is from
    offsets: Tensor  # (R + 1,) row r holds the pieces from offsets[r] up to offsets[r + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row_lengths(self) -> Tensor:
        """Tokens in each row, (R,)."""
        total = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])  # (P + 1,), before each piece
        return total[self.offsets].diff()

    def select(self, pieces: Tensor) -> "Rows":
        """The pieces with the numbers `pieces` (Q,), one a row; the tokens are shared with this corpus."""
        parts = (self.starts[pieces], self.lengths[pieces], self.num_bytes[pieces], self.documents[pieces])
        return Rows(self.tokens, *parts, torch.arange(len(pieces) + 1))


def encode_pieces(documents: Iterable[str], tokenizer: Tokenizer, max_length: int) -> Rows:
    """Encode `documents` and cut them into pieces of at most `max_length` tokens, one piece a row."""
    # A string is an iterable of strings too, one for each character.
    if isinstance(documents, str):
        raise ValueError(f"documents must be a list of strings, got one string: {documents[:20]!r}")
    documents = list(documents)
    tokens, lengths, numbers = _encode(documents, tokenizer)
    if not len(lengths):
        raise ValueError(f"no documents left: none of the {len(documents)} given holds text")
    ends = lengths.cumsum(0)  # (D,) where each document ends in tokens
    counts = -(-(lengths - 1) // (max_length - 1))  # pieces of each document, of max_length - 1 targets each
    number = ranges(torch.zeros_like(counts), counts)
    # A step is max_length - 1, since the last token of a piece is the first of the next.
    starts = (ends - lengths).repeat_interleave(counts) + number * (max_length - 1)
    piece_lengths = (ends.repeat_interleave(counts) - starts).clamp(max=max_length)
    total = bytes_per_token(tokenizer)[tokens].cumsum(0)  # (N,) bytes up to and including each token
    num_bytes = total[starts + piece_lengths - 1] - total[starts]  # the first token of a piece is no target of it
    return Rows(
        tokens, starts, piece_lengths, num_bytes, numbers.repeat_interleave(counts), torch.arange(len(starts) + 1)
    )


def pack(rows: Rows, width: int) -> Rows:
    """Put the pieces of `rows` (one a row) together into as few rows of at most `width` tokens as it can."""
    row_of_piece = torch.tensor(best_fit_decreasing(rows.lengths.tolist(), width))
    order = row_of_piece.argsort(stable=True)  # stable: pieces of a row stay in corpus order
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), row_of_piece.bincount().cumsum(0)])
    return replace(rows.select(order), offsets=offsets)


def best_fit_decreasing(lengths: Sequence[int], width: int) -> list[int]:
    """The row of each piece: longest pieces first, each into the fullest row that still has room for it.

    Source: Johnson 1973, "Near-optimal bin packing algorithms" (at most 11/9 of the fewest rows, plus 4).
    """
    row_of_piece = [0] * len(lengths)
    # Distinct spaces are searched, of which there are at most width + 1, and not rows, of which there are many.
    rows_by_space: list[list[int]] = [[] for _ in range(width + 1)]
    spaces: list[int] = []  # sorted: the spaces left that some row has
    num_rows = 0
    for piece in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        found = bisect_left(spaces, lengths[piece])  # the least space that suffices is that of the fullest row
        if found < len(spaces):
            space = spaces[found]
            row = rows_by_space[space].pop()
            if not rows_by_space[space]:
                del spaces[found]
        else:
            row, space = num_rows, width
            num_rows += 1
        row_of_piece[piece] = row
        left = space - lengths[piece]
        if not rows_by_space[left]:
            insort(spaces, left)
        rows_by_space[left].append(row)
    return row_of_piece


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
