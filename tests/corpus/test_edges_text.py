"""Claims about text that nobody expects: it is read as what it is, or refused in one line, and nothing hangs."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lm.corpus import load_corpus
from course_lm.tokenizer import encode_documents, train_tokenizer

SURROGATE = "\ud800"


def refusal(source) -> str:
    """The one line with which a source is refused."""
    with pytest.raises((ValueError, OSError)) as caught:
        load_corpus(source)
    message = str(caught.value)
    assert "\n" not in message, message
    return message


def write(folder: Path, name: str, content: bytes) -> str:
    path = folder / name
    path.write_bytes(content)
    return str(path)


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["a", " b", "\n", "\n\n", "é"]), min_size=1).map("".join).filter(str.strip))
def test_every_kind_of_line_end_gives_the_same_documents(tmp_path_factory, text):
    folder = tmp_path_factory.getbasetemp()
    ends = (b"\n", b"\r\n", b"\r")
    read = [load_corpus(write(folder, "ends.txt", text.encode().replace(b"\n", end))).documents for end in ends]
    assert read[0] == read[1] == read[2]


def test_a_classic_mac_file_of_two_paragraphs_holds_two_documents(tmp_path):
    assert load_corpus(write(tmp_path, "mac.txt", b"one\rtwo\r\rthree\r")).documents == ["one\ntwo", "three"]


LINES = [f"line {number} of a list" for number in range(12)]
SENTENCE = "A sentence of some words ends here. "


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", " \n", "\t\n", "\n\t"])
@pytest.mark.parametrize(("before", "after"), [("", ""), ("\ufeff", "\n"), ("\n \n", "\n\n \n"), ("\ufeff\t", "\t")])
def test_a_file_of_many_lines_and_no_blank_one_has_a_document_in_each(tmp_path, end, before, after):
    path = write(tmp_path, "list.txt", (before + end.join(LINES) + after).encode())
    corpus = load_corpus(path)
    assert (corpus.documents, corpus.division) == (LINES, "lines")


@pytest.mark.parametrize("blank", ["\n", "  \n", "\t\n", "\r\n", "\v\n"])
def test_one_blank_line_between_others_divides_a_file_as_ever(tmp_path, blank):
    text = "\n".join(LINES[:11]) + "\n" + blank + LINES[11] + "\n"
    corpus = load_corpus(write(tmp_path, "list.txt", text.encode()))
    assert (corpus.documents, corpus.division) == (["\n".join(LINES[:11]), LINES[11]], None)


@pytest.mark.parametrize("text", ["one line", "one line\n", "\ufeff one line \r\n\r\n", "one\nline\nor three"])
def test_a_file_of_a_few_short_lines_is_one_document(tmp_path, text):
    documents = load_corpus(write(tmp_path, "short.txt", text.encode())).documents
    assert documents == [text.removeprefix("\ufeff").strip()]


def test_one_long_line_is_cut_where_sentences_end(tmp_path):
    text = "".join(f"Sentence {number} ends here. " for number in range(2000))
    corpus = load_corpus(write(tmp_path, "long.txt", text.encode()))
    assert corpus.division == "length" and " ".join(corpus.documents) == text.strip()
    assert all(document.endswith("here.") and 3900 < len(document) <= 4000 for document in corpus.documents[:-1])


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
    documents = load_corpus(write(tmp_path, "long.txt", text.encode())).documents
    assert len(documents) > 3 and max(map(len, documents)) <= 4000
    assert all(document.endswith(ending) for document in documents)


def test_lines_are_documents_where_they_are_of_modest_length_and_not_where_they_are_chapters(tmp_path):
    modest, long = ("\n".join(f"{number} " + "word " * words for number in range(40)) for words in (350, 900))
    assert load_corpus(write(tmp_path, "modest.txt", modest.encode())).division == "lines"
    corpus = load_corpus(write(tmp_path, "long.txt", long.encode()))
    assert corpus.division == "length" and max(map(len, corpus.documents)) <= 4000


def test_each_of_several_files_is_a_document_where_no_blank_line_divides_it(tmp_path):
    texts = ["\n".join(LINES), "\n".join(LINES[::-1]), (SENTENCE * 300).strip()]
    for number, text in enumerate(texts):
        write(tmp_path, f"{number}.txt", text.encode())
    corpus = load_corpus(str(tmp_path / "*.txt"))
    assert (corpus.documents, corpus.division) == (texts, None)


def test_a_packed_file_is_cut_as_it_is_unpacked(tmp_path):
    corpus = load_corpus(write(tmp_path, "list.txt.gz", gzip.compress("\n".join(LINES).encode())))
    assert (corpus.documents, corpus.division) == (LINES, "lines")


def test_the_parts_of_a_text_know_how_it_was_cut(tmp_path):
    path = write(tmp_path, "list.txt", "\n".join(LINES).encode())
    assert load_corpus(path, split="train", val_fraction=0.5).division == "lines"


def test_other_unicode_line_ends_stay_inside_a_document(tmp_path):
    text = "a\x85\x85b\u2028\u2028c"
    assert load_corpus(write(tmp_path, "lines.txt", text.encode())).documents == [text]


def test_jsonl_is_known_by_its_name_in_capitals_too(tmp_path):
    assert load_corpus(write(tmp_path, "A.JSONL", b'{"text": "x"}\n')).documents == ["x"]


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("a.jsonl.gz", b"\x1f\x8b\x08\0\0", "is compressed and damaged"),
        ("a.jsonl.bz2", b"BZh91AY", "compressed by bzip2; unpack it first"),
        ("a.zip", b"PK\x03\x04\0", "a zip archive"),
        ("a.parquet", b"PAR1\0", "is no Parquet file"),
        ("a.txt", "héllo".encode("utf-16"), "UTF-16 text; convert it to UTF-8"),
        ("a.txt", "héllo".encode("utf-32"), "UTF-32 text; convert it to UTF-8"),
        ("a.txt", "hello".encode("utf-16-le"), "byte 0x00 at offset 1"),
        ("a.txt", b"a\0b", "byte 0x00 at offset 1"),
        ("a.txt", b"good\n\ncaf\xe9", "byte 0xe9 at offset 9"),
        ("a.txt", b"", "holds no document"),
        ("a.txt", b" \n\t\r\n", "holds no document"),
        ("a.txt", b"\xef\xbb\xbf", "holds no document"),
    ],
)
def test_what_is_no_utf8_text_is_refused_by_file_and_place(tmp_path, name, content, part):
    path = write(tmp_path, name, content)
    message = refusal(path)
    assert path in message and part in message, message


@pytest.mark.parametrize(
    ("row", "part"),
    [
        (b'{"text": ' + b"[" * 100_000 + b"}", "nested too deep"),
        (b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
        (b'{"text": "a\\ud800"}', "lone surrogate U+D800 at character 1"),
        (b'{"text": "a", "neg_log_p": NaN}', '"neg_log_p" must be a number'),
        (b'{"text": "a", "neg_log_p": 1e999}', '"neg_log_p" must be a number'),
        (b'{"text": "a", "neg_log_p": -0.5}', '"neg_log_p" must be a number'),
        (b'{"text": "a", "neg_log_p": 1' + b"0" * 400 + b"}", '"neg_log_p" must be a number'),
        (b'{"text": "a", "neg_log_p": 1' + b"0" * 5000 + b"}", "is not JSON"),
        (b'{"text": null}', '"text"'),
        (b"null", '"text"'),
    ],
)
def test_a_bad_row_is_refused_by_file_and_line(tmp_path, row, part):
    path = write(tmp_path, "rows.jsonl", b'{"text": "fine"}\n' + row + b"\n")
    message = refusal(path)
    assert f"{path}, line 2" in message and part in message, message
    assert len(message) < len(path) + 300


@pytest.mark.parametrize("name", ["pipe.txt", "pi*.txt"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / "pipe.txt")
    assert "pipe.txt is no regular file" in refusal(str(tmp_path / name))


@pytest.mark.parametrize("source", ["/dev/zero", "hf:/dev/zero"])
def test_a_device_without_an_end_is_refused(source):
    assert "/dev/zero is no regular file" in refusal(source)


@pytest.mark.parametrize("name", ["link.txt", "li*.txt"])
def test_a_link_to_nothing_is_refused_by_its_target(tmp_path, name):
    (tmp_path / "link.txt").symlink_to("gone.txt")
    assert "link.txt is a link to gone.txt, which is not there" in refusal(str(tmp_path / name))


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = write(tmp_path, "secret.txt", b"text")

    def deny(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", deny)
    assert "Permission denied" in (message := refusal(path)) and path in message


@pytest.mark.parametrize("source", ["", "x\0y", "*\0", "a/" * 3000, "[a", "."])
def test_a_path_that_makes_no_sense_is_refused_in_one_line(source):
    refusal(source)


@pytest.mark.parametrize("source", [5, None, b"text", {"a": 1}, {"a", "b"}, iter("ab"), 3.5])
def test_what_is_no_list_is_refused_by_its_type(source):
    assert f"got {type(source).__name__}" in refusal(source)


@pytest.mark.parametrize(
    ("documents", "part"), [(["a", 1], "int at position 1"), (["a", "b" + SURROGATE], "position 1")]
)
def test_a_document_that_is_no_text_is_refused_by_its_position(documents, part):
    assert part in refusal(documents)


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("null.jsonl", b'{"text": "a"}\n{"text": null}\n', "NoneType at position 1"),
        ("nested.jsonl", b'{"text": {"en": "a"}}\n', "dict at position 0"),
        ("list.jsonl", b'{"text": ["a"]}\n', "list at position 0"),
        ("columns.csv", b"a,b\n1,2\n", "it has a, b"),
        ("empty.jsonl", b"", "cannot be loaded"),
        ("latin.txt", b"caf\xe9", "can't decode byte 0xe9"),
        ("surrogate.jsonl", b'{"text": "a\\ud800"}\n', "cannot be loaded"),
    ],
)
def test_a_dataset_without_text_in_its_column_is_refused_in_one_line(tmp_path, name, content, part):
    pytest.importorskip("datasets")
    message = refusal(f"hf:{write(tmp_path, name, content)}")
    assert name in message and part in message, message


def test_a_dataset_with_a_loading_script_is_refused_and_not_run(tmp_path):
    pytest.importorskip("datasets")
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "cannot be loaded" in refusal(f"hf:{folder}")
    assert not (tmp_path / "ran").exists()


def test_a_corpus_that_leaves_nothing_to_validate_on_is_refused():
    with pytest.raises(ValueError, match="validation split of the list is empty"):
        load_corpus(["one", "two"], split="validation", val_fraction=1e-9)


@pytest.mark.parametrize("vocab_size", [257, 10**6 + 1, 10**12, True, 300.0, "300"])
def test_a_vocabulary_that_no_trainer_can_hold_is_refused(vocab_size):
    with pytest.raises(ValueError, match="vocab_size must be"):
        train_tokenizer(["some text"], vocab_size)


@pytest.mark.parametrize("texts", ["some text", [1], [None], 5, ["a" + SURROGATE], [b"text"]])
def test_a_tokenizer_is_trained_on_strings_alone(texts):
    with pytest.raises(ValueError, match="texts must be") as caught:
        train_tokenizer(texts, 258)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("documents", ["some text", 5, None, {"a"}])
def test_what_is_no_list_of_documents_is_not_encoded(documents):
    tokenizer = train_tokenizer(["some text"], 258)
    with pytest.raises(ValueError, match=f"must be a list of strings, got {type(documents).__name__}"):
        encode_documents(tokenizer, documents)


words = st.text(st.characters(codec="utf-8"), max_size=30)


@settings(max_examples=100)
@given(st.one_of(st.binary(max_size=60), words.map(str.encode)), st.sampled_from(["fuzz.txt", "fuzz.jsonl"]))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, content, name):
    path = write(tmp_path_factory.getbasetemp(), name, content)
    try:
        documents = load_corpus(path).documents
    except ValueError as error:
        assert path in str(error) and "\n" not in str(error)
    else:
        assert documents and all(document.strip() for document in documents)


@settings(max_examples=100)
@given(st.lists(words.filter(str.strip), min_size=1, max_size=5, unique=True))
def test_any_text_comes_back_from_json_lines_unchanged(tmp_path_factory, documents):
    rows = "".join(json.dumps({"text": document}) + "\n" for document in documents)
    path = write(tmp_path_factory.getbasetemp(), "any.jsonl", rows.encode())
    assert load_corpus(path).documents == documents
