"""More steps or a larger model, for lesson 17: `python benchmarks/scaling.py` stores `data/scaling.json`.

Models of four widths are trained at four budgets of FLOPs, counted by torch's counter for a step of each width: at one
budget a wider model makes fewer steps. The schedule spans each run. Each width at each budget has a learning rate of
its own, found on one grid, on which the sweep goes on until both neighbours of the best rate are worse. The runs that
are compared have other seeds.
"""

from functools import cache, partial
from itertools import islice

from harness import Results, Runs, Settings, load, measure_missing, tuned_runs
from story_rows import BATCH_SIZE, COMMON, LENGTH, N_LAYER, WARM_UP, batches, new_model, train

from course_lm.loss import next_token_loss
from course_lm.model import count_parameters
from course_lm.profiling.work import flop_counter
from course_lm.schedules import cosine

FILE = "scaling.json"
WIDTHS, BUDGETS = (16, 32, 64, 128), (3e10, 8e10, 2.2e11, 6e11)  # FLOPs


@cache
def flops_of_step(d_model: int) -> int:
    """FLOPs of the matrix products of one step, forward and backward."""
    rows = next(batches(BATCH_SIZE, seed=0))["input_ids"]
    with flop_counter() as counter:
        next_token_loss(new_model(d_model, seed=0)(rows), rows).backward()
    return counter.get_total_flops()


def settings_of_runs(results: Results) -> Runs:
    """Every run: its part and its settings, one budget after the other."""
    arms = [[{"d_model": d_model, "budget": budget} for d_model in WIDTHS] for budget in BUDGETS]
    return tuned_runs(results["sweep"], arms)


def measure(part: str, settings: Settings) -> Results:
    """Train once; the held-out loss after the last step, in nats per token."""
    d_model, seed = settings["d_model"], settings["seed"]
    model = new_model(d_model, seed)
    steps = round(settings["budget"] / flops_of_step(d_model))
    peak, warm_up = settings["learning_rate"], round(WARM_UP * steps)
    schedule = partial(cosine, peak_lr=peak, total_steps=steps, warmup_steps=warm_up)
    counts = {
        "n_layer": N_LAYER,
        "parameters": count_parameters(model),
        "steps": steps,
        "tokens": steps * BATCH_SIZE * LENGTH,
        "flops": steps * flops_of_step(d_model),
    }
    return settings | counts | {"val_loss": train(model, islice(batches(BATCH_SIZE, seed), steps), schedule)}


def begin() -> Results:
    """What all runs have in common, and none yet."""
    more = {"schedule": "cosine to 0", "flops_of_step": {str(width): flops_of_step(width) for width in WIDTHS}}
    return {"settings": COMMON | more, "sweep": [], "runs": []}


if __name__ == "__main__":
    results = load(FILE, begin)
    measure_missing(FILE, results, settings_of_runs(results), measure)
