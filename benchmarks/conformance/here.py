"""One row in this environment: `python -m benchmarks.conformance.here NAME` prints it as JSON in its last line.

Each line of the row is a loop of the adapter under the audit. A promise is broken only where a script in `confirm`
shows the fault with the trainer alone: `NAME_c5_what.py`, or `NAME_c3_c5.py`, which gets the promise as its argument.
"""

import json
import subprocess
import sys
import time
from datetime import date
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.conformance.decide import Cell, cells

FOLDER = Path(__file__).parent


def row(name: str) -> dict[str, Any]:
    """Trainer, version, date, and for each loop of the adapter its cells and seconds."""
    adapter = import_module(f"benchmarks.conformance.adapters.{name}")
    lines = {}
    for label, loop in (adapter.LOOPS if hasattr(adapter, "LOOPS") else {"": adapter.loop}).items():
        began = time.perf_counter()
        found = cells(loop, adapter.NOT_OFFERED, getattr(adapter, "PRECISION", "float64"))
        for promise, cell in found.items():
            if cell["status"] == "departs":
                cell |= confirmed(getattr(adapter, "CONFIRM", name), promise)
        lines[label] = {"promises": found, "seconds": round(time.perf_counter() - began)}
    return {"package": adapter.PACKAGE, "version": version(adapter.PACKAGE), "date": f"{date.today()}", "lines": lines}


@cache
def confirmed(name: str, promise: str) -> Cell:
    """The status "broken", and what the scripts print that show it with the trainer alone."""
    shown = {}
    for script in sorted((FOLDER / "confirm").glob(f"{name}_*.py")):
        if promise.lower() not in script.stem.split("_"):
            continue
        done = subprocess.run([sys.executable, script, promise.lower()], capture_output=True, text=True, timeout=300)
        if done.returncode == 0:
            shown[script.name] = done.stdout.strip()
    return {"status": "broken", "confirmed": shown} if shown else {"status": "not confirmed"}


if __name__ == "__main__":
    print(json.dumps(row(sys.argv[1])))
