"""What one child process of the throughput benchmark runs: `python workloads.py '{"job": …}'` prints one JSON object.

A child, because the allocator's settings are process-wide and because peak memory belongs to a process. Every loop
takes its batches from a `Timed` list, which reads the clock whenever a batch is taken, so a step's time is all that
the loop does between two batches.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from textbook_gpt import AttentionPath, Gelu, TextbookGPT
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from course_lm.accumulation import count_window_targets
from course_lm.batching import Batch, Loader, make_loader
from course_lm.batching.packing import Rows
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.corpus import load_corpus
from course_lm.loss import count_targets, next_token_loss
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import peak_memory
from course_lm.optim import build_optimizer
from course_lm.precision import Precision
from course_lm.tokenizer import train_tokenizer
from course_lm.trainer import Trainer
from course_lm.trainer.allocator import tune_allocator

LEARNING_RATE = 3e-4
LOGGING_STEPS = 10
BLOCK_STEPS = LOGGING_STEPS  # each block of the trainer then writes one record
PARAGRAPH_LENGTHS = (8, 67)  # tokens: their mean is that of real paragraphs


@dataclass(frozen=True)
class Size:
    """A model and the batches it trains on."""

    n_layer: int
    n_head: int
    d_model: int
    length: int
    vocab_size: int
    batch_size: int

    def model(self, dropout: float = 0.0, max_length: int | None = None) -> GPT:
        config = ModelConfig(self.n_layer, self.n_head, self.d_model, dropout)
        return GPT(config, self.vocab_size, max_length or self.length)

    def textbook(self, attention: AttentionPath = "sdpa", gelu: Gelu = "tanh") -> TextbookGPT:
        return TextbookGPT(
            n_layer=self.n_layer,
            n_head=self.n_head,
            d_model=self.d_model,
            vocab_size=self.vocab_size,
            max_length=self.length,
            attention=attention,
            gelu=gelu,
        )


SIZES = {
    "tiny": Size(n_layer=1, n_head=2, d_model=16, length=16, vocab_size=300, batch_size=4),
    "1M": Size(n_layer=4, n_head=4, d_model=128, length=128, vocab_size=2048, batch_size=32),
    "10M": Size(n_layer=6, n_head=6, d_model=384, length=256, vocab_size=8192, batch_size=32),
}


class Timed:
    """Some batches, the moment at which each one was taken, and what `count` says of each."""

    def __init__(self, batches: Loader | Sequence[Any], count: Callable[[Any], int]) -> None:
        self.batches, self.count = batches, count
        self.moments: list[float] = []
        self.counts: list[int] = []

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.counts.append(self.count(batch))
            self.moments.append(perf_counter())
            yield batch
        self.moments.append(perf_counter())

    def per_second(self, warmup: int) -> float:
        """What was counted per second, the first `warmup` steps left out."""
        return sum(self.counts[warmup:]) / (self.moments[-1] - self.moments[warmup])


def textbook(
    size: str,
    steps: int,
    warmup: int,
    *,
    allocator: bool = False,
    attention: AttentionPath = "sdpa",
    gelu: Gelu = "tanh",
    fused: bool = False,
) -> dict[str, float]:
    """A hand-written loop over the textbook GPT in bf16; each argument exchanges one part for the package's."""
    if allocator:
        tune_allocator()
    made = SIZES[size]
    model = made.textbook(attention, gelu)
    optimizer = AdamW(model.parameters(), lr=LEARNING_RATE, fused=fused or None)
    texts = torch.randint(made.vocab_size, (steps, made.batch_size, made.length + 1))
    pairs = [(text[:, :-1].contiguous(), text[:, 1:].contiguous()) for text in texts]
    batches = Timed(pairs, lambda pair: pair[0].numel())
    textbook_loop(model, batches, optimizer)
    return {"tokens_per_second": batches.per_second(warmup)}


def textbook_loop(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], optimizer: Optimizer) -> None:
    """The loop as it is usually written."""
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(inputs)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def shipped(size: str, steps: int, warmup: int, *, packed: bool = False, dropout: float = 0.0) -> dict[str, float]:
    """`Trainer` with the shipped model in bf16, on full rows or on rows packed from short documents."""
    made = SIZES[size]
    loader = random_loader(made, steps, packed=packed)
    batches = Timed(loader, lambda batch: int(batch["attention_mask"].sum()))
    Trainer(made.model(dropout), run_config("bf16", made.batch_size)).train(batches)
    return {"tokens_per_second": batches.per_second(warmup)}


