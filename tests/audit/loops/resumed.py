"""A loop that saves and resumes, right or with one of the faults of a resume."""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lm.audit.spec import Batches, Settings

from .plain import Plain


class Resumed(Plain):
    """`Plain` with a loss scale and a checkpoint after the step at which it is to stop."""

    def __init__(self, model: nn.Module, settings: Settings, faults: Collection[str]) -> None:
        super().__init__(model, settings)
        self.faults, self.scale, self.offset = faults, settings.loss_scale, 0
        self.seen = math.inf

    def rate(self) -> float:
        return self.settings.schedule(self.steps + self.offset)

    def loss_sum(self, batch: Mapping[str, Any]) -> torch.Tensor:
        return super().loss_sum(batch) * (self.scale if self.model.training else 1.0)

    def clip(self) -> None:
        for gradient in self.gradients():
            gradient /= self.scale
        super().clip()

    def may_step(self, overflow: bool) -> bool:
        self.scale /= 2 if overflow else 1
        return super().may_step(overflow)

    def is_best(self, loss: float) -> bool:
        better, self.seen = loss < self.seen, min(loss, self.seen)
        return better

    def run(self, epochs: Sequence[Batches], folder: Path, stop_after: int | None) -> Mapping[str, Any] | None:
        file, size = folder / "checkpoint.pt", self.settings.accumulation_steps
        begin, place = self.load(file, epochs) if file.exists() else (0, 0)
        if begin and "first_epochs_order" in self.faults:
            epochs = [*epochs[:begin], *epochs[: len(epochs) - begin]]
        for epoch in range(begin, len(epochs)):
            for start in range(place, len(epochs[epoch]), size):
                before = self.steps
                self.run_window(epochs[epoch][start : start + size])
                if stop_after is not None and before < self.steps == stop_after:
                    self.save(file, epoch, min(start + size, len(epochs[epoch])))
                    return None
            place = 0
            if self.settings.validation:
                self.validate()
        return {"validation_losses": self.losses, "best_weights": self.best}

    def save(self, file: Path, epoch: int, place: int) -> None:
        state = {name: getattr(self, name) for name in ("steps", "windows", "scale", "seen", "best", "losses")}
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, **parts, "place": (epoch, place), "random": torch.get_rng_state()}, file)

    def load(self, file: Path, epochs: Sequence[Batches]) -> tuple[int, int]:
        saved, faults, size = torch.load(file, weights_only=False), self.faults, self.settings.accumulation_steps
        if "checkpoint_ignored" in faults:
            return 0, 0
        self.steps, self.windows, self.losses = saved["steps"], saved["windows"], saved["losses"]
        if "weights_lost" not in faults:
            self.model.load_state_dict(saved["model"])
        if "moments_lost" not in faults:
            self.optimizer.load_state_dict(saved["optimizer"])
        if "optimizer_steps_lost" in faults:
            for state in self.optimizer.state.values():
                state["step"] = torch.tensor(0.0) if "step" in state else None
        if "loss_scale_lost" not in faults:
            self.scale = saved["scale"]
        if "random_state_lost" not in faults:
            torch.set_rng_state(saved["random"])
        if "best_lost" not in faults:
            self.seen, self.best = saved["seen"], saved["best"]
        self.offset = ("schedule_ahead" in faults) - self.steps * ("schedule_restarted" in faults)
        epoch, place = saved["place"]
        return self.place_after(epoch, place, epochs, size)

    def place_after(self, epoch: int, place: int, epochs: Sequence[Batches], size: int) -> tuple[int, int]:
        faults = self.faults
        if "full_windows_counted" in faults:
            epoch, place = 0, self.steps * size
            while place > len(epochs[epoch]) and epoch + 1 < len(epochs):
                place -= len(epochs[epoch])
                epoch += 1
        if "data_from_the_start" in faults:
            return 0, 0
        if "epoch_read_again" in faults:
            return epoch, 0
        if "epoch_left_out" in faults:
            return epoch, len(epochs[epoch])
        if "tail_read_again" in faults and place == len(epochs[epoch]):
            place -= place % size
        if "position_in_steps" in faults:
            place = math.ceil(place / size)
        moved = size * (("window_left_out" in faults) - ("window_read_again" in faults))
        return epoch, max(0, place + moved)


def train(
    model: nn.Module,
    epochs: Sequence[Batches],
    settings: Settings,
    folder: Path,
    stop_after: int | None,
    faults: Collection[str] = (),
) -> Mapping[str, Any] | None:
    return Resumed(model, settings, frozenset(faults)).run(epochs, folder, stop_after)
