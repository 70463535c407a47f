"""Text for the course: a corpus is a list of documents, split without leaks, some with their true probability.

Five kinds of source: `stories` and `hindi` (written by grammars that are known to the last weight, so each document
comes with its exact -log p; see `data/README.md`), `python-docs`, the user's own files, a list, and Hugging Face
datasets.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from course_lm.corpus.files import Division, find_division, paragraphs, refuse_surrogate, stream_documents
from course_lm.corpus.hub import HubText
from course_lm.corpus.shipped import data_file
from course_lm.validation import did_you_mean, is_number, require

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order.

    `neg_log_p` holds the true -log p of each document in nats, `gold` what its author counted in it (words, case
    markers and more: see `data/README.md`); either is None where nobody knows it. `division` says how a text was cut
    that no blank line divides: see `find_division`.
    Raises ValueError where there is no document, or not one entry for each.
    """

    name: str
    documents: list[str]
    neg_log_p: list[float] | None = None
    gold: list[dict[str, int]] | None = None
    division: Division | None = None

    def __post_init__(self) -> None:
        if not self.documents:
            raise ValueError(f"{self.name} holds no document")
        for what, entries in (("neg_log_p", self.neg_log_p), ("gold", self.gold)):
            if entries is not None and len(entries) != len(self.documents):
                accepted = f"one entry for each of {len(self.documents)} documents"
                raise ValueError(f"{what} of {self.name} must hold {accepted}, got {len(entries)}")

    def split(self, val_fraction: float = 0.1, seed: int = 0) -> tuple[Corpus, Corpus]:
        """The training and the validation documents.

        A hash of its text and the seed decides where a document goes, so equal documents stay together and
        adding documents moves none. About `val_fraction` of the documents are for validation.
        Raises ValueError for a `val_fraction` outside (0, 1), and where a split would be empty.
        """
        return self.part("train", val_fraction, seed=seed), self.part("validation", val_fraction, seed=seed)

    def part(self, split: str, val_fraction: float = 0.1, test_fraction: float = 0.0, *, seed: int = 0) -> Corpus:
        """The documents of one split: "train", "validation" or "test"; see `split_of`.

        Raises ValueError for another split, for fractions that leave nothing to train on, and where any of the splits
        would be empty; the test split may be, unless it was asked for or has a fraction.
        """
        require(split in SPLITS, "split", f"one of {', '.join(SPLITS)}", split)
        of_document = [split_of(document, val_fraction, test_fraction, seed) for document in self.documents]
        needed = SPLITS if test_fraction or split == "test" else SPLITS[:2]
        refuse_empty_split(self.name, {one: of_document.count(one) for one in needed}, len(of_document))
        return self._take([i for i, found in enumerate(of_document) if found == split])

    def _take(self, chosen: list[int]) -> Corpus:
        costs = None if self.neg_log_p is None else [self.neg_log_p[i] for i in chosen]
        gold = None if self.gold is None else [self.gold[i] for i in chosen]
        return Corpus(self.name, [self.documents[i] for i in chosen], costs, gold, self.division)

    def _without_duplicates(self) -> Corpus:
        # Reversed, so that of equal documents the first one stays.
        first = {document: i for i, document in reversed(list(enumerate(self.documents)))}
        return self._take(sorted(first.values()))


def split_of(document: str, val_fraction: float = 0.1, test_fraction: float = 0.0, seed: int = 0) -> str:
    """The split of a document, by a hash of its text and the seed: "validation" below, "test" just above.

    Without a test part the other two are what they were. Raises ValueError for fractions that leave no training text.
    """
    require(is_number(val_fraction) and 0 < val_fraction < 1, "val_fraction", "in (0, 1)", val_fraction)
    fits = is_number(test_fraction) and 0 <= test_fraction < 1 - val_fraction
    require(fits, "test_fraction", "in [0, 1 - val_fraction)", test_fraction)
    place = hash_fraction(document, seed)
    if place < val_fraction:
        return "validation"
    return "test" if place < val_fraction + test_fraction else "train"


def refuse_empty_split(name: str, counts: Mapping[str, int], total: int) -> None:
    """Raise ValueError where one of the splits holds none of the `total` documents."""
    for split, count in counts.items():
        if not count:
            raise ValueError(
                f"the {split} split of {name} is empty: the others hold all its documents, {total}; "
                f"give more documents or another {'test' if split == 'test' else 'val'}_fraction"
            )


def hash_fraction(document: str, seed: int) -> float:
    """A number in [0, 1] that equal documents share, spread evenly over unlike ones."""
    # Not hash(), which differs in every process; lone surrogates may stand in a Corpus that was made by hand.
    content = document.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(content, digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "big") / 2**64  # in [0, 1]


