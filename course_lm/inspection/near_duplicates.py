"""Documents that are nearly the same, by MinHash over word shingles.

Two documents are alike to the degree of the Jaccard index of their sets of shingles (five words in a row each), and the
share of equal minima over random hash functions estimates it (Broder 1997, "On the resemblance and containment of
documents"). Minima are compared in bands, so that only documents that share a whole band are looked at (Leskovec,
Rajaraman, Ullman, "Mining of massive datasets", section 3.4).
"""

import zlib
from collections.abc import Sequence

import numpy as np

SHINGLE = 5  # words, as Lee et al. 2022, "Deduplicating training data makes language models better"
BANDS, ROWS = 32, 4
ALIKE = 0.8  # the Jaccard index from which on two documents are near duplicates
_CHUNK = 4096  # shingles that are hashed at once, so that a long document needs no more memory


def near_duplicates(documents: Sequence[str]) -> list[tuple[int, int]]:
    """(document, earlier document) for each that is nearly an earlier one: its index, and that of the first such."""
    draw = np.random.default_rng(0)
    factors = draw.integers(2**63, size=BANDS * ROWS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)  # odd
    offsets = draw.integers(2**63, size=BANDS * ROWS, dtype=np.uint64)
    signatures: list[np.ndarray] = []
    first_with: dict[tuple[int, bytes], int] = {}
    found = []
    for number, document in enumerate(documents):
        signature = _signature(shingles(document), factors, offsets)
        signatures.append(signature)
        keys = [(band, part.tobytes()) for band, part in enumerate(signature.reshape(BANDS, ROWS))]
        # with the first of each band alone: thousands of equal pages would be compared pair by pair
        earlier = sorted({first_with.setdefault(key, number) for key in keys} - {number})
        alike = next((one for one in earlier if np.mean(signatures[one] == signature) >= ALIKE), None)
        if alike is not None:
            found.append((number, alike))
    return found


def shingles(document: str) -> np.ndarray:
    """A 64-bit hash for each `SHINGLE` words in a row; for each so many characters where a text has no spaces."""
    units: Sequence[str] = document.casefold().split()
    if 20 * len(units) < len(document):
        units = document
    words = np.array([zlib.crc32(unit.encode("utf-8", "surrogatepass")) for unit in units], dtype=np.uint64)
    count = max(1, len(words) - SHINGLE + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for place in range(min(SHINGLE, len(words))):
        hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + words[place : place + count]
    return np.unique(hashes)


def _signature(hashes: np.ndarray, factors: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    least = np.full(len(factors), np.iinfo(np.uint64).max, dtype=np.uint64)
    for begin in range(0, len(hashes), _CHUNK):
        mixed = hashes[begin : begin + _CHUNK, None] * factors + offsets
        # the low bits of a product know little of the high ones of its factors
        least = np.minimum(least, (mixed ^ (mixed >> np.uint64(32))).min(axis=0))
    return least
