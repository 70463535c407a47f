"""README's picture: `python benchmarks/lying_loops.py` measures it and draws `docs/lying_loops.png`, and a dark one.

Stores `data/lying_loops.json`. Three loops differ in one number: how far the labels are shifted against the logits. One
is right, and two score a position against another token than the next one. Beside the loss that a loop prints,
`evaluate` tells how well the model predicts the next token of held-out stories. All have one learning rate, which none
was tuned for.
"""

import io
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import matplotlib
import torch
from harness import ROOT, Results, Runs, Settings, load, markdown, measure_missing
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from story_rows import D_MODEL, batches, held_out_batches, new_model
from torch.nn.functional import cross_entropy

from course_lm.display import BLUE, GRID, INK, ORANGE, RED, SKY
from course_lm.monitoring import evaluate

FILE = "lying_loops.json"
SHIFTS = {"right": 1, "labels shifted twice": 2, "labels not shifted": 0}
SEEDS, STEPS, EVERY = (0, 1, 2), 600, 20
BATCH_SIZE, LEARNING_RATE, HELD_OUT_ROWS = 16, 3e-3, 128
TITLES = {
    "right": "right: position t learns\ntoken t + 1",
    "labels shifted twice": "labels shifted twice:\nit learns token t + 2",
    "labels not shifted": "labels not shifted:\nit learns the token it reads",
}


class Look(NamedTuple):
    """The colours of a picture."""

    ground: str
    ink: str
    grid: str
    printed: str
    held_out: str


PICTURES = {
    ROOT / "docs" / "lying_loops.png": Look("white", INK, GRID, BLUE, RED),
    ROOT / "docs" / "lying_loops_dark.png": Look("#0D1117", "#E6EDF3", "#30363D", SKY, ORANGE),
}


def measure(part: str, settings: Settings) -> Results:
    """Train once. Of every 20 steps: the mean of the losses that the loop prints, and the loss on held-out stories."""
    shift, seed = SHIFTS[settings["loop"]], settings["seed"]
    model = new_model(D_MODEL, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses, printed, held_out = [], [], []
    for step, batch in enumerate(islice(batches(BATCH_SIZE, seed), STEPS), start=1):
        logits = model(batch["input_ids"])  # (B, T, V)
        length = logits.shape[1] - shift
        loss = cross_entropy(logits[:, :length].flatten(0, 1), batch["labels"][:, shift:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % EVERY == 0:
            printed.append(round(fmean(losses[-EVERY:]), 4))
            held_out.append(round(evaluate(model, held_out_batches(HELD_OUT_ROWS))["val_loss"], 4))
    return settings | {"printed": printed, "held_out": held_out}


def settings_of_runs() -> Runs:
    """Every run: its part and its settings."""
    for seed, loop in product(SEEDS, SHIFTS):
        yield "runs", {"loop": loop, "seed": seed}


def told(results: Results, loop: str) -> tuple[float, float, float]:
    """The first loss that the loop prints, the last one, and the last on held-out stories: means over the seeds."""
    runs = [run for run in results["runs"] if run["loop"] == loop]
    ends = [(run["printed"][0], run["printed"][-1], run["held_out"][-1]) for run in runs]
    first, last, held_out = (fmean(column) for column in zip(*ends, strict=True))
    return first, last, held_out


def table(results: Results) -> str:
    """What `docs/measurements.md` shows."""
    rows = [[loop, *(f"{loss:.2f}" for loss in told(results, loop))] for loop in SHIFTS]
    return markdown(["printed, first", "printed, last", "held-out, last"], rows, numbers="---:")


def draw(results: Results, look: Look) -> Figure:
    """A panel for each loop, a line for each seed: the loss that it prints, and the one that nobody looks at."""
    figure = Figure(figsize=(9.6, 2.6), layout="constrained", facecolor=look.ground)
    panels = figure.subplots(1, len(SHIFTS), sharey=True)
    points = range(EVERY, STEPS + 1, EVERY)
    for panel, loop in zip(panels, SHIFTS, strict=True):
        for run in results["runs"]:
            if run["loop"] == loop:
                panel.plot(points, run["printed"], color=look.printed, linewidth=1.6)
                panel.plot(points, run["held_out"], color=look.held_out, linewidth=1.6, linestyle="--")
        panel.set_title(TITLES[loop], loc="left", fontsize=11)
        panel.set_xlabel("step")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(color=look.grid)
        panel.set_axisbelow(True)
        panel.set_ylim(0, 13.5)
    panels[0].set_ylabel("loss, nats per token")
    panels[-1].text(STEPS, 0.7, "what the loop prints", color=look.printed, ha="right", fontsize=11)
    panels[-1].text(STEPS, 7.5, "the next token\nof held-out stories", color=look.held_out, ha="right", fontsize=11)
    return figure


def save(results: Results, path: Path, look: Look) -> None:
    """Write the picture in few colours, with the table as its description."""
    drawn, description = io.BytesIO(), PngInfo()
    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    with matplotlib.rc_context({**dict.fromkeys(names, look.ink), "axes.facecolor": look.ground}):
        draw(results, look).savefig(drawn, dpi=150)
    description.add_text("Description", table(results))
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True, pnginfo=description)


def begin() -> Results:
    """What all runs have in common, and none yet."""
    settings = {"steps": STEPS, "every": EVERY, "batch_size": BATCH_SIZE, "d_model": D_MODEL}
    return {"settings": settings | {"learning_rate": LEARNING_RATE}, "runs": []}


if __name__ == "__main__":
    results = load(FILE, begin)
    measure_missing(FILE, results, settings_of_runs(), measure)
    for path, look in PICTURES.items():
        save(results, path, look)
    print(table(results))
