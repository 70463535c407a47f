"""Does a curriculum help? `python tests/benchmarks/curriculum_experiment.py` stores `data/curriculum_experiment.json`.

Four arms on two corpora: no curriculum, two difficulties, and the control, random scores at the same pace. All arms of
a corpus train on the same number of target tokens, with the learning rate a function of the tokens seen, and are
validated on the same text. One seed means the same initial weights in every arm. Each arm has its own learning rate:
the best of `RATES` with a seed that the comparison does not use.

Every run has one thread; two run side by side. Runs are kept as they end. Stopped by `--seconds`, the script goes on
where it was when it is called again; delete the file to measure everything anew.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from functools import cache
from itertools import count, islice
from multiprocessing import get_context
from statistics import fmean, stdev
from typing import Any

import torch

from course_lm.batching import Batch, Loader, make_loader
from course_lm.cli.preparation import PreparedRun, prepare, with_curriculum
from course_lm.config import TrainingConfig
from course_lm.corpus.shipped import data_file
from course_lm.curriculum import CurriculumConfig, CurriculumLoader
from course_lm.model import GPT
from course_lm.monitoring import evaluate
from course_lm.optim import build_optimizer
from course_lm.schedules import cosine
from course_lm.step import train_step

CORPORA = ("stories", "hindi")
ARMS = {"no curriculum": None, "random order": "random", "length": "length", "combined": "combined"}
RATES = (4e-3, 8e-3, 1.6e-2, 3.2e-2)
SEEDS, TUNING_SEED = 6, 100  # seeds 0 to 5 compare
TOKENS, POINTS = 800_000, 12  # target tokens of a run, and how often it is validated
WARM_UP = 0.1  # of the tokens
STUDENT_T = 2.571  # 97.5 % of Student's distribution with 5 degrees of freedom: six seeds
PACING = {"schedule": "root", "start_threshold": 0.2, "threshold_on": "quantile", "num_steps": 200}

Run = dict[str, Any]  # its settings: the arguments of `measure`
Results = dict[str, Any]


def configured(corpus: str, arm: str, rate: float, seed: int) -> TrainingConfig:
    """The shipped configuration `tiny`, with the arm's curriculum; `num_steps` is about half of a run."""
    tiny = TrainingConfig.from_yaml("tiny")
    strategy = ARMS[arm]
    curriculum = tiny.curriculum
    if strategy is not None:
        settings = {"seed": seed} if strategy == "random" else {}
        curriculum = CurriculumConfig(enabled=True, strategy=strategy, settings=settings, **PACING)
    return replace(
        tiny,
        data=replace(tiny.data, corpus=corpus),
        optimizer=replace(tiny.optimizer, learning_rate=rate),
        curriculum=curriculum,
        training=replace(tiny.training, seed=seed, precision="fp32", device="cpu"),
    )


@cache
def text(corpus: str) -> PreparedRun:
    """Both splits, the tokenizer and the validation loader: the same in every run of a process."""
    return prepare(configured(corpus, "no curriculum", RATES[0], seed=0))


def training_data(config: TrainingConfig) -> Loader | CurriculumLoader:
    """Packed rows in an order of the run's own seed, under the arm's curriculum."""
    of, settings = text(config.data.corpus), config.training
    loader = make_loader(
        of.train.documents,
        of.tokenizer,
        mode=config.data.batching,
        batch_size=settings.batch_size,
        max_length=config.data.max_length,
        seed=settings.seed,
    )
    return with_curriculum(config, loader, of.train)


def batches(loader: Loader | CurriculumLoader) -> Iterator[Batch]:
    """One epoch after the other."""
    for epoch in count():
        loader.set_epoch(epoch)
        yield from loader


def measure(corpus: str, arm: str, rate: float, seed: int) -> dict[str, Any]:
    """Train on `TOKENS` target tokens; validation losses, nats per token, `POINTS` times at equal distances."""
    torch.set_num_threads(1)
    started = time.process_time()
    config = configured(corpus, arm, rate, seed)
    loader, val_loader = training_data(config), text(corpus).val_loader
    torch.manual_seed(seed)
    model = GPT(config.model, config.data.vocab_size, config.data.max_length)
    optimizer = build_optimizer(model, config.optimizer)
    model.train()
    seen = 0
    losses: list[float] = []
    for batch in batches(loader):
        lr = cosine(seen, peak_lr=rate, total_steps=TOKENS, warmup_steps=int(WARM_UP * TOKENS))
        seen += int(train_step(model, [batch], optimizer, lr=lr).tokens)
        if seen >= (len(losses) + 1) * TOKENS // POINTS:
            losses.append(round(evaluate(model, val_loader)["val_loss"], 4))
        if len(losses) == POINTS:
            break
    return {"losses": losses, "cpu_seconds": round(time.process_time() - started)}


