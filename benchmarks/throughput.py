"""How fast the loop is, and why: `python benchmarks/throughput.py [--quick] [--json FILE]` prints five tables.

Every figure is the median over rounds of child processes that take turns (A B C, C B A, …), and every ratio is the
median of the ratios within a round: what else the machine does then falls on all of them alike. A quiet machine is
still needed; the load is printed. This file imports nothing heavy, so that a child's peak memory is its own.

The loops train on random tokens, in bf16 unless said otherwise, without dropout: the textbook loop on full rows that
lie ready in memory, `Trainer` on full rows and on packed rows that its loader collates.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import Result, Specs, in_child, middle, print_columns, ratios, spread, take_turns

Measure = Callable[[dict[str, Any]], Result]


@dataclass(frozen=True)
class Plan:
    """How much to measure: steps for each size of model, rounds of child processes, paragraphs of real text."""

    sizes: dict[str, dict[str, int]]
    rounds: int
    documents: int
    lengths: tuple[int, ...]
    same_module_size: str = "1M"
    threads: int = 2


FULL = Plan(
    sizes={"1M": {"steps": 63, "warmup": 3}, "10M": {"steps": 12, "warmup": 2}},
    rounds=5,
    documents=1500,
    lengths=(256, 512),
)
QUICK = Plan(
    sizes={"1M": {"steps": 23, "warmup": 3}, "10M": {"steps": 6, "warmup": 1}},
    rounds=3,
    documents=500,
    lengths=(256,),
)
TARGETS = {"1M": 1.8, "10M": 1.4, "same module": 0.97, "packed": 6.0}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; with `--json FILE` also keep every single measurement."""
    parser = argparse.ArgumentParser(description="Tokens per second of the loop against a textbook loop.")
    parser.add_argument("--quick", action="store_true", help="fewer steps, rounds and documents")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to FILE")
    options = parser.parse_args(arguments)
    results = run(QUICK if options.quick else FULL, partial(in_child, "workloads.py"))
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


def run(plan: Plan, measure: Measure) -> dict[str, dict[str, list[Result]]]:
    """Print every table as soon as it is measured; return the measurements, by table and row."""
    print(f"{os.cpu_count()} cores, {plan.threads} threads, load average {os.getloadavg()[0]:.2f} at the start")
    results = {}
    for size, steps in plan.sizes.items():
        title = f"{size} parameters, bf16: the textbook loop and what replaces it"
        results[size] = compare(loop_specs(size, steps), plan, measure)
        show(title, results[size], baseline="textbook", target=TARGETS.get(size))
    results["same module"] = compare(same_module_specs(plan), plan, measure)
    show_shares(results["same module"])
    for length in plan.lengths:
        name = f"real text, T {length}"
        results[name] = compare(batching_specs(plan, length), plan, measure)
        title = f"target tokens/s on {plan.documents} python-docs paragraphs, T {length}, 1M parameters"
        show(title, results[name], baseline="fixed", target=TARGETS["packed"])
    results["imports"] = import_seconds(plan.rounds)
    show_imports(results["imports"])
    return results


def loop_specs(size: str, steps: dict[str, int]) -> Specs:
    """From the textbook loop to the trainer, one part after the other."""
    textbook = {"job": "textbook", "size": size, **steps}
    shipped = {"job": "shipped", "size": size, **steps}
    return {
        "textbook": textbook,
        "+ allocator": textbook | {"allocator": True},
        "+ matmul attention": textbook | {"allocator": True, "attention": "matmul"},
        "+ erf GELU": textbook | {"allocator": True, "attention": "matmul", "gelu": "none"},
        "+ fused AdamW": textbook | {"allocator": True, "attention": "matmul", "gelu": "none", "fused": True},
        "Trainer, full rows": shipped,
        "Trainer, packed rows": shipped | {"packed": True},
    }


def same_module_specs(plan: Plan) -> Specs:
    """Trainer and bare loop on one module; one process measures both."""
    size = plan.same_module_size
    spec = {"job": "same_module", "size": size, **plan.sizes[size]}
    return {f"{size} {precision}": spec | {"precision": precision} for precision in ("fp32", "bf16")}


def batching_specs(plan: Plan, length: int) -> Specs:
    """The same paragraphs batched in every mode."""
    size = plan.same_module_size
    spec = {"job": "real_text", "size": size, "documents": plan.documents, "warmup": 1, "max_length": length}
    modes: Specs = {mode: spec | {"mode": mode} for mode in ("fixed", "dynamic", "bucketed")}
    budget = {"bucketed, token budget": spec | {"mode": "bucketed", "tokens_per_batch": 32 * length}}
    return modes | budget | {"packed": spec | {"mode": "packed"}}


def compare(specs: Specs, plan: Plan, measure: Measure) -> dict[str, list[Result]]:
    """Measure every spec once a round, each with the plan's threads."""
    return take_turns({name: spec | {"threads": plan.threads} for name, spec in specs.items()}, plan.rounds, measure)


def import_seconds(rounds: int) -> dict[str, list[Result]]:
    """Seconds that an import takes once torch is there, and that torch itself takes."""
    statements = {
        "torch": ("pass", "import torch"),
        "course_lm": ("import torch", "import course_lm"),
        "course_lm.trainer": ("import torch", "import course_lm.trainer"),
    }
    results: dict[str, list[Result]] = {name: [] for name in statements}
    for _ in range(rounds):
        for name, (before, timed) in statements.items():
            program = f"{before}\nfrom time import perf_counter as now\nt = now()\n{timed}\nprint(now() - t)"
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            results[name].append({"seconds": float(done.stdout)})
    return results


def show(title: str, results: dict[str, list[Result]], *, baseline: str, target: float | None) -> None:
    """Print tokens/s, ratio to the baseline and peak memory of each row."""
    print(f"\n{title}" + ("" if target is None else f" (wanted in the end: {target:g})"))
    rows = {
        name: [middle(row, "tokens_per_second"), *spread(ratios(row, results[baseline])), middle(row, "peak_mib")]
        for name, row in results.items()
    }
    print_columns(["tokens/s", "ratio", "lowest", "highest", "peak MiB"], rows)


def show_shares(results: dict[str, list[Result]]) -> None:
    """Print what share of a bare loop's speed the trainer keeps on the same module."""
    print(f"\nTrainer against a bare loop, same module and step (wanted: {TARGETS['same module']:g})")
    rows = {}
    for name, row in results.items():
        speeds = [middle(row, key) for key in ("tokens_per_second", "bare_tokens_per_second")]
        rows[name] = [*speeds, *spread([one["trainer_share"] for one in row], ".3f")]
    print_columns(["tokens/s", "bare", "share", "lowest", "highest"], rows)


def show_imports(results: dict[str, list[Result]]) -> None:
    """Print the least seconds of each import."""
    print("\nseconds to import, least of all rounds; course_lm is counted after torch")
    print_columns(["seconds"], {name: [f"{min(one['seconds'] for one in row):.3f}"] for name, row in results.items()})


if __name__ == "__main__":
    main()
