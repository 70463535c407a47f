"""Claims about `course-lm runs`, `compare` and `plot`: what stands in folders of runs, in a table and a picture."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from filelock import FileLock
from matplotlib.figure import Figure

from course_lm.cli import main
from course_lm.cli.run_pictures import draw_runs
from course_lm.run_records import lock_of
from course_lm.use.run_folder import differing, read_run
from tests.cli.answers import printed


def make_run(folder: Path, steps: int = 20, *, loss: float = 3.0, total: int | None = 20, **settings: Any) -> Path:
    """A folder as a run leaves it: a training record every 5 steps, a validation every 10."""
    sections: dict[str, Any] = {
        "experiment_name": folder.name,
        "data": {"corpus": "text.txt", "vocab_size": 300},
        "optimizer": {"learning_rate": 0.01},
        "training": {"max_steps": total, "num_epochs": 10, "seed": 0, "early_stopping_patience": None},
    }
    for key, value in settings.items():
        section, _, name = key.partition("__")
        sections[section][name] = value
    records = []
    for step in range(5, steps + 1, 5):
        tokens = {"tokens": 100 * step, "tokens_per_second": 250.0}
        records.append({"event": "train", "step": step, "epoch": 0, "loss": loss + 5 / step, **tokens})
        if step % 10 == 0:
            measured = {"val_loss": loss + 1 / step, "bits_per_byte": (loss + 1 / step) / 2}
            records.append({"event": "validation", "step": step, "epoch": 0, **measured})
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(sections))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two whole runs, `slow` with half the learning rate of `fast`."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "fast", optimizer__learning_rate=0.02)
    make_run(tmp_path / "runs" / "slow", loss=3.5)
    return tmp_path / "runs"


def table_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    return json.loads(printed(capsys, [*arguments, "--json"]))["runs"]


def test_the_table_has_a_line_for_each_run_and_the_settings_in_which_they_differ(runs, capsys):
    above, names, *lines = printed(capsys, ["runs"]).splitlines()
    assert above.split() == ["optimizer.", "best", "at", "bits"]
    assert names.split() == ["name", "learning_rate", "steps", "val", "loss", "step", "per", "byte", "seconds", "state"]
    assert [line.split() for line in lines] == [
        ["fast", "0.02", "20", "3.0500", "20", "1.5250", "8.0", "finished"],
        ["slow", "0.01", "20", "3.5500", "20", "1.7750", "8.0", "finished"],
    ]


def test_the_table_as_json_holds_the_same(runs, capsys):
    fast, slow = table_of(capsys, "runs", str(runs))
    assert fast["settings"] == {"optimizer.learning_rate": 0.02} and slow["settings"]["optimizer.learning_rate"] == 0.01
    assert (fast["name"], fast["steps"], fast["val_step"], fast["seconds"]) == ("fast", 20, 20, 8.0)


def test_the_best_loss_is_the_lowest_and_not_the_last(runs, capsys):
    with (runs / "fast" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "validation", "step": 30, "epoch": 0, "val_loss": 9.0, "bits_per_byte": 4.5}\n')
        file.write('{"event": "validation", "step": 40, "epoch": 0, "val_loss": null, "bits_per_byte": null}\n')
    assert [run["val_step"] for run in table_of(capsys, "runs")] == [20, 20]


VALIDATED = '{"event": "validation", "step": %d, "epoch": %d, "val_loss": %f}\n'


@pytest.mark.parametrize(
    ("made", "then", "state"),
    [
        ({"steps": 20}, "", "finished"),
        ({"steps": 15}, "", "stopped"),
        ({"steps": 0}, "", "empty"),
        ({"steps": 20, "total": None}, "", "stopped"),
        ({"total": None, "training__num_epochs": 2}, "", "stopped"),
        ({"total": None, "training__num_epochs": 2}, VALIDATED % (20, 2, 3.0), "finished"),
        ({"total": 40, "training__early_stopping_patience": 1}, "", "stopped"),
        ({"total": 40, "training__early_stopping_patience": 1}, VALIDATED % (30, 0, 9.0), "finished"),
    ],
)
def test_a_run_is_finished_after_its_last_step_its_last_epoch_or_its_last_patience(tmp_path, made, then, state):
    folder = make_run(tmp_path / "run", **made)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(then)
    assert read_run(folder).state == state


def test_a_run_whose_lock_is_held_is_running_and_the_look_leaves_the_lock_alone(tmp_path):
    folder = make_run(tmp_path / "run")
    with FileLock(lock_of(folder)):
        assert read_run(folder).state == "running"
    assert read_run(folder).state == "finished"
    with FileLock(lock_of(folder), timeout=0):
        pass


def test_a_look_at_a_run_makes_no_file(runs, capsys):
    before = sorted(runs.rglob("*"))
    main(["runs"])
    assert sorted(runs.rglob("*")) == before


def test_broken_and_foreign_folders_are_named_below_the_table(runs, capsys):
    (runs / "photos").mkdir()
    (make_run(runs / "torn") / "metrics.jsonl").write_text('{"event": "tr\n{"event": "train", "step": 1, "loss": 1}\n')
    (make_run(runs / "odd") / "config.yaml").write_text("a: [")
    (make_run(runs / "strange") / "config.yaml").write_text("a: 1")
    (runs / "notes.txt").write_text("no folder")
    lines = printed(capsys, ["runs"]).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["fast", "slow"]
    assert all(line.startswith("passed over: runs/") for line in lines[4:]) and len(lines) == 8
    assert "holds no config.yaml" in lines[5] and "line 1 is no record" in lines[7]


def test_a_torn_last_line_costs_nothing_else(runs, capsys):
    with (runs / "fast" / "metrics.jsonl").open("a") as file:
        file.write('{"event": "train", "st')
    assert [run["steps"] for run in table_of(capsys, "runs")] == [20, 20]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink(os.devnull, path)])
@pytest.mark.parametrize("file", ["metrics.jsonl", "made_by.json"])
def test_what_is_no_regular_file_is_not_waited_for(runs, capsys, file, make):
    (runs / "slow" / file).unlink(missing_ok=True)
    make(runs / "slow" / file)
    assert main(["runs"]) == 0  # the table does without made_by.json
    printed = capsys.readouterr().out
    assert ("passed over: runs/slow/metrics.jsonl is no regular file" in printed) == (file == "metrics.jsonl")


@pytest.mark.parametrize(
    "wrong",
    [{"loss": 10**400}, {"lr": -(10**400)}, {"tokens": 10**400}, {"grad_norm": 2**63}, {"step": 10**400}, {"step": -5}],
)
@pytest.mark.parametrize("event", ["train", "validation"])
def test_a_number_that_no_run_has_is_refused_with_its_line(runs, capsys, event, wrong):
    good = {"event": event, "step": 25, "epoch": 0, "loss": 1.0, "val_loss": 1.0}
    with (runs / "slow" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**good, **wrong}) + "\n")  # the last line, and whole
    for others in ([], ["fast"]):
        assert main(["plot", "slow", *others]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == "course-lm: error: runs/slow/metrics.jsonl is broken: line 7 is no record of a run"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "null", "1e300", "-1", "0"])
def test_any_other_number_is_drawn(runs, capsys, number):
    keys = ("loss", "grad_norm", "lr", "tokens", "tokens_per_second")
    train = '{"event": "train", "step": 25, ' + ", ".join(f'"{key}": {number}' for key in keys) + "}"
    with (runs / "slow" / "metrics.jsonl").open("a") as file:
        file.write(f'{train}\n{{"event": "validation", "step": 25, "val_loss": {number}, "bits_per_byte": {number}}}\n')
    for others in ([], ["fast"]):
        assert [run["steps"] for run in table_of(capsys, "plot", "slow", *others)] == [25, 20][: 1 + len(others)]


def test_a_key_that_an_older_run_lacks_is_no_difference(runs):
    make_run(runs / "new", data__test_fraction=0.0)
    assert differing([read_run(runs / "new"), read_run(runs / "slow")]) == []


def test_a_comparison_has_differences_to_the_first_and_a_picture(runs, capsys):
    fast, slow = table_of(capsys, "plot", "fast", "runs/slow")
    assert fast["val_loss_difference"] == 0 and slow["val_loss_difference"] == pytest.approx(0.5)
    assert slow["bits_per_byte_difference"] == pytest.approx(0.25) and slow["seconds_difference"] == 0
    assert (runs.parent / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("key", ["data__vocab_size", "training__seed"])
def test_losses_of_unlike_texts_or_tokens_are_not_compared_and_it_says_why(runs, capsys, key):
    make_run(runs / "other", **{key: 301})
    shown = printed(capsys, ["plot", "slow", "other"])
    assert f"unlike {key.replace('__', '.')}: losses per token" in shown
    assert len([line for line in shown.splitlines() if line.startswith("unlike")]) == 1
    assert shown.count("the first") == 2, "bits per byte and seconds have differences, the loss has none"


def test_unlike_tokenizers_are_found_where_the_settings_are_alike(runs, capsys):
    for name in ("fast", "slow"):
        (runs / name / "tokenizer.json").write_text(name)
    assert "unlike tokenizer.json" in printed(capsys, ["plot", "fast", "slow"])


def test_the_picture_tells_runs_apart_by_colour_line_and_marker(runs):
    both = [read_run(runs / name) for name in ("fast", "slow")]
    left, right = draw_runs(["fast", "slow"], both, per_byte=False).axes
    fast, smoothed, slow, _ = left.lines
    for look in ("get_color", "get_linestyle", "get_marker"):
        assert getattr(fast, look)() != getattr(slow, look)()
    assert np.asarray(fast.get_xdata()).tolist() == [10, 20] and np.asarray(smoothed.get_xdata()).tolist() == [
        5,
        10,
        15,
        20,
    ]
    assert np.asarray(right.lines[0].get_xdata()).tolist() == [4.0, 8.0], "100 tokens a step at 250 tokens a second"
    assert "nats" in left.get_ylabel()


def test_the_picture_of_unlike_texts_shows_bits_per_byte_alone(runs):
    left, _ = draw_runs(["fast", "slow"], [read_run(runs / name) for name in ("fast", "slow")], per_byte=True).axes
    fast, _ = left.lines
    assert np.asarray(fast.get_ydata()).tolist() == [1.55, 1.525] and "bits per byte" in left.get_ylabel()


@pytest.mark.filterwarnings("ignore:Glyph")  # the machine may lack its font
@pytest.mark.parametrize(
    "name", ["_fast", "$x$", "a$$b", "$\\frac{$", "100%", "{}", "हिन्दी", "😀", "a\nb", "__nolegend__"]
)
def test_a_run_of_any_name_stands_in_its_picture_and_in_one_line_of_the_table(runs, capsys, name):
    (runs / "fast").rename(runs / name)
    one_line = name.replace("\n", " ")
    for others in (["slow"], []):
        assert sum(line.startswith(one_line) for line in printed(capsys, ["plot", name, *others]).splitlines()) == 1
    both = [read_run(runs / one) for one in (name, "slow")]
    legend = draw_runs([name, "slow"], both, per_byte=False).axes[0].get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == [name, "slow"]
    assert len({line.get_color() for line in legend.get_lines()}) == 2
    title = draw_runs([name], both[:1], per_byte=False).axes[0].title
    assert title.get_text() == name and not title.get_parse_math()


def test_a_picture_is_whole_or_what_was_there_stays(runs, capsys, monkeypatch):
    def draw_half(figure: Figure, file: Any, **options: object) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    Path("plot.png").write_bytes(b"before")
    monkeypatch.setattr(Figure, "savefig", draw_half)
    assert main(["plot", "slow"]) == 130
    assert Path("plot.png").read_bytes() == b"before" and not list(Path().glob(".*.tmp"))


def test_one_run_is_drawn_from_its_log_with_its_norm_and_rate_and_has_no_differences(runs, capsys):
    (slow,) = table_of(capsys, "plot", "slow", "--png", "slow.png")
    assert slow["val_loss"] == 3.55 and "val_loss_difference" not in slow
    assert Path("slow.png").read_bytes().startswith(b"\x89PNG")
    axes = draw_runs(["slow"], [read_run(runs / "slow")], per_byte=False).axes
    assert [one.get_ylabel() for one in axes] == ["loss (nats per token)", "gradient norm", "learning rate"]


def test_compare_is_another_name_of_plot(runs, capsys):
    assert table_of(capsys, "compare", "fast", "slow") == table_of(capsys, "plot", "fast", "slow")


def test_seconds_without_a_speed_are_not_made_up(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text('{"event": "train", "step": 5, "epoch": 0, "loss": 1.0}\n')
    assert read_run(folder).seconds() == [0.0] or math.isnan(read_run(folder).seconds()[0])


def test_the_table_is_made_without_torch(runs):
    code = "import sys\nfrom course_lm.cli import main\nmain(['runs'])\nprint('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("\nFalse\n"), done.stderr
