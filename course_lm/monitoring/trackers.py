"""The two trackers that people know, TensorBoard and Weights & Biases: extra `track`, off unless asked for.

Neither can take a point back, so a partial record (see `History`) is not sent to them. A tracker is a section of the
configuration: a `TrackerConfig` of its own that makes its logger, and a field of `config.TrainingConfig`.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from course_lm.monitoring.observers import Observer
from course_lm.monitoring.records import Record
from course_lm.validation import Section, import_extra, require_kind

WandbMode = Literal["offline", "online", "disabled"]


@dataclass(frozen=True)
class TrackerConfig(Section):
    """A section of a run's configuration that switches a tracker on; no step depends on it, so it may change later.

    Args:
        enabled: send the records of the run to this tracker; if it is left out, any other key switches it on.
    """

    enabled: bool | None = None

    def logger(self, folder: Path, settings: dict[str, Any]) -> Observer:
        """What logs a run with these `settings` that writes into `folder`."""
        raise NotImplementedError


@dataclass(frozen=True)
class TensorBoardConfig(TrackerConfig):
    """The `tensorboard` section of a run's configuration."""

    def logger(self, folder: Path, settings: dict[str, Any]) -> Observer:
        """A `TensorBoardLogger` that writes into `folder`/tensorboard."""
        return TensorBoardLogger(folder / "tensorboard")


@dataclass(frozen=True)
class WandbConfig(TrackerConfig):
    """The `wandb` section of a run's configuration.

    Args:
        project: the project at Weights & Biases that the run belongs to.
        name: the run's name there; null is its experiment_name.
        mode: "offline" keeps everything in the run's folder, "online" sends it, "disabled" does neither.
    """

    project: str = "my-lm"
    name: str | None = None
    mode: WandbMode = "offline"

    def logger(self, folder: Path, settings: dict[str, Any]) -> Observer:
        """A `WandbLogger` that carries `settings` as its configuration."""
        return WandbLogger(self.project, self.name or settings["experiment_name"], self.mode, folder, settings)


class TensorBoardLogger:
    """Write each metric as a TensorBoard scalar, named "train/loss", "validation/val_loss" and so on.

    Raises ImportError when TensorBoard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        import_extra("tensorboard", "track")
        self.folder = Path(folder)
        self._writer: Any = None

    def start(self, step: int, total_steps: int | None) -> None:
        """Open an event file; what an earlier run logged after `step` is hidden."""
        from torch.utils.tensorboard import SummaryWriter

        self.close()
        # purge_step hides the points from that step on. By default two minutes would pass before points are written.
        self._writer = SummaryWriter(str(self.folder), purge_step=step + 1, flush_secs=10)

    def log(self, record: Record) -> None:
        """Write the record's metrics at its step."""
        if record.get("partial"):
            return
        if self._writer is None:
            self.start(0, None)
            return self.log(record)
        for tag, value in _tagged(record).items():
            self._writer.add_scalar(tag, value, global_step=record["step"])

    def close(self) -> None:
        """Write out what is buffered."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandbLogger:
    """Log to Weights & Biases; offline (the default), everything stays in `folder`/wandb.

    A run that goes on later goes on with its W&B run where it is online, whose id is kept in `folder`/wandb/id. Offline
    it opens another one, at the right step and in the same group (the folder's name): under one id, the second would
    replace the first (wandb issues 3841 and 5865).

    Raises ImportError when wandb is not installed, ValueError for an unknown mode.
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        mode: WandbMode = "offline",
        folder: str | os.PathLike[str] = ".",
        settings: dict[str, Any] | None = None,
    ) -> None:
        require_kind(mode, WandbMode, "mode")
        self._wandb = import_extra("wandb", "track")
        self.project, self.name, self.mode = project, name, mode
        self.folder, self.settings = Path(folder), settings
        self._run: Any = None

    def start(self, step: int, total_steps: int | None) -> None:
        """Open a run that carries `settings` as its configuration, or the one that ended at `step`."""
        self.close()
        kept = self.folder / "wandb" / "id"
        kept.parent.mkdir(parents=True, exist_ok=True)
        goes_on = self.mode == "online" and step > 0 and kept.is_file()
        self._run = self._wandb.init(
            project=self.project,
            name=self.name,
            group=self.folder.resolve().name,
            mode=self.mode,
            id=kept.read_text() if goes_on else None,
            resume="allow" if goes_on else None,
            allow_val_change=True,  # as of a run that goes on for longer
            dir=str(self.folder),
            config=self.settings,
            settings=self._wandb.Settings(console="off"),  # capturing the terminal garbles a progress bar
        )
        if self.mode == "online":
            kept.write_text(self._run.id)

    def log(self, record: Record) -> None:
        """Log the record's metrics at its step."""
        if record.get("partial"):
            return
        if self._run is None:
            self.start(0, None)
            return self.log(record)
        self._run.log(_tagged(record), step=record["step"])

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def _tagged(record: Record) -> dict[str, float]:
    # event names the chart, step is its axis.
    metrics = ((key, value) for key, value in record.items() if key not in ("event", "step"))
    return {f"{record['event']}/{key}": float(value) for key, value in metrics if not isinstance(value, str | None)}