def empty() -> Results:
    """No run yet: a place for every loss."""
    settings = {
        "tokens": TOKENS,
        "warm_up": WARM_UP,
        "pacing": PACING,
        "tuning_seed": TUNING_SEED,
        "cpu_seconds": 0,
    }
    corpora = {}
    for corpus in CORPORA:
        validation, val_loader = text(corpus).validation, text(corpus).val_loader
        assert validation.neg_log_p is not None
        corpora[corpus] = {
            "floor": round(sum(validation.neg_log_p) / val_loader.num_targets, 4),
            "tokens": [(point + 1) * TOKENS // POINTS for point in range(POINTS)],
            "rates": {arm: {str(rate): None for rate in RATES} for arm in ARMS},
            "losses": {arm: [None] * SEEDS for arm in ARMS},
        }
    return {"settings": settings, "corpora": corpora}


def missing(results: Results) -> Iterator[Run]:
    """The runs that can be chosen now: those that tune, then those that compare, of the arms that are tuned."""
    for corpus, found in results["corpora"].items():
        for arm, rates in found["rates"].items():
            for rate, loss in rates.items():
                if loss is None:
                    yield {"corpus": corpus, "arm": arm, "rate": float(rate), "seed": TUNING_SEED}
    for seed in range(SEEDS):
        for corpus, found in results["corpora"].items():
            for arm, rates in found["rates"].items():
                if found["losses"][arm][seed] is None and None not in rates.values():
                    best = min(rates, key=rates.get)
                    yield {"corpus": corpus, "arm": arm, "rate": float(best), "seed": seed}


def keep(results: Results, run: Run, measured: dict[str, Any]) -> None:
    """Put what a run measured in its place, and write all results, one list of losses a line."""
    found = results["corpora"][run["corpus"]]
    if run["seed"] == TUNING_SEED:
        found["rates"][run["arm"]][str(run["rate"])] = measured["losses"][-1]
    else:
        found["losses"][run["arm"]][run["seed"]] = measured["losses"]
    results["settings"]["cpu_seconds"] += measured["cpu_seconds"]
    lists = json.dumps(results, indent=1)
    lines = re.sub(r"\[[^][{}]*\]", lambda numbers: re.sub(r"\s+", " ", numbers[0]), lists)
    data_file("curriculum_experiment.json").write_text(lines + "\n", encoding="utf-8")


def table(results: Results) -> str:
    """In Markdown: the change in perplexity of each arm against no curriculum, in per cent, with its 95 % interval.

    The change of a seed is that of its pair of runs; the interval of the mean is Student's.
    """
    heads = [f"{corpus}, {part} tokens" for corpus in CORPORA for part in ("a quarter of the", "all")]
    rows = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for arm in list(ARMS)[1:]:
        cells = []
        for corpus in CORPORA:
            losses = results["corpora"][corpus]["losses"]
            for point in (POINTS // 4 - 1, POINTS - 1):
                pairs = zip(losses[arm], losses["no curriculum"], strict=True)
                changes = [100 * math.expm1(mine[point] - base[point]) for mine, base in pairs]
                half = STUDENT_T * stdev(changes) / math.sqrt(len(changes))
                cells.append(f"{fmean(changes):+.1f} ± {half:.1f} %".replace("-", "−"))
        rows.append(f"| {arm} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def main() -> None:
    """Measure what is missing for at most about `--seconds`, then say how much time it took."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    started, path = time.perf_counter(), data_file("curriculum_experiment.json")
    results: Results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else empty()
    running: dict[Future[dict[str, Any]], Run] = {}
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        while True:
            in_time = time.perf_counter() - started < arguments.seconds
            todo = (run for run in missing(results) if run not in running.values())
            for run in islice(todo, arguments.workers - len(running) if in_time else 0):
                running[pool.submit(measure, **run)] = run
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                keep(results, running.pop(done), done.result())
    print(f"{results['settings']['cpu_seconds']} s of CPU time; {time.perf_counter() - started:.0f} s now")
    print("call again to go on" if any(missing(results)) else table(results))


if __name__ == "__main__":
    main()
