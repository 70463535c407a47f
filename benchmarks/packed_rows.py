"""What lesson 02 compares: `python benchmarks/packed_rows.py` measures it and stores `data/packed_rows.json`.

One small model is trained on stories in five kinds of rows: packed with a document mask and positions that restart, the
same rows without the mask, without the positions, and with neither, and one long stream cut into rows. It is validated
on held-out stories, each alone in a row. Each kind has the learning rate that is best for it with a seed of its own.

Runs are kept as they end. Stopped by `--seconds`, the script goes on where it was when it is called again; delete the
file to measure everything anew.
"""

from collections.abc import Iterator
from functools import cache
from itertools import count, product
from statistics import mean
from typing import Any

import torch
from harness import Results, Runs, Settings, best_rate, load, measure_missing, without_end
from story_rows import one_stream
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

from course_lm.batching import Batch, epoch_generator, make_loader
from course_lm.corpus import Corpus, load_corpus
from course_lm.loss import next_token_loss
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.schedules import cosine
from course_lm.tokenizer import train_tokenizer

FILE = "packed_rows.json"
MASKED, RESTARTED = ("packed", "positions run on"), ("packed", "no mask")  # kinds with the mask, with the positions
KINDS = ("packed", "no mask", "positions run on", "neither", "stream")
RATES, SWEEP_SEED, SEEDS = (2e-3, 4e-3, 8e-3, 1.6e-2), 3, (0, 1, 2)
VOCAB_SIZE, WIDTH, ROWS, STEPS, WARM_UP = 1024, 512, 4, 150, 15


@cache
def texts() -> tuple[Corpus, Corpus, Any]:
    """The stories to train on, those held out, and a tokenizer."""
    train, validation = load_corpus("stories").split(val_fraction=0.1)
    return train, validation, train_tokenizer(train.documents, VOCAB_SIZE)


def packed(documents: list[str], tokenizer: Any, seed: int) -> Iterator[Batch]:
    """Packed batches without end."""
    loader = make_loader(documents, tokenizer, mode="packed", batch_size=ROWS, max_length=WIDTH, seed=seed)
    return without_end(loader)


def stream(documents: list[str], tokenizer: Any, seed: int) -> Iterator[Batch]:
    """Batches without end of the text as one document, cut every WIDTH - 1 tokens."""
    # (R, WIDTH): a row begins with the last token of the row before
    rows = one_stream(documents, tokenizer).unfold(0, WIDTH, WIDTH - 1)
    for epoch in count():
        for chosen in torch.randperm(len(rows), generator=epoch_generator(seed, epoch)).split(ROWS):
            batch = rows[chosen]
            yield {"input_ids": batch, "attention_mask": torch.ones_like(batch), "labels": batch}


def loss_of(model: GPT, batch: Batch, kind: str) -> Tensor:
    """The mean loss of a batch, of which the model is told what this kind of rows lets it know."""
    documents = batch.get("document_ids") if kind in MASKED else None
    running_on = torch.arange(WIDTH).expand(len(batch["labels"]), -1)
    positions = batch.get("position_ids") if kind in RESTARTED else running_on
    logits = model(batch["input_ids"], batch["attention_mask"], document_ids=documents, position_ids=positions)
    return next_token_loss(logits, batch["labels"])


def measure(part: str, settings: Settings) -> Results:
    """Train once; the mean loss of the last ten steps and the loss on held-out stories, in nats per token."""
    kind, rate, seed = settings["rows"], settings["learning_rate"], settings["seed"]
    train, validation, tokenizer = texts()
    batches = (stream if kind == "stream" else packed)(train.documents, tokenizer, seed)
    torch.manual_seed(seed)
    model = GPT(ModelConfig(n_layer=2, n_head=4, d_model=64, dropout=0.0), VOCAB_SIZE, WIDTH)
    optimizer, losses = AdamW(model.parameters(), weight_decay=0.1), []
    for step, batch in zip(range(STEPS), batches):
        optimizer.param_groups[0]["lr"] = cosine(step, peak_lr=rate, total_steps=STEPS, warmup_steps=WARM_UP)
        optimizer.zero_grad()
        loss = loss_of(model, batch, kind)
        loss.backward()
        clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        losses.append(loss.item())
    # One story a row, as a user of the model would give it.
    held_out = make_loader(validation.documents, tokenizer, mode="bucketed", batch_size=ROWS, max_length=WIDTH)
    val_loss = evaluate(model, held_out)["val_loss"]
    return settings | {"loss": round(mean(losses[-10:]), 4), "val_loss": round(val_loss, 4)}


def settings_of_runs(results: Results) -> Runs:
    """Every run: its part and its settings. What is compared comes after the sweep, whose result it needs."""
    for kind, rate in product(KINDS, RATES):
        yield "sweep", {"rows": kind, "learning_rate": rate, "seed": SWEEP_SEED}
    for seed, kind in product(SEEDS, KINDS):
        yield "runs", {"rows": kind, "learning_rate": best_rate(results["sweep"], rows=kind), "seed": seed}


if __name__ == "__main__":
    results = load(FILE)
    measure_missing(FILE, results, settings_of_runs(results), measure)
