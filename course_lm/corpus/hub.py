"""Documents of a Hugging Face dataset, by the library `datasets`: all at once, or one after the other.

An address is `hf:<dataset>[:<split>[:<column>]]`: see `load_corpus`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from course_lm.corpus.files import Advance, refuse_special, stamp, suffix_of
from course_lm.validation import first_line

LOADERS = {".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}


class _Place(NamedTuple):
    """What an address names."""

    dataset: str  # a name on the hub, or a local file or folder
    configuration: str | None
    split: str
    column: str


@dataclass(frozen=True)
class HubText:
    """The dataset that an address names, which can be read again and again.

    Raises ValueError for an address of another form, a dataset that cannot be loaded, and where `datasets` is missing.
    """

    address: str
    division: ClassVar[None] = None  # rows divide it

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.address

    @cached_property
    def _place(self) -> _Place:
        dataset, *parts = self.address.removeprefix("hf:").split(":")
        if len(parts) > 2 or not dataset:
            raise ValueError(f"{self.address!r} is not of the form hf:<dataset>[:<split>[:<column>]]")
        split, column = [*parts, "", ""][:2]
        configuration = None
        if dataset.count("/") == 2 and not Path(dataset).exists():
            dataset, _, configuration = dataset.rpartition("/")
        return _Place(dataset, configuration, split or "train", column or "text")

    @cached_property
    def _builder(self) -> Any:
        (path, configuration, file), library = self._source, self._library()
        with _one_line(self.address):
            return library.load_dataset_builder(path, configuration, data_files=file)

    @cached_property
    def size(self) -> int | None:
        """Bytes of the split, or None where nobody has counted them."""
        if Path(self._place.dataset).exists():
            return sum(file.stat().st_size for file in self._local_files())
        splits = self._builder.info.splits or {}
        return getattr(splits.get(self._place.split), "num_bytes", None)

    @property
    def identity(self) -> str:
        """A text that changes with the dataset: the library's digest of its files, and for local ones their times."""
        stats = [stamp(file) for file in self._local_files()]
        builder = self._builder
        return repr((self.address, builder.config_id, str(builder.config.version), builder.hash, stats))

    def column(self) -> list[Any]:
        """All that stands in the column, strings or not, held at once."""
        rows = self._load(streaming=False)
        self._check_column(rows.column_names)
        return list(rows[self._place.column])

    def documents(self, advance: Advance | None = None, longest: int | None = None) -> Iterator[str]:
        """The documents that hold text, one by one; ValueError names the first row that is no string.

        `advance` is called with the bytes of each text; one of more than `longest` characters is refused.
        """
        holds_none = True
        for number, row in enumerate(self._rows()):
            self._check_column(row)
            text = row[self._place.column]
            if not isinstance(text, str):
                raise ValueError(f"{self.where} must hold strings, got {type(text).__name__} at position {number}")
            if longest is not None and len(text) > longest:
                raise ValueError(f"{self.address} holds a document of more than {longest:,} characters")
            if advance is not None:
                advance(len(text.encode()))
            if text.strip():
                holds_none = False
                yield text
        if holds_none:
            raise ValueError(f"{self.address} holds no document")

    def _rows(self) -> Iterator[Any]:
        rows = self._load(streaming=True)
        with _one_line(self.address):
            yield from rows

    @property
    def where(self) -> str:
        """The column, as messages call it."""
        return f"column {self._place.column!r} of {self.address}"

    @property
    def _source(self) -> tuple[str, str | None, str | None]:
        """What the library takes: a dataset and its configuration, or the reader of a file and the file."""
        path = Path(self._place.dataset)
        if path.is_file():
            return LOADERS.get(suffix_of(path), "text"), None, str(path)
        if os.path.lexists(path) and not path.is_dir():
            refuse_special(path)  # a link to nothing, a pipe or a device
        return self._place.dataset, self._place.configuration, None

    def _load(self, *, streaming: bool) -> Any:
        (path, configuration, file), split, library = self._source, self._place.split, self._library()
        with _one_line(self.address):
            return library.load_dataset(path, configuration, data_files=file, split=split, streaming=streaming)

    def _library(self) -> Any:
        try:
            import datasets
        except ImportError:
            raise ValueError(f"{self.address} needs the package datasets: pip install 'course-lm[hub]'") from None
        return datasets

    def _local_files(self) -> list[Path]:
        path = Path(self._place.dataset)
        return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())

    def _check_column(self, names: Any) -> None:
        if self._place.column not in names:
            raise ValueError(f"{self.address} has no column {self._place.column!r}; it has {', '.join(names)}")


@contextmanager
def _one_line(address: str) -> Iterator[None]:
    """Turn whatever the library raises into a ValueError of one line."""
    try:
        yield
    except Exception as error:  # every kind, RuntimeError for a folder with a script among them
        reason: BaseException = error
        while reason.__cause__ is not None:  # "an error occurred" says less than what it came from
            reason = reason.__cause__
        raise ValueError(f"{address} cannot be loaded: {first_line(reason)}") from error
