"""Claims about `course-lm audit`: exit codes that CI can read, JSON, and the choices of its options."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from course_lm.audit import adapters, spec
from course_lm.audit.outcome import PRECISIONS
from course_lm.cli import main
from course_lm.cli.commands import SETTINGS
from tests.cli.answers import printed

ADAPTERS = tuple(name for name in adapters.__all__ if name.islower())

LOOP = """
import torch
from course_lm.audit import spec
from tests.cli.answers import printed

def sound(model, epochs, settings, faults=()):
    print("training")
    made = spec.train(model, epochs, settings, faults)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(made.weights[name])

def unshifted(model, epochs, settings):
    sound(model, epochs, settings, {"unshifted_labels"})
"""


@pytest.fixture(autouse=True)
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loops.py").write_text(LOOP)


def test_a_sound_loop_is_0_and_says_so(capsys):
    said = printed(capsys, ["audit", "loops.py:sound", "--parts", "loss"])
    assert said.startswith("sound: equal to the specification")


def test_an_unsound_loop_is_1_and_its_json_is_all_of_the_output(capsys):
    assert main(["audit", "loops.py:unshifted", "--parts", "loss", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == ["unshifted_labels"]


@pytest.mark.parametrize(("option", "names"), [("--precision", tuple(PRECISIONS)), ("--adapter", ADAPTERS)])
def test_the_choices_of_the_command_are_those_of_the_audit(capsys, option, names):
    assert main(["audit", "loops.py:sound", option, "none"]) == 2
    _, _, choices = capsys.readouterr().err.partition("choose from")
    assert sorted(re.findall(r"\w+", choices)) == sorted(names)


def test_a_file_that_ends_the_process_where_it_is_read_is_refused(tmp_path, capsys):
    (tmp_path / "ends.py").write_text("import os\nos._exit(0)\n")
    assert main(["audit", "ends.py:train"]) == 2
    assert capsys.readouterr().err == "course-lm: error: ends.py cannot be run: SystemExit: os._exit(0)\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_unsound_loop_is_1_where_nobody_reads_the_report(monkeypatch, unbuffered):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    command = [sys.executable, "-m", "course_lm", "audit", "loops.py:unshifted", "--parts", "loss"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.close()  # type: ignore[union-attr]
    assert process.returncode == 1


LEAVES = """
import atexit, os, threading
from loops import unshifted

def loop(model, epochs, settings):
    threading.Thread(target=threading.Event().wait).start()
    atexit.register(os._exit, 0)
    unshifted(model, epochs, settings)
"""


def test_a_process_ends_with_its_verdict_whatever_the_loop_has_left(tmp_path):
    (tmp_path / "leaves.py").write_text(LEAVES)
    command = [sys.executable, "-m", "course_lm", "audit", "leaves.py:loop", "--parts", "loss"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout.partition("\n")[0][:25]) == (1, "unsound: unshifted_labels")


WRITES = """
import os, subprocess, sys
from loops import unshifted
os.write(1, b"read")

def loop(model, epochs, settings):
    os.write(1, b"written")
    sys.__stdout__.write("kept in a buffer")
    subprocess.run(["echo", "said by a child"], check=True)
    unshifted(model, epochs, settings)
"""


def test_what_a_loop_and_its_children_write_is_no_part_of_the_report(tmp_path, capfd):
    (tmp_path / "writes.py").write_text(WRITES)
    assert main(["audit", "writes.py:loop", "--parts", "loss", "--json"]) == 1
    printed = capfd.readouterr()
    assert json.loads(printed.out)["faults"] == ["unshifted_labels"]
    assert all(text in printed.err for text in ("read", "written", "kept in a buffer", "said by a child"))


@pytest.fixture
def loops_of_the_page(tmp_path: Path) -> str:
    """What docs/audit.md shows, as the file that its commands name."""
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    (tmp_path / "my_loop.py").write_text(page.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    return page


@pytest.mark.parametrize(
    "command", ["audit my_loop.py:train_on_ranks --ranks 2", "audit my_loop.py:train_and_resume --resume"]
)
def test_the_loop_of_the_page_is_sound_on_ranks_and_resumed(capsys, loops_of_the_page, command):
    assert f"course-lm {command}\n" in loops_of_the_page
    assert main(command.split()) == 0, capsys.readouterr().out
    assert capsys.readouterr().out.startswith("sound: equal to the specification")


@pytest.mark.parametrize("as_json", [True, False])
def test_a_loop_that_crashes_is_3_with_the_file_and_line_of_its_own_code(tmp_path, capsys, as_json):
    (tmp_path / "crashes.py").write_text("def train(model, epochs, settings):\n    return epochs['first']\n")
    assert main(["audit", "crashes.py:train", *(["--json"] if as_json else [])]) == 3
    printed = capsys.readouterr().out
    said = json.loads(printed)["verdict"] if as_json else printed.splitlines()[0]
    assert said.startswith("could not be compared: the loop raised TypeError: list indices must be integers")
    assert said.endswith("crashes.py, line 2)")


def test_the_help_says_what_the_settings_have_and_the_exit_codes(capsys):
    shown = printed(capsys, ["audit", "--help"])
    assert [*SETTINGS] == [one.name for one in fields(spec.Settings)]
    assert all(f"  {name:<18}  {what}\n" in shown for name, what in SETTINGS.items())
    assert "3 crashed" in shown and max(map(len, shown.splitlines())) <= 120


def test_the_documentation_says_the_same_of_each_setting():
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text()
    assert all(f"| `{name}` | {what} |" in page for name, what in SETTINGS.items())
