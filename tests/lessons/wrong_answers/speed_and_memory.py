"""Answers to the exercises of lesson 15: wrong ones, each with the mistake that must be named, and right ones."""

import statistics

import numpy as np

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("profiling",)
SABOTAGE = (
    "profiling/machine.py",
    "max(computing, moved / self.bytes_per_second)",
    "computing + moved / self.bytes_per_second",
)


# Exercise 1


def _timed(arm, clock):
    start = clock()
    arm()
    return clock() - start


def _turn(arms, number):
    return enumerate(arms) if number % 2 == 0 else reversed(list(enumerate(arms)))


def timer_of_mean(arms, clock, warm_up, rounds):
    times = np.zeros((len(arms), rounds))
    for arm in arms * warm_up:
        arm()
    for number in range(rounds):
        for index, arm in _turn(arms, number):
            times[index, number] = _timed(arm, clock)
    return times.mean(axis=1)


def timer_without_warm_up(arms, clock, warm_up, rounds):
    times = np.zeros((len(arms), rounds))
    for number in range(rounds):
        for index, arm in _turn(arms, number):
            times[index, number] = _timed(arm, clock)
    return np.median(times, axis=1)


def timer_arm_by_arm(arms, clock, warm_up, rounds):
    medians = []
    for arm in arms:
        for _ in range(warm_up):
            arm()
        medians.append(statistics.median(_timed(arm, clock) for _ in range(rounds)))
    return medians


def timer_in_blocks(arms, clock, warm_up, rounds):
    for _ in range(warm_up):
        for arm in arms:
            arm()
    return [float(np.median([_timed(arm, clock) for _ in range(rounds)])) for arm in arms]


def timer_in_one_order(arms, clock, warm_up, rounds):
    for _ in range(warm_up):
        for arm in arms:
            arm()
    times = [[_timed(arm, clock) for arm in arms] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times)]


def timer_of_best(arms, clock, warm_up, rounds):
    best = [float("inf")] * len(arms)
    for arm in arms * warm_up:
        arm()
    for number in range(rounds):
        for index, arm in _turn(arms, number):
            best[index] = min(best[index], _timed(arm, clock))
    return best


