"""Does a curriculum help? `python benchmarks/curriculum_experiment.py` stores `data/curriculum_experiment.json`.

Arms on two corpora: no curriculum; the control, which admits text in random order; short or long text first; and the
package's combined score, at the same pace and at a linear one. On the stories, whose length says which plot they have,
two more: short first within each plot, and one plot after the other, in an order drawn for each seed. (The last one was
added when the others were known.) All arms of a corpus read the same number of target tokens, with the learning rate
a function of the tokens seen, and are validated on the same text. Thresholds count *tokens*: where documents were
counted, short first would read its few tokens over and over. They move between epochs, as `CurriculumLoader` moves
them, so that the arms admit the same share only roughly at the same time: `complete` says when each has admitted all.

A seed fixes the initial weights and the order of the documents, so that runs of one seed are compared in pairs. Each
arm is tuned alike and on seeds that the comparison does not use: every pair of `RATES` and `WARM_UPS` with the first
tuning seed, and twice or half the rate as long as the best one is the highest or the lowest; then the best three with
the other tuning seeds, and the best mean of all is taken.

Every run has one thread; two run side by side.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from harness import Results, Settings, indented, load, markdown, measure_side_by_side, store, without_end

from course_lm.batching import Loader, make_loader
from course_lm.classroom.comparison import changes_in_perplexity, holm, interval, p_value
from course_lm.cli.preparation import PreparedRun, prepare
from course_lm.config import TrainingConfig
from course_lm.curriculum import CurriculumLoader, CurriculumTrainingManager, create_curriculum_strategy, words_of
from course_lm.curriculum.difficulty import Curriculum, Example, text_of
from course_lm.model import GPT
from course_lm.monitoring import evaluate
from course_lm.optim import build_optimizer
from course_lm.schedules import cosine
from course_lm.step import train_step

sys.path.append(str(Path(__file__).parents[1] / "tools/corpora"))  # what the shipped stories are written by

from grammar import search_derivations
from stories import STORY, story_tables


class Arm(NamedTuple):
    """Which text comes first, and how fast the rest joins."""

    score: str | None  # a case of `scores_of`
    pace: str = "root"


BASE, CONTROL = "no curriculum", "random order"
ARMS = {
    BASE: Arm(None),
    CONTROL: Arm("random"),
    "short first": Arm("short"),
    "long first": Arm("long"),
    "combined": Arm("combined"),
    "combined, linear": Arm("combined", pace="linear"),
    "short first in each plot": Arm("short in its plot"),
    "plot by plot": Arm("plot"),
}
CORPORA = {
    "stories": tuple(ARMS),
    "hindi": tuple(arm for arm in ARMS if "plot" not in arm),  # its sentences have none
}
RATES = (8e-3, 1.6e-2, 3.2e-2)  # tried at first
WARM_UPS = (0.1, 0.4, 0.7)  # of the tokens
TUNING_SEEDS = (100, 101, 102)
FINALISTS = 3  # settings that all tuning seeds measure
SEEDS = 10  # seeds 0 to 9 compare
TOKENS, POINTS = 800_000, 8  # target tokens of a run, and how often it is validated
TESTED = (POINTS // 4 - 1, POINTS - 1)  # of these points: a quarter, and the end
PACING = {"start_threshold": 0.2, "threshold_on": "score", "num_steps": 200}  # all is admitted in the next epoch
FILE = "curriculum_experiment.json"


def configured(corpus: str, rate: float, seed: int) -> TrainingConfig:
    """The shipped configuration `tiny` with another text, rate and seed."""
    tiny = TrainingConfig.from_yaml("tiny")
    return replace(
        tiny,
        data=replace(tiny.data, corpus=corpus),
        optimizer=replace(tiny.optimizer, learning_rate=rate),
        training=replace(tiny.training, seed=seed, precision="fp32", device="cpu"),
    )


@cache
def text(corpus: str) -> PreparedRun:
    """Both splits, the tokenizer and the validation loader: the same in every run of a process."""
    return prepare(configured(corpus, RATES[0], seed=0))


def length(document: str) -> int:
    """Words of a document."""
    return len(words_of(document))


@cache
def plot_of(story: str) -> int:
    """The plot of a story: which row of the grammar's first rule can write it."""
    tables = story_tables()
    rows = enumerate(tables[STORY.table])
    (plot,) = (number for number, row in rows if search_derivations(tables | {STORY.table: [row]}, STORY, story)[0])
    return plot


