"""Claims about the bar: one steady line, with units, in a terminal, a notebook and a file."""

import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
import threading
from functools import partial

import pytest
from tqdm import tqdm

from course_lm.monitoring import Observers, ProgressBar, progress
from tests.fork_server import ROOT, Process, environment, python
from tests.records import train_record, validation_record


def shown_by_a_run(monkeypatch: pytest.MonkeyPatch, steps: int, total: int | None, start: int = 0) -> str:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = ProgressBar()
    bar.start(start, total)
    for step in range(start + 1, steps + 1):
        bar.log(train_record(step, loss=step + 0.25))
    bar.log(validation_record(steps, 1.5))
    bar.close()
    return screen.getvalue()


def test_the_bar_shows_step_loss_lr_norm_throughput_and_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    last = shown_by_a_run(monkeypatch, steps=20, total=20).split("\r")[-1]
    for part in ("20/20 steps", "loss 20.250", "val 1.500", "12,346 tok/s", "lr 1.0e-03", "norm 0.50"):
        assert part in last


def test_the_bar_of_a_resumed_run_starts_where_the_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    first = shown_by_a_run(monkeypatch, steps=20, total=20, start=15).split("\r")[1]
    assert "15/20" in first


def test_the_bar_of_a_run_that_decides_on_another_length_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = ProgressBar()
    bar.start(0, 20)
    bar.log({"event": "length", "step": 5, "epoch": 0, "total_steps": 30})
    bar.log(train_record(10))
    bar.close()
    assert "10/30 steps" in screen.getvalue().split("\r")[-1]


def test_the_bar_works_without_a_known_total(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "5 steps" in shown_by_a_run(monkeypatch, steps=5, total=None)


def test_the_bar_does_not_fill_a_file_with_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown_by_a_run(monkeypatch, steps=5000, total=5000).count("\r") <= 3


def test_the_bar_passes_over_a_metric_that_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    bar = ProgressBar()
    bar.log({**train_record(1), "grad_norm": None})
    bar.close()
    assert "loss " in stderr.getvalue() and "norm " not in stderr.getvalue()


def terminal_output(columns: int) -> str:
    """What a run of 200 steps writes to a terminal of this width."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    words = [sys.executable, "-m", "tests.small_run"]
    run = Process(python, words, ROOT, environment(), files=[terminal, terminal])
    os.close(terminal)
    written = b""
    try:
        while part := os.read(screen, 65536):
            written += part
    except OSError:  # so Linux says that the last writer has closed it
        pass
    os.close(screen)
    assert run.wait(60) == 0, written.decode()
    return written.decode().replace("\r\n", "\n")


# A number in the postfix that is whole, with its name or its unit.
METRIC = r"(loss|val) \d+\.\d{3}|[\d,]+ tok/s|lr \d\.\de-\d\d|norm \d+\.\d\d"


@pytest.mark.parametrize(
    ("columns", "shown"), [(80, ["loss", "val", "tok/s"]), (120, ["loss", "val", "tok/s", "lr", "norm"])]
)
def test_in_a_terminal_the_bar_stays_in_one_line_that_is_cut_at_no_number(columns: int, shown: list[str]) -> None:
    written = terminal_output(columns)
    assert "\x1b" not in written
    *epochs, written = written.removesuffix("\n").split("\n")
    assert len(epochs) == 4, "a line for each epoch, and nothing else scrolled away"
    losses = r"train loss \d.\d{4}, validation loss \d.\d{4}, \d.\d{4} bits per byte"
    line = rf"epoch \d, steps [\d,]+ to [\d,]+: {losses}, [\d.]+ s"
    assert all(re.fullmatch(line, epoch.split("\r")[-1]) for epoch in epochs)
    written = "\r".join([*(epoch.rpartition("\r")[0] for epoch in epochs), written])
    frames = [frame for frame in written.split("\r")[1:] if frame.strip()]
    assert len(frames) >= 3
    assert all(len(frame) <= columns for frame in frames)
    for frame in frames[1:]:
        match = re.fullmatch(rf" *\d+%\|.+\| \d+/200 steps \[[\d:]+<[\d:]+((, ({METRIC}))*)\] *", frame)
        assert match, frame
    last = frames[-1]
    assert last.startswith("100%") and "200/200 steps" in last
    assert [name for name in ("loss", "val", "tok/s", "lr", "norm") if name in last] == shown


class Terminal(io.StringIO):
    """Standard error that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def frames_of_a_validation(monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, seconds_per_batch: float) -> list[str]:
    """What a bar at step 7 of 9 writes while four batches are validated, and after."""
    now = [100.0]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = ProgressBar()
    bar.start(7, 9)
    written = len(screen.getvalue())
    for done in range(1, 5):
        now[0] += seconds_per_batch
        bar.show_validation(done, 4)
    bar.end_validation()
    frames = screen.getvalue()[written:].split("\r")[1:]
    bar.close()
    return frames


def test_a_long_validation_has_a_bar_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of_a_validation(monkeypatch, Terminal(), seconds_per_batch=1.0)
    batches = [re.findall(r"validation +\d+%\|.*\| (\d)/4 batches", frame) for frame in frames]
    assert batches == [["2"], ["3"], ["4"], []]
    assert "7/9 steps" in frames[-1] and len(frames[-1]) >= len(frames[-2].rstrip())


@pytest.mark.parametrize(
    ("screen", "seconds"), [(Terminal, 0.01), (Terminal, 0.1), (io.StringIO, 1.0)], ids=["short", "half", "a file"]
)
def test_a_short_validation_is_not_shown_and_none_in_a_file(monkeypatch, screen, seconds) -> None:
    assert frames_of_a_validation(monkeypatch, screen(), seconds) == []


def test_nothing_is_shown_where_the_bar_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "Bar", partial(tqdm, disable=True))
    assert frames_of_a_validation(monkeypatch, Terminal(), seconds_per_batch=1.0) == []


