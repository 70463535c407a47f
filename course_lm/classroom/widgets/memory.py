"""Memory before it is spent: the peak of a step, predicted from its shapes, and measured where it is small enough."""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import numpy as np
import torch
from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, buttons, explorer, slider, switch
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.precision import Precision
from course_lm.profiling import OWNERS, MemoryProfile, profile_memory, step_memory

GIB, MIB = 2**30, 2**20
LIMITS = (8, 24, 80)  # GiB: a laptop, a desktop's card, a server's card
HEAD_WIDTH = 64
SMALL_VOCABULARY = 512
_ROWS = 2.0 ** np.arange(9)


def training_memory(
    n_layer: int,
    d_model: int,
    length: int,
    vocab_size: int,
    rows: int,
    precision: str = "fp32",
    checkpointing: bool = False,
) -> dict[str, int]:
    """`step_memory` on a GPU with several packed micro-batches, and attention heads that are 64 wide."""
    n_head = max(1, d_model // HEAD_WIDTH)
    return step_memory(
        ModelConfig(n_layer, n_head, d_model, dropout=0.0, gradient_checkpointing=checkpointing),
        vocab_size=vocab_size,
        max_length=length,
        batch_size=rows,
        micro_batches=2,
        precision=precision,
    )


def rows_that_fit(limit_gib: float, memory: Callable[[int], Mapping[str, int]]) -> int:
    """The largest micro-batch, in rows, whose `memory` is within `limit_gib`; 0 where not one row fits."""

    def held(rows: int) -> int:
        return sum(memory(rows).values())

    limit, rows = int(limit_gib * GIB), 2**20
    # The largest of a few straight lines: from too many rows, each step down a line ends at the answer or above it.
    while rows > 0 and (over := held(rows) - limit) > 0:
        of_a_row = held(rows) - held(rows - 1) if rows > 1 else 0
        rows = rows - math.ceil(over / of_a_row) if of_a_row else 0
    return max(0, rows)


def draw_training_memory(
    n_layer: int = 12,
    d_model: int = 768,
    length: int = 1024,
    vocab_size: int = 50_257,
    batch_size: int = 8,
    precision: str = "fp32",
) -> tuple[Figure, str]:
    """Memory against the rows of a micro-batch, with and without gradient checkpointing.

    Returns:
        The figure; and in words the owners at `batch_size`, and the rows that fit into each of `LIMITS`.
    """
    kept = partial(training_memory, n_layer, d_model, length, vocab_size, precision=precision)
    again = partial(kept, checkpointing=True)
    figure = Figure(figsize=(8, 3.8))
    axes = figure.subplots()
    ends = []
    for memory, name, colour in ((kept, "all kept", plots.BLUE), (again, "checkpointing", plots.ORANGE)):
        heights = [sum(memory(int(rows)).values()) / GIB for rows in _ROWS]
        axes.plot(_ROWS, heights, color=colour)
        ends.append((heights[-1], name, colour))
    owners = kept(batch_size)
    fixed = (owners["weights"] + owners["gradients"] + owners["moments"]) / GIB
    axes.axhline(fixed, color=plots.INK, linestyle=":")
    ends.append((fixed, "without batch", plots.INK))
    axes.plot(batch_size, sum(owners.values()) / GIB, "o", color=plots.RED, markersize=10, clip_on=False)
    for limit in LIMITS:
        axes.axhline(limit, color=plots.GREY, linewidth=1)
        axes.text(1.05, limit * 1.08, f"{limit} GiB", color=plots.GREY, va="bottom")
    lowest, highest = min(fixed, LIMITS[0]), max(*(end for end, *_ in ends), LIMITS[-1])
    axes.set(yscale="log", ylim=(lowest / 1.5, highest * 2.2), xlim=(1, _ROWS[-1]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(_ROWS[::2], [f"{rows:.0f}" for rows in _ROWS[::2]])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="rows of a micro-batch", ylabel="memory (GiB)")
    plots.label_ends(axes, ends)

    named = ", ".join(f"{name} {size / GIB:.2g}" for name, size in owners.items())
    lines = [
        f"{owners['weights'] / 4e6:,.1f}M parameters ({n_layer} layers, width {d_model}, vocabulary {vocab_size:,})",
        f"{batch_size} rows of {length}, {precision}: {sum(owners.values()) / GIB:.3g} GiB ({named})",
    ]
    for limit in LIMITS:
        all_kept, checkpointed = (rows_that_fit(limit, memory) for memory in (kept, again))
        lines.append(f"{limit} GiB hold {all_kept:,} rows, with gradient checkpointing {checkpointed:,}")
    return figure, "\n".join(lines)


def memory_explorer() -> Explorer:
    """Change the model and the batch, and see what fits; every control works by keyboard."""
    controls = {
        "n_layer": slider("layers", 12, range(1, 49)),
        "d_model": slider("width", 768, [64, 128, 256, 384, 512, 768, 1024, 1536, 2048]),
        "length": slider("tokens in a row", 1024, [64, 128, 256, 512, 1024, 2048, 4096]),
        "vocab_size": slider("vocabulary", 50_257, [512, 2048, 8192, 32_000, 50_257, 128_000]),
        "batch_size": slider("rows", 8, [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        "precision": buttons("precision", ["fp32", "bf16"]),
    }
    return explorer(draw_training_memory, controls)


def small_step(
    rows: int, length: int, width: int, precision: str = "fp32", checkpointing: bool = False
) -> dict[str, int]:
    """`step_memory` of the step that `measured_step` makes."""
    return step_memory(
        _small(width, checkpointing),
        vocab_size=SMALL_VOCABULARY,
        max_length=length,
        batch_size=rows,
        precision=precision,
        device="cpu",
    )


@lru_cache(maxsize=256)
def measured_step(
    rows: int, length: int, width: int, precision: str = "fp32", checkpointing: bool = False
) -> MemoryProfile:
    """A step of a small GPT with AdamW and one micro-batch of random tokens, measured by `profile_memory`."""
    with torch.random.fork_rng(devices=[]):
        model = GPT(_small(width, checkpointing), SMALL_VOCABULARY, length)
        ids = torch.randint(SMALL_VOCABULARY, (rows, length))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return profile_memory(
        model, [batch], build_optimizer(model, OptimizerConfig()), precision=Precision(precision, "cpu")
    )


def _small(width: int, checkpointing: bool) -> ModelConfig:
    return ModelConfig(2, 4, width, dropout=0.0, gradient_checkpointing=checkpointing)


def draw_step_memory(
    rows: int = 8, length: int = 64, width: int = 64, precision: str = "fp32", checkpointing: bool = False
) -> tuple[Figure, str]:
    """The predicted and the measured peak of a step, by owner.

    Returns:
        The figure; and in words both peaks, their ratio, and the part of the step that is running at the peak.
    """
    predicted = small_step(rows, length, width, precision, checkpointing)
    measured = measured_step(rows, length, width, precision, checkpointing)
    figure = plots.memory_by_owner({"predicted": predicted, "measured": measured.owners}, OWNERS)
    total = sum(predicted.values())
    lines = [
        f"{rows} rows of {length} tokens, width {width}, {precision}, "
        f"{'with' if checkpointing else 'without'} gradient checkpointing",
        f"predicted {total / MIB:.2f} MiB: "
        + ", ".join(f"{name} {size / MIB:.2f}" for name, size in predicted.items()),
        f"measured  {measured.peak_bytes / MIB:.2f} MiB, in the part: {measured.moment}",
        f"predicted by measured: {total / measured.peak_bytes:.2f}",
    ]
    return figure, "\n".join(lines)


def step_memory_explorer() -> Explorer:
    """Change batch and model, and see the peak as predicted and as measured; every control works by keyboard."""
    controls = {
        "rows": slider("rows", 8, [1, 2, 4, 8, 16]),
        "length": slider("tokens in a row", 64, [16, 32, 64, 128]),
        "width": slider("width", 64, [16, 32, 64, 128]),
        "precision": buttons("precision", ["fp32", "bf16"]),
        "checkpointing": switch("gradient checkpointing"),
    }
    return explorer(draw_step_memory, controls)