def short_in_its_plot(documents: Sequence[str]) -> list[float]:
    """The rank of a story's length among the stories of its plot, as a share; equal lengths share a rank."""
    lengths: dict[int, list[int]] = {}
    for story in documents:
        lengths.setdefault(plot_of(story), []).append(length(story))

    def rank(story: str) -> float:
        same, words = lengths[plot_of(story)], length(story)
        below, equal = sum(other < words for other in same), same.count(words)
        return (below + (equal + 1) / 2) / len(same)

    return [rank(story) for story in documents]


def scores_of(score: str, documents: Sequence[str], seed: int) -> list[float]:
    """What comes first has the lowest score."""
    match score:
        case "random":
            return create_curriculum_strategy("random", {"seed": seed}).compute_difficulty(documents)
        case "combined" | "frequency" | "morphological":
            return create_curriculum_strategy(score).compute_difficulty(documents)
        case "short":
            return [float(length(document)) for document in documents]
        case "long":
            return [-float(length(document)) for document in documents]
        case "short in its plot":
            return short_in_its_plot(documents)
        case "plot":
            plots = len(story_tables()[STORY.table])
            turn = torch.randperm(plots, generator=torch.Generator().manual_seed(seed)).tolist()
            return [float(turn[plot_of(document)]) for document in documents]
        case _:
            raise ValueError(f"no score {score!r}")


class ByTokens(Curriculum):
    """A score turned into places: the share of all target tokens that come no later, in (0, 1].

    A threshold of 0.2 then admits a fifth of the tokens whatever the score. Documents of one score are put in the order
    of another, random one, so that they need not join all at once.
    """

    def __init__(self, score: str, seed: int, tokens: dict[str, int]) -> None:
        self.score, self.seed, self.tokens = score, seed, tokens  # tokens: of each document

    def compute_difficulty(self, examples: Sequence[Example]) -> list[float]:
        documents = [text_of(example) for example in examples]
        scores, chance = (scores_of(score, documents, self.seed) for score in (self.score, "random"))
        order = sorted(range(len(documents)), key=lambda i: (scores[i], chance[i]))
        total, seen, places = sum(self.tokens[document] for document in documents), 0, [0.0] * len(documents)
        for i in order:
            seen += self.tokens[documents[i]]
            places[i] = seen / total
        return places


@cache
def tokens_of(corpus: str) -> dict[str, int]:
    """Target tokens of each training document: its own, and the one that ends it."""
    of = text(corpus)
    return {document: len(of.tokenizer.encode(document).ids) + 1 for document in of.train.documents}


def training_data(corpus: str, arm: str, seed: int) -> Loader | CurriculumLoader:
    """Packed rows in an order of the run's own seed, under the arm's curriculum."""
    return admitting(corpus, ARMS[arm], seed, PACING)


def admitting(corpus: str, arm: Arm, seed: int, pacing: dict[str, Any]) -> Loader | CurriculumLoader:
    """Packed rows in an order of the seed, under this score and pace."""
    of, config, (score, pace) = text(corpus), configured(corpus, RATES[0], seed), arm
    loader = make_loader(
        of.train.documents,
        of.tokenizer,
        mode=config.data.batching,
        batch_size=config.training.batch_size,
        max_length=config.data.max_length,
        seed=seed,
    )
    if score is None:
        return loader
    manager = CurriculumTrainingManager("random", pace, pacing, seed=seed)
    manager.strategy = ByTokens(score, seed, tokens_of(corpus))
    return CurriculumLoader(loader, of.train.documents, manager)


def validated(
    config: TrainingConfig, loader: Loader | CurriculumLoader, warm_up: float, tokens: int, points: int
) -> Iterator[float]:
    """Train on so many target tokens; yield the validation loss, nats per token, at `points` equal distances."""
    val_loader, rate = text(config.data.corpus).val_loader, config.optimizer.learning_rate
    torch.manual_seed(config.training.seed)
    model = GPT(config.model, config.data.vocab_size, config.data.max_length)
    optimizer = build_optimizer(model, config.optimizer)
    model.train()
    seen, point = 0, 1
    for batch in without_end(loader):
        lr = cosine(seen, peak_lr=rate, total_steps=tokens, warmup_steps=int(warm_up * tokens))
        seen += int(train_step(model, [batch], optimizer, lr=lr).tokens)
        if seen >= point * tokens // points:
            yield evaluate(model, val_loader)["val_loss"]
            point += 1
        if point > points:
            break


def losses_of(corpus: str, arm: str, rate: float, warm_up: float, seed: int) -> Iterator[float]:
    """The validation losses of a run; one that tunes is validated at its end alone."""
    points = 1 if seed in TUNING_SEEDS else POINTS
    return validated(configured(corpus, rate, seed), training_data(corpus, arm, seed), warm_up, TOKENS, points)


