"""What lesson 02 compares: `python tests/benchmarks/packed_rows.py` measures it and stores `data/packed_rows.json`.

One small model is trained on stories in three kinds of rows: packed with a document mask and positions that restart,
the same rows with neither, and one long stream cut into rows. It is validated on held-out stories, each alone in a row.

Runs are kept as they end. Stopped by `--seconds`, the script goes on where it was when it is called again; delete the
file to measure everything anew.
"""

import argparse
import json
import time
from collections.abc import Iterator
from itertools import chain, count, product
from typing import Any

import torch
from torch.optim import AdamW

from course_lm.batching import Batch, epoch_generator, make_loader
from course_lm.corpus import load_corpus
from course_lm.corpus.shipped import data_file
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.schedules import cosine
from course_lm.step import train_step
from course_lm.tokenizer import encode_documents, train_tokenizer

KINDS = ("packed, masked", "packed, leaking", "stream")
RATE, SEEDS = 8e-3, (0, 1, 2)
VOCAB_SIZE, WIDTH, ROWS, STEPS, WARM_UP = 1024, 512, 4, 150, 15

Run = dict[str, Any]


def packed(documents: list[str], tokenizer: Any, seed: int, masked: bool) -> Iterator[Batch]:
    """Packed batches without end; not `masked`, the model is told neither documents nor positions."""
    loader = make_loader(documents, tokenizer, mode="packed", batch_size=ROWS, max_length=WIDTH, seed=seed)
    for epoch in count():
        loader.set_epoch(epoch)
        for batch in loader:
            if not masked:
                del batch["document_ids"], batch["position_ids"]
            yield batch


def stream(documents: list[str], tokenizer: Any, seed: int) -> Iterator[Batch]:
    """Batches without end of the text as one document: an `<eos>` between two documents, cut every WIDTH - 1 tokens."""
    ids = encode_documents(tokenizer, documents)
    flat = torch.tensor(ids[0][:1] + list(chain.from_iterable(document[1:] for document in ids)))
    rows = flat.unfold(0, WIDTH, WIDTH - 1)  # (R, WIDTH): a row begins with the last token of the row before
    for epoch in count():
        for chosen in torch.randperm(len(rows), generator=epoch_generator(seed, epoch)).split(ROWS):
            batch = rows[chosen]
            yield {"input_ids": batch, "attention_mask": torch.ones_like(batch), "labels": batch}


def measure(kind: str, seed: int) -> Run:
    """Train once; the loss on held-out stories, in nats per token."""
    train, validation = load_corpus("stories").split(val_fraction=0.1)
    tokenizer = train_tokenizer(train.documents, VOCAB_SIZE)
    if kind == "stream":
        batches = stream(train.documents, tokenizer, seed)
    else:
        batches = packed(train.documents, tokenizer, seed, masked=kind == "packed, masked")
    torch.manual_seed(seed)
    model = GPT(ModelConfig(n_layer=2, n_head=4, d_model=64, dropout=0.0), VOCAB_SIZE, WIDTH)
    optimizer = AdamW(model.parameters(), weight_decay=0.1)
    for step, batch in zip(range(STEPS), batches):
        rate = cosine(step, peak_lr=RATE, total_steps=STEPS, warmup_steps=WARM_UP)
        train_step(model, [batch], optimizer, lr=rate)
    # One story a row, as a user of the model would give it.
    held_out = make_loader(validation.documents, tokenizer, mode="bucketed", batch_size=ROWS, max_length=WIDTH)
    loss = evaluate(model, held_out)["val_loss"]
    return {"rows": kind, "learning_rate": RATE, "seed": seed, "val_loss": round(loss, 4)}


def settings_of_runs() -> Iterator[tuple[str, int]]:
    """Every run: its rows and its seed. The stream, which differs in more than the mask, has one run."""
    yield from product(KINDS[:2], SEEDS)
    yield KINDS[2], SEEDS[0]


def main() -> None:
    """Measure what is missing for at most `--seconds`, then say where it stopped."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    torch.set_num_threads(1)
    deadline = time.perf_counter() + parser.parse_args().seconds
    path = data_file("packed_rows.json")
    runs: list[Run] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    for kind, seed in settings_of_runs():
        if any((run["rows"], run["seed"]) == (kind, seed) for run in runs):
            continue
        if time.perf_counter() > deadline:
            print(f"stopped before {kind}, seed {seed}; call again to go on")
            return
        runs.append(measure(kind, seed))
        path.write_text("[\n" + ",\n".join(json.dumps(run) for run in runs) + "\n]\n", encoding="utf-8")
        print(runs[-1], flush=True)
    print("everything is measured")


if __name__ == "__main__":
    main()
