"""Which trainer keeps which promise of one optimizer step: `python -m benchmarks.conformance NAME …`.

Each name is that of an adapter, whose trainer is installed into an environment of its own and audited in it; what is
found goes to `results/NAME.json`. `--table` prints the stored results as docs/trainers.md has them, and `--today` makes
the row whose turn it is today, so that by night each is repeated in its turn.
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.conformance.table import RESULTS, names, text

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
NAMES = sorted(path.stem for path in (FOLDER / "adapters").glob("[a-z]*.py"))
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "course_lm" / "conformance"
OWN = ("numpy", "tokenizers", "tqdm", "jaxtyping", "safetensors", "filelock", "pyyaml")  # what the audit imports


def main() -> int:
    """Make the rows that were asked for; 1 if one of them cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conformance", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--table", action="store_true", help="print the table of the stored results")
    parser.add_argument("--today", action="store_true", help="make the row whose turn it is today")
    parser.add_argument("--environments", type=Path, default=CACHE, help="where the environments are, %(default)s")
    parser.add_argument("--compare", action="store_true", help="keep the stored row; 1 where a cell is another one")
    options = parser.parse_args()
    for name in set(options.names) - set(NAMES):
        parser.error(f"NAME must be one of {', '.join(NAMES)}, got {name}")
    if options.table:
        print(text())
    turn = [names()[date.today().timetuple().tm_yday % len(names())]] if options.today else []
    return max(
        [make(name, options.environments / name, options.compare) for name in [*options.names, *turn]], default=0
    )


def make(name: str, environment: Path, compare: bool) -> int:
    """Install the trainer, audit it, and store its row, or compare it; return 1 and say why where that fails."""
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, with_pip=True)
    try:
        run(python, "-m", "pip", "install", "--quiet", "-r", FOLDER / "requirements" / f"{name}.txt", *OWN)
        made = json.loads(run(python, "-m", "benchmarks.conformance.here", name).splitlines()[-1])
    except RuntimeError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    stored = RESULTS / f"{name}.json"
    if compare:
        before, now = statuses(json.loads(stored.read_text(encoding="utf-8"))), statuses(made)
        print(f"{name}: stored {before}, now {now}")
        return int(any(now.get(label) != found for label, found in before.items()))
    stored.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{name}: {made['package']} {made['version']}")
    return 0


def statuses(row: dict[str, Any]) -> dict[str, list[str]]:
    """The status of each promise, a list for each line of a row."""
    return {label: [cell["status"] for cell in line["promises"].values()] for label, line in row["lines"].items()}


def run(*command: str | Path) -> str:
    """What the command prints on one thread; RuntimeError with its last words where it fails."""
    settings = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command[1:4]))} failed: {done.stderr.strip()[-1500:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
