"""Our `Trainer` beside other people's: `python benchmarks/peers.py [--quick] [--json FILE]` prints two tables.

Install `pip install -e ".[peers]"` first. Every row is a child process; they take turns, round after round, and a ratio
is the median of the ratios within a round. A run beside which something else kept a processor busy is repeated. This
file imports nothing heavy, so that a child's peak memory is its own.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import Result, Specs, in_child, middle, print_columns, ratios, spread, take_turns

ROWS: Specs = {
    "plain loop, textbook GPT": {"loop": "plain", "module": "textbook"},
    "plain loop": {"loop": "plain", "module": "ours"},
    "transformers.Trainer, GPT-2": {"loop": "hugging_face", "module": "gpt2"},
    "transformers.Trainer": {"loop": "hugging_face", "module": "ours"},
    "Lightning": {"loop": "lightning", "module": "ours"},
    "Fabric": {"loop": "fabric", "module": "ours"},
    "accelerate": {"loop": "accelerate", "module": "ours"},
    "Trainer": {"loop": "shipped", "module": "ours"},
}
SIZES = {"1M": {"steps": 60, "warmup": 5}, "10M": {"steps": 14, "warmup": 2}}
QUICK = {"1M": {"steps": 25, "warmup": 3}}
ROUNDS, TRIES = 5, 4
OTHERS = 0.1  # processors that others may keep busy during a run


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; with `--json FILE` also keep every single measurement."""
    parser = argparse.ArgumentParser(description="Training loops beside each other on the same text.")
    parser.add_argument("--quick", action="store_true", help="the small model alone, fewer steps")
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to FILE")
    options = parser.parse_args(arguments)
    results = {}
    for size, steps in (QUICK if options.quick else SIZES).items():
        shared = {"size": size, "precision": options.precision, "threads": options.threads, **steps}
        specs = {name: shared | row for name, row in ROWS.items()}
        results[size] = take_turns(specs, options.rounds, undisturbed)
        print(f"\n{size} parameters, {options.precision}, {options.threads} threads, {options.rounds} rounds")
        show(results[size])
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


def undisturbed(spec: dict[str, Any]) -> Result:
    """Measure in a fresh process, again where others kept more than `OTHERS` processors busy meanwhile.

    Raises RuntimeError where that happens `TRIES` times, or with the child's last words if it fails.
    """
    for _ in range(TRIES):
        busy, started, own = busy_seconds(), time.monotonic(), os.times()
        result = in_child("peer_loops.py", spec)
        now = os.times()
        used = now.children_user + now.children_system - own.children_user - own.children_system
        others = (busy_seconds() - busy - used) / (time.monotonic() - started)
        if others <= OTHERS:
            return result
        print(f"{spec['loop']}: others kept {others:.2f} processors busy; measured again", flush=True)
    raise RuntimeError(f"other processes kept the machine busy {TRIES} times: measure on a quiet machine")


def busy_seconds() -> float:
    """Seconds of processor time that all processes have used since the machine started; 0 where nobody counts them."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq = map(int, fields[:7])  # of idle time and waiting nothing counts
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def show(results: dict[str, list[Result]]) -> None:
    """Print the medians of each row, and its speed as a ratio to the first row within the same round."""
    baseline = next(iter(results.values()))
    rows = {}
    for name, row in results.items():
        ends = [f"{middle(row, 'first_step', '.2f')}s", middle(row, "peak_mib"), middle(row, "val_loss", ".3f")]
        rows[name] = [middle(row, "tokens_per_second"), *spread(ratios(row, baseline)), *ends]
    print_columns(["tokens/s", "ratio", "lowest", "highest", "first step", "peak MiB", "loss"], rows)


if __name__ == "__main__":
    main()
