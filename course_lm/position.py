"""Where a run stands in its data: the epoch, and the batches taken from it."""

import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from course_lm.step import Batch


class DataPosition:
    """Reads epochs from a loader, and can go on in the middle of one.

    A loader with `state_dict` and `load_state_dict` is set to the exact batch, a list is sliced; any other loader
    repeats its epoch, with a warning. A loader with `set_epoch` is told the epoch.
    One with a `fingerprint` must have that of the data over which the position was saved, or ValueError is raised.

    Attributes:
        epoch: complete passes over the data. batch: batches taken from the current one.
    """

    def __init__(self) -> None:
        self.epoch = self.batch = 0
        self._loader: Any = None
        self._loader_state: dict[str, Any] | None = None
        self._data: str | None = None

    def rest_of_epoch(self, loader: Any) -> Iterator[Batch]:
        """The batches of this epoch that are still to come, counted as they are taken."""
        rest = loader
        self._check_data(loader)
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self.epoch)
        if hasattr(loader, "load_state_dict"):
            if self._loader_state is not None or self.batch:
                self._set_to_position(loader)
        elif isinstance(loader, Sequence):
            rest = islice(loader, self.batch, None)
        elif self.batch:
            warnings.warn("this loader cannot be set to a position: the epoch's data is repeated", stacklevel=2)
            self.batch = 0
        self._loader, self._loader_state = loader, None
        for batch in rest:
            self.batch += 1
            yield batch

    def _set_to_position(self, loader: Any) -> None:
        state = self._loader_state or {"epoch": self.epoch, "batch": self.batch}
        try:
            loader.load_state_dict(state)
        except (KeyError, TypeError, AttributeError) as error:  # a state of another loader has no other sign
            reason = " ".join(str(error).split())
            raise ValueError(
                f"the loader does not take the position that was saved: {type(error).__name__}: {reason}"
            ) from error

    def _check_data(self, loader: Any) -> None:
        """A saved position means nothing in other data, nor do weights over another vocabulary."""
        saved, data = self._data, getattr(loader, "fingerprint", None)
        if saved and data and saved != data:
            raise ValueError(
                f"the checkpoint was saved over other data: the text, its vocabulary or its batches changed since "
                f"(fingerprint {saved} then, {data} now); change it back, choose another experiment_name, or set "
                "training.resume to never"
            )
        self._data = None

    def pause(self) -> None:
        """Remember the position, so that another loader object over the same data can take it up."""
        self._loader_state = self._state_of_loader()

    def end_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch, self.batch = self.epoch + 1, 0
        if hasattr(self._loader, "set_epoch"):
            self._loader.set_epoch(self.epoch)

    def report_performance(self, val_loss: float) -> None:
        """Tell a loader that listens to it the loss of a validation."""
        if hasattr(self._loader, "report_performance"):
            self._loader.report_performance(val_loss)

    def describe_epoch(self) -> dict[str, Any] | None:
        """What a loader whose epochs differ says of this one."""
        return self._loader.describe_epoch() if hasattr(self._loader, "describe_epoch") else None

    def state_dict(self) -> dict[str, Any]:
        """Epoch, batch, and the loader's own state and the fingerprint of its data where it has them."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "loader": self._state_of_loader(),
            "data": getattr(self._loader, "fingerprint", self._data),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a saved position when the next epoch is read."""
        self.epoch, self.batch = state["epoch"], state["batch"]
        self._loader, self._loader_state, self._data = None, state["loader"], state["data"]

    def _state_of_loader(self) -> dict[str, Any] | None:
        return self._loader.state_dict() if hasattr(self._loader, "state_dict") else self._loader_state
