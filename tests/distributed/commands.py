"""The words of the commands that the tests of torchrun give."""

import sys
from collections.abc import Sequence
from pathlib import Path

NAME = "toy"
SMALL = [
    "--config=tiny",
    f"--experiment_name={NAME}",
    "--data.vocab_size=300",
    "--data.max_length=32",
    "--data.val_fraction=0.2",
    "--model.d_model=32",
    "--training.batch_size=4",
    "--training.gradient_accumulation_steps=3",
    "--training.precision=fp32",
    "--training.device=cpu",
    "--training.max_steps=12",
    "--training.logging_steps=1",
    "--training.eval_steps=5",
    "--training.save_steps=3",
]


def torchrun(ranks: int, *options: str, program: Sequence[str] = ("-m", "course_lm")) -> list[str]:
    """The words that start a program on so many ranks of this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, *options, *program]


def course_lm(ranks: int | None, *arguments: str) -> list[str]:
    """The words of a `course-lm` command: on so many ranks, or by itself."""
    return [*([sys.executable, "-m", "course_lm"] if ranks is None else torchrun(ranks)), *arguments]


def train(text: Path, output: Path, *arguments: str) -> list[str]:
    """The arguments that train a small model on `text`."""
    return ["train", *SMALL, f"--data.corpus={text}", f"--training.output_dir={output}", *arguments]
