"""Claims about README's picture: each printed loss falls, but on held-out text the right one alone; README says so."""

import re
from itertools import product

import lying_loops
import pytest
from harness import ROOT, load
from lying_loops import FILE, PICTURES, SEEDS, SHIFTS, STEPS, table, told
from PIL import Image, ImageColor

RESULTS = load(FILE)
RUNS = RESULTS["runs"]


@pytest.mark.parametrize(("loop", "seed"), list(product(SHIFTS, SEEDS)))
def test_every_printed_loss_falls_and_only_the_right_loop_learns_the_next_token(loop, seed):
    (run,) = [run for run in RUNS if (run["loop"], run["seed"]) == (loop, seed)]
    assert run["printed"][-1] < 0.8 * run["printed"][0]
    assert (run["held_out"][-1] < run["held_out"][0]) == (loop == "right")


@pytest.mark.parametrize("file", PICTURES, ids=lambda file: file.stem)
def test_the_picture_is_of_these_runs_and_small(file):
    with Image.open(file) as picture:
        assert picture.info["Description"] == table(RESULTS)
        assert picture.convert("RGB").getpixel((0, 0)) == ImageColor.getrgb(PICTURES[file].ground)
    assert file.stat().st_size < 60_000


def test_readme_says_what_the_picture_shows():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    lies = [told(RESULTS, f"labels {how}") for how in ("shifted twice", "not shifted")]
    assert all(last < first for first, last, _ in lies)  # "All three loops print a falling loss"
    second, third = (f"{held_out:.2f}" for _, _, held_out in lies)
    assert f"The second ends at {second} nats per token of held-out text, the third at {third};" in readme
    (worst,) = map(int, re.findall(r"rises to more than (\d+) nats", readme))
    assert worst < min(run["held_out"][-1] for run in RUNS if run["loop"] == "labels not shifted")
    assert f"against {STEPS} training steps" in readme


@pytest.mark.daily(0)
def test_a_run_repeats():
    again = lying_loops.measure("runs", {"loop": "labels not shifted", "seed": 0})
    (run,) = [run for run in RUNS if (run["loop"], run["seed"]) == ("labels not shifted", 0)]
    assert again["printed"] == pytest.approx(run["printed"], abs=0.05)
    assert again["held_out"][-1] == pytest.approx(run["held_out"][-1], abs=0.5)
