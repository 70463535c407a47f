"""Text for the course: a corpus is a list of documents, split without leaks, some with their true probability.

Five kinds of source: `stories` and `hindi` (written by grammars that are known to the last weight, so each document
comes with its exact -log p; see `stories.py` and `hindi.py`), `python-docs`, the user's own files, a list, and Hugging
Face datasets.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from course_lm.corpus.files import paragraphs, read_bytes, read_documents, refuse_surrogate
from course_lm.corpus.shipped import data_file
from course_lm.validation import did_you_mean

SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order.

    `neg_log_p` holds the true -log p of each document in nats, `gold` what its author counted in it (words, case
    markers and more: see `data/README.md`); either is None where nobody knows it.
    Raises ValueError where there is no document, or not one entry for each.
    """

    name: str
    documents: list[str]
    neg_log_p: list[float] | None = None
    gold: list[dict[str, int]] | None = None

    def __post_init__(self) -> None:
        if not self.documents:
            raise ValueError(f"{self.name} holds no document")
        if self.neg_log_p is not None and len(self.neg_log_p) != len(self.documents):
            raise ValueError(
                f"neg_log_p of {self.name} must hold one number for each of {len(self.documents)} documents, "
                f"got {len(self.neg_log_p)}"
            )
        if self.gold is not None and len(self.gold) != len(self.documents):
            raise ValueError(
                f"gold of {self.name} must hold one entry for each of {len(self.documents)} documents, "
                f"got {len(self.gold)}"
            )

    def split(self, val_fraction: float = 0.1, seed: int = 0) -> tuple[Corpus, Corpus]:
        """The training and the validation documents.

        A hash of its text and the seed decides where a document goes, so equal documents stay together and
        adding documents moves none. About `val_fraction` of the documents are for validation.
        Raises ValueError for a `val_fraction` outside (0, 1), and where a split would be empty.
        """
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must be in (0, 1), got {val_fraction}")
        held_out = [_hash_fraction(document, seed) < val_fraction for document in self.documents]
        return self._select("train", held_out, False), self._select("validation", held_out, True)

    def _select(self, split: str, held_out: list[bool], wanted: bool) -> Corpus:
        chosen = [i for i, held in enumerate(held_out) if held is wanted]
        if not chosen:
            raise ValueError(
                f"the {split} split of {self.name} is empty: all {len(held_out)} documents are in the other split; "
                f"give more documents or another val_fraction"
            )
        return self._take(chosen)

    def _take(self, chosen: list[int]) -> Corpus:
        costs = None if self.neg_log_p is None else [self.neg_log_p[i] for i in chosen]
        gold = None if self.gold is None else [self.gold[i] for i in chosen]
        return Corpus(self.name, [self.documents[i] for i in chosen], costs, gold)

    def _without_duplicates(self) -> Corpus:
        # Reversed, so that of equal documents the first one stays.
        first = {document: i for i, document in reversed(list(enumerate(self.documents)))}
        return self._take(sorted(first.values()))


def _hash_fraction(document: str, seed: int) -> float:
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
) -> Corpus:
    """A corpus by name, from files, from a list or from the Hugging Face hub; exact duplicates are removed.

    - "stories": short stories with their true -log p, shipped with the package.
    - "hindi": Hindi sentences from simple to complex, with their true -log p and gold counts, shipped with the package.
    - "python-docs": paragraphs of the Python language reference, as this Python carries it. Differs between
      Python versions.
    - a path, or a glob: UTF-8 text whose documents are divided by blank lines (lines end with LF, CR LF or CR; any
      other character stays as it is); a `.jsonl` file has an object with "text" on each line, and may have "neg_log_p"
      (nats) beside it. Other encodings, compressed files and whatever is no regular file are refused.
    - a list of strings, one document each.
    - "hf:<dataset>[:<split>[:<column>]]": through `datasets` (extra `hub`), split "train" and column "text" unless
      named. The dataset is a name on the hub, with its configuration after a second slash
      (`hf:Salesforce/wikitext/wikitext-2-raw-v1:validation`), or a local file or folder.

    `split` is None for all documents, "train" or "validation": see `Corpus.split`.
    Raises ValueError for an unknown corpus or split, an empty one, and text that cannot be read; OSError for a
    file that is not there.
    """
    if split is not None and split not in SPLITS:
        raise ValueError(f"split must be None or one of {', '.join(SPLITS)}, got {split!r}")
    corpus = _load(name_or_path)._without_duplicates()
    if split is None:
        return corpus
    train, validation = corpus.split(val_fraction, seed)
    return train if split == "train" else validation


