"""Memory against the size of the text: `python benchmarks/large_text.py [--megabytes 1 20 200 2000]`.

Makes texts of these sizes from the paragraphs of python-docs, each of them repeated with other words in some places,
and runs `course-lm train` for 200 steps of a tiny model on each, twice: the first run has to tokenise the text, the
second one finds its token ids. Prints, for each run, the seconds to the first step, and the peak of resident memory,
tokenizing included. Texts, caches and runs lie in a temporary folder, which is deleted.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from course_lm.corpus import load_corpus

MEGABYTE = 10**6
STEPS = 200
CHANGED = 0.15  # share of the words that another word replaces
SETTINGS = {
    "experiment_name": "run",
    "data.vocab_size": 4096,
    "data.max_length": 128,
    # The whole of it is validated at the end of the run.
    "data.val_fraction": 0.001,
    "model.n_layer": 1,
    "model.n_head": 2,
    "model.d_model": 32,
    "training.batch_size": 8,
    "training.gradient_accumulation_steps": 1,
    "training.max_steps": STEPS,
    "training.logging_steps": 1,
    "training.device": "cpu",
    "training.precision": "fp32",
    "training.resume": "never",
}


def paragraphs(size: int) -> Iterator[str]:
    """Paragraphs of at least `size` bytes together, with next to no two alike."""
    draw = random.Random(0)
    originals = load_corpus("python-docs").documents
    words = [word for document in originals for word in document.split()]
    while True:
        for document in originals:
            changed = [draw.choice(words) if draw.random() < CHANGED else word for word in document.split(" ")]
            paragraph = " ".join(changed)
            yield paragraph
            size -= len(paragraph.encode()) + 2
            if size <= 0:
                return


def write_text(path: Path, size: int) -> None:
    """Write a text of about `size` bytes."""
    with path.open("w", encoding="utf-8") as file:
        for paragraph in paragraphs(size):
            file.write(f"{paragraph}\n\n")


def train(folder: Path, mode: str) -> dict[str, float]:
    """Train on `folder`/text.txt as a process of its own; seconds to the first step and in all, and its peak memory."""
    log = folder / "runs" / "run" / "metrics.jsonl"
    log.unlink(missing_ok=True)
    settings = SETTINGS | {
        "data.corpus": folder / "text.txt",
        "data.cache": folder / "cache",
        "data.batching": mode,
        "training.output_dir": folder / "runs",
    }
    command = [sys.executable, "-m", "course_lm", "train", *(f"--{key}={value}" for key, value in settings.items())]
    begun, first = time.monotonic(), None
    with (folder / "log.txt").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        while True:
            # Not Popen.wait: only wait4 tells the memory of this one child.
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
            if first is None and log.exists() and log.read_bytes().count(b"\n"):
                first = time.monotonic() - begun
            if ended:
                break
            time.sleep(0.02)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or first is None:
        raise RuntimeError((folder / "log.txt").read_text())
    kilobyte = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return {
        "first_step_seconds": first,
        "seconds": time.monotonic() - begun,
        "peak_bytes": usage.ru_maxrss * kilobyte,
    }


def measure(megabytes: int, mode: str) -> list[dict[str, float]]:
    """The run that builds the cache, and the run that finds it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder / "text.txt", megabytes * MEGABYTE)
        return [train(folder, mode) for _ in ("built", "found")]


def main() -> None:
    """Measure each size, and print a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 20, 200, 2000])
    parser.add_argument("--mode", default="packed")
    parser.add_argument("--json", type=Path, help="where to store the figures")
    arguments = parser.parse_args()
    print("| text, MB | first step, first run, s | first step, second run, s | peak memory, first, MB | second, MB |")
    print("|---:|---:|---:|---:|---:|", flush=True)
    rows = []
    for megabytes in arguments.megabytes:
        built, found = measure(megabytes, arguments.mode)
        seconds = f"{built['first_step_seconds']:.1f} | {found['first_step_seconds']:.1f}"
        memory = f"{built['peak_bytes'] / MEGABYTE:,.0f} | {found['peak_bytes'] / MEGABYTE:,.0f}"
        print(f"| {megabytes:,} | {seconds} | {memory} |", flush=True)
        rows.append({"megabytes": megabytes, "mode": arguments.mode, "built": built, "found": found})
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
