"""Claims about files: each is read as what it is, a part at a time as at once, or refused in one line."""

import csv
import gzip
import io
import json
import re
import sys
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from course_lm.corpus import Corpus, files, load_corpus
from course_lm.corpus.files import find_division, stream_documents
from course_lm.corpus.large import FilesText
from course_lm.corpus.load import read_corpus
from tests.corpus.test_corpus import refusal as refusal_of

DOCUMENTS = [f"document {number} ü" for number in range(50)]
ROWS = "".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS).encode()


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def write_documents(folder: Path, name: str) -> Path:
    """`DOCUMENTS` in a file of the kind that its name says."""
    kind = name.lower().partition(".")[2]
    content = "\n\n".join(DOCUMENTS).encode() if kind.startswith("txt") else ROWS
    if kind[1:].startswith("sv"):
        content = table([[str(place), document] for place, document in enumerate(DOCUMENTS)], kind[0] == "t")
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.table({"text": DOCUMENTS, "n": [*range(50)]}), folder / name
        )
        return folder / name
    if kind.endswith("zst"):
        content = pytest.importorskip("pyarrow").compress(content, codec="zstd", asbytes=True)
    return write(folder, name, gzip.compress(content, mtime=0) if kind.endswith("gz") else content)


def table(rows: list[list[str]], tabs: bool = False, names: tuple[str, ...] = ("n", "text")) -> bytes:
    """A table of comma or tab separated values, the names of its columns first."""
    written = io.StringIO()
    csv.writer(written, delimiter="\t" if tabs else ",").writerows([names, *rows])
    return written.getvalue().encode()


def refusal(path: Path) -> str:
    """The one line, with the file's name, with which it is refused."""
    message = refusal_of(path)
    assert str(path) in message
    return message


# Paragraphs and rows