def _load(source: str | Path | Sequence[str]) -> Corpus:
    if isinstance(source, Path):
        return _read_files(str(source), _matching_files(str(source)))
    if not isinstance(source, str):
        return Corpus("the list", _strings(source, "a list of documents"))
    if source in CORPORA:
        return CORPORA[source]()
    if source.startswith("hf:"):
        return Corpus(source, _read_hub(source))
    return _read_files(source, _matching_files(source))


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


def _stories() -> Corpus:
    return _read_files("stories", [data_file("stories.jsonl")])


def _hindi() -> Corpus:
    path = data_file("hindi.jsonl")
    # Only this file has it, so that `read_documents` need not know of it.
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
    "stories": _stories,
    "hindi": _hindi,
    "python-docs": _python_docs,
}
ACCEPTED = f"{', '.join(CORPORA)}, a file, a glob, a list of strings or hf:<dataset>[:<split>[:<column>]]"


def _matching_files(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        raise ValueError(f"{pattern or '.'} is a folder; name its files with a glob such as {path / '*.txt'}")
    if os.path.lexists(path):  # unlike `exists`, also for a link to nothing
        return [path]
    # Only now: a file whose own name holds * or [ was found above.
    if glob.has_magic(pattern):
        found = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]
        files = [file for file in found if not file.is_dir()]
        if not files:
            raise FileNotFoundError(f"no file matches {pattern}")
        return files
    # It looks like a path; a bare word is rather a corpus name misspelt.
    if path.suffix or path.name != pattern:
        raise FileNotFoundError(f"there is no file {pattern}")
    raise ValueError(f"unknown corpus {pattern!r}: {did_you_mean(pattern, CORPORA)}accepted are {ACCEPTED}")


def _read_files(name: str, paths: list[Path]) -> Corpus:
    found: list[tuple[str, float | None]] = []
    for path in paths:
        found += read_documents(path)
    costs = [cost for _, cost in found if cost is not None]  # a floor needs the cost of every document
    return Corpus(name, [text for text, _ in found], costs if len(costs) == len(found) else None)


LOADERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}


def _read_hub(address: str) -> list[str]:
    name, configuration, split, column = _split_address(address)
    path = Path(name)
    if os.path.lexists(path) and not path.is_file() and not path.is_dir():
        read_bytes(path)  # says what is wrong with a link to nothing, a pipe or a device
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{address} needs the package datasets: pip install 'course-lm[hub]'") from None
    try:
        if path.is_file():
            loader = LOADERS.get(path.suffix.lower(), "text")
            rows = datasets.load_dataset(loader, data_files=name, split=split)
        else:
            rows = datasets.load_dataset(name, configuration, split=split)
    except Exception as error:  # the library raises every kind, RuntimeError for a folder with a script among them
        reason = error
        while reason.__cause__ is not None:  # "an error occurred" says less than what it came from
            reason = reason.__cause__
        raise ValueError(f"{address} cannot be loaded: {(str(reason).splitlines() or [repr(reason)])[0]}") from error
    if column not in rows.column_names:
        raise ValueError(f"{address} has no column {column!r}; it has {', '.join(rows.column_names)}")
    return _strings(list(rows[column]), f"column {column!r} of {address}")


def _split_address(address: str) -> tuple[str, str | None, str, str]:
    """The dataset, its configuration, the split and the column that "hf:..." names."""
    name, *parts = address.removeprefix("hf:").split(":")
    if len(parts) > 2 or not name:
        raise ValueError(f"{address!r} is not of the form hf:<dataset>[:<split>[:<column>]]")
    split, column = [*parts, "", ""][:2]
    configuration = None
    if name.count("/") == 2 and not Path(name).exists():
        name, _, configuration = name.rpartition("/")
    return name, configuration, split or "train", column or "text"
