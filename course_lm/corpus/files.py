"""Documents from the user's own files, one after the other: UTF-8 text, JSON lines, CSV and Parquet, compressed or not.

A file is read as the kind that it is, or refused in one line that names the file and the place. It is never held whole,
so that a text may be larger than memory. What may have no end, such as a pipe or a device, is not read at all.
"""

import codecs
import csv
import gzip
import io
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

from course_lm.validation import first_line, one_line, shown

CHUNK = 2**20  # bytes that are read at once

GZIP, ZSTD, PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")  # a frame without text, which may come before zstd's others
# Beginnings of what is no text. The first that fits counts: UTF-32 stands before UTF-16, since its mark begins with the
# other's. The first three are read by what they begin with; only inside another compressed file they are refused.
BEGINNINGS = {
    GZIP: "compressed by gzip; unpack it first",
    ZSTD: "compressed by zstd; unpack it first",
    PARQUET: "a Parquet file; unpack it first",
    b"BZh": "compressed by bzip2; unpack it first",
    b"\xfd7zXZ": "compressed by xz; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"%PDF": "a PDF; extract its text first",
    b"\xff\xfe\x00\x00": "UTF-32 text; convert it to UTF-8",
    b"\x00\x00\xfe\xff": "UTF-32 text; convert it to UTF-8",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8",
}
BLANK_LINES = re.compile(r"\n\s*\n")  # a line of white space alone is blank too
LINE_END = re.compile("\n")  # not splitlines, which also breaks at U+2028 and others that JSON allows inside a string

# How a text is cut that no blank line divides. Stored token ids were cut by these numbers too: with another one, they
# need another `token_store.FORMAT`.
Division = Literal["lines", "length"]
LOOK = 2**16  # characters at the beginning of the text that decide
MANY_LINES, MODEST_LINE = 10, 2_000  # so many lines, of so many characters in the mean, are documents
PIECE = 4_000  # characters at most of a document that is cut by length
# Where a piece ends: at a line's end, else at a sentence's, in Latin script or another one, else at a word's.
ENDS = [re.compile(end) for end in (r"\n", r"[.!?…][\"'”’»)\]]*\s|[。！？।][\"'”’」』）]*", r"\s")]

Advance = Callable[[int], object]  # is told how many more bytes of a file have been read


def find_division(paths: Sequence[Path]) -> Division | None:
    """How the text of these files is cut where it would be a single document; None where anything divides it.

    A text that blank lines, rows or several files divide is left to these. Any other is cut at its lines, where these
    are many and of modest length, else by length. Its beginning decides which, so that one who reads a part at a time
    gets the documents of one who holds the whole text.

    Raises:
        ValueError: the file is not text.
        OSError: it cannot be read.
    """
    if len(paths) != 1 or suffix_of(paths[0]) in ROWS:
        return None
    (path,) = paths
    with opened(path) as (file, packing):
        if packing == PARQUET:
            return None
        beginning = _beginning_of_undivided(_texts(path, _chunks(path, file, packing, None)))
    if beginning is None:
        return None
    lines = beginning.count("\n") + 1
    return "lines" if lines >= MANY_LINES and len(beginning) <= MODEST_LINE * lines else "length"


def describe_division(division: Division | None) -> str:
    """What follows the name of a text that was cut: " (no blank line divides it: …)"; else nothing."""
    if division is None:
        return ""
    lines = "each line is a document"
    length = f"it is cut at line and sentence ends into documents of at most {PIECE:,} characters"
    return f" (no blank line divides it: {lines if division == 'lines' else length})"


def stream_documents(
    path: Path, advance: Advance | None = None, longest: int | None = None, division: Division | None = None
) -> Iterator[tuple[str, float | None]]:
    """The documents of a file one by one, each with its true -log p in nats where a JSON line has it.

    A file is packed by gzip or zstd, or is Parquet, where it begins so, whatever its name is. It holds JSON lines or a
    table where its name, without `.gz` or `.zst`, ends as `ROWS` says. Of any other text blank lines divide the
    documents.

    Args:
        advance: called with the bytes of the file that each part has taken.
        longest: characters of a document; a longer one is refused before it is held whole.
        division: how a text is cut that no blank line divides: see `find_division`.

    Raises:
        ValueError: the file is not text, or holds no document.
        OSError: it cannot be read.
    """
    holds_none = True
    with opened(path) as (file, beginning):
        if beginning == PARQUET:
            found = _read_parquet(path, advance)
        else:
            chunks = _chunks(path, file, beginning, advance)
            texts = _texts(path, chunks)
            if read_rows := ROWS.get(suffix_of(path)):
                found = read_rows(path, texts, longest)
            else:
                found = ((document, None) for document in _documents_of(texts, str(path), longest, division))
        for document in found:
            holds_none = False
            yield document
    if holds_none:
        raise ValueError(f"{path} is empty: it holds no document")


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, bytes]]:
    """A file, and what tells a Parquet or a compressed one; ValueError or OSError names the file where it fails."""
    refuse_special(path)
    try:
        with path.open("rb") as file:
            beginning = file.read(4)
            file.seek(0)
            packing = GZIP if beginning.startswith(GZIP) else beginning
            yield file, ZSTD if SKIPPABLE.match(beginning) else packing
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, f"{path} cannot be read: {error.strerror}") from None


