"""The band of lesson 00's figure: `python tests/benchmarks/reference_curves.py` runs its loop with five other seeds.

The loop is read from the notebook (its cells tagged `loop`), so the band belongs to the lines that a learner sees.
"""

import json
from pathlib import Path
from typing import Any

import nbformat

from course_lm.corpus import data_file

LESSON = Path(__file__).resolve().parents[2] / "notebooks" / "00_the_whole_loop.ipynb"
SEEDS = range(1, 6)
SMOOTHED_STEPS = 5


def loop_of(lesson: Path) -> dict[str, Any]:
    """The names that the lesson's `loop` cells define."""
    names: dict[str, Any] = {}
    for cell in nbformat.read(lesson, as_version=4).cells:
        if "loop" in cell.metadata.get("tags", []):
            exec(cell.source, names)
    return names


def main() -> None:
    """Train with each seed and store the lowest and highest loss over the seeds, in steps of `SMOOTHED_STEPS`."""
    loop = loop_of(LESSON)
    curves = [loop["train"](loop["new_model"](seed), loop["loss_of"], seed=seed)[0] for seed in SEEDS]
    steps = range(0, len(curves[0]) - SMOOTHED_STEPS + 1, SMOOTHED_STEPS)
    windows = [[curve[step : step + SMOOTHED_STEPS] for curve in curves] for step in steps]
    band = {
        "steps": [step + 1 + SMOOTHED_STEPS // 2 for step in steps],
        "lowest": [round(min(map(min, window)), 3) for window in windows],
        "highest": [round(max(map(max, window)), 3) for window in windows],
    }
    path = data_file("reference_curves.json")
    path.write_text(json.dumps({LESSON.stem: band}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
