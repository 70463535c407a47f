"""What a run leaves that stops, goes on from what it has saved, and has lost or mistaken something of it.

A right run leaves what it leaves without a stop, so `spec.train` is its specification too.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

import torch
from torch import Tensor, nn

from course_lm.audit.spec import Batches, Run, Settings, SpecResult

FAULTS: Mapping[str, str] = {
    "checkpoint_ignored": "what was saved is not read: the run begins anew",
    "weights_lost": "the weights are not loaded: the resumed run begins with those of a new model",
    "moments_lost": "the optimizer's state is not loaded: moments and step count begin at zero",
    "optimizer_steps_lost": "the optimizer's moments are loaded, but their step count begins at zero",
    "schedule_restarted": "the schedule begins anew, as if no step had been made",
    "schedule_ahead": "after a resume the schedule is one step ahead",
    "data_from_the_start": "the data are read again from the first epoch's start",
    "epoch_read_again": "the epoch in which the run stopped is read again from its start",
    "epoch_left_out": "the rest of the epoch in which the run stopped is left out",
    "first_epochs_order": "epochs are counted from zero again: the rest of one has the order of the first",
    "window_read_again": "the last window before the stop is read again",
    "window_left_out": "the first window after the stop is left out",
    "tail_read_again": "after a stop at an epoch's end its tail, the last, smaller window, is read again",
    "position_in_steps": "the steps of an epoch are taken for its micro-batches: those between are read again",
    "full_windows_counted": "each step is taken for accumulation_steps micro-batches, tails and skipped windows too",
    "loss_scale_lost": "the loss scale begins anew",
    "random_state_lost": "random numbers begin anew: dropout has other masks than without the stop",
    "best_lost": "the best validation loss is forgotten: any epoch after the stop is the best so far",
}
# What they leave after a stop at an epoch's end depends on whether the loop takes it for the next one's start.
OPEN_AT_AN_END = frozenset(
    {"epoch_read_again", "epoch_left_out", "first_epochs_order", "window_read_again", "window_left_out", "best_lost"}
)
# The first gradient after the stop is another one under these, so its loss scale is not to be seen.
ANOTHER_GRADIENT = frozenset({"checkpoint_ignored", "weights_lost", "data_from_the_start", "full_windows_counted"}) | (
    frozenset({"position_in_steps", "tail_read_again"}) | OPEN_AT_AN_END - {"best_lost"}
)
Place = tuple[int, int]  # an epoch, and the micro-batches read of it


@dataclass(frozen=True)
class Stop:
    """Where a run may stop.

    Attributes:
        steps: completed by then.
        at_end: of an epoch. is_last: of all of them, and nothing is left to train on.
        scale: the loss scale.
        weights: a copy.
    """

    steps: int
    at_end: bool
    is_last: bool
    scale: float
    weights: dict[str, Tensor]


def stops(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Iterator[Stop]:
    """Each place at which a run may stop: after each completed step."""
    run = Run.before(model, epochs, settings, frozenset())
    place = _read_on(run, epochs, (0, 0), 1)
    while place[0] < len(epochs):
        at_end = place[1] == len(epochs[place[0]])
        is_last = at_end and place[0] == len(epochs) - 1
        yield Stop(run.result.k, at_end, is_last, run.scale, run.copied_weights())
        place = _read_on(run, epochs, place, run.result.k + 1)


def train(
    model: nn.Module, epochs: Sequence[Batches], settings: Settings, stop: int, faults: Collection[str] = frozenset()
) -> tuple[SpecResult, int]:
    """Train as `spec.train` does, stopped after `stop` completed steps, with `faults` of `FAULTS` at the resume.

    Return what is left, and how many micro-batches are read after the stop. The faults `loss_scale_lost` and
    `random_state_lost` change neither.
    """
    run = Run.before(model, epochs, settings, frozenset())
    first = run.copied_weights()
    place = (0, 0) if "checkpoint_ignored" in faults else _read_on(run, epochs, (0, 0), stop)
    read = run.micro_batches
    if "weights_lost" in faults:
        with torch.no_grad():
            for name, weight in run.parameters.items():
                weight.copy_(first[name])
    if "moments_lost" in faults:
        run.result.moments.clear()
    if "optimizer_steps_lost" in faults:
        for moments in run.result.moments.values():
            moments.pop("step", None)
    if "best_lost" in faults:
        run.best_loss, run.result.best_weights = inf, None
    moved = run.result.k * ("schedule_restarted" in faults) - ("schedule_ahead" in faults)
    run.settings = replace(settings, schedule=lambda k: settings.schedule(k - moved))
    if "first_epochs_order" in faults:
        epochs = [*epochs[: place[0]], *epochs[: len(epochs) - place[0]]]
    _read_on(run, epochs, _place_after(place, epochs, settings.accumulation_steps, run.result.k, faults), None)
    run.result.weights = run.copied_weights()
    return run.result, run.micro_batches - read


def _read_on(run: Run, epochs: Sequence[Batches], place: Place, stop: int | None) -> Place:
    """Train from `place` on, until `stop` steps are completed or the data end; return where that is."""
    size = run.settings.accumulation_steps
    epoch, begin = place
    for number in range(epoch, len(epochs)):
        for start in range(begin, len(epochs[number]), size):
            run.window = [run.loss(batch) for batch in epochs[number][start : start + size]]
            run.close_window()
            if run.result.k == stop:
                return number, min(start + size, len(epochs[number]))
        if run.settings.validation:
            run.validate()
        begin = 0
    return len(epochs), 0


def _place_after(place: Place, epochs: Sequence[Batches], size: int, steps: int, faults: Collection[str]) -> Place:
    """Where the resumed run begins to read."""
    epoch, batch = place
    if "full_windows_counted" in faults:
        ends = list(accumulate(map(len, epochs)))
        epoch = next((number for number, end in enumerate(ends) if steps * size <= end), len(epochs) - 1)
        batch = steps * size - (ends[epoch] - len(epochs[epoch]))
    if "position_in_steps" in faults:
        batch = -(-batch // size)
    if "window_read_again" in faults:
        batch = max(0, batch - size)
    if "window_left_out" in faults:
        batch += size
    if "tail_read_again" in faults and batch == len(epochs[epoch]):
        batch -= batch % size
    if "epoch_left_out" in faults:
        batch = len(epochs[epoch])
    if "epoch_read_again" in faults:
        batch = 0
    return (0, 0) if "data_from_the_start" in faults else (epoch, batch)
