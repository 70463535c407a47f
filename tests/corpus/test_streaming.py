"""Claims about reading a document at a time: it gives what reading a file whole gives, compressed or not."""

import gzip
import json
import re
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from course_lm.corpus import files, large, load_corpus
from course_lm.corpus.files import find_division, stream_documents
from course_lm.corpus.hub import HubText
from course_lm.corpus.large import FilesText, find_large_text
from course_lm.corpus.load import read_corpus

ROWS = "".join(json.dumps({"text": f"document {number} ü"}) + "\n" for number in range(50)).encode()
DOCUMENTS = [f"document {number} ü" for number in range(50)]


def whole_paragraphs(content: bytes) -> list[str]:
    """A file's paragraphs, read at once: the obvious way."""
    text = content.decode().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return [paragraph.strip() for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def outcome(path: Path) -> object:
    """The documents of a file, or its refusal."""
    try:
        return [text for text, _ in stream_documents(path)]
    except ValueError as error:
        return str(error)


pieces = st.sampled_from(["a", "é", "語", " ", "\n", "\r\n", "\r", "\n\n", "\t", "\x85", "\u2028", "\ufeff", "\v"])
texts = st.lists(pieces, max_size=40).map(lambda parts: "".join(parts).encode())


@settings(max_examples=100)
@given(texts, st.integers(4, 9))
@example(b"\xef\xbb\xbf\xef\xbb\xbfa\r", 4)
@example(b"aaa\r\n\r\nb", 4)
@example(b"aa\n  \n  \nb", 4)
def test_a_text_read_in_parts_has_the_paragraphs_of_the_whole(tmp_path_factory, content, chunk):
    path = tmp_path_factory.getbasetemp() / "parts.txt"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK", chunk)
        found = outcome(path)
    assert found == (whole_paragraphs(content) or f"{path} is empty: it holds no document")


@settings(max_examples=100)
# A part is at least as long as the bytes by which the other formats are known, of which xz has the most.
@given(st.one_of(st.binary(max_size=40), texts), st.integers(5, 9), st.sampled_from(["a.txt", "a.jsonl"]))
@example(b"caf\xe9 au lait", 5, "a.txt")
@example(b"abcd\xe8\xaa", 5, "a.txt")
@example(b"\xfd7zXZ", 5, "a.txt")
@example(b'{"text": "\xe8\xaa\x9e"}\n{"text": 1}', 9, "a.jsonl")
def test_any_bytes_read_in_parts_give_what_they_give_at_once(tmp_path_factory, content, chunk, name):
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    at_once = outcome(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK", chunk)
        found = outcome(path)
    # Of two faults the one that is read first is named.
    if isinstance(found, list) or b"\0" not in content:
        faults = sum(isinstance(one, str) for one in (found, at_once))
        assert found == at_once or (faults == 2 and name == "a.jsonl")
    else:
        assert isinstance(at_once, str)


@pytest.mark.parametrize(
    "content", [b"abcde\xe9z", b"abcdefg\xe8\xaa", b"\xe8\xaa\x9e\xe8\xaa\x9ea\xe8z", b"abcdefgh\0i"]
)
def test_the_place_of_a_bad_byte_is_its_offset_in_the_whole_file(tmp_path, monkeypatch, content):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    at_once = outcome(path)
    monkeypatch.setattr(files, "CHUNK", 4)
    assert outcome(path) == at_once and "at offset" in str(at_once)


def test_a_file_is_not_held_whole(tmp_path):
    """Documents come before the end of the file has been read."""
    path = tmp_path / "long.txt"
    path.write_bytes(b"one\n\ntwo\n\n" + b"x" * 3 * files.CHUNK + b"\xff")
    read: list[int] = []
    found = stream_documents(path, read.append)
    assert [next(found)[0] for _ in range(2)] == ["one", "two"]
    assert sum(read) == files.CHUNK
    with pytest.raises(ValueError, match="byte 0xff"):
        next(found)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_the_bytes_that_are_told_add_up_to_the_file(tmp_path, name):
    path = write(tmp_path, name)
    told: list[int] = []
    list(stream_documents(path, told.append))
    assert sum(told) == path.stat().st_size


# A text that no blank line divides

undivided = st.lists(st.sampled_from(["a", "bb. ", "é", "語。", " ", "\n", "\r\n", "\r", "\t", "?\n"]), max_size=60)
sizes = {"LOOK": 30, "MANY_LINES": 3, "MODEST_LINE": 5, "PIECE": 8}


def held_and_streamed(path: Path, chunk: int) -> list[object]:
    """What becomes of a file that is held, and of one that is read so many bytes at a time: documents, or a refusal."""
    found: list[object] = []
    for read, size in (
        (lambda: read_corpus(path).documents, files.CHUNK),
        (lambda: list(FilesText("text", (path,)).documents()), chunk),
    ):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**sizes, "CHUNK": size}.items():
                patch.setattr(files, name, value)
            try:
                found.append(read())
            except ValueError as error:
                found.append(str(error))
    return found


@settings(max_examples=200)
@given(st.one_of(undivided.map(lambda parts: "".join(parts).encode()), texts), st.integers(4, 9))
@example(b"a\nb\nc\n \n", 4)
@example(b"\n\n  a b c d e f g h", 4)
@example(b"aaaaaa      \nb", 4)
def test_a_text_that_is_streamed_is_cut_as_one_that_is_held(tmp_path_factory, content, chunk):
    path = tmp_path_factory.getbasetemp() / "cut.txt"
    path.write_bytes(content)
    held, streamed = held_and_streamed(path, chunk)
    assert held == streamed


@settings(max_examples=100)
@given(st.one_of(undivided.map(lambda parts: "".join(parts).encode()), texts))
def test_a_text_of_two_paragraphs_or_more_keeps_them_and_another_loses_no_character(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "kept.txt"
    path.write_bytes(content)
    held, _ = held_and_streamed(path, 9)
    paragraphs = whole_paragraphs(content)
    if len(paragraphs) > 1:
        assert held == paragraphs
    elif paragraphs:
        assert isinstance(held, list)
        assert "".join("".join(held).split()) == "".join(paragraphs[0].split())


def test_a_text_without_a_blank_line_is_not_held_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK", 2**12)
    path = tmp_path / "long.txt"
    for content in ("a word or two\n" * 2**17, "a word or two. " * 2**17):
        path.write_text(content)
        tracemalloc.start()
        division, first = find_division([path]), 0
        for document, _ in stream_documents(path, division=division):
            first = first or len(document)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert first <= files.PIECE and peak < len(content) / 4, division


def write(folder: Path, name: str) -> Path:
    """`DOCUMENTS` in a file of the kind that its name says."""
    path = folder / name
    kind = name.lower().partition(".")[2]
    content = "\n\n".join(DOCUMENTS).encode() if kind.startswith("txt") else ROWS
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"text": DOCUMENTS, "n": [*range(50)]}), path)
    elif kind.endswith("zst"):
        path.write_bytes(pytest.importorskip("pyarrow").compress(content, codec="zstd", asbytes=True))
    else:
        path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    return path


