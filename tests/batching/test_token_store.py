"""Claims about a large text: tokenizer, batches and weights of one that is held, and a store that is whole."""

import multiprocessing
import os
import pickle
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from course_lm.batching import MODES, Loader, make_loader, token_store
from course_lm.batching.token_store import Recipe, TokenStore, open_token_store
from course_lm.cli.preparation import PreparedRun, prepare
from course_lm.config import DataConfig, LoopConfig, TrainingConfig
from course_lm.corpus import large, load_corpus
from course_lm.corpus.large import FilesText
from course_lm.display import readable_bytes
from course_lm.model import ModelConfig
from course_lm.tokenizer import train_tokenizer
from course_lm.trainer import Trainer
from tests.refusals import refusal

WORDS = ["the", "a", "cat", "dog", "cow", "sat", "ran", "slept", "on", "under", "near", "mat", "hat", "bed", "été"]
RECIPE = Recipe(vocab_size=270, seed=3, val_fraction=0.3, test_fraction=0.1)


def write_text(folder: Path, documents: int = 80) -> str:
    """Two files of short and long paragraphs, some of them in both; the glob that finds them."""
    draw = random.Random(0)
    made = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(documents)]
    (folder / "a.txt").write_text("\n\n".join(made[: documents // 2]), encoding="utf-8")
    (folder / "b.txt").write_text("\n\n".join(made[documents // 2 - 9 :]), encoding="utf-8")
    return str(folder / "*.txt")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_text(tmp_path_factory.mktemp("text"))


def text_of(source: str) -> FilesText:
    return FilesText(source, tuple(large.matching_files(source)))


def refuse_to_read(*arguments: Any) -> Iterator[str]:
    raise AssertionError("the text was read")


@pytest.fixture(scope="module")
def store(source: str, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return open_token_store(text_of(source), RECIPE, tmp_path_factory.mktemp("cache"))


def part_of(source: str, split: str) -> list[str]:
    return load_corpus(source, split=split, seed=3, val_fraction=0.3, test_fraction=0.1).documents


def assert_same_batches(one: Loader, other: Loader) -> None:
    assert len(one) == len(other)
    for epoch in (0, 1):
        one.set_epoch(epoch)
        other.set_epoch(epoch)
        for left, right in zip(map(dict[str, Any], one), map(dict[str, Any], other), strict=True):
            assert left.keys() == right.keys()
            for key in left:
                assert torch.equal(torch.as_tensor(left[key]), torch.as_tensor(right[key])), key
                assert getattr(left[key], "dtype", int) == getattr(right[key], "dtype", int), key


# The same as of a text that is held


def test_a_small_text_gives_the_tokenizer_that_it_gives_when_it_is_held(store, source):
    assert store.tokenizer.to_str() == train_tokenizer(part_of(source, "train"), 270).to_str()


def undivided(folder: Path, division: str) -> str:
    """A file that no blank line divides: of many lines, some of them equal, or of one that is long."""
    draw = random.Random(0)
    made = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(80 if division == "lines" else 2000)]
    text = "\r\n".join(made + made[:9]) if division == "lines" else ". ".join(made)
    (folder / "text.txt").write_bytes(text.encode())
    return str(folder / "text.txt")


@pytest.fixture(scope="module", params=[None, "lines", "length"])
def divided(request, source, store, tmp_path_factory) -> tuple[str, TokenStore, str | None]:
    """A text of each kind and its store, and what divides it where blank lines do not."""
    if request.param is None:
        return source, store, request.param
    other = undivided(tmp_path_factory.mktemp("text"), request.param)
    return other, open_token_store(text_of(other), RECIPE, tmp_path_factory.mktemp("cache")), request.param


@pytest.mark.parametrize("mode", MODES)
def test_a_store_gives_the_batches_of_the_text_that_is_held(divided, mode):
    source, store, _ = divided

    def loader(documents: Any) -> Loader:
        return make_loader(documents, store.tokenizer, mode=mode, batch_size=3, max_length=16, seed=5)

    for split in ("train", "validation", "test"):
        assert_same_batches(loader(part_of(source, split)), loader(store.corpus(split).documents))


def configure(source: str, cache: Path, **parts: Any) -> TrainingConfig:
    config = TrainingConfig(
        data=DataConfig(corpus=source, vocab_size=270, max_length=16, val_fraction=0.3, cache=str(cache)),
        model=ModelConfig(n_layer=1, n_head=2, d_model=16),
        training=LoopConfig(batch_size=4, max_steps=4, precision="fp32", device="cpu", output_dir=None),
    )
    return replace(config, **parts)


def trained(source: str, cache: Path) -> tuple[PreparedRun, Trainer]:
    config = configure(source, cache)
    run = prepare(config)
    trainer = Trainer(run.model, config)
    trainer.train(run.train_loader, run.val_loader)
    return run, trainer


def test_a_run_on_a_large_text_ends_with_the_weights_of_one_on_a_text_that_is_held(source, tmp_path, monkeypatch):
    held, _ = trained(source, tmp_path)
    assert held.store is None and not list(tmp_path.iterdir())
    monkeypatch.setattr(large, "LARGE_BYTES", 100)
    stored, trainer = trained(source, tmp_path)
    assert stored.store is not None
    torch.testing.assert_close(stored.model.state_dict(), held.model.state_dict(), rtol=0, atol=0)
    assert trainer.step == 4


def test_ids_of_a_large_vocabulary_are_four_bytes_wide(store, source, monkeypatch, tmp_path):
    # No small text has merges for so many tokens, so the limit is lowered instead.
    monkeypatch.setattr(token_store, "LARGEST_IN_TWO_BYTES", 269)
    wide = open_token_store(text_of(source), RECIPE, tmp_path)
    assert (store.facts["dtype"], wide.facts["dtype"]) == ("uint16", "int32")
    loaders = [
        make_loader(one.corpus("train").documents, one.tokenizer, batch_size=3, max_length=16) for one in (store, wide)
    ]
    assert_same_batches(*loaders)


def test_a_stored_document_that_is_asked_for_is_the_text_that_it_was(store, source):
    documents = store.corpus("train").documents
    expected = part_of(source, "train")
    assert list(documents) == expected
    assert (documents[-1], documents[2:5], documents[99:]) == (expected[-1], expected[2:5], [])
    with pytest.raises(IndexError):
        documents[len(expected)]


def test_repeated_documents_are_found_where_only_half_of_a_digest_is_equal():
    draw = np.random.default_rng(0)
    digests = draw.integers(0, 3, (300, 2)).astype(np.uint64)
    seen, repeated = set(), []
    for number, digest in enumerate(map(tuple, digests.tolist())):
        repeated += [number] if digest in seen else []
        seen.add(digest)
    assert sorted(token_store._repeated(digests)) == repeated


# The sample for the tokenizer


def test_a_tokenizer_of_a_very_large_text_learns_from_a_share_that_is_named(source, tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "SAMPLE_BYTES", 1500)
    store = open_token_store(text_of(source), replace(RECIPE, vocab_size=262), tmp_path)
    sample, whole = store.facts["sample_bytes"], store.facts["train_bytes"]
    assert whole == sum(len(document.encode()) for document in part_of(source, "train"))
    assert 700 < sample < 2500 < whole
    assert f"trained on {readable_bytes(sample)} of {readable_bytes(whole)} of training text" in store.describe()


def test_the_sample_is_spread_over_the_text(tmp_path, monkeypatch):
    source = write_text(tmp_path, 800)
    monkeypatch.setattr(token_store, "SAMPLE_BYTES", 12_000)
    survey = token_store._survey(text_of(source), RECIPE)
    tenths = [int(part.sum()) for part in np.array_split(survey.sampled, 8)]
    assert min(tenths) > 0, tenths
    assert not survey.sampled[survey.splits != 0].any(), "held-out text was sampled"


# Found again, whole or not at all


def test_a_store_is_found_again_without_reading_the_text_and_knows_how_it_was_cut(divided, monkeypatch):
    source, store, division = divided
    monkeypatch.setattr(FilesText, "documents", refuse_to_read)
    monkeypatch.setattr(large, "find_division", refuse_to_read)
    again = open_token_store(text_of(source), RECIPE, store.folder.parent)
    assert (again.folder, again.facts) == (store.folder, store.facts)
    assert again.corpus("train").division == load_corpus(source).division == division


@pytest.mark.parametrize(
    "changed", [{"vocab_size": 271}, {"seed": 4}, {"val_fraction": 0.31}, {"test_fraction": 0.2}], ids=str
)
def test_another_setting_has_a_store_of_its_own(store, source, changed):
    assert replace(RECIPE, **changed).key_for(text_of(source)) != store.folder.name


def test_a_file_that_was_written_to_has_a_store_of_its_own(tmp_path):
    source = write_text(tmp_path)
    before = RECIPE.key_for(text_of(source))
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    assert RECIPE.key_for(text_of(source)) != before


def test_a_text_that_another_took_the_place_of_with_its_size_and_date_has_a_store_of_its_own(tmp_path):
    source = write_text(tmp_path)
    before, stat = RECIPE.key_for(text_of(source)), (tmp_path / "a.txt").stat()
    (tmp_path / "a.txt").write_bytes((tmp_path / "a.txt").read_bytes().replace(b"cat", b"cow"))
    os.utime(tmp_path / "a.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (tmp_path / "a.txt").stat().st_size == stat.st_size
    assert RECIPE.key_for(text_of(source)) != before


STAGES = ["_survey", "train_tokenizer", "_encode", "encode_documents", "_write"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_build_that_fails_at_any_stage_leaves_no_store(source, tmp_path, monkeypatch, stage):
    def fail(*arguments: Any) -> None:
        raise RuntimeError(stage)

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match=stage):
        patch.setattr(token_store, stage, fail)
        open_token_store(text_of(source), RECIPE, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def build_and_die(source: str, cache: Path, stage: str) -> None:
    def die(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(token_store, stage, die)
    open_token_store(text_of(source), RECIPE, cache)


def build(source: str, cache: Path, built: str) -> None:
    survey = token_store._survey

    def count(*arguments: Any) -> object:
        with Path(built).open("a") as file:
            file.write("x")
        return survey(*arguments)

    setattr(token_store, "_survey", count)  # noqa: B010
    store = open_token_store(text_of(source), RECIPE, cache)
    assert len(store.corpus("train").documents) == len(part_of(source, "train"))


def start(target: Callable[..., None], *arguments: Any) -> Any:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    return process


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
@pytest.mark.parametrize("stage", ["encode_documents", "_write"])
def test_a_build_that_was_killed_leaves_nothing_that_is_used(store, source, tmp_path, stage):
    process = start(build_and_die, source, tmp_path, stage)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [path.suffix for path in tmp_path.iterdir() if path.is_dir()] == [".tmp"]
    assert open_token_store(text_of(source), RECIPE, tmp_path).facts == store.facts
    assert {path.suffix for path in tmp_path.iterdir()} == {"", ".lock"}


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_two_processes_at_once_build_one_store(source, tmp_path):
    processes = [start(build, source, tmp_path / "cache", str(tmp_path / "built")) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "built").read_text() == "x"


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "an empty folder": lambda folder: [path.unlink() for path in folder.iterdir()],
    "a file": lambda folder: (shutil.rmtree(folder), folder.write_text("x")),
    "facts": rewrite("store.json", lambda _: b'{"splits": null, "dtype": "uint16"}'),
    "other facts": rewrite("store.json", lambda content: content.replace(b"uint16", b"int32")),
    "no tokenizer": rewrite("tokenizer.json", lambda _: b"{}"),
    "another tokenizer": rewrite("tokenizer.json", lambda _: train_tokenizer(["aa aa bb"], 259).to_str().encode()),
    "store.json gone": lambda folder: (folder / "store.json").unlink(),
    "train.ids gone": lambda folder: (folder / "train.ids").unlink(),
    "train.ids cut": rewrite("train.ids", lambda content: content[:-1]),
    "train.ids zeroed": rewrite("train.ids", lambda content: bytes(len(content))),
    "validation.lengths cut": rewrite("validation.lengths", lambda content: content[:-1]),
    "validation.lengths zeroed": rewrite("validation.lengths", lambda content: bytes(len(content))),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_store_is_built_anew_with_a_message(store, source, tmp_path, how):
    cache = tmp_path / "cache"
    shutil.copytree(store.folder, cache / store.folder.name)
    DAMAGES[how](cache / store.folder.name)
    with pytest.warns(UserWarning, match=r"is damaged \(.+\): it is built anew") as caught:
        again = open_token_store(text_of(source), RECIPE, cache)
    assert again.facts == store.facts and len(caught) == 1
    assert (again.folder / "train.ids").read_bytes() == (store.folder / "train.ids").read_bytes()


# The loader over it


def loader_of(store: TokenStore, **options: Any) -> Loader:
    settings: dict[str, Any] = {"mode": "packed", "batch_size": 3, "max_length": 16, "seed": 5, **options}
    return make_loader(store.corpus("train").documents, store.tokenizer, **settings)


@pytest.mark.parametrize("mode", MODES)
def test_positions_of_pieces_are_held_in_four_bytes(store, mode):
    rows = loader_of(store, mode=mode).rows
    parts = (rows.starts, rows.lengths, rows.documents, rows.offsets, rows.row_lengths())
    assert {part.dtype for part in parts} == {torch.int32}


def test_a_loader_over_a_store_can_be_pickled(store):
    loader = loader_of(store)
    next(iter(loader))
    assert_same_batches(pickle.loads(pickle.dumps(loader)), loader_of(store))


def test_worker_processes_make_the_same_batches(store):
    assert_same_batches(loader_of(store, num_workers=2), loader_of(store))


def test_the_fingerprint_reads_no_ids_and_changes_with_them(store, source, tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "read_at", refuse_to_read)
    other = tmp_path / "text"
    shutil.copytree(Path(source).parent, other)
    moved = open_token_store(text_of(str(other / "*.txt")), RECIPE, tmp_path / "moved")
    assert loader_of(moved).fingerprint == loader_of(store).fingerprint, "the same text elsewhere is the same data"
    changed = (other / "a.txt").read_text(encoding="utf-8").replace("cat", "cow")
    (other / "a.txt").write_text(changed, encoding="utf-8")
    edited = open_token_store(text_of(str(other / "*.txt")), RECIPE, tmp_path / "edited")
    assert loader_of(edited).fingerprint != loader_of(store).fingerprint
    assert loader_of(store, seed=6).fingerprint != loader_of(store).fingerprint


def test_a_run_goes_on_where_the_cache_is_deleted(store, tmp_path):
    folder = tmp_path / store.folder.name
    shutil.copytree(store.folder, folder)
    loader = loader_of(replace(store, folder=folder))
    batches = iter(loader)
    next(batches)
    shutil.rmtree(folder)
    assert len(list(batches)) == len(loader) - 1


def test_ids_that_were_cut_short_under_a_run_are_refused(store, tmp_path):
    folder = tmp_path / store.folder.name
    shutil.copytree(store.folder, folder)
    loader = loader_of(replace(store, folder=folder))
    (folder / "train.ids").write_bytes(b"")
    with pytest.raises(OSError, match=r"train\.ids has been cut short"):
        list(loader)


def test_another_tokenizer_is_refused(store):
    with pytest.raises(ValueError, match="encoded by another tokenizer"):
        make_loader(store.corpus("train").documents, train_tokenizer(["aa aa"], 258), batch_size=1, max_length=8)


# Refusals


def test_a_curriculum_over_a_large_text_is_refused_before_it_is_read(source, tmp_path, monkeypatch):
    monkeypatch.setattr(large, "LARGE_BYTES", 100)
    monkeypatch.setattr(FilesText, "documents", refuse_to_read)
    config = configure(source, tmp_path)
    config = replace(config, curriculum=replace(config.curriculum, enabled=True))
    said = refusal(ValueError, lambda: prepare(config))
    assert "curriculum.enabled must be false" in said and source in said


def in_place(path: Path) -> None:
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b"cat", b"cow"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "more": lambda path: path.write_bytes(path.read_bytes() + b"\n\none more"),
    "less": lambda path: path.write_bytes(path.read_bytes().rpartition(b"\n\n")[0]),
    "other words, of the old date": in_place,
}
NO_CHANGES: dict[str, Callable[[Path], object]] = {
    "date": lambda path: os.utime(path, ns=(1, 1)),
    "mode": lambda path: path.chmod(0o400),
    "another name for a while": lambda path: path.rename(path.with_suffix(".old")).rename(path),
}


@pytest.mark.parametrize("stage", ["train_tokenizer", "_encode"])
@pytest.mark.parametrize("change", [*CHANGES, *NO_CHANGES])
def test_a_text_is_refused_exactly_where_its_documents_change_while_it_is_read(tmp_path, monkeypatch, stage, change):
    source, build_on = write_text(tmp_path), getattr(token_store, stage)
    undisturbed = open_token_store(text_of(source), RECIPE, tmp_path / "undisturbed")

    def change_then_build_on(*arguments: Any) -> object:
        {**CHANGES, **NO_CHANGES}[change](tmp_path / "b.txt")
        return build_on(*arguments)

    monkeypatch.setattr(token_store, stage, change_then_build_on)
    if change in NO_CHANGES:
        assert open_token_store(text_of(source), RECIPE, tmp_path / "cache").facts == undisturbed.facts
        return
    said = refusal(ValueError, lambda: open_token_store(text_of(source), RECIPE, tmp_path / "cache"))
    assert source in said and "was changed while it was read" in said
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_an_empty_split_is_refused(source, tmp_path):
    said = refusal(ValueError, lambda: open_token_store(text_of(source), replace(RECIPE, val_fraction=1e-9), tmp_path))
    assert "the validation split of" in said and source in said


def test_a_test_split_that_no_fraction_made_is_refused(source, tmp_path):
    store = open_token_store(text_of(source), replace(RECIPE, test_fraction=0.0), tmp_path)
    with pytest.raises(ValueError, match=r"the test split of .* is empty"):
        store.corpus("test")


def test_a_document_that_has_no_end_is_refused_before_it_is_held(tmp_path, monkeypatch):
    source = tmp_path / "long.txt"
    source.write_text("one\n\n" + "word " * 1000)
    monkeypatch.setattr(token_store, "LONGEST", 500)
    said = refusal(ValueError, lambda: open_token_store(text_of(str(source)), RECIPE, tmp_path / "cache"))
    assert "long.txt holds a document of more than 500 characters" in said and "blank lines divide" in said


def test_a_cache_that_cannot_be_written_is_refused(source, tmp_path):
    (tmp_path / "cache").write_text("a file")
    said = refusal(OSError, lambda: open_token_store(text_of(source), RECIPE, tmp_path / "cache"))
    assert f"cannot write token ids into {tmp_path / 'cache'}" in said and "data.cache" in said


def test_a_cache_that_cannot_be_locked_is_refused_and_a_store_in_it_is_found(store, source, tmp_path, monkeypatch):
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert open_token_store(text_of(source), RECIPE, store.folder.parent).facts == store.facts
    said = refusal(OSError, lambda: open_token_store(text_of(source), RECIPE, tmp_path))
    assert f"cannot write token ids into {tmp_path}: No locks available" in said and "data.cache" in said


def test_a_disk_that_is_full_is_refused_and_leaves_nothing(source, tmp_path, monkeypatch):
    def no_space(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_store._Writer, "add", no_space)
    said = refusal(OSError, lambda: open_token_store(text_of(source), RECIPE, tmp_path))
    assert "No space left on device" in said and "data.cache" in said
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_without_a_folder_the_cache_is_that_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert token_store.default_cache() == tmp_path / "course_lm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert token_store.default_cache() == tmp_path / "home" / ".cache" / "course_lm"
