"""Checks of lesson 15: a fair timer, FLOPs of a step, who owns its peak, a critical batch."""

import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lm.classroom.checks.report import AnyOf, Edit, Refused, Report, compare

_COLD_STEPS, _COLD, _OUTLIER = 2, 5.0, 9.0  # an arm's first steps, and a disturbed one, take so many times as long
Clock = Callable[[], float]
Arms = Sequence[Callable[[], object]]


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


def fair_seconds(fn: Callable[..., object]) -> Report:
    """Median seconds of each arm: `fn(arms, clock, warm_up, rounds)`, arms that take turns."""
    warm = "        for _ in range(warm_up):\n            arm()\n"
    turn, middle = "order if number % 2 == 0 else reversed(order)", "statistics.median(one)"

    def one_after_another(arms: Arms, clock: Clock, warm_up: int, rounds: int) -> list[float]:
        found = []
        for arm in arms:
            taken = [_taken(arm, clock) for _ in range(warm_up + rounds)]
            found.append(statistics.median(taken[warm_up:]))
        return found

    def whole_blocks(arms: Arms, clock: Clock, warm_up: int, rounds: int) -> list[float]:
        for arm in arms:
            for _ in range(warm_up):
                arm()
        return [statistics.median([_taken(arm, clock) for _ in range(rounds)]) for arm in arms]

    def one_long_measurement(arms: Arms, clock: Clock, warm_up: int, rounds: int, warm: bool = True) -> list[float]:
        found = []
        for arm in arms:
            for _ in range(warm_up * warm):
                arm()
            begin = clock()
            for _ in range(rounds):
                arm()
            found.append((clock() - begin) / rounds)
        return found

    def by_place(arms: Arms, clock: Clock, warm_up: int, rounds: int) -> list[float]:
        for arm in arms:
            for _ in range(warm_up):
                arm()
        taken = [[_taken(arm, clock) for arm in (arms if number % 2 == 0 else arms[::-1])] for number in range(rounds)]
        return [statistics.median(one) for one in zip(*taken)]

    def warm_before_each(arms: Arms, clock: Clock, warm_up: int, rounds: int) -> list[float]:
        seconds: list[list[float]] = [[] for _ in arms]
        for number in range(rounds):
            order = range(len(arms))
            for index in order if number % 2 == 0 else reversed(order):
                for _ in range(warm_up):
                    arms[index]()
                seconds[index].append(_taken(arms[index], clock))
        return [statistics.median(one) for one in seconds]

    def dropped(or_all: bool) -> Callable[..., list[float]]:
        def answer(arms: Arms, clock: Clock, warm_up: int, rounds: int) -> list[float]:
            return _in_turns(
                arms, clock, 0, rounds, lambda one: statistics.median(one[warm_up:] or (one if or_all else []))
            )

        return answer

    def rotated(arms: Arms, clock: Clock, warm_up: int, rounds: int) -> list[float]:
        for arm in arms:
            for _ in range(warm_up):
                arm()
        seconds: list[list[float]] = [[] for _ in arms]
        for number in range(rounds):
            for place in range(len(arms)):
                index = (number + place) % len(arms)
                seconds[index].append(_taken(arms[index], clock))
        return [statistics.median(one) for one in seconds]

    once_a_round = "the clock is set once a round: a step's seconds hold all steps before it in its round"

    return compare(
        fn,
        reference=_fair_seconds,
        cases={
            "two equal arms, a machine that slows down, and a disturbed step": ([1.0, 1.0], 0.01, [5], 2, 4),
            "two arms, and one disturbed step": ([1.0, 2.0], 0.0, [4], 2, 3),
            "three arms, five rounds": ([1.0, 1.5, 1.25], 0.02, [13, 17], 3, 5),
            "one arm, with more warm-up than it needs": ([0.5], 0.01, [], 4, 3),
        },
        run=_on_a_machine,
        shown=["two arms, and one disturbed step", "one arm, with more warm-up than it needs"],
        mistakes={
            "the first steps are counted: nothing is warmed up": Edit(warm, "        pass\n"),
            "each arm takes one step of warm-up, whatever `warm_up` says": Edit("range(warm_up)", "range(1)"),
            "the first arm alone is warmed up": Edit("for arm in arms:", "for arm in arms[:1]:"),
            "the last arm alone is warmed up": Edit("for arm in arms:", "for arm in arms[-1:]:"),
            "the steps of warm-up are taken from the rounds": AnyOf(dropped(or_all=True), dropped(or_all=False)),
            "the steps of warm-up are timed with the others": (
                lambda arms, clock, warm_up, rounds: _in_turns(arms, clock, 0, warm_up + rounds, statistics.median)
            ),
            "the mean is taken, which one disturbed step moves": Edit(middle, "sum(one) / len(one)"),
            "the shortest step is taken, not the median": Edit(middle, "min(one)"),
            "the longest step is taken, not the median": Edit(middle, "max(one)"),
            "the first measured step is taken, not the median": Edit(middle, "one[0]"),
            "the last measured step is taken, not the median": Edit(middle, "one[-1]"),
            "the step in the middle of the list is taken, which is not sorted": Edit(middle, "one[len(one) // 2]"),
            "of an even number of steps the upper one of the two in the middle is taken": Edit(
                middle, "sorted(one)[len(one) // 2]"
            ),
            "of an even number of steps the lower one of the two in the middle is taken": Edit(
                middle, "sorted(one)[(len(one) - 1) // 2]"
            ),
            "the sum of all rounds is given": Edit(middle, "sum(one)"),
            "all single steps are given, not their median": Edit(middle, "one"),
            "the arms do not take turns: one has all its steps before the next one begins": one_after_another,
            "the arms do not take turns: all are warmed up, then each has all its rounds": whole_blocks,
            "each arm is measured once, over all its rounds, and divided: that is a mean, and no turns are taken": (
                one_long_measurement
            ),
            "each arm is measured once, over all its rounds and cold: a mean, no turns, no warm-up": (
                lambda arms, clock, warm_up, rounds: one_long_measurement(arms, clock, warm_up, rounds, warm=False)
            ),
            "each round has the same order: on a machine that slows down the last arm always loses": Edit(
                turn, "order"
            ),
            "every round is turned around: on a machine that slows down the first arm always loses": Edit(
                turn, "reversed(order)"
            ),
            "the first round is turned around, not the second": Edit("== 0", "== 1"),
            "each round begins with the next arm and is not turned around: the order is only rotated": rotated,
            "the seconds are kept by their place in the round, not by their arm": by_place,
            "each timed step has a warm-up of its own, while the machine goes on slowing down": warm_before_each,
            "the rounds are numbered from the warm-up on, which turns round 0 around where `warm_up` is odd": (
                lambda arms, clock, warm_up, rounds: _in_turns(
                    arms, clock, 0, warm_up + rounds, lambda one: statistics.median(one[warm_up:])
                )
            ),
            "the ratio to the first arm is given, not seconds": Edit(
                f"[{middle} for one in seconds]",
                "[statistics.median(one) / statistics.median(seconds[0]) for one in seconds]",
            ),
            once_a_round: (
                Edit("        for index in order if", "        begin = clock()\n        for index in order if"),
                Edit("            begin = clock()\n", ""),
            ),
            "the clock is read once and never again: seconds since the very first step": (
                Edit("    seconds = [", "    begin = clock()\n    seconds = ["),
                Edit("            begin = clock()\n", ""),
            ),
        },
        hints={
            "range(warm_up)": "Every arm takes `warm_up` steps that nobody times.",
            once_a_round: "Read the clock just before each step, and again just after it.",
            turn: "Round 0 goes from the first arm to the last, round 1 back, round 2 as round 0.",
            middle: "`statistics.median` sorts, and takes the mean of the two in the middle.",
        },
    )


