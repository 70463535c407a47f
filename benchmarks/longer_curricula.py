"""The curriculum that guides recommend, on longer runs: `python benchmarks/longer_curricula.py`.

Stores `data/longer_curricula.json`. Linear pacing from a fifth of the text, all of it admitted half-way; length and
frequency alone, and combined; on English prose, `python-docs`, on the stories, and on Hindi, there with the
morphological score too. Beside them no curriculum and the control, which admits text in random order at the same pace.
Everything that is not said here is that of `curriculum_experiment.py`: thresholds count tokens, and all arms read the
same number of target tokens.

The model is smaller and the runs are twice as long as there. Each arm is tuned alike with a seed of its own: the rates
go by factors of two until the best one has a worse one on each side, and with it the other share of warm-up is tried.
`python-docs` differs between versions of Python, so its file names the version.
"""

import platform
from dataclasses import replace
from itertools import product

from curriculum_experiment import BASE, CONTROL, Arm, admitting, configured, pairs, validated
from harness import Results, Runs, Settings, best_rate, load, markdown, measure_missing, next_rate

from course_lm.classroom.comparison import changes_in_perplexity

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
OF_ALL_TEXTS = tuple(arm for arm in ARMS if arm != "morphological")
CORPORA = {"python-docs": OF_ALL_TEXTS, "stories": OF_ALL_TEXTS, "hindi": tuple(ARMS)}
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


def settings_of_runs(results: Results) -> Runs:
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
    corpus, seed = settings["corpus"], settings["seed"]
    tiny = configured(corpus, settings["learning_rate"], seed)
    config = replace(tiny, model=replace(tiny.model, d_model=D_MODEL, dropout=DROPOUT))
    loader = admitting(corpus, ARMS[settings["arm"]], seed, PACING)
    (loss,) = validated(config, loader, settings["warm_up"], TOKENS, points=1)
    return settings | {"val_loss": round(loss, 4)}


def changes(results: Results, corpus: str, arm: str, other: str) -> list[float]:
    """The change in perplexity of an arm against another, in per cent, seed by seed."""
    losses = {(run["corpus"], run["arm"], run["seed"]): run["val_loss"] for run in results["runs"]}
    mine, its = ([losses[corpus, name, seed] for seed in SEEDS] for name in (arm, other))
    return changes_in_perplexity(mine, its)


def table(results: Results) -> str:
    """In Markdown: the three changes of each arm against no curriculum and against the control, in per cent."""
    rows = []
    for arm, other in pairs(ARMS):
        found = [changes(results, corpus, arm, other) if arm in arms else [] for corpus, arms in CORPORA.items()]
        cells = [", ".join(f"{change:+.1f} %".replace("-", "−") for change in three) or "–" for three in found]
        rows.append([f"{arm}, against {other}", *cells])
    return markdown(list(CORPORA), rows)


def begin() -> Results:
    """What all runs have in common, and none yet."""
    shared = {"tokens": TOKENS, "pacing": PACING, "d_model": D_MODEL, "dropout": DROPOUT}
    return {"settings": shared | {"python": platform.python_version()}, "sweep": [], "runs": []}


if __name__ == "__main__":
    results = load(FILE, begin)
    measure_missing(FILE, results, settings_of_runs(results), measure)
    if len(results["runs"]) == len(SEEDS) * sum(map(len, CORPORA.values())):
        print(table(results))
