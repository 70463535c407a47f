"""What must hold on CUDA: `PYTHONPATH=. python benchmarks/gpu_check.py [--dry-run] [--json FILE] [--only WORD]`.

It prints a line for each check, and ends with exit code 1 if one fails. A check is a function whose docstring is its
promise; the commands run in processes of their own. It needs the package and what that declares, no tests and no
network. `--dry-run` makes the same checks on a CPU, where they say little.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu import where
from torch import Tensor

from course_lm.checkpoints import load_checkpoint
from course_lm.forward import forward_logits, move_batch
from course_lm.loss import next_token_loss
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.precision import Precision
from course_lm.step import train_step

VOCABULARY, LENGTH, SIZES = 512, 256, {"n_layer": 2, "n_head": 2, "d_model": 128}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LONGEST = 150 if DEVICE.type == "cuda" else 900  # seconds of a command; on a CPU nearly all of them compile
RUN = [
    "--data.corpus=stories", "--data.vocab_size=512", "--data.max_length=256", "--training.max_steps=24",
    "--training.save_steps=4", "--training.eval_tokens=4096", "--training.output_dir=runs", "--training.batch_size=4",
    "--training.gradient_accumulation_steps=2", f"--training.device={DEVICE.type}",
    *(f"--model.{name}={value}" for name, value in SIZES.items()),
]  # fmt: skip


def course_lm(*words: str, folder: Path, kill_after: str = "", torchrun: bool = False) -> str:
    """What a command prints, which is killed once the file `kill_after` is there; AssertionError if it fails.

    One that takes longer than `LONGEST` is killed, and fails.
    """
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "-m"] if torchrun else ["-m"]
    paths = [str(Path(__file__).resolve().parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, *start, "course_lm", *words]
    end = time.monotonic() + LONGEST
    with open(folder / "printed", "w+") as printed:  # no pipe: compiling starts processes, which would hold it
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=printed, stderr=subprocess.STDOUT)
        while process.poll() is None and not (kill_after and (folder / kill_after).exists()) and time.monotonic() < end:
            time.sleep(0.01)
        in_time = time.monotonic() < end
        process.kill()  # which does nothing to one that has ended
        code = process.wait()
        printed.seek(0)
        text = printed.read()
    assert in_time, f"{' '.join(words)}: no end within {LONGEST} s: {text[-1000:]}"
    assert code == (-signal.SIGKILL if kill_after else 0), f"{' '.join(words)}: {text[-1000:]}"
    return text


def state_of(folder: Path, run: str) -> dict[str, Any]:
    """What a run was saved with at its end."""
    return load_checkpoint(folder / "runs" / run / "checkpoint_last.safetensors")


def batch(kind: str) -> dict[str, Tensor]:
    """Rows that are full, padded or packed."""
    ids = torch.randint(VOCABULARY, (4, LENGTH), generator=torch.Generator().manual_seed(0))
    made = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
    if kind.startswith("padded"):
        kept = slice(None, 200) if kind.endswith("left") else slice(200, None)
        made["attention_mask"][1:, slice(0, 56) if kind.endswith("left") else kept] = 0
        made["labels"][made["attention_mask"] == 0] = -100
        made["labels"][1:, 56 if kind.endswith("left") else 0] = -100
    if kind == "packed":
        place = torch.arange(LENGTH)
        made["document_ids"] = (place // 100).repeat(4, 1)
        made["labels"][:, ::100] = -100
    return made


def model() -> GPT:
    """A small model, the same each time."""
    torch.manual_seed(0)
    return GPT(ModelConfig(dropout=0.0, **SIZES), VOCABULARY, LENGTH).to(DEVICE)


def attention_is_the_same_by_every_path() -> None:
    """Full, padded and packed rows, eager and compiled: loss and gradient are those of float64, to the rounding."""
    for kind in ("full", "padded right", "padded left", "packed"):
        found = {}
        for name, exact, compiled in (("float64", True, False), ("eager", False, False), ("compiled", False, True)):
            one = model().to(torch.float64 if exact else torch.float32)
            called: Any = torch.compile(one) if compiled else one
            moved = move_batch(batch(kind), DEVICE, one)
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=not exact):
                loss = next_token_loss(forward_logits(called, moved), moved["labels"])
            loss.backward()
            gradient = torch.cat([p.grad.flatten().double() for p in one.parameters() if p.grad is not None])
            found[name] = loss.item(), gradient
        loss, gradient = found.pop("float64")
        for name, (value, other) in found.items():
            gap = float((other - gradient).norm() / gradient.norm())
            assert abs(value - loss) < 0.01 and gap < 0.05, (
                f"{kind}, {name}: loss {value} for {loss}, gradient {gap:.3f}"
            )


def a_step_waits_for_nothing() -> None:
    """In fp32 and bf16 the host never waits for the device in a step with a fused AdamW (C17)."""
    for precision in ("fp32", "bf16"):
        one = model()
        optimizer = build_optimizer(one, OptimizerConfig())
        taken = [move_batch(batch(kind), DEVICE) for kind in ("full", "packed")]
        for _ in range(2):  # the moments are made, and packed rows tried
            train_step(one, taken, optimizer, lr=1e-3, precision=Precision(precision, DEVICE))
        if DEVICE.type != "cuda":
            continue
        torch.cuda.set_sync_debug_mode("error")
        try:
            train_step(one, taken, optimizer, lr=1e-3, precision=Precision(precision, DEVICE))
        finally:
            torch.cuda.set_sync_debug_mode("default")


def a_killed_run_goes_on_to_the_same_bits() -> None:
    """A run that is killed in the middle ends with the bits of one that never was, compiled or not, packed or not."""
    for compiled, batching in (("false", "packed"), ("true", "packed"), ("true", "bucketed")):
        asked = [f"--training.compile={compiled}", f"--data.batching={batching}"]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            course_lm("train", *RUN, *asked, "--experiment_name=whole", folder=folder)
            killed = "runs/killed/checkpoint_step_8.safetensors"
            course_lm("train", *RUN, *asked, "--experiment_name=killed", folder=folder, kill_after=killed)
            course_lm("train", *RUN, *asked, "--experiment_name=killed", folder=folder)
            states = [state_of(folder, one) for one in ("whole", "killed")]
        assert states[0]["step"] == states[1]["step"] == 24
        for part, weight in states[0]["model"].items():
            assert torch.equal(weight, states[1]["model"][part]), f"compile {compiled}, {batching}: {part} differs"


def every_command_does_its_work() -> None:
    """train, find-lr, generate, evaluate, export and profile end with exit code 0."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        course_lm("train", *RUN, "--experiment_name=run", folder=folder)
        run = "runs/run"
        course_lm("find-lr", *RUN, "--num_iter=20", folder=folder)
        assert course_lm("generate", run, "--prompt=Once", "--max_new_tokens=8", folder=folder).strip()
        course_lm("evaluate", run, folder=folder)
        course_lm("export", run, "--to=exported", folder=folder)
        course_lm("profile", *RUN, folder=folder)
        assert (folder / "exported/model.safetensors").exists()