def _taken(arm: Callable[[], object], clock: Clock) -> float:
    begin = clock()
    arm()
    return clock() - begin


def _in_turns(arms: Arms, clock: Clock, warm_up: int, rounds: int, middle: Callable[[Any], float]) -> list[float]:
    for arm in arms:
        for _ in range(warm_up):
            arm()
    seconds: list[list[float]] = [[] for _ in arms]
    for number in range(rounds):
        order = range(len(arms))
        for index in order if number % 2 == 0 else reversed(order):
            seconds[index].append(_taken(arms[index], clock))
    return [middle(one) for one in seconds]


def _fair_seconds(arms: Arms, clock: Clock, warm_up: int, rounds: int) -> list[float]:
    return _in_turns(arms, clock, warm_up, rounds, statistics.median)


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


def step_flops(fn: Callable[..., object]) -> Report:
    """FLOPs of a forward and a backward pass through linear layers: `fn(tokens, shapes)`."""
    product, count = "2 * tokens * inputs * outputs", "3 if number else 2"

    def additions_of_sums(tokens: int, shapes: Sequence[tuple[int, int]]) -> int:
        forward = sum(tokens * o * (2 * i - 1) for i, o in shapes)
        weights = sum(i * o * (2 * tokens - 1) for i, o in shapes)
        return forward + weights + sum(tokens * i * (2 * o - 1) for i, o in shapes[1:])

    return compare(
        fn,
        reference=_counted_flops,
        cases={
            "one layer": (5, [(3, 4)]),
            "two layers": (7, [(8, 32), (32, 8)]),
            "four layers, two of one shape": (6, [(3, 10), (10, 3), (3, 10), (10, 7)]),
        },
        shown=["one layer", "two layers"],
        mistakes={
            "the forward pass alone is counted": Edit(count, "1"),
            "a multiplication and the addition that follows it are counted as one": Edit("2 * tokens *", "tokens *"),
            "the backward pass is counted as one product for each layer": Edit(count, "2"),
            "the input of the first layer is given a gradient, which nobody asks for": Edit(count, "3"),
            "one of the three products of each layer is left out: forward, gradient of the weights, gradient of the "
            "input": Edit(count, "2 if number else 1"),
            "each layer is taken to be computed twice in the forward pass, as under checkpointing": Edit(
                count, "4 if number else 3"
            ),
            "the last layer is spared the gradient of its input, and not the first": Edit(
                count, "3 if number < len(shapes) - 1 else 2"
            ),
            "each layer of the first one's shape is spared the gradient of its input, and not the first alone": Edit(
                count, "3 if (inputs, outputs) != tuple(shapes[0]) else 2"
            ),
            "a layer that is the only one is not spared the gradient of its input": Edit(
                count, "3 if number or len(shapes) == 1 else 2"
            ),
            "the first two layers are spared the gradient of their input, and not the first alone": Edit(
                count, "3 if number > 1 else 2"
            ),
            "no layer but the first has a backward pass": Edit(count, "1 if number else 2"),
            "a sum of n products is given n - 1 additions: by convention it has n, for it begins at 0": AnyOf(
                additions_of_sums, Edit(product, "tokens * (2 * inputs - 1) * outputs")
            ),
            "the tokens are left out: the weights meet each of them": Edit("2 * tokens *", "2 *"),
            "the tokens are left out of the gradient of the weights, which is a sum over them": Edit(
                "flops += product * (3 if number else 2)",
                "flops += product * (2 if number else 1) + 2 * inputs * outputs",
            ),
            "the sizes of a layer are added, not multiplied": Edit("inputs * outputs", "(inputs + outputs)"),
            "the square of the inputs is taken for the size of a layer": Edit("inputs * outputs", "inputs * inputs"),
            "the square of the outputs is taken for the size of a layer": Edit("inputs * outputs", "outputs * outputs"),
            "the outputs are left out": Edit("inputs * outputs", "inputs"),
            "the inputs are left out": Edit("inputs * outputs", "outputs"),
            "the last layer alone is counted": Edit("flops += ", "flops = "),
            "the first layer alone is counted": Edit("enumerate(shapes)", "enumerate(shapes[:1])"),
            "the first layer is left out": Edit("flops += product", "flops += bool(number) * product"),
            "biases are added too": Edit(product, f"{product} + tokens * outputs"),
            "the square of the tokens is taken, as attention has it": Edit("2 * tokens *", "2 * tokens * tokens *"),
        },
        hints={
            count: "Forward; the gradient of the weights; the gradient of the input, but for the first layer.",
            product: "Each of tokens · outputs numbers is a sum of `inputs` products: as many additions.",
        },
    )