def whole_paragraphs(content: bytes) -> list[str]:
    """A file's paragraphs, read at once: the obvious way."""
    text = content.decode().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return [paragraph.strip() for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def outcome(path: Path, chunk: int = files.CHUNK) -> list[str] | str:
    """The documents of a file that is read so many bytes at a time, or its refusal, which names it in one line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK", chunk)
        try:
            return [text for text, _ in stream_documents(path)]
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            return str(error)


pieces = st.sampled_from(["a", "é", "語", " ", "\n", "\r\n", "\r", "\n\n", "\t", "\x85", "\u2028", "\ufeff", "\v"])
texts = st.lists(pieces, max_size=40).map(lambda parts: "".join(parts).encode())


@settings(max_examples=100)
# A part is at least as long as the bytes by which the other formats are known, of which xz has the most.
@given(st.one_of(st.binary(max_size=40), texts), st.integers(5, 9), st.sampled_from(["a.txt", "a.jsonl"]))
@example(b"caf\xe9 au lait", 5, "a.txt")
@example(b"abcd\xe8\xaa", 5, "a.txt")
@example(b"\xe8\xaa\x9e\xe8\xaa\x9ea\xe8z", 5, "a.txt")
@example(b"\xfd7zXZ", 5, "a.txt")
@example(b'{"text": "\xe8\xaa\x9e"}\n{"text": 1}', 9, "a.jsonl")
def test_any_bytes_read_in_parts_give_what_they_give_at_once(tmp_path_factory, content, chunk, name):
    path = write(tmp_path_factory.getbasetemp(), name, content)
    at_once, found = outcome(path), outcome(path, chunk)
    # Of two faults the one that is read first is named.
    if isinstance(found, list) or b"\0" not in content:
        faults = sum(isinstance(one, str) for one in (found, at_once))
        assert found == at_once or (faults == 2 and name == "a.jsonl")
    else:
        assert isinstance(at_once, str)


@settings(max_examples=100)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30).filter(str.strip), min_size=1, unique=True))
def test_any_text_comes_back_from_json_lines_unchanged(tmp_path_factory, documents):
    rows = "".join(json.dumps({"text": document}) + "\n" for document in documents)
    assert load_corpus(write(tmp_path_factory.getbasetemp(), "any.jsonl", rows.encode())).documents == documents


fields = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=20)


@settings(max_examples=100)
@given(st.lists(st.tuples(fields, fields.filter(str.strip)), min_size=1, max_size=8), st.integers(4, 9), st.booleans())
@example([("", '"'), ("a\n\n", "b,\tc\n")], 4, False)
@example([("a", "b"), (" ", " \t \nx ")], 5, True)
def test_any_text_comes_back_from_a_table_unchanged(tmp_path_factory, rows, chunk, tabs):
    content = table([list(row) for row in rows], tabs)
    path = write(tmp_path_factory.getbasetemp(), f"any.{'t' if tabs else 'c'}sv", content)
    assert outcome(path, chunk) == outcome(path) == [text for _, text in rows]


def test_a_table_may_end_with_an_empty_field_and_have_long_ones(tmp_path):
    text = "x" * 2**18
    assert load_corpus(write(tmp_path, "a.tsv", f"text\tlabel\n{text}\t\none\t".encode())).documents == [text, "one"]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"id,body\n1,one\n", "has no column 'text'; line 1 names id, body: give one of them that name"),
        (b"text,text\none,two\n", "has more than one column 'text'"),
        (b"id;text\n1;one\n", "has no column 'text'; line 1 names id;text"),
        (b"the cat sat\non a mat\n", "has no column 'text'; line 1 names the cat sat"),
        (b"id,text\n1,one, two\n", "line 2 ends no row of a table: it has 3 columns, line 1 has 2"),
        (b'id,text\n1,"one\ntwo"\n3\n', "line 4 ends no row of a table: it has 1 columns, line 1 has 2"),
        (b'id,text\n1,"one\n2,two\n', "line 4 ends no row of a table: unexpected end of data"),
        (b'id,text\n1,"one" or two\n', "line 2 ends no row of a table"),
        (b"id,text\n1,\n2, \n", "is empty: it holds no document"),
        (b"text\n", "is empty: it holds no document"),
        (b"\n \n", "has no column 'text'"),
        (b"", "is empty: it holds no document"),
    ],
)
def test_a_table_whose_text_is_not_certain_is_refused(tmp_path, content, part):
    for path in (write(tmp_path, "a.csv", content), write(tmp_path, "a.csv.gz", gzip.compress(content, mtime=0))):
        assert part in refusal(path)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.ndjson.gz", "rows.json"])
def test_rows_without_a_text_are_refused_by_the_keys_that_they_have_and_read_by_the_address_that_it_names(
    tmp_path, name, monkeypatch
):
    rows = b"".join(json.dumps({"id": 1, "body": document}).encode() + b"\n" for document in DOCUMENTS)
    path = write(tmp_path, name, gzip.compress(rows, mtime=0) if name.endswith("gz") else rows)
    address = f"hf:{path}:train:<key>"
    assert f"line 1 has no key 'text'; it has id, body; read one of them as {address}" in refusal(path)
    monkeypatch.setattr(pytest.importorskip("datasets").config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    assert load_corpus(address.replace("<key>", "body")).documents == DOCUMENTS


def test_an_error_of_the_system_in_the_middle_of_a_file_names_the_file(tmp_path, monkeypatch):
    path = write_documents(tmp_path, "a.txt")

    def fail(*arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "_refuse_bytes", fail)  # as a broken disk does
    with pytest.raises(OSError, match=re.escape(f"{path} cannot be read: Input/output error")):
        load_corpus(path)


def test_a_jsonl_file_gives_texts_and_their_neg_log_p(tmp_path):
    rows = '{"text": "a\\n\\nb", "neg_log_p": 1.5}\n\n{"text": "c\u2028d", "neg_log_p": 2}\n'
    path = write(tmp_path, "some.jsonl", rows.encode())
    assert load_corpus(path) == Corpus(str(path), ["a\n\nb", "c\u2028d"], [1.5, 2])


@pytest.mark.parametrize("name", ["long.txt", "long.jsonl"])
def test_a_document_may_be_as_long_as_is_allowed(tmp_path, name):
    path = write_documents(tmp_path, name)
    path.write_bytes(path.read_bytes().strip())
    longest = max(map(len, path.read_text(encoding="utf-8").splitlines()))
    text = FilesText(name, (path,))
    assert list(text.documents(longest=longest)) == DOCUMENTS
    with pytest.raises(ValueError, match=f"of more than {longest - 1} characters"):
        list(text.documents(longest=longest - 1))


def test_a_file_is_not_held_whole(tmp_path):
    """Documents come before the end of the file has been read."""
    path = write(tmp_path, "long.txt", b"one\n\ntwo\n\n" + b"x" * 3 * files.CHUNK + b"\xff")
    read: list[int] = []
    found = stream_documents(path, read.append)
    assert [next(found)[0] for _ in range(2)] == ["one", "two"]
    assert sum(read) == files.CHUNK
    with pytest.raises(ValueError, match="byte 0xff"):
        next(found)


# A text that no blank line divides

LINES = [f"line {number} of a list" for number in range(12)]
SENTENCE = "A sentence of some words ends here. "


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", " \n", "\t\n", "\n\t"])
@pytest.mark.parametrize(("before", "after"), [("", ""), ("\ufeff", "\n"), ("\n \n", "\n\n \n"), ("\ufeff\t", "\t")])
def test_a_file_of_many_lines_and_no_blank_one_has_a_document_in_each(tmp_path, end, before, after):
    text = before + end.join(LINES) + after
    for path in (
        write(tmp_path, "list.txt", text.encode()),
        write(tmp_path, "list.gz", gzip.compress(text.encode(), mtime=0)),
    ):
        corpus = load_corpus(path)
        assert (corpus.documents, corpus.division, corpus.split(0.5)[0].division) == (LINES, "lines", "lines")


@pytest.mark.parametrize("text", ["one line", "one line\n", "\ufeff one line \r\n\r\n", "one\nline\nor three"])
def test_a_file_of_a_few_short_lines_is_one_document(tmp_path, text):
    documents = load_corpus(write(tmp_path, "short.txt", text.encode())).documents
    assert documents == [text.removeprefix("\ufeff").strip()]


@pytest.mark.parametrize(
    ("unit", "ending"),
    [
        ("पहला वाक्य यहाँ समाप्त होता है। ", "।"),
        ("这是一个句子。", "。"),
        ('"So it is," said the cat, "is it not?" ', '?"'),
        ("word ", "word"),
        ("x", ""),
        (SENTENCE * 70 + "\n", "here."),
    ],
)
def test_a_long_text_of_any_script_is_cut_at_a_natural_place(tmp_path, unit, ending):
    text = "".join(f"{number}{unit}" for number in range(30_000 // len(unit)))
    corpus = load_corpus(write(tmp_path, "long.txt", text.encode()))
    assert corpus.division == "length" and len(corpus.documents) > 3 and max(map(len, corpus.documents)) <= 4000
    assert all(document.endswith(ending) for document in corpus.documents)


def test_lines_are_documents_where_they_are_of_modest_length_and_not_where_they_are_chapters(tmp_path):
    modest, long = ("\n".join(f"{number} " + "word " * words for number in range(40)) for words in (350, 900))
    assert load_corpus(write(tmp_path, "modest.txt", modest.encode())).division == "lines"
    assert load_corpus(write(tmp_path, "long.txt", long.encode())).division == "length"


def test_each_of_several_files_is_a_document_where_no_blank_line_divides_it(tmp_path):
    texts = ["\n".join(LINES), "\n".join(LINES[::-1]), (SENTENCE * 300).strip()]
    for number, text in enumerate(texts):
        write(tmp_path, f"{number}.txt", text.encode())
    corpus = load_corpus(str(tmp_path / "*.txt"))
    assert (corpus.documents, corpus.division) == (texts, None)


undivided = st.lists(st.sampled_from(["a", "bb. ", "é", "語。", " ", "\n", "\r\n", "\r", "\t", "?\n"]), max_size=60)


@settings(max_examples=200)
@given(st.one_of(undivided.map(lambda parts: "".join(parts).encode()), texts), st.integers(4, 9))
@example(b"\xef\xbb\xbf\xef\xbb\xbfa\r", 4)
@example(b"aaa\r\n\r\nb", 4)
@example(b"aa\n  \n  \nb", 4)
@example(b"a\nb\nc\n \n", 4)
@example(b"\n\n  a b c d e f g h", 4)
@example(b"aaaaaa      \nb", 4)
def test_a_text_that_is_streamed_is_cut_as_one_that_is_held_and_loses_no_character(tmp_path_factory, content, chunk):
    path = write(tmp_path_factory.getbasetemp(), "cut.txt", content)
    paragraphs = whole_paragraphs(content)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"LOOK": 30, "MANY_LINES": 3, "MODEST_LINE": 5, "PIECE": 8}.items():
            patch.setattr(files, name, value)
        if not paragraphs:
            assert "is empty" in refusal(path)
            return
        held = read_corpus(path).documents
        patch.setattr(files, "CHUNK", chunk)
        assert list(FilesText("text", (path,)).documents()) == held
    if len(paragraphs) > 1:
        assert held == paragraphs
    assert "".join("".join(held).split()) == "".join("".join(paragraphs).split())


def test_a_text_without_a_blank_line_is_not_held_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "CHUNK", 2**12)
    for content in ("a word or two\n" * 2**17, "a word or two. " * 2**17):
        path = write(tmp_path, "long.txt", content.encode())
        tracemalloc.start()
        division, first = find_division([path]), 0
        for document, _ in stream_documents(path, division=division):
            first = first or len(document)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert first <= files.PIECE and peak < len(content) / 4, division


# Compressed files and Parquet

KINDS = ["a.txt.gz", "a.txt.zst", "a.jsonl.gz", "a.jsonl.zst", "A.JSONL.GZ", "a.csv.gz", "a.tsv.zst", "a.parquet"]


@pytest.mark.parametrize("name", [*KINDS, "a.txt", "a.jsonl", "a.ndjson", "a.json", "a.csv", "A.TSV"])
def test_every_kind_gives_its_documents_and_tells_all_its_bytes(tmp_path, name):
    path = write_documents(tmp_path, name)
    told: list[int] = []
    assert [text for text, _ in stream_documents(path, told.append)] == load_corpus(path).documents == DOCUMENTS
    assert sum(told) == path.stat().st_size


def test_a_compressed_file_is_known_by_what_it_begins_with(tmp_path):
    assert load_corpus(write(tmp_path, "b.jsonl", gzip.compress(ROWS, mtime=0))).documents == DOCUMENTS
    assert load_corpus(write(tmp_path, "c.jsonl.gz", ROWS)).documents == DOCUMENTS


def test_a_compressed_file_of_several_parts_is_read_to_its_end(tmp_path):
    """Two compressed files, one after the other, are one: that is how logs and shards are joined."""
    content = gzip.compress(ROWS[:500]) + gzip.compress(ROWS[500:])
    assert load_corpus(write(tmp_path, "a.jsonl.gz", content)).documents == DOCUMENTS


skipped = st.builds(
    lambda kind, content: (0x184D2A50 + kind).to_bytes(4, "little") + len(content).to_bytes(4, "little") + content,
    st.integers(0, 15),
    st.binary(max_size=20),
)


@settings(max_examples=30)
@given(st.lists(st.one_of(st.just(b""), skipped), min_size=3, max_size=3))
def test_frames_of_zstd_that_hold_no_text_are_skipped_wherever_they_stand(tmp_path_factory, frames):
    compress = pytest.importorskip("pyarrow").compress
    halves = [compress(half, codec="zstd", asbytes=True) for half in (ROWS[:500], ROWS[500:])]
    content = frames[0] + halves[0] + frames[1] + halves[1] + frames[2]
    assert load_corpus(write(tmp_path_factory.getbasetemp(), "a.jsonl.zst", content)).documents == DOCUMENTS


@pytest.mark.parametrize("name", KINDS)
def test_a_compressed_file_that_was_cut_short_or_changed_inside_is_refused(tmp_path, name):
    path = write_documents(tmp_path, name)
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    assert ("no Parquet file" if name.endswith("parquet") else "damaged") in refusal(path)
    path.write_bytes(content[:12] + b"\x5a" * 28 + content[40:])
    refusal(path)


def test_without_pyarrow_the_message_names_the_extra_and_gzip_is_read(tmp_path, monkeypatch):
    paths = [write_documents(tmp_path, name) for name in ("a.jsonl.zst", "a.parquet", "a.jsonl.gz")]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert all("pip install 'course-lm[hub]'" in refusal(path) for path in paths[:2])
    assert load_corpus(paths[2]).documents == DOCUMENTS


# What is refused


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.jsonl.gz", b"\x1f\x8b\x08\0\0", "is compressed and damaged"),
        ("a.txt.gz", gzip.compress(gzip.compress(b"text", mtime=0), mtime=0), "compressed by gzip; unpack it first"),
        ("a.jsonl.bz2", b"BZh91AY", "compressed by bzip2; unpack it first"),
        ("a.zip", b"PK\x03\x04\0", "a zip archive"),
        ("a.parquet", b"PAR1\0", "is no Parquet file"),
        ("a.txt", "héllo".encode("utf-16"), "UTF-16 text; convert it to UTF-8"),
        ("a.txt", "héllo".encode("utf-32"), "UTF-32 text; convert it to UTF-8"),
        ("a.txt", "hello".encode("utf-16-le"), "byte 0x00 at offset 1"),
        ("a.txt", b"good\n\ncaf\xe9", "is not UTF-8: byte 0xe9 at offset 9"),
        ("a.txt", b"", "is empty: it holds no document"),
        ("a.jsonl", b" \n\t\r\n", "is empty: it holds no document"),
        ("a.txt", b"\xef\xbb\xbf", "is empty: it holds no document"),
    ],
)
def test_what_is_no_utf8_text_is_refused_by_file_and_place(tmp_path, name, content, part):
    assert part in refusal(write(tmp_path, name, content))


@pytest.mark.parametrize(
    ("row", "part"),
    [
        (b"not json", "is not JSON"),
        (b'{"text": ' + b"[" * 100_000 + b"}", "is not JSON"),
        (b'{"text": "a\\ud800"}', "lone surrogate U+D800 at character 1"),
        (b'{"text": "a", "neg_log_p": NaN}', '"neg_log_p" must be a number'),
        (b'{"text": "a", "neg_log_p": 1e999}', '"neg_log_p" must be a number'),
        (b'{"text": "a", "neg_log_p": -0.5}', '"neg_log_p" must be a number'),
        (b'{"text": "a", "neg_log_p": "low"}', '"neg_log_p" must be a number'),
        (b'{"text": "a", "neg_log_p": 1' + b"0" * 400 + b"}", '"neg_log_p" must be a number'),
        (b'{"text": "a", "neg_log_p": 1' + b"0" * 5000 + b"}", "is not JSON"),
        (b'{"text": null}', 'must be an object with a string "text"'),
        (b'[{"text": "x"}]', 'must be an object with a string "text"'),
        (b'["x"]', 'must be an object with a string "text"'),
        (b"null", 'must be an object with a string "text"'),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(tmp_path, row, part):
    content = b'{"text": "fine"}\n' + row + b"\n"
    for path in (
        write(tmp_path, "rows.jsonl", content),
        write(tmp_path, "rows.jsonl.gz", gzip.compress(content, mtime=0)),
    ):
        message = refusal(path)
        assert f"{path}, line 2" in message and part in message and len(message) < len(str(path)) + 300


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
