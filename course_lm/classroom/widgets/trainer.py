"""What fits: the bytes that a training step holds, against the rows of a micro-batch."""

from collections.abc import Iterable
from typing import Any, Literal

import ipywidgets
import numpy as np
import torch
from matplotlib.figure import Figure
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, explorer
from course_lm.forward import AnyBatch, forward_logits
from course_lm.loss import next_token_loss
from course_lm.model import GPT

GIB = 2**30
LIMITS = (8, 24, 80)  # GiB: a laptop, a desktop's card, a server's card
_ROWS = 2.0 ** np.arange(9)
_HEAD_WIDTH = 64
Precision = Literal["fp32", "bf16"]


def training_memory(
    n_layer: int,
    d_model: int,
    length: int,
    vocab_size: int,
    batch_size: float,
    precision: Precision = "fp32",
    checkpointing: bool = False,
    n_head: int | None = None,
) -> dict[str, float]:
    """Bytes that a step of the course's GPT holds at most, with AdamW and packed micro-batches.

    "weights" (in bf16 with the copies that autocast makes), "gradients", "moments"; "activations": what the layers
    keep for the backward pass, attention fused, and the log-probabilities of the whole vocabulary; "logit gradients":
    what the backward pass of the loss makes beside them. Attention heads are 64 wide unless `n_head` is given.
    Short-lived buffers of the layers come on top.
    """
    n_head = n_head or max(1, d_model // _HEAD_WIDTH)
    # Embedding and output share a matrix; a layer has 12 d_model² in four matrices, 13 d_model in biases and norms.
    matrices = vocab_size * d_model + 12 * n_layer * d_model**2
    count = matrices + length * d_model + 13 * n_layer * d_model + 2 * d_model
    half = precision == "bf16"
    mask = (2 if half else 4) * length  # of a packed batch, for each token
    # Counted from the tensors that autograd keeps; the tests compare the two.
    block = (36 if half else 64) * d_model + mask + 16 + 4 * n_head  # of a layer, for each token
    ends = (6 if half else 8) * d_model + 4 * vocab_size + 32
    # cross_entropy is two operations: the gradients of its log-probabilities and of the logits exist at one time.
    logits = 8 * vocab_size
    # With checkpointing each layer keeps its input alone, and one layer at a time is computed again.
    layers = 4 * d_model * n_layer + block if checkpointing else block * n_layer
    if checkpointing:  # by then the gradients of the logits are gone
        logits = max(0, logits - block)
    return {
        "weights": 4.0 * count + (2.0 * matrices if half else 0.0),
        "gradients": 4.0 * count,
        "moments": 8.0 * count,  # two of AdamW, in fp32
        "activations": float(batch_size * length * (layers + ends)),
        "logit gradients": float(batch_size * length * logits),
    }


class _HeldBytes(TorchDispatchMode):
    """The most bytes that are held at one time by the given tensors and by those that operations make."""

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        storages = [tensor.untyped_storage() for tensor in given]
        self.alive = {StorageWeakRef(storage): storage.nbytes() for storage in storages}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.alive[StorageWeakRef(storage)] = storage.nbytes()  # a view has the storage of its base
        self.alive = {storage: size for storage, size in self.alive.items() if not storage.expired()}
        self.most = max(self.most, sum(self.alive.values()))
        return made


def measured_memory(model: GPT, batch: AnyBatch) -> int:
    """The most bytes that the second of two accumulated micro-batches holds at one time, with AdamW's moments.

    Counted from the tensors that each operation makes; what it allocates and frees inside is not seen.
    """
    optimizer = torch.optim.AdamW(model.parameters())
    with _HeldBytes(model.parameters()) as held:
        for step in range(2):  # the moments appear with the first step
            for _ in range(2):  # the gradients with its first micro-batch
                held.most = 0
                next_token_loss(forward_logits(model, batch), batch["labels"], reduction="sum").backward()
            if not step:
                optimizer.step()
                optimizer.zero_grad()
    return held.most


def rows_that_fit(limit_gib: float, n_layer: int, d_model: int, length: int, vocab_size: int, **how: object) -> int:
    """The largest micro-batch, in rows, within `limit_gib`; 0 where not one row fits."""
    parts = training_memory(n_layer, d_model, length, vocab_size, 1, **how)  # type: ignore[arg-type]
    row = parts.pop("activations") + parts.pop("logit gradients")
    return max(0, int((limit_gib * GIB - sum(parts.values())) // row))


def draw_training_memory(
    n_layer: int = 12,
    d_model: int = 768,
    length: int = 1024,
    vocab_size: int = 50_257,
    batch_size: int = 8,
    precision: Precision = "fp32",
) -> tuple[Figure, str]:
    """Memory against the rows of a micro-batch, with and without gradient checkpointing.

    Returns:
        The figure; and in words the parts at `batch_size`, and the rows that fit into each of `LIMITS`.
    """
    shape = (n_layer, d_model, length, vocab_size)
    figure = Figure(figsize=(8, 3.8))
    axes = figure.subplots()
    ends = []
    for checkpointing, name, colour in ((False, "all kept", plots.BLUE), (True, "checkpointing", plots.ORANGE)):
        memory = [sum(training_memory(*shape, rows, precision, checkpointing).values()) / GIB for rows in _ROWS]
        axes.plot(_ROWS, memory, color=colour)
        ends.append((memory[-1], name, colour))
    parts = training_memory(*shape, batch_size, precision)
    fixed = parts["weights"] + parts["gradients"] + parts["moments"]
    axes.axhline(fixed / GIB, color=plots.INK, linestyle=":")
    ends.append((fixed / GIB, "without batch", plots.INK))
    axes.plot(batch_size, sum(parts.values()) / GIB, "o", color=plots.RED, markersize=10, clip_on=False)
    for limit in LIMITS:
        axes.axhline(limit, color=plots.GREY, linewidth=1)
        axes.text(1.05, limit * 1.08, f"{limit} GiB", color=plots.GREY, va="bottom")
    lowest, highest = min(fixed / GIB, LIMITS[0]), max(*(end for end, *_ in ends), LIMITS[-1])
    axes.set(yscale="log", ylim=(lowest / 1.5, highest * 2.2), xlim=(1, _ROWS[-1]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(_ROWS[::2], [f"{rows:.0f}" for rows in _ROWS[::2]])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="rows of a micro-batch", ylabel="memory (GiB)")
    plots.label_ends(axes, ends)
    return figure, _words(shape, batch_size, precision, parts)


def _words(shape: tuple[int, int, int, int], batch_size: int, precision: Precision, parts: dict[str, float]) -> str:
    n_layer, d_model, length, vocab_size = shape
    named = ", ".join(f"{name} {size / GIB:.2g}" for name, size in parts.items())
    lines = [
        f"{parts['gradients'] / 4e6:,.1f}M parameters ({n_layer} layers, width {d_model}, vocabulary {vocab_size:,})",
        f"{batch_size} rows of {length}, {precision}: {sum(parts.values()) / GIB:.3g} GiB ({named})",
    ]
    for limit in LIMITS:
        kept, again = (
            rows_that_fit(limit, *shape, precision=precision, checkpointing=checkpointing)
            for checkpointing in (False, True)
        )
        lines.append(f"{limit} GiB hold {kept:,} rows, with gradient checkpointing {again:,}")
    return "\n".join(lines)


def memory_explorer() -> Explorer:
    """Change the model and the batch, and see what fits; every control works by keyboard."""
    wide = {"style": {"description_width": "10em"}}

    def choices(description: str, value: int, options: list[int]) -> ipywidgets.SelectionSlider:
        return ipywidgets.SelectionSlider(value=value, options=options, description=description, **wide)

    controls = {
        "n_layer": ipywidgets.IntSlider(value=12, min=1, max=48, description="layers", **wide),
        "d_model": choices("width", 768, [64, 128, 256, 384, 512, 768, 1024, 1536, 2048]),
        "length": choices("tokens in a row", 1024, [64, 128, 256, 512, 1024, 2048, 4096]),
        "vocab_size": choices("vocabulary", 50_257, [512, 2048, 8192, 32_000, 50_257, 128_000]),
        "batch_size": choices("rows", 8, [1, 2, 4, 8, 16, 32, 64, 128, 256]),
        "precision": ipywidgets.ToggleButtons(options=["fp32", "bf16"], value="fp32", description="precision"),
    }
    return explorer(draw_training_memory, controls)
