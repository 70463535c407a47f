"""What lesson 04 draws: `python benchmarks/optimizer_race.py` measures it and stores `data/optimizer_race.json`.

The loop is read from the notebook (its cells tagged `loop`), so the curves belong to the lines that a learner sees.
Three parts: a sweep that tunes each contestant's learning rate, on a coarse grid and then at half and at twice the best
of it; a race at the tuned rates with other seeds; and a grid of weight decay and dropout on a small text.
"""

from collections.abc import Iterable
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

from harness import Results, Runs, Settings, load, loop_of, measure_missing

FILE, LESSON = "optimizer_race.json", "04_optimizers"
LEARNING_RATES = (0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096)
SWEEP_SEEDS = (0, 1)
RACE_SEEDS = (2, 3, 4, 5, 6)
WEIGHT_DECAYS, DROPOUTS, GRID_SEEDS = (0.0, 0.1, 1.0, 3.0), (0.0, 0.2), (0, 1, 2)
BATCH_SIZE = 4  # of the grid
WINDOW = 5  # steps whose losses are stored as one mean


def tuned(sweep: list[Results], name: str, learning_rates: Iterable[float]) -> float:
    """The one of `learning_rates` with the lowest validation loss, averaged over the sweep's seeds."""

    def score(learning_rate: float) -> float:
        same = [run for run in sweep if (run["name"], run["learning_rate"]) == (name, learning_rate)]
        return mean(run["val_losses"][-1] for run in same)

    return min(learning_rates, key=score)


def around_best(sweep: list[Results], name: str) -> tuple[float, float, float]:
    """Half the best of `LEARNING_RATES`, that rate, and twice that rate."""
    best = tuned(sweep, name, LEARNING_RATES)
    return best / 2, best, best * 2


def runs_of(results: Results, names: list[str]) -> Runs:
    """Every run: its part and its settings. The race comes after the sweep, whose result it needs."""
    for name in names:
        for learning_rate, seed in product(LEARNING_RATES, SWEEP_SEEDS):
            yield "sweep", {"name": name, "learning_rate": learning_rate, "seed": seed}
        for learning_rate, seed in product(around_best(results["sweep"], name), SWEEP_SEEDS):
            yield "sweep", {"name": name, "learning_rate": learning_rate, "seed": seed}
    for name in names:
        best = tuned(results["sweep"], name, around_best(results["sweep"], name))
        for seed in RACE_SEEDS:
            yield "race", {"name": name, "learning_rate": best, "seed": seed}
    for weight_decay, dropout, seed in product(WEIGHT_DECAYS, DROPOUTS, GRID_SEEDS):
        yield "grid", {"batch_size": BATCH_SIZE, "weight_decay": weight_decay, "dropout": dropout, "seed": seed}


def train_small(loop: dict[str, Any], settings: Settings) -> tuple[list[float], dict[int, float]]:
    """The lesson's loop on a text so small that it is learned by heart: 24 stories, forty epochs."""
    loader = loop["loader_of"](loop["train_corpus"].documents[:24], batch_size=settings["batch_size"])
    config = loop["OptimizerConfig"](learning_rate=5e-3, weight_decay=settings["weight_decay"])
    rest = {key: settings[key] for key in ("dropout", "seed")}
    return loop["train"](config, loader, steps=240, eval_steps=40, **rest)


def measure(loop: dict[str, Any], part: str, settings: Settings) -> Results:
    """Train once; losses are means over `WINDOW` steps."""
    if part == "grid":
        losses, val_losses = train_small(loop, settings)
    else:
        numbers = loop["CONTESTANTS"][settings["name"]]
        config = loop["OptimizerConfig"](learning_rate=settings["learning_rate"], **numbers)
        losses, val_losses = loop["train"](config, seed=settings["seed"])
    means = [mean(losses[step : step + WINDOW]) for step in range(0, len(losses), WINDOW)]
    curves = {"losses": means, "val_losses": list(val_losses.values())}
    return settings | {name: [round(loss, 3) for loss in curve] for name, curve in curves.items()}


if __name__ == "__main__":
    loop = loop_of(LESSON)
    results = load(FILE, lambda: {"floor": round(loop["floor"], 4)})
    measure_missing(FILE, results, runs_of(results, list(loop["CONTESTANTS"])), partial(measure, loop))