def suffix_of(path: Path) -> str:
    """How the name of a file ends, in small letters; how it is compressed does not matter."""
    return Path(path.name.lower().removesuffix(".gz").removesuffix(".zst")).suffix


def stamp(path: Path) -> tuple[str, int, int, int]:
    """Where a file is, its size and times: another one where it was written to, also by what puts its date back."""
    found = path.stat()
    return str(path.resolve()), found.st_size, found.st_mtime_ns, found.st_ctime_ns


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, which are divided by blank lines, without white space at either end."""
    return list(_documents_of([text], "the text"))


def refuse_surrogate(document: str, where: str) -> None:
    """Raise ValueError where `document` holds half of a UTF-16 pair: no character, so without bytes or tokens."""
    try:
        document.encode()
    except UnicodeEncodeError as error:
        at = error.start
        raise ValueError(
            f"{where} is not valid Unicode: lone surrogate U+{ord(document[at]):04X} at character {at}"
        ) from None


def refuse_special(path: Path) -> None:
    """Raise ValueError for what is no regular file, FileNotFoundError for a link to nothing."""
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(f"{path} is a link to {os.readlink(path)}, which is not there")
    if not path.is_file():  # a pipe or a device may never end
        raise ValueError(f"{path} is no regular file; write its text to one")


def _chunks(path: Path, file: BinaryIO, beginning: bytes, advance: Advance | None) -> Iterator[bytes]:
    """What a file holds, unpacked; the last chunk alone is empty."""
    unpacked, before = file, 0
    if beginning == GZIP:
        unpacked = gzip.GzipFile(fileobj=file)
    elif beginning == ZSTD:
        unpacked = _pyarrow(path).input_stream(file, compression="zstd")
    while True:
        try:
            chunk = unpacked.read(CHUNK)
        # damaged gzip raises any of four, damaged zstd an OSError without a number
        except (EOFError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ValueError(f"{path} is compressed and damaged: {first_line(error)}") from None
        if advance is not None:
            now = file.tell()
            advance(now - before)
            before = now
        yield chunk
        if not chunk:
            return


def _texts(path: Path, chunks: Iterable[bytes]) -> Iterator[str]:
    """Chunks of a file's text, each line end as LF; ValueError names the file, the place and the problem."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line_ends = io.IncrementalNewlineDecoder(None, translate=True)  # a lone CR ended lines on the classic Mac
    offset, has_begun = 0, False
    for chunk in chunks:
        _refuse_bytes(path, chunk, offset)
        held = len(decoder.getstate()[0])  # bytes of a character that the last chunk has begun
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            at, byte = offset - held + error.start, error.object[error.start]
            raise ValueError(f"{path} is not UTF-8: byte 0x{byte:02x} at offset {at}") from None
        offset += len(chunk)
        if text and not has_begun:
            has_begun, text = True, text.removeprefix("\ufeff")  # some editors on Windows write a byte-order mark
        yield line_ends.decode(text, final=not chunk)


def _refuse_bytes(path: Path, chunk: bytes, offset: int) -> None:
    for beginning, problem in BEGINNINGS.items():
        if offset == 0 and chunk.startswith(beginning):
            raise ValueError(f"{path} is not UTF-8 text: it is {problem}")
    # NUL is valid UTF-8, so that decoding alone would take English in UTF-16 without a mark for text.
    if (at := chunk.find(b"\0")) >= 0:
        raise ValueError(f"{path} is not UTF-8 text: byte 0x00 at offset {offset + at} (UTF-16, or no text at all?)")


def _beginning_of_undivided(texts: Iterable[str]) -> str | None:
    """The first `LOOK` characters of a text, without white space before them; None where a blank line divides it."""
    beginning = space = ""
    for text in texts:
        # As in `_divided`; what is blank at either end of the text divides nothing.
        body = space + text if beginning else text.lstrip()
        last = body.rstrip()
        if BLANK_LINES.search(last):
            return None
        beginning, space = beginning + last[: LOOK - len(beginning)], body[len(last) :]
    return beginning


def _documents_of(
    texts: Iterable[str], where: str, longest: int | None = None, division: Division | None = None
) -> Iterator[str]:
    parts = _pieces_of(texts) if division == "length" else _divided(texts, where, longest, division)
    return (document for part in parts if (document := part.strip()))


def _divided(texts: Iterable[str], where: str, longest: int | None, division: Division | None) -> Iterator[str]:
    """What stands between blank lines, or on the lines, blank or not."""
    divider, says = (BLANK_LINES, "blank lines divide documents")
    if division == "lines":
        divider, says = (LINE_END, "each line is a document")
    begun, size, space = [""], 0, ""
    for text in texts:
        # White space at the end may be the first half of what divides: it is looked at again with what follows.
        first, *others = divider.split(space + text)
        begun.append(first)
        for other in others:
            yield "".join(begun)
            begun, size = [other], 0
        last = begun[-1].rstrip()
        space, begun[-1] = begun[-1][len(last) :], last
        size += len(last)
        if longest is not None and size > longest:
            raise ValueError(f"{where} holds a document of more than {longest:,} characters: {says}")
    yield "".join([*begun, space])


