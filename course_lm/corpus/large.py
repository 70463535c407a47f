"""Text that is too large to be held: it is read one document at a time, as often as that is needed."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from course_lm.corpus.files import (
    GZIP,
    PARQUET,
    ZSTD,
    Advance,
    Division,
    find_division,
    opened,
    stamp,
    stream_documents,
)
from course_lm.corpus.hub import HubText
from course_lm.corpus.load import CORPORA, matching_files

LARGE_BYTES = 64 * 2**20  # of text; what is larger is tokenised on disk
COMPRESSION = 4  # bytes of text for each byte of a compressed or a Parquet file, roughly
LONGEST = 32 * 2**20  # characters of a document in a large text: encoding takes some hundred bytes for each


@dataclass(frozen=True)
class FilesText:
    """The text of files, in this order."""

    name: str
    paths: tuple[Path, ...]

    @property
    def size(self) -> int:
        """Bytes of the files, which `documents` goes through."""
        return sum(path.stat().st_size for path in self.paths)

    @property
    def identity(self) -> str:
        """A text that changes when a file is another one, or was written to."""
        return repr([stamp(path) for path in self.paths])

    @cached_property
    def division(self) -> Division | None:
        """How the text is cut where no blank line divides it."""
        return find_division(self.paths)

    def documents(self, advance: Advance | None = None, longest: int | None = None) -> Iterator[str]:
        """The documents that hold text, one by one: see `stream_documents`."""
        for path in self.paths:
            for text, _ in stream_documents(path, advance, longest, self.division):
                yield text


LargeText = FilesText | HubText


def find_large_text(source: str) -> LargeText | None:
    """The text that a corpus's name, path or address stands for, or None where it is small enough to be held.

    It is large where its files, unpacked, or the dataset have more than `LARGE_BYTES`. Raises as `load_corpus` does
    where there is no such text.
    """
    if source in CORPORA:
        return None
    if source.startswith("hf:"):
        dataset = HubText(source)
        return dataset if _is_large_dataset(dataset) else None
    text = FilesText(source, tuple(matching_files(source)))
    return text if sum(map(_text_size, text.paths)) > LARGE_BYTES else None


def _text_size(path: Path) -> int:
    with opened(path) as (_, beginning):
        packed = beginning in (GZIP, ZSTD, PARQUET)
    return path.stat().st_size * (COMPRESSION if packed else 1)


def _is_large_dataset(dataset: HubText) -> bool:
    if dataset.size is not None:
        return dataset.size > LARGE_BYTES
    size = 0
    for document in dataset.documents():
        size += len(document.encode())
        if size > LARGE_BYTES:
            return True
    return False
