"""A large text as token ids on the disk: built once, shared by runs, read without being held.

A store is a folder of the cache, whose name is a digest of all that decides what is in it:

    store.json                      counts and digests, and how the ids are written
    tokenizer.json                  trained on training documents, of a very large text on a share of them
    train.ids, validation.ids, …    the ids of all documents, one after the other: uint16, or int32
    train.lengths, …                int32: tokens of each document

The text is read three times: for digests and splits, for the tokenizer, and to be encoded. A store is built in a folder
beside its own and renamed when it is whole, by one process at a time. Nothing is lost where the cache is deleted.
"""

import hashlib
import json
import os
import secrets
import shutil
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers import __version__ as tokenizers_version
from torch import Tensor

from course_lm.batching.packing import ENCODE_AT_ONCE, Rows, cut
from course_lm.corpus.files import Division
from course_lm.corpus.large import LONGEST, LargeText
from course_lm.corpus.load import SPLITS, refuse_empty_split, split_of
from course_lm.display import Bar, readable_bytes
from course_lm.tokenizer import bytes_per_token, decode, encode_documents, load_tokenizer, train_tokenizer
from course_lm.validation import expanded, first_line

FORMAT = 2
DIGITS = 32  # of a digest; a split's is that of its ids and that of its lengths
SAMPLE_BYTES = 64 * 2**20  # of training text for the tokenizer: as much as a text has at most that is held
ENCODE_BYTES = 2**22  # of text at once; bounds the memory that encodings take
LARGEST_IN_TWO_BYTES = 2**16  # tokens of a vocabulary
REPEATED = len(SPLITS)  # in place of a split: an equal document comes before

LOOK_SECONDS = 10.0  # between two lines of a bar where standard error is no terminal


@dataclass(frozen=True)
class Recipe:
    """What a store is made by, beside the text."""

    vocab_size: int
    seed: int
    val_fraction: float  # with 0 all of the text is trained on
    test_fraction: float = 0.0
    tokenizer: Tokenizer | None = field(default=None, repr=False)  # by default one is trained on the text

    def key_for(self, text: LargeText) -> str:
        """The name of the store's folder."""
        given = () if self.tokenizer is None else (self.tokenizer.to_str(),)
        parts = (FORMAT, tokenizers_version, SAMPLE_BYTES, self, text.identity, *given)
        return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


class DiskTokens:
    """The ids of one split. They are read where they are asked for: a memory map's pages would count as memory."""

    def __init__(self, path: Path, dtype: str, digest: str) -> None:
        self.path, self.dtype, self.digest = path, np.dtype(dtype), digest
        self._descriptor: int | None = None

    def gather(self, starts: Tensor, lengths: Tensor) -> Tensor:
        """The ids of spans, one after the other, (sum of `lengths`,) int64; OSError where the file is too short."""
        size = self.dtype.itemsize
        spans = zip((lengths * size).tolist(), (starts * size).tolist(), strict=True)
        content = b"".join(read_at(self._open(), length, start) for length, start in spans)
        if len(content) != size * int(lengths.sum()):
            raise OSError(f"{self.path} has been cut short; delete its folder, and it is made anew")
        return torch.from_numpy(np.frombuffer(content, self.dtype).astype(np.int64))

    def _open(self) -> int:
        # Kept open, so that a run goes on where somebody deletes the cache.
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            weakref.finalize(self, os.close, self._descriptor)
        return self._descriptor

    def __getstate__(self) -> dict[str, Any]:
        # A worker process opens the file itself.
        return {**self.__dict__, "_descriptor": None}


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Bytes of an open file, where possible without a move in it: other processes may share their place there."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # no other process shares the place: where pread is missing, fork is too
    return os.read(descriptor, size)