def torchrun_is_the_same_run() -> None:
    """One rank of torchrun, by NCCL on CUDA, ends with the bits of a plain process (C16)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        course_lm("train", *RUN, "--experiment_name=plain", folder=folder)
        course_lm("train", *RUN, "--experiment_name=ranks", folder=folder, torchrun=True)
        plain, ranks = (state_of(folder, one)["model"] for one in ("plain", "ranks"))
    assert all(torch.equal(weight, ranks[part]) for part, weight in plain.items())


CHECKS: tuple[Callable[[], None], ...] = (
    attention_is_the_same_by_every_path,
    a_step_waits_for_nothing,
    a_killed_run_goes_on_to_the_same_bits,
    every_command_does_its_work,
    torchrun_is_the_same_run,
)


def main() -> int:
    """Make every check; the exit code."""
    parser = argparse.ArgumentParser(description="What must hold on CUDA.")
    parser.add_argument("--dry-run", action="store_true", help="on a CPU too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts to FILE, after each check")
    parser.add_argument("--only", default="", metavar="WORD", help="the checks whose name holds it")
    options = parser.parse_args()
    if DEVICE.type != "cuda" and not options.dry_run:
        parser.error("there is no CUDA device: --dry-run makes the checks on a CPU")
    verdicts = {"where": where()}
    print(verdicts["where"], flush=True)
    for check in (one for one in CHECKS if options.only in one.__name__):
        begun = time.perf_counter()
        try:
            check()
            verdict = "holds"
        except Exception:
            verdict = f"FAILS\n{traceback.format_exc()}"
        verdicts[check.__name__] = verdict
        if options.json is not None:
            options.json.write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf-8")
        print(f"{time.perf_counter() - begun:6.1f} s  {check.__doc__}  {verdict}", flush=True)
    return int(any(verdict.startswith("FAILS") for verdict in verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
