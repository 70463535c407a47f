"""Documents of a Hugging Face dataset, by the library `datasets`: all at once, or one after the other.

An address is `hf:<dataset>[:<split>[:<column>]]`: see `load_corpus`.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from course_lm.corpus.files import Advance, refuse_special

LOADERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}


def read_hub(address: str) -> tuple[str, list[Any]]:
    """The column that an address names, and all that stands in it, strings or not."""
    dataset = HubText(address)
    rows = dataset.load()
    if dataset.column not in rows.column_names:
        raise ValueError(_no_column(dataset, rows.column_names))
    return dataset.column, list(rows[dataset.column])


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
    def column(self) -> str:
        """The column with the text."""
        return _split_address(self.address)[3]

    def load(self, *, streaming: bool = False) -> Any:
        """The dataset as the library gives it."""
        name, configuration, split, _ = _split_address(self.address)
        datasets = _datasets(self.address)
        options: dict[str, Any] = {"split": split, **({"streaming": True} if streaming else {})}
        with _LoadErrors(self.address):
            if Path(name).is_file():
                return datasets.load_dataset(_loader_of(name), data_files=name, **options)
            return datasets.load_dataset(name, configuration, **options)

    @cached_property
    def _builder(self) -> Any:
        name, configuration, _, _ = _split_address(self.address)
        datasets = _datasets(self.address)
        with _LoadErrors(self.address):
            if Path(name).is_file():
                return datasets.load_dataset_builder(_loader_of(name), data_files=name)
            return datasets.load_dataset_builder(name, configuration)

    @cached_property
    def size(self) -> int | None:
        """Bytes of the split, or None where nobody has counted them."""
        name, _, split, _ = _split_address(self.address)
        path = Path(name)
        if path.exists():
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            return sum(file.stat().st_size for file in files)
        splits = self._builder.info.splits or {}
        return getattr(splits.get(split), "num_bytes", None)

    @property
    def identity(self) -> str:
        """A text that changes with the dataset: the library's digest of its files, and for local ones their times."""
        path = Path(_split_address(self.address)[0])
        files = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
        stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        builder = self._builder
        return repr((self.address, builder.config_id, str(builder.config.version), builder.hash, stats))

    def documents(self, advance: Advance | None = None, longest: int | None = None) -> Iterator[str]:
        """The documents that hold text, one by one; ValueError names the first row that is no string.

        `advance` is called with the bytes of each text; one of more than `longest` characters is refused.
        """
        rows, count = self.load(streaming=True), 0
        with _LoadErrors(self.address):
            for number, row in enumerate(rows):
                if self.column not in row:
                    raise _Refusal(_no_column(self, row))
                text = row[self.column]
                if not isinstance(text, str):
                    where = f"column {self.column!r} of {self.address}"
                    raise _Refusal(f"{where} must hold strings, got {type(text).__name__} at position {number}")
                if longest is not None and len(text) > longest:
                    raise _Refusal(f"{self.address} holds a document of more than {longest:,} characters")
                if advance is not None:
                    advance(len(text.encode()))
                if text.strip():
                    count += 1
                    yield text
        if not count:
            raise ValueError(f"{self.address} holds no document")


class _Refusal(ValueError):
    """A refusal of our own, which says already what is wrong."""


class _LoadErrors:
    """Turns whatever the library raises in a `with` block into a ValueError of one line."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # It raises every kind of Exception, RuntimeError for a folder with a script among them.
        if not isinstance(error, Exception) or isinstance(error, _Refusal):
            return
        reason: BaseException = error
        while reason.__cause__ is not None:  # "an error occurred" says less than what it came from
            reason = reason.__cause__
        line = (str(reason).splitlines() or [repr(reason)])[0]
        raise ValueError(f"{self.address} cannot be loaded: {line}") from error


def _datasets(address: str) -> Any:
    name = _split_address(address)[0]
    path = Path(name)
    if os.path.lexists(path) and not path.is_dir():
        refuse_special(path)  # a link to nothing, a pipe or a device
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{address} needs the package datasets: pip install 'course-lm[hub]'") from None
    return datasets


def _loader_of(name: str) -> str:
    return LOADERS.get(Path(name).suffix.lower(), "text")


def _no_column(dataset: HubText, names: Any) -> str:
    return f"{dataset.address} has no column {dataset.column!r}; it has {', '.join(names)}"


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