def load_corpus(
    name_or_path: str | Path | Sequence[str],
    *,
    split: str | None = None,
    seed: int = 0,
    val_fraction: float = 0.1,
    test_fraction: float = 0.0,
) -> Corpus:
    """A corpus by name, from files, from a list or from the Hugging Face hub; exact duplicates are removed.

    - "stories": short stories with their true -log p, shipped with the package.
    - "hindi": Hindi sentences from simple to complex, with their true -log p and gold counts, shipped with the package.
    - "python-docs": paragraphs of the Python language reference, as this Python carries it. Differs between
      Python versions.
    - a path, or a glob: UTF-8 text whose documents are divided by blank lines (lines end with LF, CR LF or CR; any
      other character stays as it is). A single file that no blank line divides is cut at its lines where these are
      many, else into documents of some thousand characters: see `find_division`. A `.jsonl`, `.ndjson` or `.json` file
      has an object with "text" on each line, and may have "neg_log_p" (nats) beside it; of a `.csv` or `.tsv` file the
      column "text" is read. All may be packed by gzip or zstd; of a Parquet file the column "text" is read (zstd and
      Parquet with the extra `hub`). Other encodings and archives, and whatever is no regular file, are refused.
    - a list of strings, one document each.
    - "hf:<dataset>[:<split>[:<column>]]": through `datasets` (extra `hub`), split "train" and column "text" unless
      named. The dataset is a name on the hub, with its configuration after a second slash
      (`hf:Salesforce/wikitext/wikitext-2-raw-v1:validation`), or a local file or folder.

    `split` is None for all documents, "train", "validation" or "test": see `split_of`.
    Raises ValueError for an unknown corpus or split, an empty one, and text that cannot be read; OSError for a
    file that is not there.
    """
    require(split in (None, *SPLITS), "split", f"None or one of {', '.join(SPLITS)}", split)
    corpus = read_corpus(name_or_path)._without_duplicates()
    if split is None:
        return corpus
    return corpus.part(split, val_fraction, test_fraction, seed=seed)


def read_corpus(name_or_path: str | Path | Sequence[str]) -> Corpus:
    """What `load_corpus` reads, with the duplicates that it leaves out."""
    if not isinstance(name_or_path, str | Path):
        return Corpus("the list", _strings(name_or_path, "a list of documents"))
    source = str(name_or_path)
    if isinstance(name_or_path, Path):
        return _read_files(source, matching_files(source))
    if source in CORPORA:
        return CORPORA[source]()
    if source.startswith("hf:"):
        dataset = HubText(source)
        return Corpus(source, _strings(dataset.column(), dataset.where))
    return _read_files(source, matching_files(source))


def _strings(documents: Any, where: str) -> list[str]:
    """The documents that hold text; ValueError for anything but valid strings in an order of their own.

    A set has another order in every process, and an iterator can be read once only.
    """
    # Bytes are a sequence too, of ints.
    if isinstance(documents, bytes | bytearray) or not isinstance(documents, Sequence):
        raise ValueError(f"a corpus must be one of {ACCEPTED}; got {type(documents).__name__}")
    for i, document in enumerate(documents):
        if not isinstance(document, str):
            raise ValueError(f"{where} must hold strings, got {type(document).__name__} at position {i}")
        refuse_surrogate(document, f"{where}, position {i}")
    return [document for document in documents if document.strip()]


def _hindi() -> Corpus:
    path = data_file("hindi.jsonl")
    # Only this file has it, so that `stream_documents` need not know of it.
    gold = [json.loads(line)["gold"] for line in path.read_text(encoding="utf-8").splitlines()]
    return replace(_read_files("hindi", [path]), gold=gold)


def _python_docs() -> Corpus:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError("python-docs needs the module pydoc_data, which this Python was built without") from None
    # By paragraph, since the topics quote each other: whole ones would leak from one split into the other.
    found = [paragraph for topic in topics.values() for paragraph in paragraphs(topic) if _is_prose(paragraph)]
    return Corpus("python-docs", found)


def _is_prose(paragraph: str) -> bool:
    # A title is underlined with a row of one sign; fewer than five words are no prose.
    is_heading = re.search(r"\n(\W)\1{2,}$", paragraph)
    return not is_heading and len(re.findall(r"[A-Za-z]{2,}", paragraph)) >= 5


# The corpora that have a name, and what reads or makes each.
CORPORA: dict[str, Callable[[], Corpus]] = {
    "stories": lambda: _read_files("stories", [data_file("stories.jsonl")]),
    "hindi": _hindi,
    "python-docs": _python_docs,
}
ACCEPTED = f"{', '.join(CORPORA)}, a file, a glob, a list of strings or hf:<dataset>[:<split>[:<column>]]"


def files_of(source: str) -> list[Path]:
    """The files that a corpus's name, path or address names; none of what has another name than a path."""
    return [] if source in CORPORA or source.startswith("hf:") else matching_files(source)


def matching_files(pattern: str) -> list[Path]:
    """The files that a path or a glob names, in order; ValueError or FileNotFoundError where there is none."""
    if pattern == "-":  # a run reads its text several times, and once more where it goes on
        raise ValueError("a text on standard input can be read only once; write it to a file, and give that")
    path = Path(pattern)
    if path.is_dir():
        raise ValueError(f"{pattern or '.'} is a folder; name its files with a glob such as {path / '*.txt'}")
    if os.path.lexists(path):  # unlike `exists`, also for a link to nothing
        return [path]
    # Only now: a file whose own name holds * or [ was found above.
    if glob.has_magic(pattern):
        # each once, by its shortest name: a link to a folder above leads to the same files again and again
        found = sorted(glob.glob(pattern, recursive=True), key=lambda name: (len(name), name), reverse=True)
        names = {os.path.realpath(name): name for name in found if not os.path.isdir(name)}
        files = [Path(name) for name in sorted(names.values())]
        if not files:
            raise FileNotFoundError(f"no file matches {pattern}")
        return files
    # It looks like a path; a bare word is rather a corpus name misspelt.
    if path.suffix or path.name != pattern:
        raise FileNotFoundError(f"there is no file {pattern}")
    raise ValueError(f"unknown corpus {pattern!r}: {did_you_mean(pattern, CORPORA)}accepted are {ACCEPTED}")


def _read_files(name: str, paths: list[Path]) -> Corpus:
    division = find_division(paths)
    found = [row for path in paths for row in stream_documents(path, division=division)]
    costs = [cost for _, cost in found if cost is not None]  # a floor needs the cost of every document
    return Corpus(name, [text for text, _ in found], costs if len(costs) == len(found) else None, division=division)
