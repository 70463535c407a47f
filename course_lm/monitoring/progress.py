"""A bar that shows how a run goes, in one line."""

import sys
import time
from itertools import accumulate
from typing import Any

from tqdm.auto import tqdm

from course_lm.display import Bar
from course_lm.monitoring.records import Record

# What stands beside the bar, the most important first: a narrow terminal shows as many as it has room for.
_SHOWN = {
    "loss": "loss {:.3f}",
    "val_loss": "val {:.3f}",
    "tokens_per_second": "{:,.0f} tok/s",
    "mfu": "mfu {:.0%}",
    "lr": "lr {:.1e}",
    "grad_norm": "norm {:.2f}",
}
_LEAST_WIDTH = 4  # of the bar itself
_QUIET_SECONDS = 10.0  # between two lines in a file
_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps [{elapsed}<{remaining}{postfix}]"
_VALIDATION = "validation {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} batches [{elapsed}<{remaining}]"
_VALIDATION_WITHOUT_END = "validation, {n_fmt} batches [{elapsed}]"
_VALIDATION_DELAY, _VALIDATION_PACE = 0.5, 0.1  # seconds before the first frame, and between two
_BAR_WITHOUT_END = "{n_fmt} steps [{elapsed}{postfix}]"


class ProgressBar:
    """A tqdm bar over optimizer steps: losses in nats per token, tokens per second, learning rate, gradient norm.

    In a terminal or a notebook it moves with every record, and a validation of more than half a second takes its place
    until it is over; where standard error is a file or a pipe it is printed every ten seconds at most.

    What `say` is given stands above the bar, in a line of its own. A notebook gets no such lines: they would stay in
    its file, and `classroom.live.LivePlot` shows more.
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._shown: dict[str, str] = {}
        self._moves = self._in_notebook = False
        self._printed_at = 0.0  # when the bar was last printed, as the line that was said last saw it
        self._validation_start: float | None = None
        self._next_frame = 0.0

    def start(self, step: int, total_steps: int | None) -> None:
        """Open a bar that stands at `step`."""
        self.close()
        # tqdm.auto has chosen its kind on import; in a notebook standard error is no terminal, yet the bar can move.
        self._in_notebook = any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)
        self._moves = self._in_notebook or sys.stderr.isatty()
        interval = 0.1 if self._moves else _QUIET_SECONDS
        form = _BAR if total_steps else _BAR_WITHOUT_END
        self._bar = Bar(total=total_steps, initial=step, bar_format=form, dynamic_ncols=True, mininterval=interval)
        self._shown, self._validation_start, self._printed_at = {}, None, 0.0

    def log(self, record: Record) -> None:
        """Move to the record's step and show its metrics; a validation loss stays in view."""
        if self._bar is None:  # used without `start`
            self.start(0, None)
            return self.log(record)
        bar = self._bar
        for key, form in _SHOWN.items():
            if record.get(key) is not None:
                self._shown[key] = form.format(record[key])
        bar.total = record.get("total_steps", bar.total)  # a run with a time budget has decided anew
        bar.set_postfix_str(self._fitting(bar.format_dict), refresh=False)  # drawn by `update`
        bar.update(record["step"] - bar.n)

    def show_validation(self, done: int, total: int | None) -> None:
        """Show a bar over the batches of a validation in place of the other, where that one moves."""
        if self._bar is None or self._bar.disable or not self._moves:
            return
        now = time.monotonic()
        if self._validation_start is None:
            self._validation_start, self._next_frame = now, now + _VALIDATION_DELAY
        if now < self._next_frame:
            return
        self._next_frame = now + _VALIDATION_PACE
        form = _VALIDATION if total else _VALIDATION_WITHOUT_END
        columns, elapsed = self._bar.format_dict["ncols"], now - self._validation_start
        frame = tqdm.format_meter(done, total, elapsed, ncols=columns, bar_format=form)  # pyrefly: ignore[bad-argument-type]
        with self._bar.get_lock():  # a bar of its own would leave a widget in the notebook for each validation
            self._bar.display(frame)

    def end_validation(self) -> None:
        """Show the bar over optimizer steps again."""
        started, self._validation_start = self._validation_start, None
        if started is not None and self._bar is not None and self._next_frame > started + _VALIDATION_DELAY:
            self._bar.refresh()

    def say(self, text: str) -> None:
        """Print `text` above the bar; where the bar is off there is no line either."""
        bar = self._bar
        if bar is None or bar.disable or self._in_notebook:
            return
        if self._moves:
            tqdm.write(text, file=sys.stderr)
            return
        # In a file nothing is taken back: the line begins after what the bar has printed, and is followed by none.
        begun = bar.last_print_t != self._printed_at
        self._printed_at = bar.last_print_t
        print(("\n" if begun else "") + text, file=sys.stderr, flush=True)

    def _fitting(self, line: dict[str, Any]) -> str:
        """The metrics that fit into the line: tqdm would cut it anywhere, and half a number is a wrong number."""
        shown = [self._shown[key] for key in _SHOWN if key in self._shown]
        if line["ncols"] is None:
            return ", ".join(shown)
        without = tqdm.format_meter(**(line | {"postfix": None, "ncols": None}))  # with a bar of 10
        room = line["ncols"] - len(without) + 10 - _LEAST_WIDTH
        lengths = accumulate(len(f", {text}") for text in shown)
        return ", ".join(text for text, length in zip(shown, lengths) if length <= room)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
