"""The curriculum that guides recommend, on longer runs: `python tests/benchmarks/longer_curricula.py`.

Stores `data/longer_curricula.json`. Linear pacing from a fifth of the text, all of it admitted half-way; length and
frequency alone, and combined; on English prose, `python-docs`, on the stories, and on Hindi, there with the
morphological score too. Beside them no curriculum and the control, which admits text in random order at the same pace.
Everything that is not said here is that of `curriculum_experiment.py`: thresholds count tokens, and all arms read the
same number of target tokens.

The model is smaller and the runs are twice as long as there. Each arm is tuned alike with a seed of its own: the rates
go by factors of two until the best one has a worse one on each side, and with it the other share of warm-up is tried.
`python-docs` differs between versions of Python, so its file names the version.

Every run has one thread. Runs are kept as they end. Stopped by `--seconds`, the script goes on where it was when it is
called again; delete the file to measure everything anew.
"""

import platform
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from curriculum_experiment import BASE, CONTROL, Arm, admitting, batches, configured, text
from kept_runs import Results, Settings, best_rate, load_or_begin, measure_missing, next_rate

from course_lm.classroom.comparison import changes_in_perplexity
from course_lm.corpus.shipped import data_file
from course_lm.model import GPT
from course_lm.monitoring import evaluate
from course_lm.optim import build_optimizer
from course_lm.schedules import cosine
from course_lm.step import train_step

FILE = "longer_curricula.json"
ARMS = {
    BASE: Arm(None),
    CONTROL: Arm("random", "linear"),
    "length": Arm("short", "linear"),
    "frequency": Arm("frequency", "linear"),
    "combined": Arm("combined", "linear"),
    "morphological": Arm("morphological", "linear"),
}
# Of other languages than Hindi the morphological score counts words alone, and so puts them in the order of length.
CORPORA = {
    "python-docs": tuple(arm for arm in ARMS if arm != "morphological"),
    "stories": tuple(arm for arm in ARMS if arm != "morphological"),
    "hindi": tuple(ARMS),
}
TOKENS = 1_600_000  # target tokens of a run
PACING = {"start_threshold": 0.2, "threshold_on": "score", "num_steps": 400}  # half of the run's steps
WARM_UP, OTHER_WARM_UP, FIRST_RATE = 0.4, 0.1, 8e-3  # shares of the tokens
D_MODEL, DROPOUT = 64, 0.1
SWEEP_SEED, SEEDS = 100, (0, 1, 2)


def best_pair(sweep: list[Results], **arm: str) -> tuple[float, float]:
    """The learning rate and the warm-up with which an arm ended lowest."""
    tried = [run for run in sweep if arm.items() <= run.items()]
    best = min(tried, key=lambda run: run["val_loss"])
    return best["learning_rate"], best["warm_up"]


def settings_of_runs(results: Results) -> Iterator[tuple[str, Settings]]:
    """Every run: its part and its settings, one corpus after the other. An arm's runs need its sweep."""
    sweep = results["sweep"]
    for corpus, arms in CORPORA.items():
        for name in arms:
            arm = {"corpus": corpus, "arm": name, "seed": SWEEP_SEED}
            while (rate := next_rate(sweep, FIRST_RATE, **arm, warm_up=WARM_UP)) is not None:
                yield "sweep", {**arm, "warm_up": WARM_UP, "learning_rate": rate}
            best = best_rate(sweep, **arm, warm_up=WARM_UP)
            yield "sweep", {**arm, "warm_up": OTHER_WARM_UP, "learning_rate": best}
        for seed, name in product(SEEDS, arms):
            rate, share = best_pair(sweep, corpus=corpus, arm=name)
            yield "runs", {"corpus": corpus, "arm": name, "warm_up": share, "learning_rate": rate, "seed": seed}


def measure(part: str, settings: Settings) -> Results:
    """Train once; the validation loss after the last token, in nats per token."""
    corpus, rate, seed = settings["corpus"], settings["learning_rate"], settings["seed"]
    config = configured(corpus, rate, seed)
    shape = replace(config.model, d_model=D_MODEL, dropout=DROPOUT)
    torch.manual_seed(seed)
    model = GPT(shape, config.data.vocab_size, config.data.max_length)
    optimizer = build_optimizer(model, config.optimizer)
    model.train()
    seen, warm_up = 0, int(settings["warm_up"] * TOKENS)
    for batch in batches(admitting(corpus, ARMS[settings["arm"]], seed, PACING)):
        lr = cosine(seen, peak_lr=rate, total_steps=TOKENS, warmup_steps=warm_up)
        seen += int(train_step(model, [batch], optimizer, lr=lr).tokens)
        if seen >= TOKENS:
            break
    return settings | {"val_loss": round(evaluate(model, text(corpus).val_loader)["val_loss"], 4)}


def changes(results: Results, corpus: str, arm: str, other: str) -> list[float]:
    """The change in perplexity of an arm against another, in per cent, seed by seed."""
    mine, its = (
        [
            run["val_loss"]
            for seed in SEEDS
            for run in results["runs"]
            if one.items() <= run.items() and run["seed"] == seed
        ]
        for one in ({"corpus": corpus, "arm": arm}, {"corpus": corpus, "arm": other})
    )
    return changes_in_perplexity(mine, its)


def table(results: Results) -> str:
    """In Markdown: the three changes of each arm against no curriculum and against the control, in per cent."""
    rows = [f"| | {' | '.join(CORPORA)} |", "|---" * (1 + len(CORPORA)) + "|"]
    for other, arm in product((BASE, CONTROL), ARMS):
        if arm in (BASE, other):
            continue
        found = [changes(results, corpus, arm, other) if arm in arms else [] for corpus, arms in CORPORA.items()]
        cells = [", ".join(f"{change:+.1f} %".replace("-", "−") for change in three) or "–" for three in found]
        rows.append(f"| {arm}, against {other} | {' | '.join(cells)} |")
    return "\n".join(rows)


def shared_settings() -> Results:
    """What all runs have in common."""
    shared: dict[str, Any] = {"tokens": TOKENS, "pacing": PACING, "d_model": D_MODEL, "dropout": DROPOUT}
    return shared | {"python": platform.python_version()}


def main() -> None:
    """Measure what is missing."""
    torch.set_num_threads(1)
    path = data_file(FILE)
    results = load_or_begin(path, shared_settings(), "sweep", "runs")
    measure_missing(path, results, settings_of_runs(results), measure)
    if len(results["runs"]) == len(SEEDS) * sum(map(len, CORPORA.values())):
        print(table(results))


if __name__ == "__main__":
    main()
