"""Pictures with knobs: a control is moved, the picture is drawn again, the numbers stand below it as text.

Every control works from the keyboard. The picture is an image widget, which redraws in place and needs no output
area of the notebook.
"""

import html
from collections.abc import Callable, Mapping, Sequence

import ipywidgets
import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from tokenizers import Tokenizer
from torch import Tensor

from course_lm import plots
from course_lm.batching import MODES, Batch, Loader, padding_share
from course_lm.loss import count_targets
from course_lm.packing import Rows, encode_pieces, length_buckets, pack
from course_lm.tokenizer import pad_id

_PICTURE_WIDTH = "760px"
_MOST_TOKENS = 12
_PADDING_COLOUR = plots.BAND
_DOCUMENT_COLOURS = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE, plots.SKY)
_MAX_LENGTHS = (32, 64, 128, 256, 512)


def explorer(
    draw: Callable[..., tuple[Figure, str]], controls: Mapping[str, ipywidgets.ValueWidget]
) -> ipywidgets.VBox:
    """Controls above a picture that follows them.

    Args:
        draw: called with the controls' values by name; returns a figure and what it shows, in words and numbers.
        controls: widgets that have a `value`.
    """
    picture = ipywidgets.Image(format="png", layout=ipywidgets.Layout(width=_PICTURE_WIDTH, max_width="100%"))
    words = ipywidgets.HTML()

    def redraw(_: object = None) -> None:
        figure, text = draw(**{name: control.value for name, control in controls.items()})
        picture.value = plots.png(figure)
        words.value = f"<pre aria-live='polite'>{html.escape(text)}</pre>"

    for control in controls.values():
        control.observe(redraw, names="value")
    redraw()
    return ipywidgets.VBox([*controls.values(), picture, words])


def draw_next_token(logits: Tensor, tokens: list[str], temperature: float) -> tuple[Figure, str]:
    """Bars of the most probable next tokens at one temperature, and their numbers.

    Args:
        logits: (V,).
        tokens: the V tokens as text.
        temperature: divides the logits, above 0.
    """
    probabilities = (logits.float() / temperature).softmax(dim=-1)  # (V,)
    top = probabilities.topk(min(_MOST_TOKENS, len(tokens)))
    names = [repr(tokens[index])[1:-1] for index in top.indices.tolist()]
    entropy = float(-(probabilities * probabilities.clamp(min=1e-30).log()).sum())
    figure, axes = plt.subplots()
    axes.barh(names, top.values.tolist(), color=plots.BLUE)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="probability of the next token", title=f"temperature {temperature:.2f}")
    text = f"temperature {temperature:.2f}: entropy {entropy:.2f} nats, first choice {names[0]!r} {top.values[0]:.1%}"
    return figure, text


def temperature_explorer(logits: Tensor, tokens: list[str]) -> ipywidgets.VBox:
    """Turn the sampling temperature and see the distribution that the next token is drawn from.

    Args:
        logits: (V,), the model's scores for the next token.
        tokens: the V tokens as text.
    """
    slider = ipywidgets.FloatSlider(
        value=1.0, min=0.1, max=2.0, step=0.1, description="temperature", style={"description_width": "initial"}
    )
    return explorer(lambda temperature: draw_next_token(logits, tokens, temperature), {"temperature": slider})


def paint_batch(axes: Axes, batch: Batch) -> None:
    """Paint each position of a batch (B, T): padding grey, the documents of a row in colours of their own."""
    documents = batch.get("document_ids", batch["attention_mask"] - 1)  # (B, T), -1 at PAD
    colours = documents.where(documents < 0, documents % len(_DOCUMENT_COLOURS))
    rows, width = colours.shape
    axes.imshow(
        colours.numpy(),
        cmap=ListedColormap([_PADDING_COLOUR, *_DOCUMENT_COLOURS]),
        vmin=-1,
        vmax=len(_DOCUMENT_COLOURS) - 1,
        aspect="auto",
        interpolation="nearest",
        extent=(0, width, rows, 0),
    )
    axes.hlines(range(1, rows), 0, width, color="white", linewidth=0.8)
    axes.set(xlabel="position in the row", ylabel="row")
    axes.grid(False)


def draw_batch(loader: Loader, mode: str, *, width: int | None = None) -> tuple[Figure, str]:
    """The first batch of a loader's current epoch as a grid, and what it and the whole epoch spend on padding.

    Args:
        loader: as `make_loader` builds it.
        mode: its name, for the title.
        width: positions that the picture has room for, by default as many as the batch.
    """
    batch = loader.collate(loader.order(loader.epoch)[0])
    rows, columns = batch["input_ids"].shape
    padding = 1 - float(batch["attention_mask"].float().mean())
    of_epoch = padding_share(loader)
    figure, axes = plt.subplots(figsize=(8.0, 3.0))
    paint_batch(axes, batch)
    axes.set(xlim=(0, width or columns), title=f"{mode}: {padding:.1%} of this batch is padding")
    text = (
        f"{mode}, {rows} rows of {columns} positions (grey: padding, colours: the documents of a row)\n"
        f"this step:  {rows * columns:6,} positions, {int(count_targets(batch['labels'])):6,} target tokens, "
        f"padding {padding:.1%}\n"
        f"this epoch: {len(loader):6,} steps, {loader.num_targets:6,} target tokens, padding {of_epoch:.1%}"
    )
    return figure, text


def batching_explorer(documents: Sequence[str], tokenizer: Tokenizer) -> ipywidgets.VBox:
    """Choose the mode, the rows of a batch and the longest row, and see a batch and what it wastes."""
    pieces = {length: encode_pieces(documents, tokenizer, length) for length in _MAX_LENGTHS}

    def draw(mode: str, batch_size: int, max_length: int) -> tuple[Figure, str]:
        loader = _loader_over(pieces[max_length], mode, batch_size, max_length, pad_id(tokenizer))
        return draw_batch(loader, mode, width=max_length)

    wide = {"description_width": "110px"}
    modes = {"description_width": "110px", "button_width": "110px"}
    controls = {
        "mode": ipywidgets.ToggleButtons(options=MODES, description="mode", style=modes),
        "batch_size": ipywidgets.IntSlider(value=16, min=1, max=32, description="rows of a batch", style=wide),
        "max_length": ipywidgets.SelectionSlider(options=_MAX_LENGTHS, value=256, description="max_length", style=wide),
    }
    return explorer(draw, controls)


def _loader_over(pieces: Rows, mode: str, batch_size: int, max_length: int, pad: int) -> Loader:
    # As make_loader does it, but over pieces that are already encoded: tokenising again at each redraw takes too long.
    rows = pack(pieces, max_length) if mode == "packed" else pieces
    groups = [(torch.arange(len(rows)), batch_size)]
    if mode == "bucketed":
        groups = length_buckets(rows.row_lengths(), lambda width: batch_size)
    return Loader(
        rows,
        groups,
        pad_id=pad,
        packed=mode == "packed",
        width=max_length if mode in ("fixed", "packed") else None,
        seed=0,
        shuffle=True,
        num_workers=0,
        pin_memory=False,
    )
