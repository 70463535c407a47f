"""Memory before it is spent: the peak of a step, predicted from its shapes and measured, by owner."""

from functools import lru_cache

import ipywidgets
import numpy as np
import torch
from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, explorer
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.precision import Precision
from course_lm.profiling import MemoryProfile, profile_memory
from course_lm.profiling.plan import activation_bytes

LAYERS, HEADS, VOCAB_SIZE = 2, 4, 512
MIB = 2**20
_PARTS = {
    "weights": plots.BLUE,
    "moments": plots.GREEN,
    "gradients": plots.ORANGE,
    "activations and all else": plots.SKY,
}


def step_memory(
    rows: int, length: int, width: int, precision: str = "fp32", checkpointing: bool = False
) -> dict[str, int]:
    """Bytes at the peak of a step of the course's GPT with AdamW and one micro-batch, from its shapes alone.

    The peak is one of three moments: the loss's backward pass, that of the first block where its activations are
    computed again, or the end of the backward pass, when all gradients are there. The owners are "weights", "moments",
    "gradients" and "activations and all else".
    """
    config = _config(width, checkpointing)
    total, block = _parameters(config, length)
    tokens = rows * length
    table = 4 * VOCAB_SIZE * width  # of the embedding, which is the head too

    def activations(words: int) -> int:
        return activation_bytes(config, words, length, rows, precision, "cpu", recompute=checkpointing)

    # The logits are gone by then; the gradients of the log-probabilities and of the logits are there.
    freed = (4 if precision == "fp32" else 6) * tokens * VOCAB_SIZE
    moments = [
        {"gradients": 0, "activations and all else": activations(VOCAB_SIZE) - freed + 8 * tokens * VOCAB_SIZE},
        {"gradients": 4 * total, "activations and all else": 2 * table},
    ]
    if checkpointing:  # the gradient of GELU's input comes on top of a whole block
        inner = 4 * (4 if precision == "fp32" else 2) * tokens * width
        later = table + 4 * (LAYERS - 1) * block
        moments.append({"gradients": later, "activations and all else": activations(1) + inner})
    largest = max(moments, key=lambda moment: sum(moment.values()))
    return {"weights": 4 * total, "moments": 8 * total, **largest}


@lru_cache(maxsize=256)
def measured_step_memory(
    rows: int, length: int, width: int, precision: str = "fp32", checkpointing: bool = False
) -> MemoryProfile:
    """What `step_memory` predicts, measured by `profile_memory` on random tokens."""
    with torch.random.fork_rng(devices=[]):
        model = GPT(_config(width, checkpointing), VOCAB_SIZE, length)
        ids = torch.randint(VOCAB_SIZE, (rows, length))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return profile_memory(
        model, [batch], build_optimizer(model, OptimizerConfig()), precision=Precision(precision, "cpu")
    )


def _config(width: int, checkpointing: bool) -> ModelConfig:
    return ModelConfig(LAYERS, HEADS, width, dropout=0.0, gradient_checkpointing=checkpointing)


def _parameters(config: ModelConfig, length: int) -> tuple[int, int]:
    """Of the model, and of one block."""
    with torch.device("meta"):
        model = GPT(config, VOCAB_SIZE, length)
    return tuple(sum(one.numel() for one in part.parameters()) for part in (model, model.blocks[0]))  # type: ignore[return-value]


def draw_step_memory(
    rows: int = 8, length: int = 64, width: int = 64, precision: str = "fp32", checkpointing: bool = False
) -> tuple[Figure, str]:
    """The predicted and the measured peak of a step, by owner.

    Returns:
        The figure; and in words both peaks, their ratio, and the part of the step that is running at the peak.
    """
    predicted = step_memory(rows, length, width, precision, checkpointing)
    measured = measured_step_memory(rows, length, width, precision, checkpointing)
    owners = dict(measured.owners)
    kept = {name: owners.pop(name) for name in ("weights", "moments", "gradients")}
    bars = {"predicted": predicted, "measured": {**kept, "activations and all else": sum(owners.values())}}
    figure = Figure(figsize=(8.5, 2.6))
    axes = figure.subplots()
    left = np.zeros(len(bars))
    for name, colour in _PARTS.items():
        widths = np.array([bar[name] / MIB for bar in bars.values()])
        axes.barh(list(bars), widths, left=left, color=colour, label=name)
        left += widths
    axes.set(xlabel="MiB at the peak of a step")
    axes.grid(False)
    axes.invert_yaxis()
    axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(-0.08, 1.0), fontsize=11)
    return figure, _words(rows, length, width, precision, checkpointing, predicted, measured)


def _words(
    rows: int,
    length: int,
    width: int,
    precision: str,
    checkpointing: bool,
    predicted: dict[str, int],
    measured: MemoryProfile,
) -> str:
    total = sum(predicted.values())
    how = f"{precision}, {'with' if checkpointing else 'without'} gradient checkpointing"
    parts = ", ".join(f"{name} {size / MIB:.2f}" for name, size in predicted.items())
    lines = [
        f"{rows} rows of {length} tokens, width {width}, {how}",
        f"predicted {total / MIB:.2f} MiB: {parts}",
        f"measured  {measured.peak_bytes / MIB:.2f} MiB, in the part: {measured.moment}",
        f"predicted by measured: {total / measured.peak_bytes:.2f}",
    ]
    return "\n".join(lines)


def step_memory_explorer() -> Explorer:
    """Change batch and model, and see the peak as predicted and as measured; every control works by keyboard."""
    wide = {"style": {"description_width": "10em"}}

    def choices(description: str, value: int, options: list[int]) -> ipywidgets.SelectionSlider:
        return ipywidgets.SelectionSlider(value=value, options=options, description=description, **wide)

    controls = {
        "rows": choices("rows", 8, [1, 2, 4, 8, 16]),
        "length": choices("tokens in a row", 64, [16, 32, 64, 128]),
        "width": choices("width", 64, [16, 32, 64, 128]),
        "precision": ipywidgets.ToggleButtons(options=["fp32", "bf16"], value="fp32", description="precision"),
        "checkpointing": ipywidgets.Checkbox(
            value=False, description="gradient checkpointing", style={"description_width": "6em"}
        ),
    }
    return explorer(draw_step_memory, controls)
