"""What docs/speedrun.md shows: `python benchmarks/speedrun/measure.py [ENTRY]`, three seeds each, one of them again."""

import sys
from statistics import mean
from typing import Any

import muon
import plain
import trainer

from course_lm.audit.speedrun import Result, run_entry
from course_lm.display import table

ENTRIES = {"plain": plain.entry, "trainer": trainer.entry, "muon": muon.entry}
SEEDS = (0, 1, 2)


def row(name: str, runs: list[Result], again: Result) -> tuple[str, ...]:
    above, minutes = [one.above_floor for one in runs], [one.seconds / 60 for one in runs]
    return (
        name,
        f"{mean(one.flops for one in runs):.3e}",
        f"{min(minutes):.2f} to {max(minutes):.2f}",
        f"{mean(above):.4f}",
        f"{min(above):.4f} to {max(above):.4f}",
        f"{abs(again.above_floor - above[0]):.1g}, {abs(again.flops - runs[0].flops):,}",
    )


if __name__ == "__main__":
    rows: list[Any] = [("entry", "FLOPs", "minutes", "nats above the floor", "three seeds", "again: nats, FLOPs")]
    for name in sys.argv[1:] or ENTRIES:
        runs = [run_entry(ENTRIES[name], seed=seed) for seed in SEEDS]
        rows.append(row(name, runs, run_entry(ENTRIES[name], seed=SEEDS[0])))
    print(table(rows))
