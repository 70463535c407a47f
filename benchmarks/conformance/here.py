"""One row in this environment: `python -m benchmarks.conformance.here NAME` prints it as JSON in its last line.

Each line of the row is a loop of the adapter under the audit. A promise is broken only where a script in `confirm`
shows the fault with the trainer alone: `NAME_c5_what.py`, or `NAME_c3_c5.py`. It gets the promise and the line's label.
"""

import json
import subprocess
import sys
import time
from datetime import date
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.conformance import resume
from benchmarks.conformance.decide import Cell, cells

FOLDER = Path(__file__).parent


def row(name: str) -> dict[str, Any]:
    """Trainer, version, date, and for each loop of the adapter its cells and seconds."""
    adapter = import_module(f"benchmarks.conformance.adapters.{name}")
    kinds = {"not offered": adapter.NOT_OFFERED, "not tried": getattr(adapter, "NOT_TRIED", {})}
    settled = {promise: Cell(status=kind, reason=why) for kind, said in kinds.items() for promise, why in said.items()}
    called, lines = getattr(adapter, "CALLED", {}), {}
    for label, loop in (adapter.LOOPS if hasattr(adapter, "LOOPS") else {"": adapter.loop}).items():
        began = time.perf_counter()
        promises = cells(loop, settled, getattr(adapter, "PRECISION", "float64"))
        promises["C13"] = resume_cell(adapter, settled, label)
        for seen, meant in getattr(adapter, "MEANT", {}).get(label, {}).items():
            if promises[seen]["status"] == "departs":
                promises[seen], promises[meant] = promises[meant], promises[seen]
        for promise, cell in promises.items():
            if cell["status"] == "departs":
                shown = confirmed(getattr(adapter, "CONFIRM", name), label, promise)
                status = called.get(promise, "broken") if shown else "not confirmed"
                cell |= {"status": status, "confirmed": shown}
        lines[label] = {"promises": promises, "seconds": round(time.perf_counter() - began)}
    found = getattr(adapter, "VERSION", None) or version(adapter.PACKAGE)
    return {"package": adapter.PACKAGE, "version": found, "date": f"{date.today()}", "lines": lines}


def resume_cell(adapter: Any, settled: dict[str, Cell], label: str) -> Cell:
    """The cell of C13 for a line of the adapter."""
    train = getattr(adapter, "RESUMES", {}).get(label)
    if train is None:
        return settled.get("C13", Cell(status="not tried", reason="the adapter stops no run"))
    return resume.cell(train, getattr(adapter, "PRECISION", "float64"))


def confirmed(name: str, label: str, promise: str) -> dict[str, str]:
    """What the scripts print that show with the trainer alone how this line departs from the promise."""
    shown = {}
    for script in sorted((FOLDER / "confirm").glob(f"{name}_*.py")):
        if promise.lower() not in script.stem.split("_"):
            continue
        asked = [sys.executable, script, promise.lower(), label]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=300)
        if done.returncode == 0:
            shown[script.name] = done.stdout.strip()
    return shown


if __name__ == "__main__":
    print(json.dumps(row(sys.argv[1])))
