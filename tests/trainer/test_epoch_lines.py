"""Claims about the line at the end of each epoch: whole, and of the epoch's own steps."""

import math
import re
from typing import Any

import pytest

from tests.records import Recorder
from tests.small_run import small_batches, small_trainer


class Lines(Recorder):
    """A display that keeps what is said and how far validations were."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.shown: list[Any] = []

    def show_validation(self, done: int, total: int | None) -> None:
        self.shown.append((done, total))

    def end_validation(self) -> None:
        self.shown.append("end")

    def say(self, text: str) -> None:
        self.said.append(re.sub(r", [\d.]+ s\b", ", T s", text))


def trained(steps: int, *, validated: bool = True, **settings: Any) -> tuple[Lines, Any]:
    """What is said in a run over epochs of four batches, and its history."""
    lines = Lines()
    trainer = small_trainer(steps, observers=[lines], **settings)
    trainer.train(small_batches(4), small_batches(2) if validated else None)
    return lines, trainer.history


@pytest.mark.parametrize("logging_steps", [1, 3, 4, 100])
def test_the_train_loss_of_an_epoch_is_the_mean_over_its_own_steps(logging_steps):
    lines, _ = trained(12, eval_steps=None, logging_steps=logging_steps)
    _, history = trained(12, eval_steps=None, logging_steps=1)
    for epoch, line in enumerate(lines.said, start=1):
        of_epoch = [record for record in history.train if 4 * epoch - 4 < record["step"] <= 4 * epoch]
        mean = math.fsum(record["loss"] for record in of_epoch) / 4  # each batch has as many targets
        (measured,) = (record for record in history.validation if record["step"] == 4 * epoch)
        assert line == (
            f"epoch {epoch}, steps {4 * epoch - 3} to {4 * epoch}: train loss {mean:.4f}, "
            f"validation loss {measured['val_loss']:.4f}, {measured['bits_per_byte']:.4f} bits per byte, T s"
        )
    assert len(lines.said) == 3


def test_what_max_steps_leaves_of_the_last_epoch_has_a_line_too():
    lines, _ = trained(6, eval_steps=None)
    assert [line.split(":")[0] for line in lines.said] == ["epoch 1, steps 1 to 4", "epoch 2, steps 5 to 6"]


def test_a_line_leaves_out_what_was_not_measured():
    lines, _ = trained(4, validated=False)
    assert re.fullmatch(r"epoch 1, steps 1 to 4: train loss \d.\d{4}, T s", lines.said[0])


def test_a_validation_within_the_epoch_says_its_step():
    lines, _ = trained(8, eval_steps=3)
    assert "validation loss" in lines.said[0] and "after step 3" in lines.said[0]


@pytest.mark.parametrize("logging_steps", [1, 3, 100])
@pytest.mark.parametrize("stop", [1, 4, 6])
def test_the_loss_of_an_epoch_is_that_of_all_its_steps_after_a_resume_too(stop, logging_steps, tmp_path):
    whole, history = trained(12, validated=False, logging_steps=logging_steps)
    trained(stop, validated=False, logging_steps=logging_steps, output_dir=str(tmp_path))
    lines, resumed = trained(12, validated=False, logging_steps=logging_steps, output_dir=str(tmp_path))
    losses, again = ([record for record in one.records if record["event"] == "epoch"] for one in (history, resumed))
    assert again == losses and [record["step"] for record in losses] == [4, 8]  # max_steps ends the third one within it
    since = ", T s" if stop == 4 else f", T s since step {stop}"
    expected = whole.said[stop // 4 :]
    assert [line.replace(since, ", T s") for line in lines.said] == expected
    assert expected[-2].startswith(f"epoch 2, steps 5 to 8: train loss {losses[1]['train_loss']:.4f}")


def test_a_validation_tells_how_far_it_is_and_when_it_is_over():
    lines, _ = trained(4, eval_steps=4)
    assert lines.shown == [(1, 2), (2, 2), "end"]
