"""The smallest run that the tests of the commands make: its text and its settings."""

import random
from pathlib import Path

SMALL = (
    "--data.vocab_size=270",
    "--data.max_length=16",
    "--data.val_fraction=0.3",
    "--model.n_layer=1",
    "--model.n_head=2",
    "--model.d_model=16",
    "--training.batch_size=4",
    "--training.precision=fp32",
    "--training.device=cpu",
)


def write_text(path: Path, number: int = 60, between: str = "\n\n") -> Path:
    """Write a text of so many short documents, blank lines between them; return where."""
    draw = random.Random(0)
    words = ["the", "a", "cat", "dog", "cow", "sat", "ran", "slept", "on", "under", "near", "mat", "hat", "bed"]
    path.write_text(between.join(" ".join(draw.choices(words, k=9)) for _ in range(number)), encoding="utf-8")
    return path


def arguments(command: str, text: Path, *more: str) -> list[str]:
    """Those of a command on a small run, which is kept in runs/toy beside its text."""
    where = [f"--data.corpus={text}", f"--training.output_dir={text.parent / 'runs'}", "--experiment_name=toy"]
    return [command, *SMALL, *where, *more]
