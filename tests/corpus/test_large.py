"""Claims about text that may be too large to be held: what counts as large, and datasets, held or streamed."""

import json
import re
import sys
from pathlib import Path

import pytest

from course_lm.corpus import large, load_corpus
from course_lm.corpus.hub import HubText
from course_lm.corpus.large import FilesText, find_large_text
from tests.corpus.test_corpus import refusal
from tests.corpus.test_files import DOCUMENTS, write, write_documents


def test_a_text_is_large_by_the_size_of_all_its_files(tmp_path, monkeypatch):
    paths = [write_documents(tmp_path, name) for name in ("a.txt", "b.txt")]
    size = sum(path.stat().st_size for path in paths)
    monkeypatch.setattr(large, "LARGE_BYTES", size)
    assert find_large_text(str(tmp_path / "*.txt")) is None
    monkeypatch.setattr(large, "LARGE_BYTES", size - 1)
    text = find_large_text(str(tmp_path / "*.txt"))
    assert text == FilesText(str(tmp_path / "*.txt"), tuple(paths))
    assert text is not None and list(text.documents()) == DOCUMENTS + DOCUMENTS
    assert find_large_text(str(paths[0])) is None


def test_a_compressed_file_counts_several_times(tmp_path, monkeypatch):
    (tmp_path / "a.txt.gz").write_bytes(b"\x1f\x8b" + b"x" * 98)
    monkeypatch.setattr(large, "LARGE_BYTES", 200)
    assert find_large_text(str(tmp_path / "a.txt.gz")) is not None


@pytest.mark.parametrize("name", ["stories", "hindi", "python-docs"])
def test_a_corpus_with_a_name_is_never_large(monkeypatch, name):
    monkeypatch.setattr(large, "LARGE_BYTES", 0)
    assert find_large_text(name) is None


@pytest.mark.parametrize(("source", "error"), [("nowhere/a.txt", OSError), ("storys", ValueError), ("hf:", ValueError)])
def test_what_is_not_there_is_refused_as_when_it_is_held(source, error):
    with pytest.raises(error, match=re.escape(refusal(source))):
        find_large_text(source)


# Datasets, from local files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = pytest.importorskip("datasets").config
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "dataset"
    folder.mkdir()
    for split in ("train", "validation"):
        rows = [{"text": f"{split} one", "title": "I"}, {"text": f"{split} two", "title": "II"}, {"text": " "}]
        write(folder, f"{split}.jsonl", "\n".join(json.dumps({"title": "III"} | row) for row in rows).encode())
    return folder


def test_a_dataset_is_read_by_split_and_by_column(folder):
    assert load_corpus(f"hf:{folder}:validation").documents == ["validation one", "validation two"]
    assert load_corpus(f"hf:{folder / 'train.jsonl'}:train:title").documents == ["I", "II", "III"]


def test_a_second_slash_names_the_configuration(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def load(name: str, configuration: str, *, split: str, **others: object) -> object:
        return datasets.Dataset.from_dict({"text": [f"{name} {configuration} {split}"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert load_corpus("hf:org/wiki/small:test").documents == ["org/wiki small test"]


def test_a_dataset_that_is_streamed_has_the_documents_of_one_that_is_held(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    path = write_documents(tmp_path, "a.jsonl")
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
    ("name", "content", "part"),
    [
        ("null.jsonl", '{"text": "a"}\n{"text": null}\n', "NoneType at position 1"),
        ("nested.jsonl", '{"text": {"en": "a"}}\n', "dict at position 0"),
        ("columns.csv", "a,b\n1,2\n", "has no column 'text'; it has a, b"),
        ("empty.jsonl", "", "cannot be loaded"),
        ("surrogate.jsonl", '{"text": "a\\ud800"}\n', "cannot be loaded"),
    ],
)
def test_a_dataset_without_text_in_its_column_is_refused_in_one_line_held_or_streamed(tmp_path, name, content, part):
    pytest.importorskip("datasets")
    address = f"hf:{write(tmp_path, name, content.encode())}"
    for read in (load_corpus, lambda address: list(HubText(address).documents())):
        with pytest.raises(ValueError, match=re.escape(part)) as caught:
            read(address)
        assert name in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("end", [":test", "/nowhere"])
def test_a_dataset_that_is_not_there_is_refused_in_one_line(folder, end):
    assert f"hf:{folder}{end} cannot be loaded" in refusal(f"hf:{folder}{end}")


def test_a_dataset_with_a_loading_script_is_refused_and_not_run(tmp_path):
    pytest.importorskip("datasets")
    (tmp_path / "scripted").mkdir()
    (tmp_path / "scripted" / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "cannot be loaded" in refusal(f"hf:{tmp_path / 'scripted'}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("address", ["hf:", "hf::train", "hf:a:b:c:d"])
def test_a_malformed_dataset_address_is_refused(address):
    assert "is not of the form hf:<dataset>" in refusal(address)


def test_without_datasets_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'course-lm[hub]'" in refusal("hf:org/wiki")


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
    rows = iter([{"text": "x" * 30}] * 10)
    monkeypatch.setattr(datasets, "load_dataset", lambda *arguments, **options: rows)
    assert (find_large_text("hf:org/wiki") is not None) == is_large
    assert len(list(rows)) == (6 if num_bytes is None else 10)
