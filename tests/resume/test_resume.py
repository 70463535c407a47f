"""Claims about going on after a stop: whatever step it was, no bit of the rest of the run is different (C13).

And about going on when the newest checkpoint is damaged: the run goes on from the one before, and says so (C14).
"""

import shutil
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor

from course_lm.checkpoints import latest_checkpoint, load_checkpoint
from course_lm.loss import next_token_loss
from course_lm.trainer import Trainer
from tests.sets import draws, of_set
from tests.training_run import (
    NAME,
    Act,
    assert_same,
    configure,
    counting,
    interrupt_at,
    loaders,
    outcome,
    quiet,
    start,
    stop_and_go_on,
    without_measures,
)

Damage = Callable[[bytearray], object]

MODES = ("fixed", "dynamic", "bucketed", "packed")
PRECISIONS = ("fp32", "bf16", "fp16")
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
OVERFLOW = 2.0**14


def loss_of(precision: str) -> Callable[..., Tensor]:
    """In fp16 some batches, always the same ones, have a loss so large that its scaled gradient overflows."""

    def loss_fn(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        loss = next_token_loss(logits, labels, reduction=reduction)
        return loss * OVERFLOW if precision == "fp16" and int(labels.sum()) % 5 == 0 else loss

    return loss_fn


def run(folder: Path, mode: str, precision: str, device: str = "cpu", act: Act = quiet) -> Trainer:
    config = configure(folder, precision=precision, device=device, eval_steps=3, on_nonfinite="skip")
    return start(config, *loaders(mode), counting(act, loss_of(precision)))


@cache
def straight(mode: str, precision: str, device: str = "cpu") -> tuple[dict[str, Any], list[int]]:
    """What the run leaves when nothing stops it, and the number of its last micro-batch in each completed step."""
    folder = Path(mkdtemp())
    counts: list[int] = []
    trainer = run(folder, mode, precision, device, counts.append)
    per_epoch = len(loaders(mode)[0])
    ends = [
        epoch * per_epoch + min(batch + 3, per_epoch)
        for epoch in range(trainer.settings.num_epochs)
        for batch in range(0, per_epoch, 3)
    ]
    assert len(counts) == ends[-1]
    left = outcome(folder)
    shutil.rmtree(folder)
    return left, ends


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_is_stopped_after_each_step_is_the_same_to_the_bit(tmp_path, mode, precision, device):
    left, ends = straight(mode, precision, device)
    stops = 0
    while run(tmp_path, mode, precision, device, interrupt_at(1)).interrupted:
        stops += 1
        assert stops <= len(ends)
    assert stops == len(ends)
    assert_same(outcome(tmp_path), left)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_is_stopped_once_is_the_same_to_the_bit(tmp_path, mode, precision, device):
    left, ends = straight(mode, precision, device)
    for micro_batch in draws(f"{mode} {precision}").sample(ends, of_set(1, len(ends))):
        folder = tmp_path / str(micro_batch)
        stop_and_go_on(partial(run, folder, mode, precision, device), micro_batch)
        assert_same(outcome(folder), left, f"stopped at micro-batch {micro_batch}")


@pytest.mark.parametrize("mode", MODES)
def test_in_fp16_steps_overflow_and_the_run_learns_on(mode):
    left, ends = straight(mode, "fp16")
    state = left["checkpoints"]["checkpoint_last.safetensors"]
    assert 0 < state["skipped"] < len(ends) == state["step"] + state["skipped"]
    assert state["scaler"]["scale"] < 2.0**16


# Damage


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was stopped in the middle."""
    folder = tmp_path_factory.mktemp("stopped")
    middle = straight("bucketed", "fp32")[1][6]
    run(folder, "bucketed", "fp32", act=interrupt_at(middle))
    return folder


@pytest.fixture(scope="module")
def ranking(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The checkpoints of that run in the order in which they are tried."""
    folder = tmp_path_factory.mktemp("ranking") / "copy"
    shutil.copytree(stopped / NAME, folder)
    names = []
    while (newest := latest_checkpoint(folder)) is not None:
        names.append(newest.name)
        newest.unlink()
    assert len(names) == 4 and names[0] == "checkpoint_last.safetensors" and names[-1] == "checkpoint_best.safetensors"
    return names


def go_on_damaged(stopped: Path, folder: Path, ranking: list[str], damages: list[Damage]) -> None:
    """Each damage to the newest checkpoint of a copy: it is passed over with a warning, and the next one is found.

    With some of them the run then goes on to its end, as if nothing had happened.
    """
    followed = draws("damage").sample(damages, of_set(5, len(damages)))
    for number, damage in enumerate(damages):
        pass_over_damaged(stopped, folder / str(number), ranking, damage, damage in followed)


def pass_over_damaged(stopped: Path, folder: Path, ranking: list[str], damage: Damage, to_the_end: bool) -> None:
    shutil.copytree(stopped, folder)
    newest = folder / NAME / ranking[0]
    content = bytearray(newest.read_bytes())
    damage(content)
    newest.write_bytes(content)
    with pytest.warns(
        UserWarning, match=r"passing over a checkpoint: .*checkpoint_last\.safetensors is (cut short|damaged)"
    ):
        found = latest_checkpoint(folder / NAME)
    assert found is not None and found.name == ranking[1]
    assert_same(load_checkpoint(found), intact(stopped / NAME / found.name))
    if to_the_end:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="passing over a checkpoint")
            run(folder, "bucketed", "fp32")
        assert_same(outcome(folder), straight("bucketed", "fp32")[0])
    shutil.rmtree(folder)


