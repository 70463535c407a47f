"""How long to train? `python benchmarks/training_lengths.py` stores `data/training_lengths.json`.

For lesson 17. One model on two texts, a fourth apart in size, each read 1 to 32 times. Every length is a run of its
own with a schedule that ends with it, and at a learning rate of its own: the rates have one grid of powers of two, on
which the sweep goes on until both neighbours of the best one are worse. The runs that are compared have other seeds.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain, count, islice

import torch
from harness import Results, Runs, Settings, load, measure_missing, tuned_runs
from story_rows import BATCH_SIZE, COMMON, D_MODEL, OPTIMIZER, WARM_UP, batch_of, new_model, train, training_rows

from course_lm.batching import AnyBatch
from course_lm.model import count_parameters
from course_lm.monitoring import evaluate
from course_lm.schedules import cosine

FILE = "training_lengths.json"
ROWS, PASSES = (400, 1600), (1, 2, 4, 8, 16, 32)  # rows of a text, and how often a run reads each
READ = 400  # rows of the text itself on which a run ends
DECAYING = OPTIMIZER | {"weight_decay": 0.1}


def settings_of_runs(results: Results) -> Runs:
    """Every run: its part and its settings, the short ones first."""
    texts = ([[{"rows": rows, "passes": passes}] for passes in PASSES] for rows in ROWS)
    return chain.from_iterable(tuned_runs(results["sweep"], lengths) for lengths in texts)


def batches(rows: int, seed: int) -> Iterator[AnyBatch]:
    """Batches of the first `rows` rows, in a new order at each pass."""
    text = training_rows()[:rows]
    generator = torch.Generator().manual_seed(seed)
    for _ in count():
        for chosen in torch.randperm(rows, generator=generator).split(BATCH_SIZE):
            yield batch_of(text[chosen])


def measure(part: str, settings: Settings) -> Results:
    """Train once; losses in nats per token, held-out and of the text that was read, after the last step."""
    rows, seed = settings["rows"], settings["seed"]
    steps = settings["passes"] * rows // BATCH_SIZE
    peak, warm_up = settings["learning_rate"], round(WARM_UP * steps)
    lr_at = partial(cosine, peak_lr=peak, total_steps=steps, warmup_steps=warm_up)
    model = new_model(D_MODEL, seed)
    val_loss = train(model, islice(batches(rows, seed), steps), lr_at, DECAYING)
    read = [batch_of(part) for part in training_rows()[:READ].split(64)]
    return settings | {"val_loss": val_loss, "train_loss": round(evaluate(model, read)["val_loss"], 4)}


def begin() -> Results:
    """What all runs have in common, and none yet."""
    model = {"d_model": D_MODEL, "parameters": count_parameters(new_model(D_MODEL, 0))}
    return {"settings": COMMON | model | DECAYING, "sweep": [], "runs": []}


if __name__ == "__main__":
    results = load(FILE, begin)
    measure_missing(FILE, results, settings_of_runs(results), measure)
