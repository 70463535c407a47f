"""The curriculum that guides recommend, on longer runs: `python tests/benchmarks/longer_curricula.py`.

Stores `data/longer_curricula.json`. Linear pacing from a fifth of the text, all of it admitted half-way; each strategy
of the package alone, and combined; on English prose (`python-docs`) and on the two grammars. Beside them no curriculum
and the control, which admits text in random order at the same pace. Everything that is not said here is that of
`curriculum_experiment.py`: thresholds count tokens, and all arms read the same number of target tokens.

The model is smaller and the runs are twice as long as there. Each arm is tuned alike with a seed of its own: for each
share of warm-up the rates go by factors of two until the best one has a worse one on each side. The best pair is taken.
`python-docs` differs between versions of Python, so its file names the version.

Every run has one thread. Runs are kept as they end. Stopped by `--seconds`, the script goes on where it was when it is
called again; delete the file to measure everything anew.
"""

import json
import platform
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from curriculum_experiment import BASE, CONTROL, Arm, admitting, batches, configured, text
from kept_runs import Results, Settings, losses_by_rate, measure_missing, next_rate

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
    "morphological": Arm("morphological", "linear"),
    "combined": Arm("combined", "linear"),
}
# Of other languages than Hindi the morphological score counts words alone: it puts them in the order of their length.
CORPORA = {
    corpus: tuple(arm for arm in ARMS if arm != "morphological" or corpus == "hindi")
    for corpus in ("python-docs", "stories", "hindi")
}
TOKENS = 1_600_000  # target tokens of a run
PACING = {"start_threshold": 0.2, "threshold_on": "score", "num_steps": 400}  # half of the run's steps
WARM_UPS, FIRST_RATE = (0.1, 0.4), 8e-3  # shares of the tokens
D_MODEL, DROPOUT = 64, 0.1
SWEEP_SEED, SEEDS = 100, range(6)


def best_pair(sweep: list[Results], **arm: str) -> tuple[float, float]:
    """The learning rate and the warm-up with which an arm ended lowest."""
    tried = {
        (rate, share): loss for share in WARM_UPS for rate, loss in losses_by_rate(sweep, **arm, warm_up=share).items()
    }
    return min(tried, key=tried.__getitem__)


def settings_of_runs(results: Results) -> Iterator[tuple[str, Settings]]:
    """Every run: its part and its settings, one corpus after the other. An arm's runs need its sweep."""
    sweep = results["sweep"]
    for corpus, arms in CORPORA.items():
        for name, share in product(arms, WARM_UPS):
            arm = {"corpus": corpus, "arm": name, "warm_up": share}
            while (rate := next_rate(sweep, FIRST_RATE, **arm)) is not None:
                yield "sweep", {**arm, "learning_rate": rate, "seed": SWEEP_SEED}
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


def shared_settings() -> Results:
    """What all runs have in common."""
    shared: dict[str, Any] = {"tokens": TOKENS, "pacing": PACING, "d_model": D_MODEL, "dropout": DROPOUT}
    return shared | {"python": platform.python_version()}


def main() -> None:
    """Measure what is missing."""
    torch.set_num_threads(1)
    path = data_file(FILE)
    results: Results = {"settings": shared_settings(), "sweep": [], "runs": []}
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
    measure_missing(path, results, settings_of_runs(results), measure)


if __name__ == "__main__":
    main()
