"""Text for the course: a corpus is a list of documents, split without leaks, some with their true probability.

The documents of `stories` are written by a grammar that is known to the last weight (the tables of `stories.py`),
so each comes with its exact -log p: the loss that the true distribution itself would have on it.
`generate_stories` makes the choices and `story_neg_log_p` recovers them from the text alone; the tables are all
that the two share.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

CORPORA = ("stories", "python-docs")
ACCEPTED = f"{', '.join(CORPORA)}, a file, a glob, a list of strings or hf:<dataset>[:<split>[:<column>]]"
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Corpus:
    """Documents in a fixed order.

    `neg_log_p` holds the true -log p of each document in nats, or is None where nobody knows it.
    Raises ValueError where there is no document, or not one number for each.
    """

    name: str
    documents: list[str]
    neg_log_p: list[float] | None = None

    def __post_init__(self) -> None:
        if not self.documents:
            raise ValueError(f"{self.name} holds no document")
        if self.neg_log_p is not None and len(self.neg_log_p) != len(self.documents):
            raise ValueError(
                f"neg_log_p of {self.name} must hold one number for each of {len(self.documents)} documents, "
                f"got {len(self.neg_log_p)}"
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
        return Corpus(self.name, [self.documents[i] for i in chosen], costs)

    def _without_duplicates(self) -> Corpus:
        first = {document: i for i, document in reversed(list(enumerate(self.documents)))}
        return self._take(sorted(first.values()))


def _hash_fraction(document: str, seed: int) -> float:
    content = document.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(content, digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "big") / 2**64


def load_corpus(
    name_or_path: str | Path | Sequence[str],
    *,
    split: str | None = None,
    seed: int = 0,
    val_fraction: float = 0.1,
) -> Corpus:
    """A corpus by name, from files, from a list or from the Hugging Face hub; exact duplicates are removed.

    - "stories": short stories with their true -log p, shipped with the package.
    - "python-docs": paragraphs of the Python language reference, as this Python carries it. Differs between
      Python versions.
    - a path, or a glob: UTF-8 text whose documents are divided by blank lines; a `.jsonl` file has an object
      with "text" on each line, and may have "neg_log_p" (nats) beside it.
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
        return _read_files(str(source), [source])
    if not isinstance(source, str):
        return _from_list(source)
    if source == "stories":
        return _read_files(source, [data_file("stories.jsonl")])
    if source == "python-docs":
        return Corpus(source, _python_docs())
    if source.startswith("hf:"):
        return Corpus(source, _read_hub(source))
    return _read_files(source, _matching_files(source))


def data_file(name: str) -> Path:
    """Where a shipped file lies: inside the installed package, or in `data/` of a checkout."""
    package = Path(__file__).parent
    installed = package / "_data" / name
    return installed if installed.exists() else package.parent / "data" / name


def _from_list(documents: Sequence[str]) -> Corpus:
    for i, document in enumerate(documents):
        if not isinstance(document, str):
            raise ValueError(f"documents must be strings, got {type(document).__name__} at position {i} of the list")
    return Corpus("the list", _not_blank(documents))


def _not_blank(documents: Iterable[str]) -> list[str]:
    return [document for document in documents if document.strip()]


def _paragraphs(text: str) -> list[str]:
    return [paragraph.strip() for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def _python_docs() -> list[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError("python-docs needs the module pydoc_data, which this Python was built without") from None
    return [paragraph for topic in topics.values() for paragraph in _paragraphs(topic) if _is_prose(paragraph)]


def _is_prose(paragraph: str) -> bool:
    is_heading = re.search(r"\n(\W)\1{2,}$", paragraph)
    return not is_heading and len(re.findall(r"[A-Za-z]{2,}", paragraph)) >= 5


def _matching_files(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_file():
        return [path]
    if path.is_dir():
        raise ValueError(f"{pattern} is a folder; name its files with a glob such as {path / '*.txt'}")
    if glob.has_magic(pattern):
        files = [Path(found) for found in sorted(glob.glob(pattern, recursive=True)) if Path(found).is_file()]
        if not files:
            raise FileNotFoundError(f"no file matches {pattern}")
        return files
    if path.suffix or path.name != pattern:
        raise FileNotFoundError(f"there is no file {pattern}")
    close = difflib.get_close_matches(pattern, CORPORA, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"unknown corpus {pattern!r}: accepted are {ACCEPTED}{hint}")


def _read_files(name: str, paths: list[Path]) -> Corpus:
    documents: list[str] = []
    costs: list[float | None] = []
    for path in paths:
        stories = _read_jsonl(path) if path.suffix == ".jsonl" else [(text, None) for text in _paragraphs(_read_text(path))]
        if not stories:
            raise ValueError(f"{path} is empty: it holds no document")
        documents += [text for text, _ in stories]
        costs += [cost for _, cost in stories]
    known = [cost for cost in costs if cost is not None]
    return Corpus(name, documents, known if len(known) == len(costs) else None)


def _read_text(path: Path) -> str:
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = error.start + content.startswith(b"\xef\xbb\xbf") * 3
        raise ValueError(f"{path} is not UTF-8: byte 0x{content[at]:02x} at offset {at}") from None
    return text.replace("\r\n", "\n")