def measure(run: Settings) -> Results:
    """The losses of a run, and the time that it took."""
    torch.set_num_threads(1)
    started = time.process_time()
    losses = [round(loss, 4) for loss in losses_of(**run)]
    return {"losses": losses, "cpu_seconds": round(time.process_time() - started)}


def untried(rates: Sequence[float]) -> dict[str, list[float | None]]:
    """Places for the losses of these rates with every warm-up."""
    return {f"{rate} {warm_up}": [None] * len(TUNING_SEEDS) for rate, warm_up in product(rates, WARM_UPS)}


def widen(tuning: dict[str, list[float | None]]) -> None:
    """Add twice or half the rate where the best with the first seed is the highest or the lowest of those tried."""
    if best := finalists(tuning):
        rates = [float(pair.split()[0]) for pair in tuning]
        rate = float(best[0].split()[0])
        if rate == max(rates):
            tuning |= untried([rate * 2])
        elif rate == min(rates):
            tuning |= untried([rate / 2])


def reading(corpus: str, arm: str) -> tuple[list[float], float]:
    """What a run of seed 0 reads.

    Returns:
        passes: how often it reads the shortest and the longest documents that hold a fifth of the tokens each.
        complete: the share of its tokens that it has read when it begins the first epoch that admits all text.
    """
    loader, of = training_data(corpus, arm, seed=0), tokens_of(corpus)
    documents = text(corpus).train.documents
    tokens = torch.tensor([of[document] for document in documents], dtype=torch.float64)
    by_length = torch.tensor([length(document) for document in documents]).argsort(stable=True)
    place = torch.empty_like(tokens)
    place[by_length] = tokens[by_length].cumsum(0) / tokens.sum()
    read, left, complete = torch.zeros_like(tokens), float(TOKENS), 1.0
    for epoch in count():
        loader.set_epoch(epoch)
        admitted = loader.difficulty <= loader.threshold if isinstance(loader, CurriculumLoader) else tokens > 0
        if admitted.all():
            complete = min(complete, 1 - left / TOKENS)
        share = min(1.0, left / float(tokens[admitted].sum()))
        read[admitted] += share
        left -= share * float(tokens[admitted].sum())
        if share < 1:
            break
    parts = (place <= 0.2, place > 0.8)
    passes = [round(float((read * tokens)[part].sum() / tokens[part].sum()), 2) for part in parts]
    return passes, round(complete, 2)


def explained_by_plot() -> float:
    """The share of the variance of the stories' lengths that lies between their plots."""
    documents = text("stories").train.documents
    lengths = torch.tensor([float(length(story)) for story in documents])
    plots = torch.tensor([plot_of(story) for story in documents])
    means = torch.stack([lengths[plots == plot].mean() for plot in plots])
    return round(float(means.var() / lengths.var()), 2)


