"""A bar that shows how a run goes, in one line."""

import sys
from itertools import accumulate
from typing import Any

from tqdm.auto import tqdm

from course_lm.monitoring.records import Record

# What stands beside the bar, the most important first: a narrow terminal shows as many as it has room for.
_SHOWN = {
    "loss": "loss {:.3f}",
    "val_loss": "val {:.3f}",
    "tokens_per_second": "{:,.0f} tok/s",
    "lr": "lr {:.1e}",
    "grad_norm": "norm {:.2f}",
}
_LEAST_WIDTH = 4  # of the bar itself
_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps [{elapsed}<{remaining}{postfix}]"
_BAR_WITHOUT_END = "{n_fmt} steps [{elapsed}{postfix}]"


class ProgressBar:
    """A tqdm bar over optimizer steps: losses in nats per token, tokens per second, learning rate, gradient norm.

    In a terminal or a notebook it moves with every record; where standard error is a file or a pipe it is
    printed every `quiet_seconds` at most.
    """

    def __init__(self, quiet_seconds: float = 10.0) -> None:
        self.quiet_seconds = quiet_seconds
        self._bar: Any = None
        self._shown: dict[str, str] = {}

    def start(self, step: int, total_steps: int | None) -> None:
        """Open a bar that stands at `step`."""
        self.close()
        self._open(step, total_steps)

    def _open(self, step: int, total_steps: int | None) -> Any:
        # tqdm.auto has chosen its kind on import; in a notebook standard error is no terminal, yet the bar can move.
        in_notebook = any(base.__module__ == "tqdm.notebook" for base in tqdm.__mro__)
        interval = 0.1 if in_notebook or sys.stderr.isatty() else self.quiet_seconds
        form = _BAR if total_steps else _BAR_WITHOUT_END
        self._bar = tqdm(total=total_steps, initial=step, bar_format=form, dynamic_ncols=True, mininterval=interval)
        self._shown = {}
        return self._bar

    def log(self, record: Record) -> None:
        """Move to the record's step and show its metrics; a validation loss stays in view."""
        bar = self._open(0, None) if self._bar is None else self._bar  # used without `start`
        for key, form in _SHOWN.items():
            if record.get(key) is not None:
                self._shown[key] = form.format(record[key])
        bar.set_postfix_str(self._fitting(bar.format_dict), refresh=False)  # drawn by `update`
        bar.update(record["step"] - bar.n)

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