def test_no_validation_and_no_line_is_shown_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = ProgressBar()
    bar.show_validation(1, 2)
    bar.end_validation()
    bar.say("a line")
    assert screen.getvalue() == ""


def test_a_line_stands_above_the_bar_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = ProgressBar()
    bar.start(3, 9)
    bar.say("epoch 1")
    bar.close()
    line, rest = screen.getvalue().split("\n", 1)
    assert line.split("\r")[-1] == "epoch 1" and "3/9 steps" in rest


def test_lines_are_whole_in_a_file_and_the_bar_is_not_repeated_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    bar = ProgressBar()
    bar.start(0, 9)
    for epoch in range(1, 4):
        bar.log(train_record(epoch))
        bar.say(f"epoch {epoch}")
    bar.close()
    lines = screen.getvalue().split("\n")
    assert lines[1:4] == ["epoch 1", "epoch 2", "epoch 3"]
    assert screen.getvalue().count("\r") <= 2


def test_a_display_that_fails_is_left_out_and_the_run_goes_on() -> None:
    class Broken(ProgressBar):
        def say(self, text: str) -> None:
            raise OSError("closed")

    observers = Observers([Broken()])
    with pytest.warns(UserWarning, match=r"Broken.say failed \(OSError: closed\)"):
        observers.say("a line")
    assert observers.active == []


def test_an_interrupted_bar_stops_no_bar_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        times = 1

        def write(self, text: str) -> int:
            if "loss" in text and self.times:
                self.times = 0
                raise KeyboardInterrupt
            return super().write(text)

    def draws() -> None:
        for lock in tqdm.get_lock().locks:
            free.append(lock.acquire(timeout=5))
            if free[-1]:
                lock.release()

    monkeypatch.setattr(sys, "stderr", Interrupted())
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    bar, free = ProgressBar(), []
    bar.start(0, 5)
    with pytest.raises(KeyboardInterrupt):
        bar.log(train_record(1))
    other = threading.Thread(target=draws)
    other.start()
    other.join()
    assert free == [True, True]
