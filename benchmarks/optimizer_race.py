"""What lesson 04 draws: `python benchmarks/optimizer_race.py` measures it and stores `data/optimizer_race.json`.

The loop is read from the notebook (its cells tagged `loop`), so the curves belong to the lines that a learner sees.
Two parts: a sweep that tunes each optimizer's learning rate, on a coarse grid and then at half and at twice the best of
it; and a race at the tuned rates with other seeds.
"""

from collections.abc import Iterable
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from harness import Results, Runs, Settings, load, loop_of, measure_missing

FILE, LESSON = "optimizer_race.json", "04_optimizers"
NAMES = ("SGD", "Adam", "Muon")
LEARNING_RATES = (0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096)
SWEEP_SEEDS = (0, 1, 2)
RACE_SEEDS = (3, 4, 5, 6)
WINDOW = 5  # steps whose losses are stored as one mean


def tuned(sweep: list[Results], name: str, learning_rates: Iterable[float]) -> float:
    """The one of `learning_rates` with the lowest validation loss, averaged over the sweep's seeds."""

    def score(learning_rate: float) -> float:
        same = [run for run in sweep if (run["name"], run["learning_rate"]) == (name, learning_rate)]
        return mean(run["val_loss"] for run in same)

    return min(learning_rates, key=score)


def around_best(sweep: list[Results], name: str) -> tuple[float, float, float]:
    """Half the best of `LEARNING_RATES`, that rate, and twice that rate."""
    best = tuned(sweep, name, LEARNING_RATES)
    return best / 2, best, best * 2


def runs_of(results: Results) -> Runs:
    """Every run: its part and its settings. The race comes after the sweep, whose result it needs."""
    for rates in (lambda name: LEARNING_RATES, lambda name: around_best(results["sweep"], name)):
        for name, seed in product(NAMES, SWEEP_SEEDS):
            for learning_rate in rates(name):
                yield "sweep", {"name": name, "learning_rate": learning_rate, "seed": seed}
    for name, seed in product(NAMES, RACE_SEEDS):
        best = tuned(results["sweep"], name, around_best(results["sweep"], name))
        yield "race", {"name": name, "learning_rate": best, "seed": seed}


def measure(loop: dict[str, Any], part: str, settings: Settings) -> Results:
    """Train once; losses are means over `WINDOW` steps."""
    losses, val_loss = loop["train"](settings["name"], settings["learning_rate"], seed=settings["seed"])
    means = [mean(losses[step : step + WINDOW]) for step in range(0, len(losses), WINDOW)]
    return settings | {"losses": [round(loss, 3) for loss in means], "val_loss": round(val_loss, 3)}


if __name__ == "__main__":
    loop = loop_of(LESSON)
    results = load(FILE, lambda: {"floor": round(loop["floor"], 4)})
    measure_missing(FILE, results, runs_of(results), partial(measure, loop))
