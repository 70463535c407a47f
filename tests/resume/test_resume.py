"""Claims about going on after a stop: whatever step it was, no bit of the rest of the run is different (C13).

And about going on when the newest checkpoint is damaged: the run goes on from the one before, and says so (C14).
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
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
)

Damage = Callable[[bytearray], object]

MODES = ("fixed", "dynamic", "bucketed", "packed")
PRECISIONS = ("fp32", "bf16", "fp16")
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
OVERFLOW = 2.0**14
AVERAGE: dict[str, Any] = {"average_weights": 0.8, "restore_best": True}

# What a run is made of: a mode of batching, an optimizer, and settings of the loop.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{
        f"{mode} {precision} {device}": (mode, "adamw", {"precision": precision, "device": device})
        for mode in MODES
        for precision in PRECISIONS
        for device in DEVICES
    },
    "muon": ("bucketed", "muon", {"restore_best": True}),
    "average": ("bucketed", "adamw", AVERAGE),
    "muon and average": ("bucketed", "muon", AVERAGE),
}
PLAIN = "bucketed fp32 cpu"


def loss_of(precision: str) -> Callable[..., Tensor]:
    """In fp16 some batches, always the same ones, have a loss so large that its scaled gradient overflows."""

    def loss_fn(logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        loss = next_token_loss(logits, labels, reduction=reduction)
        return loss * OVERFLOW if precision == "fp16" and int(labels.sum()) % 5 == 0 else loss

    return loss_fn


def run(folder: Path, case: str, act: Act = quiet) -> Trainer:
    mode, optimizer, training = CASES[case]
    config = configure(folder, eval_steps=3, on_nonfinite="skip", **training)
    config = replace(config, optimizer=replace(config.optimizer, type=optimizer))
    return start(config, *loaders(mode), counting(act, loss_of(config.training.precision)))


@cache
def straight(case: str) -> tuple[dict[str, Any], list[int]]:
    """What the run leaves when nothing stops it, and the number of its last micro-batch in each completed step."""
    folder = Path(mkdtemp())
    counts: list[int] = []
    trainer = run(folder, case, counts.append)
    per_epoch = len(loaders(CASES[case][0])[0])
    ends = [
        epoch * per_epoch + min(batch + 3, per_epoch)
        for epoch in range(trainer.settings.num_epochs)
        for batch in range(0, per_epoch, 3)
    ]
    assert len(counts) == ends[-1]
    left = outcome(folder)
    shutil.rmtree(folder)
    return left, ends


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_stopped_after_each_step_is_the_same_to_the_bit(tmp_path, case):
    left, ends = straight(case)
    stops = 0
    while run(tmp_path, case, interrupt_at(1)).interrupted:
        stops += 1
        assert stops <= len(ends)
    assert stops == len(ends)
    assert_same(outcome(tmp_path), left)


@pytest.mark.parametrize("mode", MODES)
def test_in_fp16_steps_overflow_and_the_run_learns_on(mode):
    left, ends = straight(f"{mode} fp16 cpu")
    state = left["checkpoints"]["checkpoint_last.safetensors"]
    assert 0 < state["skipped"] < len(ends) == state["step"] + state["skipped"]
    assert state["scaler"]["scale"] < 2.0**16


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was stopped in the middle."""
    folder = tmp_path_factory.mktemp("stopped")
    middle = straight(PLAIN)[1][6]
    run(folder, PLAIN, interrupt_at(middle))
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


def flip(place: float, bit: int) -> Damage:
    def damage(content: bytearray) -> None:
        content[int(place * len(content))] ^= 1 << bit

    return damage


def cut(length: int) -> Damage:
    return lambda content: content.__delitem__(slice(length, None))


def damages(kind: str, size: int) -> list[Damage]:
    """A checkpoint of this size cut at each 4 KiB; or a bit of it flipped, at many places of the day."""
    draw = draws("flips")
    if kind == "cut":
        return [cut(length) for length in range(0, size, 4096)]
    return [flip(draw.random(), draw.randrange(8)) for _ in range(of_set(100, 400))]


def damaged(path: Path, damage: Damage) -> None:
    content = bytearray(path.read_bytes())
    damage(content)
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["cut", "flipped"])
def test_a_damaged_newest_checkpoint_is_passed_over_with_a_warning_and_the_next_one_is_found(
    stopped, ranking, tmp_path, kind
):
    """With some of the damages the run then goes on to its end, as if nothing had happened."""
    every = damages(kind, (stopped / NAME / ranking[0]).stat().st_size)
    followed = draws("damage").sample(every, of_set(5, len(every)))
    for number, damage in enumerate(every):
        folder = shutil.copytree(stopped, tmp_path / str(number))
        damaged(folder / NAME / ranking[0], damage)
        with pytest.warns(
            UserWarning, match=r"passing over a checkpoint: .*checkpoint_last\.safetensors is (cut short|damaged)"
        ):
            found = latest_checkpoint(folder / NAME)
        assert found is not None and found.name == ranking[1]
        assert_same(load_checkpoint(found), intact(stopped / NAME / found.name))
        if damage in followed:
            with pytest.warns(UserWarning, match="passing over a checkpoint"):
                run(folder, PLAIN)
            assert_same(outcome(folder), straight(PLAIN)[0])
        shutil.rmtree(folder)


@cache
def intact(path: Path) -> dict[str, Any]:
    return load_checkpoint(path)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_run_with_every_checkpoint_but_one_damaged_goes_on_from_that_one(stopped, ranking, tmp_path, place, capsys):
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    for name in ranking[:place] + ranking[place + 1 :]:
        damaged(tmp_path / NAME / name, flip(0.5, 0))
    with pytest.warns(UserWarning, match="passing over a checkpoint"):
        run(tmp_path, PLAIN)
    assert f"resumed {tmp_path / NAME / ranking[place]}" in capsys.readouterr().out
    last = "checkpoint_last.safetensors"
    mine, other = outcome(tmp_path)["checkpoints"], straight(PLAIN)[0]["checkpoints"]
    # the best one is the oldest: numbered checkpoints that were pruned since are written again
    assert_same(mine if place < 3 else mine[last], other if place < 3 else other[last])
