"""Claims about a run on text: both splits, the tokenizer and the loaders fit, and the report's figures are right."""

import lzma
import math
import random
import shutil
import subprocess

import pytest
import torch

from course_lm.config import DataConfig, LoopConfig, TrainingConfig
from course_lm.loss import next_token_loss
from course_lm.model import ModelConfig
from course_lm.text_run import TextRun, prepare, report, sample, xz_bits_per_byte
from course_lm.tokenizer import decode, encode_documents, train_tokenizer
from course_lm.trainer import Trainer

WORDS = ["the", "a", "cat", "dog", "cow", "sat", "ran", "slept", "on", "under", "near", "mat", "hat", "bed", "été"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainingConfig:
    """A small model on eighty short paragraphs."""
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(" ".join(draw.choices(WORDS, k=9)) for _ in range(80)), encoding="utf-8")
    return TrainingConfig(
        data=DataConfig(corpus=str(path), vocab_size=270, max_length=16, val_fraction=0.3),
        model=ModelConfig(n_layer=1, n_head=2, d_model=16),
        training=LoopConfig(
            batch_size=4, max_steps=4, logging_steps=1, precision="fp32", device="cpu", output_dir=None
        ),
    )


@pytest.fixture(scope="module")
def trained(config: TrainingConfig) -> tuple[TextRun, Trainer]:
    run = prepare(config)
    trainer = Trainer(run.model, config)
    trainer.train(run.train_loader, run.val_loader)
    return run, trainer


def xz_size(text: bytes) -> int:
    """Bytes of `text` as the xz program's -9e writes it."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    return len(lzma.compress(text, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=filters))


def test_xz_alone_is_its_size_in_bits_for_each_byte():
    held_out = ["été " * 50, "a dog"]
    alone, _ = xz_bits_per_byte(["unrelated"], held_out)
    text = "\n\n".join(held_out).encode()
    assert len(text) == 307  # six bytes for each of 50 words, two between the documents, five for the last
    assert alone == 8 * xz_size(text) / 307


def test_xz_after_the_training_text_pays_only_for_what_is_new():
    draw = random.Random(1)
    known = [" ".join(draw.choices(WORDS, k=400))]
    alone, primed = xz_bits_per_byte(known, known)
    text = known[0].encode()
    assert primed == 8 * (xz_size(text + b"\n\n" + text) - xz_size(text)) / len(text)
    assert primed < 0.1 * alone


@pytest.mark.skipif(shutil.which("xz") is None, reason="the program xz is not installed")
def test_the_xz_figure_is_that_of_the_program(tmp_path):
    draw = random.Random(2)
    text = " ".join(draw.choices(WORDS, k=2000))
    path = tmp_path / "text"
    path.write_text(text, encoding="utf-8")
    packed = subprocess.run(["xz", "-9e", "-T1", "--stdout", path], capture_output=True, check=True).stdout
    assert xz_bits_per_byte(["other"], [text])[0] == 8 * len(packed) / len(text.encode())


def test_no_document_is_in_both_splits_and_none_is_lost(trained):
    run, _ = trained
    train, validation = set(run.train.documents), set(run.validation.documents)
    assert not train & validation
    assert len(train) + len(validation) == 80


def test_the_tokenizer_learns_from_the_training_documents_alone(trained):
    run, _ = trained
    expected = train_tokenizer(run.train.documents, 270)
    assert run.tokenizer.to_str() == expected.to_str()
    assert train_tokenizer(run.validation.documents, 270).to_str() != expected.to_str()


def test_the_loaders_take_their_settings_from_the_configuration(trained, config):
    run, _ = trained
    batch = next(iter(run.train_loader))
    assert "document_ids" in batch and batch["input_ids"].shape == (4, 16)
    assert (run.train_loader.seed, run.train_loader.shuffle, run.val_loader.shuffle) == (42, True, False)
    assert run.model.token_embedding.weight.shape == (270, 16)


def test_the_same_configuration_prepares_the_same_run(config):
    first, second = prepare(config), prepare(config)
    assert first.tokenizer.get_vocab() == second.tokenizer.get_vocab()
    torch.testing.assert_close(first.model.state_dict(), second.model.state_dict(), rtol=0, atol=0)
    for a, b in zip(first.train_loader, second.train_loader, strict=True):
        assert torch.equal(a["input_ids"], b["input_ids"])


def rows_of(text: str) -> dict[str, str]:
    return {line[:-10].strip(): line[-10:].strip() for line in text.splitlines()}


def test_the_report_holds_the_last_validation_and_what_xz_needs(trained):
    run, trainer = trained
    last = trainer.history.validation[-1]
    alone, primed = xz_bits_per_byte(run.train.documents, run.validation.documents)
    rows = rows_of(report(run, trainer, 12.4))
    speed = float(rows.pop("tokens per second, median").replace(",", ""))
    assert speed > 0
    assert rows == {
        "optimizer steps": "4",
        "validation loss, nats per token": f"{last['val_loss']:.4f}",
        "accuracy": f"{100 * last['accuracy']:.1f}%",
        "seconds": "12",
        "bits per byte": f"{last['bits_per_byte']:.3f}",
        "bits per byte, xz -9e alone": f"{alone:.3f}",
        "bits per byte, xz -9e after the training text": f"{primed:.3f}",
    }


@torch.no_grad()
def test_the_bits_per_byte_are_those_of_the_held_out_text(trained):
    run, trainer = trained
    run.model.eval()
    nats = 0.0
    for ids in encode_documents(run.tokenizer, run.validation.documents):
        for first in range(0, len(ids) - 1, 15):
            row = torch.tensor([ids[first : first + 16]])
            nats += float(next_token_loss(run.model(row), row, reduction="sum"))
    size = sum(len(document.encode()) for document in run.validation.documents)
    assert trainer.history.validation[-1]["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)


def test_a_sample_is_the_same_for_the_same_seed(trained):
    run, _ = trained
    before = torch.get_rng_state()
    assert sample(run, 1) == sample(run, 1) != sample(run, 2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_sample_is_plain_text(trained):
    run, _ = trained
    text = sample(run, 3)
    assert "<eos>" not in text and "<pad>" not in text
    assert decode(run.tokenizer, encode_documents(run.tokenizer, [text])[0]) == text
