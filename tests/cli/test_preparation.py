"""Claims about a run on text: both splits, the tokenizer and the loaders fit, and the report's figures are right."""

import lzma
import math
import random
import re
import shutil
import subprocess
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import course_lm.cli.find_lr
import course_lm.cli.profile
from course_lm.cli.find_lr import find_lr_on_text, lr_report
from course_lm.cli.preparation import PreparedRun, prepare
from course_lm.cli.profile import profile_run
from course_lm.cli.train import report, sample, xz_bits_per_byte
from course_lm.config import DataConfig, LoopConfig, TrainingConfig
from course_lm.curriculum.settings import CurriculumConfig
from course_lm.loss import LossConfig, next_token_loss
from course_lm.lr_finder import LRFinderResult, find_lr
from course_lm.model import ModelConfig
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig
from course_lm.step import train_step
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
def trained(config: TrainingConfig) -> tuple[PreparedRun, Trainer]:
    run = prepare(config)
    trainer = Trainer(run.model, config)
    trainer.train(run.train_loader, run.val_loader)
    return run, trainer


def xz_size(text: bytes) -> int:
    """Bytes of `text` as the xz program's -9e writes it."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    return len(lzma.compress(text, format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=filters))


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


def rows_of(table: str) -> dict[str, str]:
    names, values = zip(*(re.split(r" {2,}", line) for line in table.splitlines()))
    return dict(zip(names, values))


def test_the_report_holds_the_last_validation_and_what_xz_needs(trained):
    run, trainer = trained
    last = trainer.history.best
    assert last is not None
    alone, primed = xz_bits_per_byte(run.train.documents, run.validation.documents)
    rows = rows_of(report(run, trainer, 12.4))
    speed = float(rows.pop("tokens per second, median").replace(",", ""))
    assert speed > 0
    assert rows == {
        "optimizer steps": "4",
        "lowest validation loss after step": f"{last['step']:,}",
        "validation loss, nats per token": f"{last['val_loss']:.4f}",
        "accuracy": f"{100 * last['accuracy']:.1f}%",
        "seconds": "12",
        "bits per byte": f"{last['bits_per_byte']:.3f}",
        "bits per byte, xz -9e alone": f"{alone:.3f}",
        "bits per byte, xz -9e after the training text": f"{primed:.3f}",
    }


def test_the_report_of_a_run_that_validated_on_a_sample_says_how_far_that_may_lie(config):
    config = replace(config, training=replace(config.training, eval_tokens=60))
    run = prepare(config)
    trainer = Trainer(run.model, config)
    trainer.train(run.train_loader, run.val_loader)
    (measured,) = trainer.history.validation
    rows = rows_of(report(run, trainer, 12.4))
    assert rows["its standard error, as of a sample"] == f"{measured['val_loss_se']:.4f}"


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


def sweep(folder: Path, start_lr: float, end_lr: float, num_iter: int, held_out: bool = False) -> Namespace:
    """The arguments of a sweep, whose picture goes into a folder."""
    png = folder / "curve.png"
    return Namespace(png=png, start_lr=start_lr, end_lr=end_lr, num_iter=num_iter, held_out=held_out)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[LRFinderResult]:
    """The results of the range tests that the command makes."""
    results: list[LRFinderResult] = []

    def keep(*arguments, **options):
        results.append(find_lr(*arguments, **options))
        return results[-1]

    monkeypatch.setattr("course_lm.cli.find_lr.find_lr", keep)
    return results


def test_the_range_test_takes_the_steps_that_the_configured_run_would_take(config, found, tmp_path):
    settings = replace(config.training, gradient_accumulation_steps=3, max_grad_norm=0.1)
    config = replace(config, training=settings, optimizer=OptimizerConfig(type="sgd", learning_rate=0.5))
    assert find_lr_on_text(config, sweep(tmp_path, 1e-2, 1.0, 3)) == 0
    run = prepare(config)
    trainer = Trainer(run.model, config)
    batches, losses = list(run.train_loader), []
    for step, lr in enumerate(found[0].lrs):
        window = batches[3 * step : 3 * step + 3]
        losses.append(float(train_step(run.model, window, trainer.optimizer, lr=lr, max_grad_norm=0.1).loss))
    assert found[0].losses == pytest.approx(losses, rel=1e-5)


def test_on_held_out_text_the_points_are_the_validation_losses_of_the_run(config, found, tmp_path):
    assert find_lr_on_text(config, sweep(tmp_path, 1e-3, 1e-2, 2, held_out=True)) == 0
    run = prepare(config)
    trainer = Trainer(run.model, config)
    window = list(run.train_loader)[: config.training.gradient_accumulation_steps]
    train_step(run.model, window, trainer.optimizer, lr=1e-3)
    held_out = list(run.val_loader)[:8]
    assert found[0].losses[0] == pytest.approx(evaluate(run.model, held_out)["val_loss"], rel=1e-5)


RATES = [10 ** (step / 10 - 5) for step in range(40)]


def test_the_table_of_a_range_test_holds_its_reading_and_the_option_to_copy():
    result = LRFinderResult(RATES, [7 - 3 / (1 + 1e-3 / lr) for lr in RATES], "diverged")
    assert result.suggestion is not None and result.range is not None
    text = lr_report(result, "adamw", 50)
    assert rows_of(text.split("\n\n")[0]) == {
        "optimizer": "adamw",
        "suggested learning rate": f"{result.suggestion:.1e}",
        "range in which the loss falls": f"{result.range[0]:.1e} to {result.range[1]:.1e}",
        "steps taken": "40 of 50",
        "loss at first, and lowest": f"{result.losses[0]:.3f}, {result.losses[-1]:.3f}",
    }
    message, option = text.split("\n\n")[1].splitlines()
    assert message == result.message
    assert option == f"to train with it: --optimizer.learning_rate {result.suggestion:.1e}"


def test_the_table_of_a_range_test_without_points_suggests_nothing():
    text = lr_report(LRFinderResult([], [], "not finite"), "sgd", 50)
    assert rows_of(text.split("\n\n")[0])["suggested learning rate"] == "-"
    assert "no usable slope" in text and "--optimizer" not in text


@pytest.mark.parametrize("curriculum", [CurriculumConfig(), CurriculumConfig(enabled=True, num_epochs=2)])
@pytest.mark.filterwarnings("ignore:the run ends before its curriculum does")
def test_workers_make_the_batches_of_a_run_bit_for_bit(config: TrainingConfig, curriculum: CurriculumConfig) -> None:
    alone, helped = (
        prepare(replace(config, curriculum=curriculum, data=replace(config.data, num_workers=workers)))
        for workers in (0, 2)
    )
    for mine, theirs in ((alone.train_loader, helped.train_loader), (alone.val_loader, helped.val_loader)):
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(dict(one), dict(other), rtol=0, atol=0)
    assert helped.val_loader.num_workers == 2


class Stop(Exception):
    pass


@pytest.mark.parametrize("command", ["find_lr", "profile"])
def test_a_measurement_steps_as_the_run_will(config: TrainingConfig, monkeypatch, tmp_path, command: str) -> None:
    found: dict[str, Any] = {}

    def record(*parts: Any, **given: Any) -> None:
        found.update(given)
        raise Stop

    monkeypatch.setattr(course_lm.cli.find_lr, "find_lr", record)
    monkeypatch.setattr(course_lm.cli.profile, "profile_step", record)
    settings = replace(config.training, max_grad_norm=None, max_grad_value=0.5)
    config = replace(config, loss=LossConfig(z_loss=1e-4), training=settings)
    with pytest.raises(Stop):
        if command == "find_lr":
            find_lr_on_text(config, sweep(tmp_path, 1e-4, 1.0, 3))
        else:
            profile_run(config, Namespace(output=tmp_path, repeats=1))
    assert found["loss_fn"].keywords == {"label_smoothing": 0.0, "z_loss": 1e-4}
    assert found["clip"].keywords == {"max_value": 0.5} and found["max_grad_norm"] == math.inf
