"""How the package shows things: the one table, the one way to say bytes, the bar, and the palette of all pictures."""

from collections.abc import Collection, Sequence
from typing import Any

from tqdm.auto import tqdm

# Okabe and Ito 2008, "Color universal design", without black and the pale yellow: colours that stay apart under the
# common kinds of colour blindness.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
PALETTE = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
INK, GREY, GRID = "#222222", "#6E6E6E", "#E4E4E4"  # words and axes, what stands back, the lines of a grid
BAND, BLUE_BAND, RED_BAND, PALE_BLUE, CHOSEN = "#D0D0D0", "#A6CDE5", "#F0BFA3", "#DDEBF4", "#FFF6DC"  # areas


class Bar(tqdm):
    """A bar that gives tqdm's lock back however drawing ends: tqdm 4.70 keeps it, and other threads wait for ever."""

    def refresh(self, *_: Any, **__: Any) -> Any:
        """Draw the bar as it stands."""
        with self.get_lock():
            return super().refresh(nolock=True)


def table(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Rows of equally many cells as aligned columns, two spaces apart: those of the numbers `left` begin at the left.

    The first row is the heading, where there is one. No line ends in spaces.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths)
        parts = (cell.ljust(width) if place in left else cell.rjust(width) for place, (cell, width) in enumerate(cells))
        return "  ".join(parts).rstrip()

    return "\n".join(map(line, rows))


def readable_bytes(count: int) -> str:
    """Bytes in the unit that suits them: 0, 12 B, 3.4 KiB, 5.6 MiB or 7.80 GiB."""
    if count < 1024:
        return f"{count} B" if count else "0"
    power = min(3, (count.bit_length() - 1) // 10)  # of 1024
    return f"{count / 1024**power:,.{2 if power == 3 else 1}f} {('KiB', 'MiB', 'GiB')[power - 1]}"
