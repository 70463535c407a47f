"""A text as coloured boxes, one for each token of a tokenizer."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure
from tokenizers import Tokenizer

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, explorer, pick, slider
from course_lm.tokenizer import BYTE_OF, encode_documents, eos_id, pad_id

_COLUMNS = 80
_VOCAB_SIZES = (258, 512, 1024, 2048, 4096)


def label_of(tokenizer: Tokenizer, token: int) -> str:
    """A token as text, a space as a dot; in hexadecimal where its bytes are no whole characters of a common script."""
    letters = tokenizer.id_to_token(token) or ""  # None for an id that the tokenizer does not have
    if token in (pad_id(tokenizer), eos_id(tokenizer)):
        return letters
    raw = bytes(BYTE_OF[letter] for letter in letters)
    text = raw.decode(errors="replace").replace(" ", "·")
    # Up to Cyrillic the picture's font has a glyph of one column for every letter.
    return text if text.isprintable() and max(text) < "\u0500" else raw.hex(" ")


def draw_tokens(text: str, tokenizer: Tokenizer) -> tuple[Figure, str]:
    """The tokens of `text` as coloured boxes, and their number in words."""
    [ids] = encode_documents(tokenizer, [text])
    rows, boxes = [""], [dict[tuple[float, float], str]()]  # of each row: start and width in letters, and the colour
    for token in ids:
        label = label_of(tokenizer, token)
        if rows[-1] and len(rows[-1]) + len(label) > _COLUMNS:
            rows.append("")
            boxes.append({})
        boxes[-1][len(rows[-1]) - 0.3, len(label) + 0.6] = plots.PALETTE[token % len(plots.PALETTE)]
        rows[-1] += label + " "
    figure = Figure(figsize=(10, 0.6 + 0.4 * len(rows)))
    axes = figure.subplots()
    letters = {"family": "monospace", "fontsize": 11, "va": "center"}
    for place, (row, part) in enumerate(zip(rows, boxes)):
        axes.broken_barh([*part], (place - 0.38, 0.76), facecolors=[*part.values()], alpha=0.35)
        axes.text(0, place, row, **letters)  # one text a row: to lay out one for each token takes most of the time
    ruler = axes.text(0, 0, _COLUMNS * "M", **letters)
    letter = ruler.get_window_extent().width / _COLUMNS
    ruler.remove()
    axes.set(xlim=(0, axes.bbox.width / letter), ylim=(len(rows) - 0.5, -0.8))
    axes.axis("off")
    size = len(text.encode())
    return figure, (
        f"vocabulary of {tokenizer.get_vocab_size():,}: {size} bytes in {len(ids) - 2} tokens between two <eos>, "
        f"{size / max(1, len(ids) - 2):.2f} bytes per token"
    )


def token_explorer(
    texts: Mapping[str, str], corpora: Sequence[str], tokenizer_for: Callable[[str, int], Tokenizer]
) -> Explorer:
    """Choose a text, the corpus that a tokenizer learned from and its vocabulary, and see the tokens.

    Args:
        texts: the texts by name.
        corpora: the names of the corpora.
        tokenizer_for: called with a corpus's name and the tokens wanted.
    """

    def draw(text: str, learned_from: str, vocab_size: int) -> tuple[Figure, str]:
        figure, words = draw_tokens(texts[text], tokenizer_for(learned_from, vocab_size))
        wanted = f"{text}, learned on {learned_from}, {vocab_size:,} tokens wanted"
        # A short text runs out of merges: then more tokens change nothing but this line.
        figure.axes[0].set_title(wanted, fontsize=11)
        return figure, f"{wanted}\n{words}"

    controls = {
        "text": pick("text", list(texts)),
        "learned_from": pick("learned on", list(corpora)),
        "vocab_size": slider("tokens", 1024, _VOCAB_SIZES, "{:,}", stored=5),
    }
    return explorer(draw, controls)
