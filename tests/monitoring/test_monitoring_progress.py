"""Claims about the bar: one steady line, with units, in a terminal, a notebook and a file."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from tqdm import tqdm

from course_lm.monitoring import ProgressBar
from course_lm.monitoring.progress import _LEAST_WIDTH
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
    command = [sys.executable, "-m", "tests.small_run"]
    run = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=Path(__file__).parents[2], close_fds=True
    )
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


def test_metrics_are_shown_as_long_as_the_whole_line_fits() -> None:
    bar = ProgressBar()
    bar.start(0, 200)
    bar.log(train_record(7))
    assert bar._bar is not None
    line, seen = bar._bar.format_dict, set()
    for columns in range(40, 160):
        shown = bar._fitting({**line, "ncols": columns})
        whole = tqdm.format_meter(**(line | {"postfix": shown or None, "ncols": None}))  # with a bar of 10
        assert not shown or len(whole) - 10 + _LEAST_WIDTH <= columns
        seen.add(shown)
    bar.close()
    assert len(seen) > 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("columns", "shown"), [(80, ["loss", "val", "tok/s"]), (120, ["loss", "val", "tok/s", "lr", "norm"])]
)
def test_in_a_terminal_the_bar_stays_in_one_line_that_is_cut_at_no_number(columns: int, shown: list[str]) -> None:
    written = terminal_output(columns)
    assert written.count("\n") == 1 and written.endswith("\n"), "something scrolled away"
    assert "\x1b" not in written
    frames = written.rstrip("\n").split("\r")[1:]
    assert len(frames) >= 3
    assert all(len(frame) <= columns for frame in frames)
    for frame in frames[1:]:
        match = re.fullmatch(rf" *\d+%\|.+\| \d+/200 steps \[[\d:]+<[\d:]+((, ({METRIC}))*)\] *", frame)
        assert match, frame
    last = frames[-1]
    assert last.startswith("100%") and "200/200 steps" in last
    assert [name for name in ("loss", "val", "tok/s", "lr", "norm") if name in last] == shown