def _counted_flops(tokens: int, shapes: Sequence[tuple[int, int]]) -> int:
    layers = nn.Sequential(*(nn.Linear(inputs, outputs, bias=False) for inputs, outputs in shapes))
    with FlopCounterMode(display=False) as counter:
        layers(torch.zeros(tokens, shapes[0][0])).sum().backward()
    return counter.get_total_flops()


def peak_by_owner(fn: Callable[..., object]) -> Report:
    """Bytes at the peak of a step: `fn(parameters, activations, micro_batches, optimizer)`, a dict of four owners."""
    first = "weights if micro_batches > 1 else 0"
    moments = '{"adamw": 8, "sgd": 4}[optimizer] * parameters'
    largest = "max(backward, update, key=lambda held: sum(held.values()))"
    end = '{"weights": weights, "moments": moments, **largest}'
    return compare(
        fn,
        reference=_peak_by_owner,
        cases={
            "adamw, one small micro-batch": (5000, 3000, 1, "adamw"),
            "adamw, one micro-batch of more bytes than there are weights": (5000, 12_000, 1, "adamw"),
            "adamw, one large micro-batch": (5000, 30_000, 1, "adamw"),
            "adamw, four larger ones": (1000, 50_000, 4, "adamw"),
            "sgd, one micro-batch, larger than all that the update holds": (1000, 60_000, 1, "sgd"),
            "sgd, two small ones": (5000, 3000, 2, "sgd"),
        },
        shown=["sgd, two small ones"],
        mistakes={
            "the activations of all micro-batches are held at a time: a backward pass frees them": Edit(
                '"activations": activations}', '"activations": activations * micro_batches}'
            ),
            "the activations are divided by the micro-batches: they are of one already": Edit(
                '"activations": activations}', '"activations": activations / micro_batches}'
            ),
            "the largest of each owner is taken: with one micro-batch gradients and activations do not meet": Edit(
                first, "weights"
            ),
            "gradients are held only by the update: those of earlier micro-batches are there too": Edit(first, "0"),
            "bytes of activations are compared with the number of parameters": Edit(
                largest, "backward if micro_batches > 1 or activations > parameters else update"
            ),
            "with several micro-batches there are no gradients, with one there are": Edit("> 1", "== 1"),
            "two micro-batches are taken for one": Edit("> 1", "> 2"),
            "the gradients of each micro-batch are held apart: they are added up in one place": Edit(
                first, "weights * (micro_batches - 1)"
            ),
            "the update is forgotten, which is the peak where activations are small": Edit(largest, "backward"),
            "the backward pass is forgotten, which is the peak where activations are large": Edit(largest, "update"),
            "one micro-batch always has its peak at the update: where its activations are large it has not": Edit(
                largest, f"update if micro_batches == 1 else {largest}"
            ),
            "the activations are compared with all that the update holds: weights and moments are there both times": (
                AnyOf(
                    Edit(
                        largest,
                        "backward if micro_batches > 1 or activations > weights + moments + weights else update",
                    ),
                    Edit(largest, "backward if activations > weights + moments + weights else update"),
                )
            ),
            "the activations are taken for numbers of 4 bytes: they are given in bytes": Edit(
                '"activations": activations}', '"activations": 4 * activations}'
            ),
            "the smaller of the two points in time is taken": Edit("max(backward", "min(backward"),
            "AdamW keeps one number for each weight: it keeps two": Edit('"adamw": 8', '"adamw": 4'),
            "SGD keeps nothing: with momentum it keeps a number for each weight": Edit('"sgd": 4', '"sgd": 0'),
            "SGD keeps two numbers for each weight: with momentum it keeps one": Edit('"sgd": 4', '"sgd": 8'),
            "the two optimizers have changed places": Edit('{"adamw": 8, "sgd": 4}', '{"adamw": 4, "sgd": 8}'),
            "the moments are left out": Edit(moments, "0"),
            "the moments are counted for the update alone: they stay from step to step": _late_moments,
            "numbers are counted and not bytes: of weights, gradients and moments": (
                Edit("4 * parameters", "parameters"),
                Edit('{"adamw": 8, "sgd": 4}', '{"adamw": 2, "sgd": 1}'),
            ),
            "weights and gradients are counted in numbers, not in bytes": Edit("4 * parameters", "parameters"),
            "the moments are counted in numbers, not in bytes": Edit(
                '{"adamw": 8, "sgd": 4}', '{"adamw": 2, "sgd": 1}'
            ),
            "weights and gradients are taken to have 2 bytes: an fp32 number has 4": Edit(
                "4 * parameters", "2 * parameters"
            ),
            "the sum is returned, not a dict of owners": Edit(end, f"sum({end}.values())"),
            "the four numbers are returned in a list, not in a dict of owners": Edit(end, f"list({end}.values())"),
        },
        hints={
            first: "A step begins without gradients; from the second micro-batch on the sum of those before is there.",
            largest: "Compare the sums at the two points in time, then return the owners at the larger.",
            moments: "AdamW: two fp32 numbers for each weight. SGD with momentum: one.",
        },
    )


