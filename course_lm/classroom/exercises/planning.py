"""Exercises of lesson 17: the same step in less memory, the steps of a budget, a critical batch."""

from course_lm.classroom.checks import at_each, exercise


@exercise(
    cases={
        "seven rows at a time": (7, 1, (5, 100, 7, 1)),
        "32 rows at a time": (32, 1, (16, 10, 64, 1)),
        "four times 32 rows": (32, 4, (10, 32, 40, 64, 100, 200)),
        "twice twelve rows": (12, 2, (9, 11, 5, 23)),
    },
    run=at_each(2),
)
def same_step(batch_size, accumulation_steps, rows_that_fit):
    """(batch_size, accumulation_steps) of the same step: `fn(batch_size, accumulation_steps, rows_that_fit)`."""
    total = batch_size * accumulation_steps
    rows = min(rows_that_fit, total)
    while total % rows:
        rows -= 1
    return rows, total // rows


@exercise(
    cases={
        "a quarter of an hour": (137_024, 512, 2_000_000_000, 15),
        "a budget that ends just before a step does": (1_000, 13, 1_000, 31),
        "exactly as many as fit": (50, 20, 600, 10),
        "too little for one step": (124_000_000, 500_000, 10**12, 5),
    },
)
def steps_in_budget(parameters, tokens_a_step, flops_per_second, minutes):
    """Whole steps of a budget: `fn(parameters, tokens_a_step, flops_per_second, minutes)`, all whole numbers."""
    flops = 60 * minutes * flops_per_second
    return flops // (6 * parameters * tokens_a_step)


@exercise(
    cases={
        "a small and a large batch": ((500, 500 * 1000), (150, 150 * 8000)),
        "the large one first": ((120, 120 * 4096), (300, 300 * 512)),
        "two small ones, of no whole number of tokens": ((40, 250), (22, 261)),
    },
)
def critical_batch(one, other):
    """Tokens of the critical batch from two measured runs: `fn(one, other)`, each (steps, tokens)."""
    (steps, tokens), (other_steps, other_tokens) = one, other
    inverse, other_inverse = steps / tokens, other_steps / other_tokens
    least_tokens = (steps - other_steps) / (inverse - other_inverse)
    least_steps = steps - least_tokens * inverse
    return least_tokens / least_steps
