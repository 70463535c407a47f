"""Documents from the user's own files: UTF-8 text, and JSON lines.

A file is read whole and as the kind that it is, or refused in one line that names the file and the place. What may have
no end, such as a pipe or a device, is not read at all.
"""

import json
import os
import re
import sys
from pathlib import Path

from course_lm.validation import shown

# The first that fits counts: UTF-32 stands before UTF-16, since its mark begins with the other's.
BEGINNINGS = {
    b"\x1f\x8b": "compressed by gzip; unpack it first",
    b"BZh": "compressed by bzip2; unpack it first",
    b"\xfd7zXZ": "compressed by xz; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; read it as hf:<file>",
    b"%PDF": "a PDF; extract its text first",
    b"\xff\xfe\x00\x00": "UTF-32 text; convert it to UTF-8",
    b"\x00\x00\xfe\xff": "UTF-32 text; convert it to UTF-8",
    b"\xff\xfe": "UTF-16 text; convert it to UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it to UTF-8",
}


def read_documents(path: Path) -> list[tuple[str, float | None]]:
    """The documents of a file, each with its true -log p in nats where a `.jsonl` file has it.

    Raises ValueError where the file is not text or holds no document, OSError where it cannot be read.
    """
    text = _read_text(path)
    documents: list[tuple[str, float | None]] = [(paragraph, None) for paragraph in paragraphs(text)]
    if path.suffix.lower() == ".jsonl":
        documents = _read_jsonl(path, text)
    if not documents:
        raise ValueError(f"{path} is empty: it holds no document")
    return documents


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, which are divided by blank lines, without white space at either end."""
    # A line of white space alone is blank too.
    return [paragraph.strip() for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def refuse_surrogate(document: str, where: str) -> None:
    """Raise ValueError where `document` holds half of a UTF-16 pair: no character, so without bytes or tokens."""
    try:
        document.encode()
    except UnicodeEncodeError as error:
        at = error.start
        raise ValueError(
            f"{where} is not valid Unicode: lone surrogate U+{ord(document[at]):04X} at character {at}"
        ) from None


def _read_text(path: Path) -> str:
    """A file's text, each line end as LF; ValueError names the file, the place and the problem."""
    content = read_bytes(path)
    for beginning, problem in BEGINNINGS.items():
        if content.startswith(beginning):
            raise ValueError(f"{path} is not UTF-8 text: it is {problem}")
    # NUL is valid UTF-8, so that decoding alone would take English in UTF-16 without a mark for text.
    if (at := content.find(b"\0")) >= 0:
        raise ValueError(f"{path} is not UTF-8 text: byte 0x00 at offset {at} (UTF-16, or no text at all?)")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start
        raise ValueError(f"{path} is not UTF-8: byte 0x{content[at]:02x} at offset {at}") from None
    # Some editors on Windows write a byte-order mark; a lone CR ended lines on the classic Mac.
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(path: Path) -> bytes:
    """What a file holds; ValueError for what is no regular file, FileNotFoundError for a link to nothing."""
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(f"{path} is a link to {os.readlink(path)}, which is not there")
    if not path.is_file():  # a pipe or a device may never end
        raise ValueError(f"{path} is no regular file; write its text to one")
    return path.read_bytes()


def _read_jsonl(path: Path, text: str) -> list[tuple[str, float | None]]:
    documents: list[tuple[str, float | None]] = []
    # Not splitlines, which also breaks at U+2028 and others that JSON allows inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            document, cost = _read_row(line, f"{path}, line {number}")
            if document.strip():
                documents.append((document, cost))
    return documents


def _read_row(line: str, where: str) -> tuple[str, float | None]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError also for an int of more than 4,300 digits
        problem = "brackets nested too deep" if isinstance(error, RecursionError) else error
        raise ValueError(f"{where} is not JSON: {problem}") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise ValueError(f'{where} must be an object with a string "text", got {line[:60]}')
    # json.loads lets an escape such as \ud83d stand alone.
    refuse_surrogate(row["text"], f'{where}: "text"')
    cost = row.get("neg_log_p")
    # In Python True is an int, json.loads reads Infinity and NaN, and an int may be larger than any float.
    number = isinstance(cost, int | float) and not isinstance(cost, bool)
    if cost is not None and not (number and 0 <= cost <= sys.float_info.max):
        raise ValueError(f'{where}: "neg_log_p" must be a number (nats, at least 0, finite), got {shown(cost)}')
    return row["text"], cost
