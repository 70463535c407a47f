"""Claims about `course-lm speedrun`: what counts, what is refused, and that the same entry reaches the same twice."""

from pathlib import Path
from typing import Any

import pytest
import torch

from course_lm.audit import speedrun
from course_lm.audit.speedrun import Task, run_entry
from course_lm.cli import main
from course_lm.cli.audit import load
from course_lm.cli.commands import make_parser

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
    head = f"import sys, threading, torch\nsys.path.insert(0, {str(ENTRIES)!r})\nfrom plain import Settings, loop\n"
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


def test_an_entry_without_a_loop_beside_it_is_refused(tmp_path, capsys):
    (tmp_path / "own.py").write_text("def entry(new_model, batches, budget): return new_model()\n")
    assert main(["speedrun", f"{tmp_path}/own.py:entry"]) == 2
    assert "needs loop(model, epochs, settings) beside it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(0)", "SystemExit: 0"),
        ("sys.exit('done')", "SystemExit: done"),
        ("__import__('os')._exit(0)", r"SystemExit: os\._exit\(0\)"),
        ("{}['rate']", "KeyError: 'rate'"),
        ("budget.flops = 10**15", "FrozenInstanceError: cannot assign to field 'flops'"),
    ],
)
def test_an_entry_that_raises_or_leaves_is_refused_with_its_own_file_and_line(tmp_path, body, said):
    with pytest.raises(ValueError, match=rf"^the entry raised {said} \(.*own\.py, line 6\)$"):
        run_entry(entry_of(tmp_path, body))


TRAIN = "loop(model, [batches(4)], Settings())"
READ = "read = [next(batches(4))]"
STARTED = "one = threading.Thread(target=loop, args=(model, [read], Settings()))\n    one.start(), one.join()"
THREAD = f"{READ}\n    {STARTED}"
MODES = f"{READ}\n    with torch.utils._python_dispatch._disable_current_modes(): loop(model, [read], Settings())"
AT_ONCE = "read = [b for _, b in zip(range(8), batches(4))]\n    loop(model, [read], Settings())"
# What an entry does and returns, and how it is refused.
REFUSED = {
    "trains outside": ("[model(b['input_ids']).sum().backward() for b in batches(4)]", "outside of its audited loop"),
    "overspends": (AT_ONCE, "more than the budget"),
    "returns no model": (f"{TRAIN}\n    model = None", "must return the trained model, got NoneType"),
    "never trains": (READ, "spent no FLOPs in its loop"),
    "trains in a thread": (THREAD, "spent no FLOPs in its loop"),
    "counts nothing": (MODES, "spent no FLOPs in its loop"),
    "leaves NaN": (f"{TRAIN}\n    next(model.parameters()).data.fill_(torch.nan)", "must be finite, got nan"),
    "leaves where it is measured": (
        f"{TRAIN}\n    model.forward = lambda *_, **__: sys.exit(0)",
        r"^the entry's model raised SystemExit: 0 \(.*own\.py, line 7\)$",
    ),
}


@pytest.mark.parametrize(("body", "said"), REFUSED.values(), ids=REFUSED)
def test_an_entry_that_breaks_a_rule_is_refused(tmp_path, body, said):
    with pytest.raises(ValueError, match=said):
        run_entry(entry_of(tmp_path, f"{body}\n    return model"), flops=10**8)


def test_reading_on_without_training_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(speedrun, "AHEAD", 50)
    with pytest.raises(ValueError, match=r"50 batches were read and no FLOP spent.*own\.py, line 6"):
        run_entry(entry_of(tmp_path, "loop(model, [list(batches(8))], Settings())"))


def test_batches_that_are_trained_on_are_not_read_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(speedrun, "AHEAD", 2)
    body = "loop(model, [batches(1)], Settings())\n    return model"
    assert run_entry(entry_of(tmp_path, body), flops=10**9).flops >= 10**9


def test_an_entry_with_other_arguments_is_refused_before_the_audit(tmp_path, capsys):
    (tmp_path / "own.py").write_text("def loop(model, epochs, settings): pass\ndef entry(new_model, batches): pass\n")
    assert main(["speedrun", f"{tmp_path}/own.py:entry"]) == 2
    said = (
        "course-lm: error: entry must be callable as entry(new_model, batches, budget), it takes (new_model, batches)\n"
    )
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize(("text", "flops"), [("1e9", 10**9), ("2.5e3", 2500), ("12", 12)])
def test_flops_are_taken_with_an_exponent(text, flops):
    assert make_parser().parse_args(["speedrun", "own.py:entry", "--flops", text]).flops == flops


@pytest.mark.parametrize("text", ["1.5", "inf", "nan", "many"])
def test_flops_that_are_no_whole_number_are_refused(capsys, text):
    assert main(["speedrun", "own.py:entry", "--flops", text]) == 2
    assert capsys.readouterr().err.endswith(f"argument --flops: must be a whole number, such as 1e9, got '{text}'\n")


def test_an_entry_that_leaves_the_process_is_2_and_prints_one_line(tmp_path, capsys):
    lines = (ENTRIES / "plain.py").read_text().replace("    model = new_model()", "    raise SystemExit(0)")
    (tmp_path / "own.py").write_text(lines)
    assert main(["speedrun", f"{tmp_path}/own.py:entry"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith("course-lm: error: the entry raised SystemExit: 0 (")


def test_an_unsound_loop_is_1_and_is_not_run_and_what_it_writes_is_no_output(tmp_path, capfd):
    lines = (ENTRIES / "plain.py").read_text().replace("optimizer.zero_grad()", "__import__('os').write(1, b'noise')")
    (tmp_path / "own.py").write_text(lines.replace("    model = new_model()", "    raise SystemExit"))
    assert main(["speedrun", f"{tmp_path}/own.py:entry"]) == 1
    assert capfd.readouterr().out.startswith("unsound: missing_zero_grad")


@pytest.mark.parametrize("name", ["plain", "trainer", "muon"])
def test_the_entries_that_are_shown_are_sound_and_run(name, capsys):
    assert main(["speedrun", f"{ENTRIES}/{name}.py:entry", f"--flops={FLOPS}"]) == 0
    said = capsys.readouterr().out
    assert "sound: equal to the specification" in said
    assert "nats per token above the floor" in said
