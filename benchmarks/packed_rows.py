"""What lesson 02 compares: `python benchmarks/packed_rows.py` measures it and stores `data/packed_rows.json`.

One small model is trained on packed rows of stories, with the document mask and without it, and validated on held-out
stories, each alone in a row. Both kinds are trained at every rate with every seed, so that each has its own best rate.

Runs are kept as they end. Stopped by `--seconds`, the script goes on where it was when it is called again; delete the
file to measure everything anew.
"""

from functools import cache
from itertools import product
from typing import Any

import torch
from harness import SEEDS, Results, Runs, Settings, load, measure_missing, without_end
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from course_lm.batching import Loader, make_loader
from course_lm.corpus import load_corpus
from course_lm.loss import next_token_loss
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.schedules import cosine
from course_lm.tokenizer import train_tokenizer

FILE = "packed_rows.json"
KINDS = ("packed", "no mask")
RATES = (8e-3, 1.13e-2, 1.6e-2, 2.26e-2, 3.2e-2)  # by factors of about √2
VOCAB_SIZE, WIDTH, ROWS, STEPS, WARM_UP = 1024, 512, 4, 150, 45


@cache
def texts() -> tuple[list[str], list[str], Any]:
    """The stories to train on, those held out, and a tokenizer."""
    train, validation = load_corpus("stories").split(val_fraction=0.1)
    return train.documents, validation.documents, train_tokenizer(train.documents, VOCAB_SIZE)


def rows_of(documents: list[str], mode: str, seed: int = 0) -> Loader:
    """Batches of ROWS rows of these documents."""
    return make_loader(documents, texts()[2], mode=mode, batch_size=ROWS, max_length=WIDTH, seed=seed)


def measure(part: str, settings: Settings) -> Results:
    """Train once; the loss on held-out stories at the end, in nats per token."""
    kind, rate, seed = settings["rows"], settings["learning_rate"], settings["seed"]
    train, held_out, _ = texts()
    torch.manual_seed(seed)
    model = GPT(ModelConfig(n_layer=2, n_head=4, d_model=64, dropout=0.0), VOCAB_SIZE, WIDTH)
    optimizer = AdamW(model.parameters(), weight_decay=0.1)
    for step, batch in zip(range(STEPS), without_end(rows_of(train, "packed", seed))):
        optimizer.param_groups[0]["lr"] = cosine(step, peak_lr=rate, total_steps=STEPS, warmup_steps=WARM_UP)
        optimizer.zero_grad()
        documents = batch["document_ids"] if kind == "packed" else None
        logits = model(batch["input_ids"], batch["attention_mask"], documents, batch["position_ids"])
        next_token_loss(logits, batch["labels"]).backward()
        clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
    # One story a row, as a user of the model would give it.
    return settings | {"val_loss": round(evaluate(model, rows_of(held_out, "bucketed"))["val_loss"], 4)}


def settings_of_runs(results: Results) -> Runs:
    """Every run: its part and its settings."""
    for seed, rate, kind in product(SEEDS, RATES, KINDS):
        yield "runs", {"rows": kind, "learning_rate": rate, "seed": seed}


if __name__ == "__main__":
    results = load(FILE)
    measure_missing(FILE, results, settings_of_runs(results), measure)