@dataclass(frozen=True, eq=False)
class StoredDocuments(Sequence[str]):
    """The documents of one split, encoded; `make_loader` takes them in place of a list of strings.

    A document that is asked for is decoded, and is the text that it was.
    """

    tokens: DiskTokens
    lengths_file: Path
    num_documents: int
    num_tokens: int
    tokenizer: Tokenizer

    def __len__(self) -> int:
        return self.num_documents

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self.num_documents))]
        place = range(self.num_documents)[index]
        start, end = self._bounds[place : place + 2]
        # without the <eos> before it and after it
        return decode(self.tokenizer, self.tokens.gather(start[None] + 1, (end - start)[None] - 2))

    @cached_property
    def _bounds(self) -> Tensor:
        """Where each document begins, and the last one ends, (D + 1,)."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self._lengths().cumsum(0)])

    def _lengths(self) -> Tensor:
        return torch.from_numpy(np.fromfile(self.lengths_file, np.int32))

    def pieces(self, tokenizer: Tokenizer, max_length: int) -> Rows:
        """The documents in pieces of at most `max_length` tokens, one piece a row: see `encode_pieces`.

        Raises ValueError for another tokenizer than they were encoded by.
        """
        if tokenizer.to_str() != self.tokenizer.to_str():
            raise ValueError(f"{self.tokens.path} was encoded by another tokenizer; take the one beside it")
        dtype = torch.int32 if self.num_tokens < 2**31 else torch.int64
        numbers = torch.arange(self.num_documents, dtype=torch.int32)
        return cut(self.tokens, self._lengths(), numbers, bytes_per_token(tokenizer), max_length, dtype)


@dataclass(frozen=True)
class StoredCorpus:
    """One split of a large text, in place of a `Corpus`: its strings are not held, and no cost is known."""

    name: str
    documents: StoredDocuments
    neg_log_p: None = None
    gold: None = None
    division: Division | None = None


@dataclass(frozen=True)
class TokenStore:
    """A store as it lies on the disk."""

    name: str
    folder: Path
    tokenizer: Tokenizer
    facts: dict[str, Any]

    def corpus(self, split: str) -> StoredCorpus:
        """The documents of "train", "validation" or "test"; ValueError where the split holds none."""
        counts = {one: self.facts["splits"][one]["documents"] for one in SPLITS}
        refuse_empty_split(self.name, {split: counts[split]}, sum(counts.values()))
        facts, path = self.facts["splits"][split], self.folder / f"{split}.ids"
        tokens = DiskTokens(path, self.facts["dtype"], facts["digest"])
        lengths = path.with_suffix(".lengths")
        held = StoredDocuments(tokens, lengths, facts["documents"], facts["tokens"], self.tokenizer)
        return StoredCorpus(self.name, held, division=self.facts["division"])

    def describe(self) -> str:
        """Where the store is, and what the tokenizer was trained on."""
        sample, whole = self.facts["sample_bytes"], self.facts["train_bytes"]
        if not sample:
            return f"token ids in {self.folder}; the tokenizer was given"
        shown = readable_bytes(whole)
        trained = f"{readable_bytes(sample)} of {shown}" if sample < whole else f"all {shown}"
        return f"token ids in {self.folder}; the tokenizer was trained on {trained} of training text"


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/course_lm`, or `~/.cache/course_lm`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache")) / "course_lm"


def open_token_store(text: LargeText, recipe: Recipe, cache: str | Path | None = None) -> TokenStore:
    """The store of a text, found in the folder `cache` or built there; None is `default_cache`.

    All bytes of one that is found are compared with its digests. Warns of a damaged one, which is built anew. Raises
    ValueError for text that cannot be read or that changes meanwhile, and for an empty split; OSError where the cache
    cannot be written.
    """
    # absolute: files are opened later, maybe from elsewhere
    cache = default_cache() if cache is None else expanded(cache).absolute()
    key = recipe.key_for(text)
    store = _find(text.name, cache / key)
    if isinstance(store, TokenStore):
        return store
    with _cannot_write(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with _sole_builder(cache / f"{key}.lock", text.name):
        store = _find(text.name, cache / key)  # another process may have built it meanwhile
        if isinstance(store, TokenStore):
            return store
        if store is not None:
            warnings.warn(f"the token store {cache / key} is damaged ({store}): it is built anew", stacklevel=2)
        return _build_aside(text, recipe, cache / key)


def _find(name: str, folder: Path) -> TokenStore | str | None:
    """The store in a folder, None where there is no folder, or what is wrong with it."""
    if not folder.exists():
        return None
    try:
        facts = json.loads((folder / "store.json").read_bytes())
        if facts.pop("digest") != _digest(json.dumps(facts).encode()).hexdigest():
            return "store.json does not say what was written"
        written = {"tokenizer.json": facts["tokenizer"]}
        for split in SPLITS:
            digest = facts["splits"][split]["digest"]
            written |= {f"{split}.ids": digest[:DIGITS], f"{split}.lengths": digest[DIGITS:]}
        for file_name, digest in written.items():
            # 1.2 s for a GiB, some two of text: next to nothing beside a run on it
            with (folder / file_name).open("rb") as file:
                if hashlib.file_digest(file, _digest).hexdigest() != digest:
                    return f"the bytes of {file_name} are not those that were written"
        return TokenStore(name, folder, load_tokenizer(folder / "tokenizer.json"), facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return first_line(error)


def _digest(content: bytes | bytearray = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=DIGITS // 2)


@contextmanager
def _sole_builder(path: Path, name: str) -> Iterator[None]:
    from filelock import FileLock, Timeout  # loads asyncio, which every command would wait for

    lock = FileLock(path)
    with _cannot_write(path.parent):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            print(f"waiting for the process that tokenises {name}", file=sys.stderr, flush=True)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _cannot_write(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise OSError(error.errno, f"cannot write token ids into {cache}: {reason}; see data.cache") from error


def _build_aside(text: LargeText, recipe: Recipe, folder: Path) -> TokenStore:
    """Build the store beside its folder and rename it; what killed processes have left is removed."""
    for old in (folder, *folder.parent.glob(f".{folder.name}.*.tmp")):
        shutil.rmtree(old, ignore_errors=True)
    if folder.is_file():
        folder.unlink()
    aside = folder.with_name(f".{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with _cannot_write(folder.parent):
            aside.mkdir()
        tokenizer, facts = _build(text, recipe, aside)
        os.replace(aside, folder)
        return TokenStore(text.name, folder, tokenizer, facts)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _build(text: LargeText, recipe: Recipe, folder: Path) -> tuple[Tokenizer, dict[str, Any]]:
    survey = _survey(text, recipe)
    if recipe.tokenizer is not None:
        tokenizer = recipe.tokenizer
    else:
        with _bar(text, "training the tokenizer") as advance:
            sample = (document for document, _, chosen in survey.read(text, advance) if chosen)
            tokenizer = train_tokenizer(sample, recipe.vocab_size)
    dtype = "uint16" if recipe.vocab_size <= LARGEST_IN_TWO_BYTES else "int32"
    splits = _encode(text, survey, tokenizer, folder, dtype)
    facts = {
        "text": text.name,
        "division": text.division,
        "dtype": dtype,
        "splits": splits,
        "train_bytes": survey.train_bytes,
        "sample_bytes": survey.sample_bytes if recipe.tokenizer is None else 0,
        "tokenizer": _digest(encoded := tokenizer.to_str().encode()).hexdigest(),
    }
    with _cannot_write(folder.parent):
        _write(folder / "tokenizer.json", encoded)
        digest = _digest(json.dumps(facts).encode()).hexdigest()
        _write(folder / "store.json", json.dumps({**facts, "digest": digest}, indent=1).encode())
    return tokenizer, facts


@dataclass(frozen=True)
class _Survey:
    """What the first reading finds out about each of the D documents."""

    digest: bytes  # of them all: later readings must find the same ones
    splits: np.ndarray  # (D,) uint8: place in SPLITS, or REPEATED
    sampled: np.ndarray  # (D,) bool: whether the tokenizer is trained on it
    train_bytes: int
    sample_bytes: int

    def read(self, text: LargeText, advance: Callable[[int], object]) -> Iterator[tuple[str, int, bool]]:
        """Each document with its split, and whether it is sampled; ValueError where the text is another one now.

        It is compared by what it holds: the times of a file change where it gets another mode or another name, too.
        """
        marks, digest = zip(self.splits, self.sampled, strict=True), _digest()
        for document in text.documents(advance, LONGEST):
            digest.update(_digest(document.encode()).digest())
            mark = next(marks, None)
            if mark is None:
                break
            yield document, int(mark[0]), bool(mark[1])
        if digest.digest() != self.digest:
            raise ValueError(f"{text.name} was changed while it was read")


def _survey(text: LargeText, recipe: Recipe) -> _Survey:
    # Plain bytes: Python objects for some ten million documents would be more than the text.
    digests, splits, sizes = bytearray(), bytearray(), bytearray()
    number = {split: place for place, split in enumerate(SPLITS)}
    with _bar(text, "reading the text") as advance:
        for document in text.documents(advance, LONGEST):
            content = document.encode()
            digests += _digest(content).digest()
            sizes += len(content).to_bytes(4, sys.byteorder)
            fractions = recipe.val_fraction, recipe.test_fraction
            splits.append(number[split_of(document, *fractions, recipe.seed) if recipe.val_fraction else "train"])
    found = np.frombuffer(splits, np.uint8).copy()
    both = np.frombuffer(digests, np.uint64).reshape(-1, 2)
    found[_repeated(both)] = REPEATED
    counts = {split: int((found == number[split]).sum()) for split in SPLITS}
    needed = SPLITS if recipe.test_fraction else SPLITS[:2] if recipe.val_fraction else SPLITS[:1]
    refuse_empty_split(text.name, {split: counts[split] for split in needed}, sum(counts.values()))
    of_document = np.frombuffer(sizes, np.uint32)
    sampled = found == number["train"]
    train_bytes = int(of_document[sampled].sum(dtype=np.int64))
    if train_bytes > SAMPLE_BYTES:
        # By their digests, so that the sample is spread over the whole text.
        sampled &= both[:, 0] / 2.0**64 < SAMPLE_BYTES / train_bytes
    sample_bytes = int(of_document[sampled].sum(dtype=np.int64))
    return _Survey(_digest(digests).digest(), found, sampled, train_bytes, sample_bytes)


def _repeated(digests: np.ndarray) -> np.ndarray:
    """The numbers of documents whose digest (D, 2) an earlier document has."""
    first = digests[:, 0]
    order = np.argsort(first, kind="stable")
    same = first[order[1:]] == first[order[:-1]]
    # Few are left: those that share half of their digest with another one.
    few = np.sort(order[np.append(same, False) | np.append(False, same)])
    order = few[np.lexsort((few, digests[few, 1], digests[few, 0]))]
    return order[1:][(digests[order[1:]] == digests[order[:-1]]).all(axis=1)]


def _encode(text: LargeText, survey: _Survey, tokenizer: Tokenizer, folder: Path, dtype: str) -> dict[str, Any]:
    """Write the ids and the lengths of each split; how many documents and tokens each holds, and a digest."""
    with ExitStack() as stack, _bar(text, "encoding the text") as advance:
        with _cannot_write(folder.parent):
            writers = [_Writer(folder / split, dtype, stack) for split in SPLITS]
        for documents, splits in _portions(survey.read(text, advance)):
            encoded = encode_documents(tokenizer, documents)
            with _cannot_write(folder.parent):
                for place, writer in enumerate(writers):
                    writer.add([ids for ids, split in zip(encoded, splits, strict=True) if split == place])
        with _cannot_write(folder.parent):
            return {split: writer.finish() for split, writer in zip(SPLITS, writers, strict=True)}


def _portions(read: Iterator[tuple[str, int, bool]]) -> Iterator[tuple[list[str], list[int]]]:
    documents: list[str] = []
    splits: list[int] = []
    characters = 0
    for document, split, _ in read:
        if split == REPEATED:
            continue
        documents.append(document)
        splits.append(split)
        characters += len(document)
        if characters >= ENCODE_BYTES or len(documents) == ENCODE_AT_ONCE:
            yield documents, splits
            documents, splits, characters = [], [], 0
    if documents:
        yield documents, splits


class _Writer:
    """Writes `<path>.ids` and `<path>.lengths`, which `stack` closes."""

    def __init__(self, path: Path, dtype: str, stack: ExitStack) -> None:
        self.dtype = dtype
        self.files = [stack.enter_context(path.with_suffix(end).open("xb")) for end in (".ids", ".lengths")]
        self.documents = self.tokens = 0
        self.digests = [_digest(), _digest()]

    def add(self, encoded: list[list[int]]) -> None:
        """Append documents; one without a token between its two `<eos>` is left out."""
        encoded = [ids for ids in encoded if len(ids) > 2]
        lengths = np.fromiter(map(len, encoded), np.int32, len(encoded))
        ids = np.fromiter(chain.from_iterable(encoded), self.dtype, int(lengths.sum(dtype=np.int64)))
        for part, file, digest in zip((ids, lengths), self.files, self.digests, strict=True):
            file.write(part.tobytes())
            digest.update(part.data)
        self.documents, self.tokens = self.documents + len(lengths), self.tokens + len(ids)

    def finish(self) -> dict[str, Any]:
        """Force the files to the disk; what they hold."""
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())
        digest = "".join(digest.hexdigest() for digest in self.digests)
        return {"documents": self.documents, "tokens": self.tokens, "digest": digest}


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _bar(text: LargeText, what: str) -> Iterator[Callable[[int], object]]:
    interval = 0.1 if sys.stderr.isatty() else LOOK_SECONDS
    with Bar(total=text.size, desc=what, unit="B", unit_scale=True, dynamic_ncols=True, mininterval=interval) as bar:
        yield bar.update
