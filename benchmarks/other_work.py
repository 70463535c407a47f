"""How much slower training is beside other work, by how OpenMP's threads wait: `python benchmarks/other_work.py`.

It prints a table for each job of what one child process takes: alone, beside one busy process, and beside two. The
arms differ in how threads wait for each other (`course_lm.trainer.waiting`) and take turns; the median of three rounds
stands before their range. Jobs: a training step of the model that `course-lm train` makes, two such trainings at once,
the command `train`, a lesson. A quiet machine is needed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from harness import ROOT, markdown, spread

ARMS = {
    "as it comes": {"GOMP_SPINCOUNT": "300000"},  # libgomp's own default
    "chosen as it runs": {},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
SET_BY_ARMS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
BOTH = ("as it comes", "chosen as it runs")
JOBS = {  # the name of the job, how many run at once, the arms, and beside how many busy processes
    "a step, ms": ("step", 1, tuple(ARMS), (0, 1, 2)),
    "a step of each of two trainings, ms": ("step", 2, BOTH, (0,)),
    "train, 60 steps, s": ("train", 1, BOTH, (0, 1)),
    "lesson 08, s": ("lesson", 1, BOTH, (0, 1)),
}
STEP_SECONDS = 6.0


def main() -> None:
    """Print the tables; or, as a child, the milliseconds of a step."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true")
    options = parser.parse_args()
    if options.child:
        print(milliseconds_of_a_step())
        return
    for title, (job, at_once, arms, besides) in JOBS.items():
        taken: dict[tuple[str, int], list[float]] = defaultdict(list)
        for _ in range(options.rounds):
            for busy in besides:
                for arm in arms:
                    with busy_processes(busy):
                        taken[arm, busy] += [measure(job, arm, at_once)]
        rows = [[arm, *(cell(taken[arm, busy]) for busy in besides)] for arm in arms]
        heads = ["alone", "beside one", "beside two"][: len(besides)]
        print(f"\n{title}\n\n" + markdown(heads, rows), flush=True)


def cell(values: list[float]) -> str:
    """The median, and the range."""
    shown = spread(values, ",.0f" if min(values) >= 100 else ".3g")
    return "{} ({} to {})".format(*shown)


def measure(job: str, arm: str, at_once: int) -> float:
    """What the job takes: a step's milliseconds, the mean where several run at once, or a command's seconds."""
    environment = {name: value for name, value in os.environ.items() if name not in SET_BY_ARMS} | ARMS[arm]
    with tempfile.TemporaryDirectory() as folder:
        short = ["--training.max_steps=60", f"--training.output_dir={folder}"]
        command = {
            "step": [sys.executable, __file__, "--child"],
            "train": [sys.executable, "-m", "course_lm", "train", *short],
            "lesson": [sys.executable, "-m", "course_lm", "lessons", "08"],
        }[job]
        started = time.perf_counter()
        children = [
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(at_once)
        ]
        said = [child.communicate() for child in children]
        seconds = time.perf_counter() - started
    for child, (_, errors) in zip(children, said, strict=True):
        if child.returncode:
            raise RuntimeError(f"{command} failed: {errors.decode()[-2000:]}")
    return sum(float(out) for out, _ in said) / at_once if job == "step" else seconds


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """So many other processes that always want a core."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def milliseconds_of_a_step() -> float:
    """The mean over some seconds of steps: packed rows, the model and optimizer of `configs/python-docs.yaml`."""
    import torch

    from course_lm.batching import make_loader
    from course_lm.config import TrainingConfig
    from course_lm.corpus import load_corpus
    from course_lm.model import GPT
    from course_lm.optim import build_optimizer
    from course_lm.precision import Precision
    from course_lm.step import train_step
    from course_lm.tokenizer import train_tokenizer
    from course_lm.trainer.allocator import tune_allocator
    from course_lm.trainer.waiting import share_cores

    tune_allocator()
    share_cores()
    config = TrainingConfig.from_yaml(ROOT / "course_lm" / "configs" / "python-docs.yaml")
    texts = load_corpus("stories").documents[:2000]
    tokenizer, length = train_tokenizer(texts, config.data.vocab_size), config.data.max_length
    size = config.training.batch_size
    batches = list(make_loader(texts, tokenizer, mode="packed", batch_size=size, max_length=length))[:8]
    torch.manual_seed(0)
    model = GPT(config.model, config.data.vocab_size, length)
    optimizer, precision = build_optimizer(model, config.optimizer), Precision("auto", torch.device("cpu"))
    for batch in batches[:2]:
        train_step(model, [batch], optimizer, precision=precision)
    started, steps = time.perf_counter(), 0
    while time.perf_counter() < started + STEP_SECONDS or steps < 3:
        train_step(model, [batches[steps % len(batches)]], optimizer, precision=precision)
        steps += 1
    return 1000 * (time.perf_counter() - started) / steps


if __name__ == "__main__":
    main()
