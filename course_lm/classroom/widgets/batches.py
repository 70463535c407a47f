"""A batch as a grid of tokens, padding and documents, and what each way of batching wastes."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from tokenizers import Tokenizer

from course_lm.batching import MODES, Batch, Loader, padding_share
from course_lm.batching.packing import encode_pieces
from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, buttons, explorer, slider
from course_lm.loss import count_targets
from course_lm.tokenizer import pad_id

_PADDING_COLOUR = plots.BAND
_DOCUMENT_COLOURS = (plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE, plots.SKY)
_MAX_LENGTHS = (32, 64, 128, 256, 512)


def paint_batch(axes: Axes, batch: Batch) -> None:
    """Paint each position of a batch (B, T): padding grey, the documents of a row in colours of their own."""
    documents = batch.get("document_ids", batch["attention_mask"] - 1)  # (B, T), -1 at PAD
    colours = documents.where(documents < 0, documents % len(_DOCUMENT_COLOURS))  # -1 stays the colour of PAD
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
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
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
    figure = Figure(figsize=(8.0, 3.0))
    axes = figure.subplots()
    paint_batch(axes, batch)
    axes.set(xlim=(0, width or columns), title=f"{mode}: {padding:.1%} of this batch is padding")
    text = (
        f"{mode}, {rows} rows of {columns} positions (grey: padding, colours: the documents of a row)\n"
        f"this step:  {rows * columns:6,} positions, {int(count_targets(batch['labels'])):6,} target tokens, "
        f"padding {padding:.1%}\n"
        f"this epoch: {len(loader):6,} steps, {loader.num_targets:6,} target tokens, padding {of_epoch:.1%}"
    )
    return figure, text


def batching_explorer(documents: Sequence[str], tokenizer: Tokenizer) -> Explorer:
    """Choose the mode, the rows of a batch and the longest row, and see a batch and what it wastes."""
    # Encoded once for each length: a slider that moves does not wait for the tokenizer.
    pieces = {length: encode_pieces(documents, tokenizer, length) for length in _MAX_LENGTHS}

    def draw(mode: str, batch_size: int, max_length: int) -> tuple[Figure, str]:
        loader = Loader(
            pieces[max_length],
            mode=mode,
            rows_at=lambda width: batch_size,
            max_length=max_length,
            pad_id=pad_id(tokenizer),
        )
        return draw_batch(loader, mode, width=max_length)

    controls = {
        "mode": buttons("mode", MODES),
        "batch_size": slider("rows of a batch", 16, range(1, 33)),
        "max_length": slider("max_length", 256, _MAX_LENGTHS, stored=5),
    }
    return explorer(draw, controls)