KINDS = ["a.txt.gz", "a.txt.zst", "a.jsonl.gz", "a.jsonl.zst", "A.JSONL.GZ", "a.parquet"]


@pytest.mark.parametrize("name", KINDS)
def test_compressed_text_and_parquet_give_their_documents(tmp_path, name):
    assert load_corpus(write(tmp_path, name)).documents == DOCUMENTS


def test_a_compressed_file_is_known_by_what_it_begins_with(tmp_path):
    path = write(tmp_path, "a.jsonl.gz").rename(tmp_path / "b.jsonl")
    assert load_corpus(path).documents == DOCUMENTS
    plain = tmp_path / "c.jsonl.gz"
    plain.write_bytes(ROWS)
    assert load_corpus(plain).documents == DOCUMENTS


def test_a_compressed_file_of_several_parts_is_read_to_its_end(tmp_path):
    """Two compressed files, one after the other, are one: that is how logs and shards are joined."""
    half = len(ROWS.splitlines(keepends=True)) // 2
    first, second = (b"".join(ROWS.splitlines(keepends=True)[part]) for part in (slice(half), slice(half, None)))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(first) + gzip.compress(second))
    assert load_corpus(tmp_path / "a.jsonl.gz").documents == DOCUMENTS
    compress = pytest.importorskip("pyarrow").compress
    parts = [compress(part, codec="zstd", asbytes=True) for part in (first, second)]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(parts))
    assert load_corpus(tmp_path / "a.jsonl.zst").documents == DOCUMENTS