@cache
def intact(path: Path) -> dict[str, Any]:
    return load_checkpoint(path)


def cuts(stopped: Path) -> list[Damage]:
    size = (stopped / NAME / "checkpoint_last.safetensors").stat().st_size

    def cut(length: int) -> Damage:
        return lambda content: content.__delitem__(slice(length, None))

    return [cut(length) for length in range(0, size, 4096)]


def test_a_newest_checkpoint_cut_at_any_4_kib_is_passed_over(stopped, ranking, tmp_path):
    go_on_damaged(stopped, tmp_path, ranking, cuts(stopped))


def flips(count: int) -> list[Damage]:
    draw = draws("flips")

    def flip(place: float, bit: int) -> Damage:
        def damage(content: bytearray) -> None:
            content[int(place * len(content))] ^= 1 << bit

        return damage

    return [flip(draw.random(), draw.randrange(8)) for _ in range(count)]


def test_a_newest_checkpoint_with_any_bit_flipped_is_passed_over(stopped, ranking, tmp_path):
    go_on_damaged(stopped, tmp_path, ranking, flips(of_set(100, 400)))


@pytest.mark.parametrize("place", [1, 2])
def test_a_run_with_every_checkpoint_but_one_damaged_goes_on_from_that_one(stopped, ranking, tmp_path, place):
    damage_all_but(stopped, tmp_path, ranking, place)
    with pytest.warns(UserWarning, match="passing over a checkpoint"):
        run(tmp_path, "bucketed", "fp32")
    assert_same(outcome(tmp_path), straight("bucketed", "fp32")[0])


def test_a_run_with_nothing_but_its_best_goes_on_from_there(stopped, ranking, tmp_path, capsys):
    damage_all_but(stopped, tmp_path, ranking, 3)
    with pytest.warns(UserWarning, match="passing over a checkpoint"):
        run(tmp_path, "bucketed", "fp32")
    assert "checkpoint_best.safetensors" in capsys.readouterr().out
    last = without_measures(load_checkpoint(tmp_path / NAME / "checkpoint_last.safetensors"))
    assert_same(last, straight("bucketed", "fp32")[0]["checkpoints"]["checkpoint_last.safetensors"])


def damage_all_but(stopped: Path, folder: Path, ranking: list[str], place: int) -> None:
    shutil.copytree(stopped, folder, dirs_exist_ok=True)
    for name in ranking[:place] + ranking[place + 1 :]:
        path = folder / NAME / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