def _pieces_of(texts: Iterable[str]) -> Iterator[str]:
    rest = ""
    for text in texts:
        rest, start = rest + text, 0
        # White space stays until a piece is whole: where one ends must not depend on how much is read at once.
        while len(rest) - start > PIECE:
            end = start + _end_of_piece(rest[start : start + PIECE])
            yield rest[start:end]
            start = end
        rest = rest[start:]
    yield rest


def _end_of_piece(window: str) -> int:
    for end in ENDS:
        if found := [match.end() for match in end.finditer(window, len(window) // 2)]:
            return found[-1]
    return len(window)


def _read_jsonl(path: Path, texts: Iterable[str], longest: int | None) -> Iterator[tuple[str, float | None]]:
    for number, line in enumerate(_divided(texts, str(path), longest, "lines"), start=1):
        if line.strip():
            document, cost = _read_row(line, path, number)
            if document.strip():
                yield document, cost


def _read_row(line: str, path: Path, number: int) -> tuple[str, float | None]:
    where = f"{path}, line {number}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # brackets may be nested too deep
        whole = "" if number > 1 else f"; one object a line is read, and a file that is one array as hf:{path}"
        raise ValueError(f"{where} is not JSON: {error}{whole}") from None
    if isinstance(row, dict) and "text" not in row:
        raise ValueError(f"{where} has no key 'text'" + (_others(path, "key", row) if number == 1 else ""))
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ValueError(f'{where} must be an object with a string "text", got {line[:60]}')
    # json.loads lets an escape such as \ud83d stand alone.
    refuse_surrogate(row["text"], f'{where}: "text"')
    cost = row.get("neg_log_p")
    # In Python True is an int too, json.loads reads Infinity and NaN, and an int may be larger than any float.
    if cost is not None and not (type(cost) in (int, float) and 0 <= cost <= sys.float_info.max):
        raise ValueError(f'{where}: "neg_log_p" must be a number (nats, at least 0, finite), got {shown(cost)}')
    return row["text"], cost


def _read_table(path: Path, texts: Iterable[str], longest: int | None) -> Iterator[tuple[str, None]]:
    csv.field_size_limit(2**25)  # characters; by default 2**17
    lines = (f"{line}\n" for line in _divided(texts, str(path), longest, "lines"))
    # strict: a quotation mark that is never closed would take all lines after it for one field
    comma = "\t" if suffix_of(path) == ".tsv" else ","
    reader = csv.reader(lines, delimiter=comma, strict=True, skipinitialspace=comma == ",")
    rows = filter(None, reader)  # without blank lines
    try:
        names = next(rows, ["text"])
        if names.count("text") != 1:  # of two, one would be left out without a word
            found, one = one_line(", ".join(names)), "more than one" if "text" in names else "no"
            raise ValueError(f"{path} has {one} column 'text'; line 1 names {found}: give one of them that name")
        for row in rows:
            if len(row) != len(names):
                raise csv.Error(f"it has {len(row)} columns, line 1 has {len(names)}")
            if (text := row[names.index("text")]).strip():
                yield text, None
    except csv.Error as error:
        rule = "a field that begins with a quotation mark ends with one, and doubles those inside"
        raise ValueError(f"{path}, line {reader.line_num} ends no row of a table: {error}; {rule}") from None


# What reads a file whose name, without `.gz` or `.zst`, ends so; the first line of a table names its columns.
ROWS = {".jsonl": _read_jsonl, ".ndjson": _read_jsonl, ".json": _read_jsonl, ".csv": _read_table, ".tsv": _read_table}


def _others(path: Path, what: str, names: Iterable[object]) -> str:
    return f"; it has {one_line(', '.join(map(str, names)))}; read one of them as hf:{path}:train:<{what}>"


def _read_parquet(path: Path, advance: Advance | None) -> Iterator[tuple[str, None]]:
    _pyarrow(path)
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(path, buffer_size=CHUNK) as table:  # buffered, or a whole group of rows would be read at once
            names, size = table.schema_arrow.names, path.stat().st_size
            if "text" not in names:
                raise ValueError(f"{path} has no column 'text'{_others(path, 'column', names)}")
            for batch in table.iter_batches(batch_size=1024, columns=["text"]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    if not isinstance(text, str):
                        raise ValueError(f"{path}, row {number} must hold a string, got {type(text).__name__}")
                    if text.strip():
                        yield text, None
                if advance is not None:  # how far it is in the file is not told: rows are taken to be alike
                    advance(size * len(batch) // table.metadata.num_rows)
    except (ValueError, OSError) as error:
        if type(error) is ValueError or (isinstance(error, OSError) and error.errno is not None):
            raise  # our own refusal, or the system's
        raise ValueError(f"{path}, after row {number}, is no Parquet file: {first_line(error)}") from None


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ValueError(f"{path} needs the package pyarrow: pip install 'course-lm[hub]'") from None
    return pyarrow
