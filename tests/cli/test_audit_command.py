"""Claims about `course-lm audit`: exit codes that CI can read, JSON, and one line for what cannot be audited."""

import json
import re
from pathlib import Path

import pytest

from course_lm.audit import adapters
from course_lm.audit.outcome import PRECISIONS
from course_lm.cli import main

ADAPTERS = tuple(name for name in adapters.__all__ if name.islower())

LOOP = """
import torch
from course_lm import spec

NUMBER = 3

def sound(model, epochs, settings, faults=()):
    print("training")
    made = spec.train(model, epochs, settings, faults)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(made.weights[name])

def unshifted(model, epochs, settings):
    sound(model, epochs, settings, {"unshifted_labels"})

def of_two(model, loader):
    pass

def leaves(model, epochs, settings):
    raise SystemExit(0)
"""


@pytest.fixture
def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loops.py").write_text(LOOP)
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    (tmp_path / "notes.txt").write_text("")


@pytest.mark.usefixtures("loops")
def test_a_sound_loop_is_0_and_says_so(capsys):
    assert main(["audit", "loops.py:sound", "--parts", "loss"]) == 0
    assert capsys.readouterr().out.startswith("sound: equal to the specification")


@pytest.mark.usefixtures("loops")
def test_an_unsound_loop_is_1_and_its_json_is_all_of_the_output(capsys):
    assert main(["audit", "loops.py:unshifted", "--parts", "loss", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == ["unshifted_labels"]


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["loops.py"], "audit needs FILE.py:FUNCTION, got loops.py"),
        (["none.py:train"], "no such file: none.py"),
        (["notes.txt:train"], "a file that ends in .py"),
        (["loops.py:shound"], "did you mean sound?"),
        (["loops.py:NUMBER"], "must be a function, got int"),
        (["loops.py:of_two"], "of_two must be callable as of_two(model, epochs, settings), it takes (model, loader)"),
        (["broken.py:train"], "broken.py cannot be run: ModuleNotFoundError"),
        (["loops.py:sound", "--precision=fp8"], "--precision"),
        (["loops.py:sound", "--adapter=keras"], "--adapter"),
        (["loops.py:sound", "--parts", "lose"], "parts must be some of"),
        (["loops.py:sound", "--jsn"], "unrecognized argument --jsn"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, part):
    assert main(["audit", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("course-lm: error: ") and part in err


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize(("option", "names"), [("--precision", tuple(PRECISIONS)), ("--adapter", ADAPTERS)])
def test_the_choices_of_the_command_are_those_of_the_audit(capsys, option, names):
    assert main(["audit", "loops.py:sound", option, "none"]) == 2
    _, _, choices = capsys.readouterr().err.partition("choose from")
    assert sorted(re.findall(r"\w+", choices)) == sorted(names)


@pytest.mark.usefixtures("loops")
def test_a_loop_that_leaves_the_process_is_unsound(capsys):
    assert main(["audit", "loops.py:leaves", "--parts", "loss"]) == 1
    assert capsys.readouterr().out.startswith("unsound: the loop raised SystemExit: 0\n")