def timer_of_upper_median(arms, clock, warm_up, rounds):
    times = {index: [] for index in range(len(arms))}
    for arm in arms * warm_up:
        arm()
    for number in range(rounds):
        for index, arm in _turn(arms, number):
            times[index].append(_timed(arm, clock))
    return [sorted(one)[rounds // 2] for one in times.values()]


def timer_of_blocks(arms, clock, warm_up, rounds):
    seconds = []
    for arm in arms:
        for _ in range(warm_up):
            arm()
        start = clock()
        for _ in range(rounds):
            arm()
        seconds.append((clock() - start) / rounds)
    return seconds


def timer_of_unsorted_middle(arms, clock, warm_up, rounds):
    times = [[] for _ in arms]
    for arm in arms * warm_up:
        arm()
    for number in range(rounds):
        for index, arm in _turn(arms, number):
            times[index].append(_timed(arm, clock))
    return [one[rounds // 2] for one in times]


def timer_that_counts_warm_up(arms, clock, warm_up, rounds):
    times = [[] for _ in arms]
    for number in range(warm_up + rounds):
        for index, arm in _turn(arms, number):
            times[index].append(_timed(arm, clock))
    return [statistics.median(one) for one in times]


def timer_by_place(arms, clock, warm_up, rounds):
    for arm in list(arms) * warm_up:
        arm()
    places = [[] for _ in arms]
    for number in range(rounds):
        for place, (_, arm) in enumerate(_turn(arms, number)):
            places[place].append(_timed(arm, clock))
    return [statistics.median(one) for one in places]


def timer_that_warms_up_each_time(arms, clock, warm_up, rounds):
    times = np.zeros((len(arms), rounds))
    for number in range(rounds):
        for index, arm in _turn(arms, number):
            [arm() for _ in range(warm_up)]
            times[index, number] = _timed(arm, clock)
    return np.median(times, axis=1)


def timer_that_drops_rounds(arms, clock, warm_up, rounds):
    times = np.zeros((len(arms), warm_up + rounds))
    for number in range(warm_up + rounds):
        for index, arm in _turn(arms, number):
            times[index, number] = _timed(arm, clock)
    return np.median(times[:, warm_up:], axis=1)


def timer_by_turns_of_numpy(arms, clock, warm_up, rounds):
    times = np.zeros((len(arms), rounds))
    for _ in range(warm_up):
        for arm in arms:
            arm()
    for number in range(rounds):
        for index, arm in _turn(arms, number):
            times[index, number] = _timed(arm, clock)
    return np.median(times, axis=1)


def timer_that_drops(arms, clock, warm_up, rounds):
    times = [[] for _ in arms]
    for arm in arms:
        for _ in range(warm_up):
            _timed(arm, clock)
    order = list(range(len(arms)))
    for _ in range(rounds):
        for index in order:
            times[index].append(_timed(arms[index], clock))
        order.reverse()
    return tuple(statistics.median(one) for one in times)


# Exercise 2


def flops_forward(tokens, shapes):
    return sum(2 * tokens * i * o for i, o in shapes)


def flops_without_additions(tokens, shapes):
    total = 3 * sum(tokens * i * o for i, o in shapes)
    i, o = shapes[0]
    return total - tokens * i * o


def flops_by_six(tokens, shapes):
    return 6 * tokens * sum(i * o for i, o in shapes)


def flops_with_one_backward(tokens, shapes):
    return 2 * flops_forward(tokens, shapes)


def flops_without_weights(tokens, shapes):
    return flops_forward(tokens, shapes) + flops_forward(tokens, shapes[1:])


def flops_of_one_token(tokens, shapes):
    return flops_forward(1, shapes) * 2 + flops_forward(1, shapes[1:])


def flops_spared_at_the_end(tokens, shapes):
    return flops_forward(tokens, shapes) * 2 + flops_forward(tokens, shapes[:-1])


def flops_of_sums(tokens, shapes):
    counted = [2 * tokens * sum(shape) for shape in shapes]
    return 3 * sum(counted) - counted[0]


def flops_of_the_last(tokens, shapes):
    total = 0
    for number, (i, o) in enumerate(shapes):
        total = 2 * tokens * i * o * 2
        if number > 0:
            total += 2 * tokens * i * o
    return total


def flops_of_numpy(tokens, shapes):
    sizes = np.array(shapes).prod(axis=1)
    return 6 * tokens * sizes.sum() - 2 * tokens * sizes[0]


def flops_one_by_one(tokens, shapes):
    total, is_first = 0, True
    for i, o in shapes:
        total += 2 * tokens * i * o + 2 * i * tokens * o
        if not is_first:
            total += 2 * tokens * o * i
        is_first = False
    return total


# Exercise 3


def _peak(parameters, activations, gradients, number):
    return {
        "weights": parameters * 4,
        "gradients": gradients,
        "moments": number * 4 * parameters,
        "activations": activations,
    }


def _numbers(optimizer):
    return 2 if optimizer == "adamw" else 1


def peak_of_all_micro_batches(parameters, activations, micro_batches, optimizer):
    before = 4 * parameters * (micro_batches > 1)
    if before + activations * micro_batches > 4 * parameters:
        return _peak(parameters, activations * micro_batches, before, _numbers(optimizer))
    return _peak(parameters, 0, 4 * parameters, _numbers(optimizer))


def peak_of_each_owner(parameters, activations, micro_batches, optimizer):
    return _peak(parameters, activations, 4 * parameters, _numbers(optimizer))


def peak_without_earlier_gradients(parameters, activations, micro_batches, optimizer):
    if activations > 4 * parameters:
        return _peak(parameters, activations, 0, _numbers(optimizer))
    return _peak(parameters, 0, 4 * parameters, _numbers(optimizer))


def peak_of_the_backward_pass(parameters, activations, micro_batches, optimizer):
    return _peak(parameters, activations, 4 * parameters if micro_batches >= 2 else 0, _numbers(optimizer))


def peak_of_the_update(parameters, activations, micro_batches, optimizer):
    return _peak(parameters, 0, 4 * parameters, _numbers(optimizer))


def _right_peak(parameters, activations, micro_batches, number):
    before = 4 * parameters * (micro_batches > 1)
    if before + activations > 4 * parameters:
        return _peak(parameters, activations, before, number)
    return _peak(parameters, 0, 4 * parameters, number)


def peak_with_one_moment(parameters, activations, micro_batches, optimizer):
    return _right_peak(parameters, activations, micro_batches, 1)


def peak_with_plain_sgd(parameters, activations, micro_batches, optimizer):
    return _right_peak(parameters, activations, micro_batches, 2 * (optimizer == "adamw"))


def peak_in_numbers(parameters, activations, micro_batches, optimizer):
    before = parameters * (micro_batches > 1)
    is_backward = before + activations > parameters
    return {
        "weights": parameters,
        "gradients": before if is_backward else parameters,
        "moments": _numbers(optimizer) * parameters,
        "activations": activations if is_backward else 0,
    }


def peak_with_late_moments(parameters, activations, micro_batches, optimizer):
    moments = {"adamw": 2, "sgd": 1}[optimizer] * 4 * parameters
    backward = {"weights": 4 * parameters, "moments": 0, "activations": activations}
    backward["gradients"] = 4 * parameters * (micro_batches > 1)
    update = {"weights": 4 * parameters, "moments": moments, "activations": 0, "gradients": 4 * parameters}
    return max(update, backward, key=lambda owners: sum(owners.values()))


def peak_as_a_sum(parameters, activations, micro_batches, optimizer):
    return sum(_right_peak(parameters, activations, micro_batches, _numbers(optimizer)).values())


def peak_by_comparing(parameters, activations, micro_batches, optimizer):
    return _right_peak(parameters, activations, micro_batches, _numbers(optimizer))


# Exercise 4


def _line(one, other):
    sizes = [tokens / steps for steps, tokens in (one, other)]
    slope, intercept = np.polyfit([1 / size for size in sizes], [one[0], other[0]], 1)
    return slope, intercept, sizes


def batch_upside_down(one, other):
    slope, intercept, _ = _line(one, other)
    return intercept / slope


def batch_of_slope(one, other):
    return _line(one, other)[0]


def batch_of_intercept(one, other):
    return _line(one, other)[1]


def batch_of_measured_least(one, other):
    tokens = sorted([one[1], other[1]])
    steps = sorted([one[0], other[0]])
    return tokens[0] / steps[0]


def batch_of_mean(one, other):
    return sum(_line(one, other)[2]) / 2


def batch_of_geometric_mean(one, other):
    a, b = _line(one, other)[2]
    return (a * b) ** 0.5


def batch_of_savings(one, other):
    return abs((one[1] - other[1]) / (one[0] - other[0]))


def batch_of_both(one, other):
    slope, intercept, _ = _line(one, other)
    return slope, intercept


def batch_by_a_line(one, other):
    slope, intercept, _ = _line(one, other)
    return slope / intercept


_MEAN_OF_ALL = "each arm is measured once, over all its rounds, and divided: that is a mean, and no turns are taken"

WRONG_ANSWERS = {
    "fair_seconds": [
        (timer_of_mean, "the mean is taken, which one disturbed step moves"),
        (timer_without_warm_up, "the first steps are counted: nothing is warmed up"),
        (timer_arm_by_arm, "the arms do not take turns: one has all its steps before the next one begins"),
        (timer_in_blocks, "the arms do not take turns: all are warmed up, then each has all its rounds"),
        (timer_in_one_order, "each round has the same order: on a machine that slows down the last arm always loses"),
        (timer_of_best, "the shortest step is taken, not the median"),
        (timer_of_upper_median, "of an even number of steps the upper one of the two in the middle is taken"),
        (timer_of_blocks, _MEAN_OF_ALL),
        (timer_of_unsorted_middle, "the step in the middle of the list is taken, which is not sorted"),
        (timer_by_place, "the seconds are kept by their place in the round, not by their arm"),
        (
            timer_that_warms_up_each_time,
            "each timed step has a warm-up of its own, while the machine goes on slowing down",
        ),
        (
            timer_that_drops_rounds,
            "the rounds are numbered from the warm-up on, which turns round 0 around where `warm_up` is odd",
        ),
        (timer_that_counts_warm_up, "the steps of warm-up are timed with the others"),
    ],
    "step_flops": [
        (flops_forward, "the forward pass alone is counted"),
        (flops_without_additions, "a multiplication and the addition that follows it are counted as one"),
        (flops_by_six, "the input of the first layer is given a gradient, which nobody asks for"),
        (flops_with_one_backward, "the backward pass is counted as one product for each layer"),
        (
            flops_without_weights,
            "one of the three products of each layer is left out: forward, gradient of the weights, gradient of the "
            "input",
        ),
        (flops_of_one_token, "the tokens are left out: the weights meet each of them"),
        (flops_spared_at_the_end, "the last layer is spared the gradient of its input, and not the first"),
        (flops_of_sums, "the sizes of a layer are added, not multiplied"),
        (flops_of_the_last, "the last layer alone is counted"),
    ],
    "peak_by_owner": [
        (
            peak_of_all_micro_batches,
            "the activations of all micro-batches are held at a time: a backward pass frees them",
        ),
        (
            peak_of_each_owner,
            "the largest of each owner is taken: with one micro-batch gradients and activations do not meet",
        ),
        (
            peak_without_earlier_gradients,
            "gradients are held only by the update: those of earlier micro-batches are there too",
        ),
        (peak_of_the_backward_pass, "the update is forgotten, which is the peak where activations are small"),
        (peak_of_the_update, "the backward pass is forgotten, which is the peak where activations are large"),
        (peak_with_one_moment, "AdamW keeps one number for each weight: it keeps two"),
        (peak_with_plain_sgd, "SGD keeps nothing: with momentum it keeps a number for each weight"),
        (peak_in_numbers, "numbers are counted and not bytes: of weights, gradients and moments"),
        (peak_with_late_moments, "the moments are counted for the update alone: they stay from step to step"),
        (peak_as_a_sum, "the sum is returned, not a dict of owners"),
    ],
    "critical_batch": [
        (batch_upside_down, "the fraction is upside down, steps over tokens, or steps and tokens were exchanged"),
        (batch_of_slope, "the least tokens are given: those of an endlessly small batch"),
        (batch_of_intercept, "the least steps are given: those of an endlessly large batch"),
        (
            batch_of_measured_least,
            "the fewer tokens and the fewer steps that were measured are taken for the limits",
        ),
        (batch_of_mean, "the mean of the two batch sizes is taken"),
        (batch_of_geometric_mean, "the geometric mean of the two batch sizes is taken"),
        (batch_of_savings, "the tokens saved are divided by the steps saved"),
        (batch_of_both, "least tokens and least steps are given both, not their ratio"),
    ],
}
EQUIVALENT = {
    "fair_seconds": [timer_by_turns_of_numpy, timer_that_drops],
    "step_flops": [flops_of_numpy, flops_one_by_one],
    "peak_by_owner": [peak_by_comparing],
    "critical_batch": [batch_by_a_line],
}
