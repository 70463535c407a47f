"""The lessons' first cell, and running and storing lessons headless."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lm.classroom import lessons, workspace
from course_lm.classroom.stored_outputs import find_absolute_path, keep_timings
from course_lm.corpus import Corpus

WIDGET_CELL = "import ipywidgets\nipywidgets.IntSlider(3)"
COLOUR_CELL = "print('\\x1b[31mred\\x1b[0m')"


def notebook_of(*sources, tags=()):
    cells = [new_markdown_cell("# A lesson"), *(new_code_cell(source) for source in sources)]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
        cell.metadata["tags"] = list(tags)
    return new_notebook(cells=cells)


def save(folder, name, *sources, tags=()):
    path = folder / f"{name}.ipynb"
    nbformat.write(notebook_of(*sources, tags=tags), path)
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "lesson_folder", lambda: tmp_path)
    return tmp_path


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, **environment},
    ).stdout


def test_setup_fixes_threads_and_every_random_source_and_prints_versions():
    draw = "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    program = f"from course_lm.classroom.lessons import setup; setup(seed=3, threads=1); {draw}"
    first, second = python(program), python(program)
    assert first == second
    assert "course_lm" in first and "torch 2." in first and "1 CPU thread, seed 3" in first


def test_warnings_after_setup_name_no_file():
    program = "import warnings; from course_lm.classroom.lessons import setup; setup(threads=1)\n"
    program += "import sys; sys.stderr = sys.stdout; warnings.warn('careful')"
    assert python(program).endswith("UserWarning: careful\n")


def test_show_source_shows_the_function_as_it_stands_and_folds_it_where_it_is_told_to(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    lessons.show_source(lessons.format_table)
    lessons.show_source(lessons.format_table, folded=True)
    lessons.show_source(Corpus.split)
    source = shown[0]["text/plain"]
    assert source.startswith("def format_table(") and source.endswith("left=(0, 2))")
    [plain, folded, method] = (bundle["text/markdown"] for bundle in shown)
    assert method.startswith("````python\ndef split("), "a method is moved to the left"
    assert plain == f"````python\n{source}\n````" and source == shown[1]["text/plain"]
    assert folded == f"<details><summary>The source of format_table</summary>\n\n{plain}\n\n</details>"


def test_a_lesson_is_found_by_number_or_name_and_all_come_in_order(folder):
    with pytest.raises(FileNotFoundError, match="no lessons in"):
        workspace.lesson_paths()
    third, first, second, _ = (save(folder, name) for name in ("02_c", "00_a", "01_b", "notes"))
    assert workspace.lesson_paths() == [first, second, third]
    for wanted in ("1", 1, "01", "01_b"):
        assert workspace.lesson_paths([wanted]) == [second]
    with pytest.raises(ValueError, match="there is no lesson '7'; there are 00"):
        workspace.lesson_paths(["7"])


def test_run_says_which_cell_failed_and_how_and_goes_on(folder, capsys):
    broken = save(folder, "00_broken", "x = 1", "raise ValueError('first line\\nlast line')", "print('not reached')")
    good = save(folder, "01_good", "print('fine')")
    before = good.read_bytes()
    results = lessons.run([broken, good])
    assert [result.error for result in results] == ["code cell 2: ValueError: last line", None]
    assert results[1].seconds > 0 and good.read_bytes() == before
    assert "ValueError: last line" in capsys.readouterr().out


def test_a_cell_that_takes_too_long_fails_its_lesson(folder, monkeypatch):
    monkeypatch.setattr(lessons, "CELL_TIMEOUT_SECONDS", 1)
    (result,) = lessons.run([save(folder, "00_slow", "import time", "time.sleep(30)")])
    assert result.error is not None and result.error.startswith("code cell 2: CellTimeoutError")


def test_written_twice_a_lesson_does_not_change(folder):
    path = save(folder, "00_first", "x = 2", "print(x)", "import os; print(os.path.basename(os.getcwd()) != '')")
    lessons.write([path])
    once = path.read_bytes()
    lessons.write([path])
    assert path.read_bytes() == once
    cells = nbformat.read(path, as_version=4).cells
    assert [cell.execution_count for cell in cells if cell.cell_type == "code"] == [1, 2, 3]
    assert cells[2].outputs[0].text == "2\n"


def test_write_stores_nothing_of_the_machine_or_the_browser(folder):
    path = save(folder, "00_first", WIDGET_CELL, COLOUR_CELL)
    lessons.write([path])
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert notebook.cells[1].outputs[0].data == {"text/plain": "IntSlider(value=3)"}
    assert notebook.cells[2].outputs[0].text == "red\n"
    path = save(folder, "00_first", WIDGET_CELL, tags=["nbval-ignore-output"])
    lessons.write([path])
    assert nbformat.read(path, as_version=4).cells[1].outputs == []  # nothing is compared: no trace of the widget


def test_a_lesson_that_fails_is_not_written(folder):
    path = save(folder, "00_broken", "print('new')", "1 / 0")
    before = path.read_bytes()
    (result,) = lessons.write([path])
    assert result.error == "code cell 2: ZeroDivisionError: division by zero"
    assert path.read_bytes() == before


def test_an_absolute_path_in_an_output_is_refused(folder):
    path = save(folder, "00_path", "print('saved to /home/someone/runs/model.pt')")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"00_path: the output of cell 1 .*: /home/someone/runs/model\.pt"):
        lessons.write([path])
    assert path.read_bytes() == before


PATHS = ["/home/ada/lessons/x.py", "in '/Users/ada/x'", "(/root)", "cache at /tmp/tmpab12", "C:\\Users\\ada\\x.py"]
PATHS += ['"C:\\\\Users\\\\ada"', "file:///srv/data", "loaded=/data/corpora/stories.jsonl"]
OTHERS = ["1,234 tokens/s and 2.1 nats/token", "step 3/10, epoch 1/2/3", "data/stories.jsonl", "../notebooks/00.ipynb"]
OTHERS += ["https://arxiv.org/abs/1412.6980", "<b>bold</b></td></tr>", "a // b / c", 'f"{name}:\\n"', "~/runs/model.pt"]


@pytest.mark.parametrize("text", PATHS + OTHERS)
def test_absolute_paths_are_recognised_and_nothing_else(text):
    assert (find_absolute_path(text) is not None) == (text in PATHS)


def timed(text, source="race()", tags=("timing",)):
    notebook = notebook_of(source, tags=tags)
    notebook.cells[1].outputs = [new_output("stream", text=text)]
    return notebook


@pytest.mark.parametrize(
    ("new", "kept"),
    [
        (timed("mine  10.5 ms, 1.2e+3 tokens/s"), True),
        (timed("mine 10.5 ms, 900 tokens/s\nwarning"), False),
        (timed("mine 10.5 ms, 900 tokens/s", source="race(again=True)"), False),
        (timed("mine 10.5 ms, 900 tokens/s", tags=()), False),
    ],
    ids=["numbers only", "other words", "other source", "not tagged"],
)
def test_stored_clock_times_stay_only_where_nothing_but_numbers_changed(new, kept):
    stored = timed("mine 9.8 ms, 1300 tokens/s")
    keep_timings(new, stored)
    assert (new.cells[1].outputs == stored.cells[1].outputs) is kept


def test_stored_clock_times_of_a_notebook_are_kept_together_or_not_at_all():
    stored, new = timed("mine 9.8 ms"), timed("mine 10.5 ms")
    for notebook, text in ((stored, "a figure of 9.8 ms"), (new, "a figure of 10.5 ms, disturbed")):
        notebook.cells.append(timed(text).cells[1])
        notebook.cells[-1].id = "the second"
    keep_timings(new, stored)
    assert new.cells[1].outputs[0].text == "mine 10.5 ms"


def test_the_table_ends_with_the_total():
    results = [
        lessons.LessonResult("00_a", 1.25),
        lessons.LessonResult("01_b", 2.5, "code cell 3: KeyError: 'x'"),
    ]
    lines = lessons.format_table(results).splitlines()
    assert lines[2].endswith("2.5  code cell 3: KeyError: 'x'")
    assert lines[-1].split() == ["total", "3.8"]


def test_the_lab_opens_at_the_lesson_and_asks_for_no_browser_without_a_display():
    command = lessons.lab_command(Path("mine"), "notebooks/00_a.ipynb", browser=False, as_root=True)
    assert command[1:] == [
        "-m",
        "jupyterlab",
        "--ServerApp.root_dir=mine",
        "--LabApp.default_url=/lab/tree/notebooks/00_a.ipynb",
        "--no-browser",
        "--allow-root",
    ]
    assert lessons.lab_command(Path("mine"), "notebooks/00_a.ipynb", browser=True, as_root=False) == command[:-2]


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("darwin", {}, True),
        ("darwin", {"SSH_CONNECTION": "somewhere"}, False),
    ],
)
def test_a_display_is_recognised(monkeypatch, platform, variables, expected):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert lessons.has_display() is expected


@pytest.mark.parametrize("call", [lessons.open_lab, lambda: lessons.run([])])
def test_without_the_lab_extra_the_message_names_it(monkeypatch, call):
    monkeypatch.setattr(lessons, "find_spec", lambda name: None)
    with pytest.raises(OSError, match=r"pip install 'course-lm\[lab\]'"):
        call()


@pytest.mark.skipif(os.name != "posix", reason="stops the server by a POSIX signal")
def test_the_lab_really_serves_and_stops_when_told(tmp_path):
    variables = {"JUPYTER_PORT": "18923", "JUPYTER_TOKEN": "secret"}
    environment = {name: value for name, value in os.environ.items() if "DISPLAY" not in name} | variables
    program = "import pathlib, sys; from course_lm.classroom.lessons import open_lab; "
    program += "open_lab(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(tmp_path / "mine")]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as lab:
        try:
            page = _fetch_when_up("http://127.0.0.1:18923/lab?token=secret", lab, seconds=60)
        finally:
            lab.send_signal(signal.SIGTERM)
            log = lab.communicate(timeout=30)[1]
    assert "<title>JupyterLab</title>" in page
    assert f"/lab/tree/notebooks/{workspace.lesson_paths()[0].name}" in log


def _fetch_when_up(url, process, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.read().decode()
        except urllib.error.URLError:
            time.sleep(0.3)
    raise AssertionError(f"no answer from {url}")
