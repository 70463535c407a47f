"""Claims about `course-lm speedrun`: what counts, what is refused, and that the same entry reaches the same twice."""

from pathlib import Path
from typing import Any

import pytest
import torch

from course_lm.audit.speedrun import Task, run_entry
from course_lm.cli import main
from course_lm.cli.audit import load

ENTRIES = Path(__file__).parents[2] / "benchmarks" / "speedrun"
FLOPS = 2 * 10**10


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def entry_of(folder: Path, body: str) -> Any:
    """The entry of a file whose loop is the plain one and does not return before the budget is spent."""
    file = folder / "own.py"
    head = f"import sys; sys.path.insert(0, {str(ENTRIES)!r})\nimport torch\nfrom plain import Cosine, Settings, loop\n"
    file.write_text(f"{head}def entry(new_model, batches, budget):\n    model = new_model()\n    {body}\n")
    return load(f"{file}:entry")


def test_an_entry_comes_nearer_to_the_floor_within_its_budget_and_the_same_twice():
    runs = [run_entry(load(f"{ENTRIES}/plain.py:entry"), seed=1, flops=FLOPS) for _ in range(2)]
    assert (runs[0].flops, runs[0].above_floor) == (runs[1].flops, runs[1].above_floor)
    assert FLOPS <= runs[0].flops < 1.5 * FLOPS
    assert 0 < runs[0].above_floor < Task().above_floor(Task().new_model())


def test_products_of_the_optimizer_count():
    """A step of Muon takes more FLOPs than one of AdamW on the same batches."""
    few = 10**9  # one step
    plain, muon = (run_entry(load(f"{ENTRIES}/{name}.py:entry"), flops=few).flops for name in ("plain", "muon"))
    assert plain < muon


def test_training_outside_of_the_audited_loop_is_refused(tmp_path):
    entry = entry_of(
        tmp_path, "[model(**b).sum().backward() for b in batches(4)]\n    return model".replace("**b", "b['input_ids']")
    )
    with pytest.raises(ValueError, match="FLOPs outside of its audited loop"):
        run_entry(entry, flops=10**9)


def test_a_budget_overspent_is_refused(tmp_path):
    body = "read = [b for _, b in zip(range(8), batches(4))]\n    loop(model, [read], Settings())\n    return model"
    with pytest.raises(ValueError, match="more than the budget"):
        run_entry(entry_of(tmp_path, body), flops=10**8)


def test_an_entry_that_returns_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must return the trained model, got NoneType"):
        run_entry(entry_of(tmp_path, "loop(model, [batches(4)], Settings())"), flops=10**8)


def test_an_entry_without_a_loop_beside_it_is_refused(tmp_path, capsys):
    (tmp_path / "own.py").write_text("def entry(new_model, batches, budget): return new_model()\n")
    assert main(["speedrun", f"{tmp_path}/own.py:entry"]) == 2
    assert "needs loop(model, epochs, settings) beside it" in capsys.readouterr().err


def test_an_unsound_loop_is_1_and_is_not_run(tmp_path, capsys):
    lines = (ENTRIES / "plain.py").read_text().replace("optimizer.zero_grad()", "pass")
    (tmp_path / "own.py").write_text(lines.replace("    model = new_model()", "    raise SystemExit"))
    assert main(["speedrun", f"{tmp_path}/own.py:entry"]) == 1
    assert capsys.readouterr().out.startswith("unsound: missing_zero_grad")


@pytest.mark.parametrize("name", ["plain", "trainer", "muon"])
def test_the_entries_that_are_shown_are_sound_and_run(name, capsys):
    assert main(["speedrun", f"{ENTRIES}/{name}.py:entry", f"--flops={FLOPS}"]) == 0
    said = capsys.readouterr().out
    assert "sound: equal to the specification" in said
    assert "nats per token above the floor" in said