def refusal(path: Path) -> str:
    with pytest.raises(ValueError) as caught:
        load_corpus(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", KINDS)
def test_a_compressed_file_that_was_cut_short_is_refused(tmp_path, name):
    path = write(tmp_path, name)
    path.write_bytes(path.read_bytes()[:-5])
    assert "no Parquet file" in refusal(path) if name.endswith("parquet") else "damaged" in refusal(path)


@pytest.mark.parametrize("name", KINDS)
def test_a_compressed_file_that_was_changed_inside_is_refused(tmp_path, name):
    path = write(tmp_path, name)
    content = bytearray(path.read_bytes())
    content[12:40] = b"\x5a" * 28
    path.write_bytes(content)
    refusal(path)


def test_a_bad_line_of_a_compressed_file_is_named(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "fine"}\n{"text": 5}\n'))
    assert "line 2 must be an object" in refusal(path)


def test_a_file_that_is_compressed_twice_is_refused(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(gzip.compress(b"text")))
    assert "compressed by gzip; unpack it first" in refusal(path)


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"body": ["a"], "title": ["b"]}, "no column 'text'; it has body, title; read one of them as hf:"),
        ({"text": ["a", None]}, "row 2 must hold a string, got NoneType"),
        ({"text": [1, 2]}, "row 1 must hold a string, got int"),
        ({"text": ["", " "]}, "holds no document"),
    ],
)
def test_a_parquet_file_without_text_is_refused(tmp_path, columns, part):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert part in refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.parquet"])
def test_without_pyarrow_the_message_names_the_extra(tmp_path, monkeypatch, name):
    path = write(tmp_path, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'course-lm[hub]'" in refusal(path)


def test_gzip_needs_no_package(tmp_path, monkeypatch):
    path = write(tmp_path, "a.jsonl.gz")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert load_corpus(path).documents == DOCUMENTS


# What is large


def test_a_text_is_large_by_the_size_of_all_its_files(tmp_path, monkeypatch):
    paths = [write(tmp_path, name) for name in ("a.txt", "b.txt")]
    size = sum(path.stat().st_size for path in paths)
    monkeypatch.setattr(large, "LARGE_BYTES", size)
    assert find_large_text(str(tmp_path / "*.txt")) is None
    monkeypatch.setattr(large, "LARGE_BYTES", size - 1)
    assert find_large_text(str(tmp_path / "*.txt")) == FilesText(str(tmp_path / "*.txt"), tuple(paths))
    assert find_large_text(str(paths[0])) is None


def test_a_compressed_file_counts_several_times(tmp_path, monkeypatch):
    path = write(tmp_path, "a.jsonl.gz")
    monkeypatch.setattr(large, "LARGE_BYTES", 2 * path.stat().st_size)
    assert find_large_text(str(path)) is not None


@pytest.mark.parametrize("name", ["stories", "hindi", "python-docs"])
def test_a_corpus_with_a_name_is_never_large(monkeypatch, name):
    monkeypatch.setattr(large, "LARGE_BYTES", 0)
    assert find_large_text(name) is None


@pytest.mark.parametrize(("source", "error"), [("nowhere/a.txt", OSError), ("storys", ValueError), ("hf:", ValueError)])
def test_what_is_not_there_is_refused_as_when_it_is_held(source, error):
    with pytest.raises(error) as caught:
        load_corpus(source)
    with pytest.raises(error, match=re.escape(str(caught.value))):
        find_large_text(source)


def test_documents_of_several_files_come_in_order(tmp_path):
    paths = [write(tmp_path, name) for name in ("a.txt", "b.jsonl.gz")]
    assert list(FilesText("both", tuple(paths)).documents()) == DOCUMENTS + DOCUMENTS


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_document_may_be_as_long_as_is_allowed(tmp_path, name):
    path = write(tmp_path, name)
    longest = max(map(len, path.read_text(encoding="utf-8").splitlines()))
    text = FilesText(name, (path,))
    path.write_text("\n".join(path.read_text(encoding="utf-8").splitlines()[-1:]), encoding="utf-8")
    assert list(text.documents(longest=longest)) == DOCUMENTS[-1:]
    with pytest.raises(ValueError, match=f"of more than {longest - 1} characters"):
        list(text.documents(longest=longest - 1))


# Datasets, from local files


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_dataset_that_is_streamed_has_the_documents_of_one_that_is_held(tmp_path, monkeypatch, name):
    pytest.importorskip("datasets")
    path = write(tmp_path, name)
    monkeypatch.setattr(large, "LARGE_BYTES", 10)
    found = find_large_text(f"hf:{path}")
    assert isinstance(found, HubText)
    told: list[int] = []
    assert list(found.documents(told.append)) == load_corpus(f"hf:{path}").documents == DOCUMENTS
    assert sum(told) == sum(len(document.encode()) for document in DOCUMENTS)
    before = found.identity
    path.write_bytes(path.read_bytes())
    assert HubText(f"hf:{path}").identity != before


@pytest.mark.parametrize(
    ("column", "part"), [("body", "has no column 'body'; it has text"), ("n", "got int at position 0")]
)
def test_a_streamed_dataset_without_text_in_its_column_is_refused(tmp_path, column, part):
    pytest.importorskip("datasets")
    path = write(tmp_path, "a.parquet")
    with pytest.raises(ValueError, match=part) as caught:
        list(HubText(f"hf:{path}:train:{column}").documents())
    assert "\n" not in str(caught.value)


class Counted:
    """What a dataset on the hub says of itself before it is loaded."""

    def __init__(self, num_bytes: int | None) -> None:
        split = type("Split", (), {"num_bytes": num_bytes})
        self.info = type("Info", (), {"splits": {"train": split} if num_bytes is not None else None})


@pytest.mark.parametrize(("num_bytes", "is_large"), [(101, True), (100, False), (None, True)])
def test_a_dataset_of_unknown_size_is_read_up_to_the_limit(monkeypatch, num_bytes, is_large):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(large, "LARGE_BYTES", 100)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda *arguments, **options: Counted(num_bytes))
    rows = ({"text": "x" * 30} for _ in range(10))
    monkeypatch.setattr(datasets, "load_dataset", lambda *arguments, **options: rows)
    assert (find_large_text("hf:org/wiki") is not None) == is_large
    assert len(list(rows)) == (6 if num_bytes is None else 10)