def same_module(size: str, steps: int, warmup: int, *, precision: str) -> dict[str, float]:
    """`Trainer` and a bare loop drive one model and one optimizer in turn, a block of steps each.

    The bare blocks run inside the trainer's loader, between two batches, so both loops meet the same state of the
    machine within a second. `trainer_share` is the median over pairs of blocks of the bare loop's time divided by
    the trainer's.
    """
    made = SIZES[size]
    model = made.model()
    config = run_config(precision, made.batch_size)
    optimizer = build_optimizer(model, config.optimizer)
    trainer = Trainer(model, config, optimizer=optimizer)
    batches = list(random_loader(made, BLOCK_STEPS, packed=False))
    bare = BareLoop(model, optimizer, Precision(precision, "cpu"))
    turns = Turns(batches, bare, pairs=-(-steps // BLOCK_STEPS), warmup_pairs=-(-warmup // BLOCK_STEPS))
    trainer.train(turns)
    tokens = len(batches) * made.batch_size * made.length
    return {
        "tokens_per_second": tokens / median(turns.trainer_seconds),
        "bare_tokens_per_second": tokens / median(turns.bare_seconds),
        "trainer_share": median(b / t for b, t in zip(turns.bare_seconds, turns.trainer_seconds)),
    }


class BareLoop:
    """The same step as the package's, and nothing else: no checks, no schedule, no records."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, precision: Precision) -> None:
        self.model, self.optimizer, self.precision = model, optimizer, precision

    def run(self, batches: Iterable[Batch]) -> None:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for batch in batches:
            tokens = count_window_targets([batch])
            for group in self.optimizer.param_groups:
                group["lr"] = LEARNING_RATE
            self.optimizer.zero_grad()
            with self.precision.autocast():
                logits = self.model(batch["input_ids"], attention_mask=batch["attention_mask"])
                loss = next_token_loss(logits, batch["labels"], reduction="sum") / tokens
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        for group, rate in zip(self.optimizer.param_groups, rates):
            group["lr"] = rate  # the trainer refuses rates that somebody else has set


class Turns:
    """A loader that hands one block of batches to whoever iterates it and then runs the same block bare."""

    def __init__(self, batches: Sequence[Batch], bare: BareLoop, *, pairs: int, warmup_pairs: int) -> None:
        self.batches, self.bare = batches, bare
        self.pairs, self.warmup_pairs = pairs, warmup_pairs
        self.trainer_seconds: list[float] = []
        self.bare_seconds: list[float] = []

    def __len__(self) -> int:
        return (self.warmup_pairs + self.pairs) * len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        for pair in range(self.warmup_pairs + self.pairs):
            started = perf_counter()
            yield from self.batches
            between = perf_counter()
            self.bare.run(self.batches)
            if pair >= self.warmup_pairs:
                self.trainer_seconds.append(between - started)
                self.bare_seconds.append(perf_counter() - between)


def real_text(
    size: str,
    documents: int,
    warmup: int,
    *,
    mode: str,
    max_length: int,
    tokens_per_batch: int | None = None,
) -> dict[str, float]:
    """Target tokens per second of `Trainer` over one epoch of the first `documents` paragraphs of python-docs."""
    made = SIZES[size]
    paragraphs = load_corpus("python-docs").documents[:documents]
    loader = make_loader(
        paragraphs,
        train_tokenizer(paragraphs, made.vocab_size),
        mode=mode,
        batch_size=made.batch_size if tokens_per_batch is None else None,
        tokens_per_batch=tokens_per_batch,
        max_length=max_length,
    )
    batches = Timed(loader, lambda batch: int(count_targets(batch["labels"])))
    Trainer(made.model(max_length=max_length), run_config("bf16", made.batch_size)).train(batches)
    return {"tokens_per_second": batches.per_second(warmup), "steps": len(loader)}


def random_loader(size: Size, steps: int, *, packed: bool) -> Loader:
    """`steps` batches of random tokens: rows of one long piece each, or of short documents packed together."""
    generator = torch.Generator().manual_seed(0)
    num_rows = steps * size.batch_size
    total = num_rows * size.length
    tokens = torch.randint(2, size.vocab_size, (total,), generator=generator, dtype=torch.int32)
    lengths = torch.full((num_rows,), size.length)
    if packed:
        low, high = (min(bound, size.length) for bound in PARAGRAPH_LENGTHS)
        lengths = torch.randint(low, high, (total // low,), generator=generator)
        lengths = lengths[lengths.cumsum(0) <= total]
    numbers = torch.arange(len(lengths) + 1)
    one_each = torch.ones(size.vocab_size, dtype=torch.int64)
    rows = Rows(tokens, lengths.cumsum(0) - lengths, lengths, one_each, numbers[:-1], numbers)
    mode = "packed" if packed else "fixed"
    return Loader(rows, mode=mode, rows_at=lambda width: size.batch_size, max_length=size.length, pad_id=0)


def run_config(precision: Any, batch_size: int) -> TrainingConfig:
    """The package's defaults, but one pass on the CPU without accumulation and without files."""
    loop = LoopConfig(
        batch_size=batch_size,
        gradient_accumulation_steps=1,
        num_epochs=1,
        precision=precision,
        device="cpu",
        logging_steps=LOGGING_STEPS,
        output_dir=None,
    )
    return TrainingConfig(training=loop)


JOBS: dict[str, Callable[..., dict[str, float]]] = {
    job.__name__: job for job in (textbook, shipped, same_module, real_text)
}


def measure(spec: dict[str, Any]) -> dict[str, float]:
    """Run the job that `spec["job"]` names; the other entries are its arguments. Adds the process's peak memory."""
    settings = {name: value for name, value in spec.items() if name not in ("job", "threads")}
    torch.set_num_threads(spec["threads"])
    torch.manual_seed(0)
    return JOBS[spec["job"]](**settings) | {"peak_mib": peak_memory() / 2**20}


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