def _late_moments(parameters: int, activations: int, micro_batches: int, optimizer: str) -> dict[str, int]:
    weights, moments = 4 * parameters, {"adamw": 8, "sgd": 4}[optimizer] * parameters
    before = weights if micro_batches > 1 else 0
    if before + activations > weights + moments:
        return {"weights": weights, "moments": 0, "gradients": before, "activations": activations}
    return {"weights": weights, "moments": moments, "gradients": weights, "activations": 0}


def _peak_by_owner(parameters: int, activations: int, micro_batches: int, optimizer: str) -> dict[str, int]:
    weights, numbers = 4 * parameters, {"adamw": 2, "sgd": 1}[optimizer]
    before = weights if micro_batches > 1 else 0
    fixed = {"weights": weights, "moments": 4 * numbers * parameters}
    if before + activations > weights:
        return {**fixed, "gradients": before, "activations": activations}
    return {**fixed, "gradients": weights, "activations": 0}


def critical_batch(fn: Callable[..., object]) -> Report:
    """Tokens of the critical batch from two measured runs: `fn(one, other)`, each (steps, tokens)."""
    tokens = "(steps - other_steps) / (inverse - other_inverse)"
    steps, answer = "steps - least_tokens * inverse", "least_tokens / least_steps"
    return compare(
        fn,
        reference=_critical_batch,
        cases={
            "a small and a large batch": ((500, 500 * 1000), (150, 150 * 8000)),
            "the large one first": ((120, 120 * 4096), (300, 300 * 512)),
            "two small ones, of no whole number of tokens": ((40, 250), (22, 261)),
        },
        shown=["a small and a large batch", "the large one first"],
        mistakes={
            "the fraction is upside down, steps over tokens, or steps and tokens were exchanged": Edit(
                answer, "least_steps / least_tokens"
            ),
            "the least tokens are given: those of an endlessly small batch": Edit(answer, "least_tokens"),
            "the least steps are given: those of an endlessly large batch": Edit(answer, "least_steps"),
            "the fewer tokens and the fewer steps that were measured are taken for the limits": (
                lambda one, other: min(one[1], other[1]) / min(one[0], other[0])
            ),
            "the steps of the first run are taken for the least steps": Edit(answer, "least_tokens / steps"),
            "the steps of the second run are taken for the least steps": Edit(answer, "least_tokens / other_steps"),
            "the tokens of the first run are taken for the least tokens": Edit(answer, "tokens / least_steps"),
            "the tokens of the second run are taken for the least tokens": Edit(answer, "other_tokens / least_steps"),
            "the fewer steps of the two are taken for the least steps": Edit(
                answer, "least_tokens / min(steps, other_steps)"
            ),
            "the fewer steps of the two are put together with the batch size of the first run": Edit(
                steps, "min(steps, other_steps) - least_tokens * inverse"
            ),
            "the batch sizes are rounded down": Edit(
                "steps / tokens, other_steps / other_tokens", "1 / (tokens // steps), 1 / (other_tokens // other_steps)"
            ),
            "numbers are rounded to whole ones": AnyOf(
                Edit(answer, f"round({answer})"),
                (
                    Edit(tokens, f"round({tokens})"),
                    Edit(steps, f"round({steps})"),
                    Edit(answer, f"round({answer})"),
                ),
            ),
            "the mean of the two batch sizes is taken": Edit(answer, "(1 / inverse + 1 / other_inverse) / 2"),
            "the larger of the two batch sizes is taken": Edit(answer, "max(1 / inverse, 1 / other_inverse)"),
            "all tokens are divided by all steps": Edit(answer, "(tokens + other_tokens) / (steps + other_steps)"),
            "the geometric mean of the two batch sizes is taken": Edit(answer, "(inverse * other_inverse) ** -0.5"),
            "the batch sizes themselves are on the axis, not one over them": (
                Edit("steps / tokens, other_steps / other_tokens", "tokens / steps, other_tokens / other_steps"),
            ),
            "the tokens saved are divided by the steps saved": Edit(
                answer, "(other_tokens - tokens) / (steps - other_steps)"
            ),
            "the sum is taken for the difference: least_tokens · inverse is added": Edit(
                steps, "steps + least_tokens * inverse"
            ),
            "the batch size of the other run stands in the last step": Edit(
                steps, "steps - least_tokens * other_inverse"
            ),
            "the sign is wrong: the steps fall where 1 / B rises": Edit(tokens, f"-{tokens}"),
            "least tokens and least steps are given both, not their ratio": Edit(answer, "least_tokens, least_steps"),
        },
        hints={
            tokens: "Steps are a straight line over 1 / B. Its slope is the least number of tokens.",
            steps: "Where 1 / B is 0 the line has the least number of steps.",
        },
    )


def _critical_batch(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Both unknowns from McCandlish et al. 2018, equation 2.11, as two linear equations: steps = S + E / B."""
    rows = torch.tensor([[1.0, steps / tokens] for steps, tokens in (one, other)], dtype=torch.float64)
    steps = torch.tensor([one[0], other[0]], dtype=torch.float64)
    least_steps, least_tokens = torch.linalg.solve(rows, steps).tolist()
    return least_tokens / least_steps
