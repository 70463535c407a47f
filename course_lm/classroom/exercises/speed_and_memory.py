"""Exercises of lesson 15: a fair timer, FLOPs of a step, who owns its peak."""

import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Any

from course_lm.classroom.checks import Refused, exercise

_COLD_STEPS, _COLD, _OUTLIER = 2, 5.0, 9.0


class _Machine:
    """Steps that take no time, on a clock that says otherwise.

    Args:
        seconds: of a step of each arm, on a quiet machine. drift: by which each step slows all that follow.
        disturbed: numbers of steps, over all arms, that other load makes longer.
    """

    def __init__(self, seconds: Sequence[float], drift: float, disturbed: Collection[int]) -> None:
        self.now, self.steps, self.asked = 0.0, 0, 0
        self.drift, self.disturbed = drift, disturbed
        self.taken = [0] * len(seconds)
        self.arms = [self._arm(index, one) for index, one in enumerate(seconds)]

    def _arm(self, index: int, seconds: float) -> Callable[[], None]:
        def step() -> None:
            cold = _COLD if self.taken[index] < _COLD_STEPS else 1.0
            outlier = _OUTLIER if self.steps in self.disturbed else 1.0
            self.now += seconds * cold * outlier * (1 + self.drift * self.steps)
            self.steps += 1
            self.taken[index] += 1

        return step

    def clock(self) -> float:
        self.asked += 1
        return self.now


def _on_a_machine(
    fn: Callable[..., Any], seconds: Sequence[float], drift: float, disturbed: Sequence[int], warm_up: int, rounds: int
) -> object:
    machine = _Machine(seconds, drift, disturbed)
    found = fn(machine.arms, machine.clock, warm_up, rounds)
    if found is None or found is ...:
        return found
    if callable(found):
        raise Refused("a function is returned where seconds are expected")
    if not machine.steps:
        raise Refused("no arm has taken a step: call `arms[i]()`")
    if not machine.asked:
        raise Refused("`clock` was never called: it, and no other clock, says what the time is")
    return found


@exercise(
    cases={
        "two equal arms, a machine that slows down, and a disturbed step": ([1.0, 1.0], 0.01, [5], 2, 4),
        "two arms, and one disturbed step": ([1.0, 2.0], 0.0, [4], 2, 3),
        "three arms, five rounds": ([1.0, 1.5, 1.25], 0.02, [13, 17], 3, 5),
        "one arm, with more warm-up than it needs": ([0.5], 0.01, [], 4, 3),
    },
    run=_on_a_machine,
)
def fair_seconds(arms, clock, warm_up, rounds):
    """Median seconds of each arm: `fn(arms, clock, warm_up, rounds)`, arms that take turns."""
    for arm in arms:
        for _ in range(warm_up):
            arm()
    seconds = [[] for _ in arms]
    for number in range(rounds):
        order = range(len(arms))
        for index in order if number % 2 == 0 else reversed(order):
            begin = clock()
            arms[index]()
            seconds[index].append(clock() - begin)
    return [statistics.median(one) for one in seconds]


def _one_long_measurement(
    arms: Sequence[Callable[[], object]], clock: Callable[[], float], warm_up: int, rounds: int
) -> list[float]:
    found = []
    for arm in arms:
        for _ in range(warm_up):
            arm()
        begin = clock()
        for _ in range(rounds):
            arm()
        found.append((clock() - begin) / rounds)
    return found


fair_seconds.also(
    "each arm is measured once, over all its rounds, and divided: that is a mean, and no turns are taken",
    _one_long_measurement,
)


@exercise(
    cases={
        "one layer": (5, [(3, 4)]),
        "two layers": (7, [(8, 32), (32, 8)]),
        "four layers, two of one shape": (6, [(3, 10), (10, 3), (3, 10), (10, 7)]),
    },
)
def step_flops(tokens, shapes):
    """FLOPs of a forward and a backward pass through linear layers: `fn(tokens, shapes)`."""
    flops = 0
    for number, (inputs, outputs) in enumerate(shapes):
        product = 2 * tokens * inputs * outputs
        flops += product * (3 if number else 2)
    return flops


@exercise(
    cases={
        "adamw, one small micro-batch": (5000, 3000, 1, "adamw"),
        "adamw, one micro-batch of more bytes than there are weights": (5000, 12_000, 1, "adamw"),
        "adamw, one large micro-batch": (5000, 30_000, 1, "adamw"),
        "adamw, four larger ones": (1000, 50_000, 4, "adamw"),
        "sgd, one micro-batch, larger than all that the update holds": (1000, 60_000, 1, "sgd"),
        "sgd, two small ones": (5000, 3000, 2, "sgd"),
    },
)
def peak_by_owner(parameters, activations, micro_batches, optimizer):
    """Bytes at the peak of a step: `fn(parameters, activations, micro_batches, optimizer)`, a dict of four owners."""
    weights = 4 * parameters
    moments = {"adamw": 8, "sgd": 4}[optimizer] * parameters
    backward = {"gradients": weights if micro_batches > 1 else 0, "activations": activations}
    update = {"gradients": weights, "activations": 0}
    largest = max(backward, update, key=lambda held: sum(held.values()))
    return {"weights": weights, "moments": moments, **largest}
