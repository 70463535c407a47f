"""Which schedule for a language model? `python benchmarks/schedule_race.py` stores `data/schedule_race.json`.

For lesson 05. Four schedules at three lengths of a run, each with the same warm-up and each at a learning rate of its
own: the rates have one grid of powers of two, on which the sweep goes on until both neighbours of the best one are
worse. The runs that are compared have other seeds. No run reads a row twice.
"""

from itertools import islice

from harness import Results, Runs, Settings, load, measure_missing, tuned_runs
from story_rows import BATCH_SIZE, COMMON, D_MODEL, WARM_UP, batches, new_model, train

from course_lm.schedules import ScheduleConfig, build_schedule

FILE = "schedule_race.json"
STEPS = (100, 400, 1600)
DECAY = 0.2  # share of the steps, of WSD: warm-up, stable, decay
ARMS = {
    "constant": ScheduleConfig("constant_with_warmup", warmup_ratio=WARM_UP),
    "linear": ScheduleConfig("linear_with_warmup", warmup_ratio=WARM_UP),
    "cosine": ScheduleConfig("cosine_with_warmup", warmup_ratio=WARM_UP),
    "WSD": ScheduleConfig("warmup_stable_decay", warmup_ratio=WARM_UP, decay_ratio=DECAY),
}


def settings_of_runs(results: Results) -> Runs:
    """Every run: its part and its settings, one length after the other."""
    return tuned_runs(results["sweep"], [[{"schedule": name, "steps": steps} for name in ARMS] for steps in STEPS])


def measure(part: str, settings: Settings) -> Results:
    """Train once; the held-out loss after the last step, in nats per token."""
    steps, seed = settings["steps"], settings["seed"]
    schedule = build_schedule(ARMS[settings["schedule"]], peak_lr=settings["learning_rate"], total_steps=steps)
    rows = islice(batches(BATCH_SIZE, seed), steps)
    return settings | {"val_loss": train(new_model(D_MODEL, seed), rows, schedule)}


def begin() -> Results:
    """What all runs have in common, and none yet."""
    return {"settings": COMMON | {"d_model": D_MODEL, "decay_ratio": DECAY}, "sweep": [], "runs": []}


if __name__ == "__main__":
    results = load(FILE, begin)
    measure_missing(FILE, results, settings_of_runs(results), measure)