def describe(corpus: str) -> Results:
    """What is known of a corpus and its arms before anything is trained."""
    validation, val_loader = text(corpus).validation, text(corpus).val_loader
    assert validation.neg_log_p is not None
    known: Results = {
        "floor": round(sum(validation.neg_log_p) / val_loader.num_targets, 4),
        "tokens": [(point + 1) * TOKENS // POINTS for point in range(POINTS)],
    }
    of_arms = {arm: reading(corpus, arm) for arm in CORPORA[corpus]}
    known["passes"] = {arm: passes for arm, (passes, _) in of_arms.items()}
    known["complete"] = {arm: complete for arm, (_, complete) in of_arms.items()}
    return known | ({"lengths_explained_by_plot": explained_by_plot()} if corpus == "stories" else {})


def empty() -> Results:
    """No run yet: a place for every loss."""
    settings = {"tokens": TOKENS, "pacing": PACING, "tuning_seeds": TUNING_SEEDS, "cpu_seconds": 0}
    corpora = {}
    for corpus, arms in CORPORA.items():
        corpora[corpus] = describe(corpus) | {
            # for each arm, by "rate warm-up": the last losses, one for each tuning seed
            "tuning": {arm: untried(RATES) for arm in arms},
            "losses": {arm: [None] * SEEDS for arm in arms},
        }
    return json.loads(json.dumps({"settings": settings, "corpora": corpora}))


def finalists(tuning: dict[str, list[float | None]]) -> list[str]:
    """The settings that were best with the first tuning seed, once all have been tried with it."""
    first = {pair: losses[0] for pair, losses in tuning.items() if losses[0] is not None}
    return sorted(first, key=first.__getitem__)[:FINALISTS] if len(first) == len(tuning) else []


def tuned(tuning: dict[str, list[float | None]]) -> tuple[float, float] | None:
    """The learning rate and the warm-up of an arm, or None while a run is missing."""
    means = {}
    for pair in finalists(tuning):
        losses = [loss for loss in tuning[pair] if loss is not None]
        if len(losses) < len(TUNING_SEEDS):
            return None
        means[pair] = fmean(losses)
    if not means:
        return None
    rate, warm_up = min(means, key=means.__getitem__).split()
    return float(rate), float(warm_up)


def missing(results: Results, corpora: Iterable[str] = CORPORA) -> Iterator[Settings]:
    """The runs that can be chosen now: those that tune, then those that compare, of the arms that are tuned."""
    chosen = {corpus: found for corpus, found in results["corpora"].items() if corpus in corpora}
    for corpus, found in chosen.items():
        for arm, tuning in found["tuning"].items():
            for number, seed in enumerate(TUNING_SEEDS):
                for pair in tuning if number == 0 else finalists(tuning):
                    if tuning[pair][number] is None:
                        rate, warm_up = map(float, pair.split())
                        yield {"corpus": corpus, "arm": arm, "rate": rate, "warm_up": warm_up, "seed": seed}
    for seed in range(SEEDS):
        for corpus, found in chosen.items():
            for arm, tuning in found["tuning"].items():
                best = tuned(tuning)
                if best and found["losses"][arm][seed] is None:
                    yield {"corpus": corpus, "arm": arm, "rate": best[0], "warm_up": best[1], "seed": seed}


def keep(results: Results, run: Settings, measured: Results) -> None:
    """Put what a run measured in its place, and write all results, one list of losses a line."""
    found, arm, seed = results["corpora"][run["corpus"]], run["arm"], run["seed"]
    if seed in TUNING_SEEDS:
        found["tuning"][arm][f"{run['rate']} {run['warm_up']}"][TUNING_SEEDS.index(seed)] = measured["losses"][-1]
        widen(found["tuning"][arm])
    else:
        found["losses"][arm][seed] = measured["losses"]
    results["settings"]["cpu_seconds"] += measured["cpu_seconds"]
    store(FILE, indented(results))


def pairs(arms: Iterable[str]) -> list[tuple[str, str]]:
    """Each arm against no curriculum, then each one against the control."""
    return [(arm, other) for other in (BASE, CONTROL) for arm in arms if arm not in (BASE, other)]


def changes(losses: dict[str, list[list[float]]], arm: str, other: str, point: int) -> list[float]:
    """The change of an arm against another at one of the points, for each seed."""
    mine, its = ([run[point] for run in losses[name]] for name in (arm, other))
    return changes_in_perplexity(mine, its)


def comparisons(results: Results) -> dict[tuple[str, str, str, int], list[float]]:
    """All that are tested: each arm against no curriculum and against the control, at a quarter and at the end."""
    return {
        (corpus, arm, other, point): changes(results["corpora"][corpus]["losses"], arm, other, point)
        for corpus, arms in CORPORA.items()
        for arm, other in pairs(arms)
        for point in TESTED
    }


def table(results: Results) -> str:
    """In Markdown: the change in perplexity of each arm, in per cent, with its 95 % interval.

    A star stands where Holm's adjusted p-value, over all comparisons of the table, is below 0.05.
    """
    tested = comparisons(results)
    adjusted = holm({key: p_value(found) for key, found in tested.items()})
    heads = [f"{corpus}, {part}" for corpus in CORPORA for part in ("a quarter", "all tokens")]
    rows = []
    for arm, other in pairs(ARMS):
        cells = []
        for corpus, point in product(CORPORA, TESTED):
            key = (corpus, arm, other, point)
            if key not in tested:
                cells.append("–")
                continue
            mean, half = interval(tested[key])
            star = " *" if adjusted[key] < 0.05 else ""
            cells.append(f"{mean:+.1f} ± {half:.1f} %{star}".replace("-", "−"))
        rows.append([f"{arm}, against {other}", *cells])
    return markdown(heads, rows)


def main() -> None:
    """Measure what is missing for at most about `--seconds`, then say how much time it took."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    arguments = parser.parse_args()
    started, results = time.perf_counter(), load(FILE, empty)
    wanted = partial(missing, results, arguments.corpora)
    measure_side_by_side(wanted, measure, partial(keep, results), arguments.workers, arguments.seconds)
    print(f"{results['settings']['cpu_seconds']} s of CPU time; {time.perf_counter() - started:.0f} s now")
    print("call again to go on" if any(missing(results)) else table(results))


if __name__ == "__main__":
    main()
