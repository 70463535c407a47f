"""Claims about the picture of a run: it says what the history says, costs little, and stays one output of one cell."""

import base64
import io
import json
import math
import warnings
from itertools import combinations
from pathlib import Path
from typing import Any

import IPython.display
import numpy as np
import pytest
from jupyter_client.manager import start_new_kernel
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from course_lm.classroom import live
from course_lm.classroom.live import LivePlot, draw_run
from course_lm.monitoring import History, Observers
from tests.records import train_record, validation_record

ROOT = Path(__file__).resolve().parents[2]


class Screen:
    """Stands for the notebook: what is displayed, and what takes its place."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, Any]]] = []

    def display(self, data: dict[str, Any], **options: Any) -> "Screen":
        self.outputs.append([])
        self.update(data, raw=options["raw"])
        return self

    def update(self, data: dict[str, Any], *, raw: bool) -> None:
        assert raw and f' alt="{data["text/plain"]}"' in data["text/html"]
        assert base64.b64decode(data["text/html"].partition("base64,")[2].strip('">')).startswith(b"\x89PNG")
        self.outputs[-1].append(data)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(live, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", screen.display)
    return screen


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(live.time, "perf_counter", clock)
    return clock


def draw_in(clock: Clock, seconds: float) -> Any:
    """A drawing function that takes so long."""

    def draw(history: History) -> Figure:
        clock.now += seconds
        return Figure(figsize=(1, 1))

    return draw


def show_steps(plot: LivePlot, clock: Clock, steps: int, seconds_per_step: float) -> None:
    plot.start(0, steps)
    for step in range(1, steps + 1):
        clock.now += seconds_per_step
        plot.log(train_record(step))
    plot.close()


def test_the_picture_is_drawn_every_so_many_seconds_and_at_the_end(screen: Screen, clock: Clock) -> None:
    plot = LivePlot(draw_in(clock, 0.0), every=2.0)
    show_steps(plot, clock, steps=99, seconds_per_step=0.1)
    assert plot.drawings == 6  # at 0, 2, 4, 6 and 8 seconds, and at the end
    assert len(screen.outputs) == 1


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_drawing_takes_no_more_than_its_share_of_the_time(screen: Screen, clock: Clock, share: float) -> None:
    plot = LivePlot(draw_in(clock, 1.0), every=0.0, share=share)
    started = clock.now
    show_steps(plot, clock, steps=1000, seconds_per_step=0.1)
    uncounted = 3.0  # the first one, the one that follows it at once, and the one at the end
    assert plot.seconds - uncounted <= share * (clock.now - started)
    assert plot.seconds > 0.8 * share * (clock.now - started)


def test_what_was_drawn_already_is_not_drawn_again_at_the_end(screen: Screen, clock: Clock) -> None:
    plot = LivePlot(draw_in(clock, 0.0), every=0.0)
    show_steps(plot, clock, steps=3, seconds_per_step=1.0)
    assert plot.drawings == len(screen.outputs[0]) == 3


def test_a_run_that_goes_on_gets_an_output_of_its_own_with_the_whole_curve(screen: Screen, clock: Clock) -> None:
    plot = LivePlot(draw_in(clock, 0.0))
    show_steps(plot, clock, steps=3, seconds_per_step=1.0)
    plot.start(2, 4)
    plot.log(train_record(3, loss=1.0))
    plot.close()
    assert len(screen.outputs) == 2
    assert [(record["step"], record["loss"]) for record in plot.history.records] == [(1, 2.0), (2, 2.0), (3, 1.0)]


def test_a_drawing_that_fails_is_one_warning(screen: Screen, clock: Clock) -> None:
    def fail(history: History) -> Figure:
        raise RuntimeError("no font")

    observers = Observers([LivePlot(fail)])
    with pytest.warns(UserWarning, match=r"LivePlot.log failed \(RuntimeError: no font\)") as caught:
        for step in (1, 2):
            observers.log(train_record(step))
    assert len(caught) == 1 and observers.active == []


def test_outside_a_notebook_nothing_is_drawn(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    plot = LivePlot()
    show_steps(plot, clock, steps=3, seconds_per_step=10.0)
    assert plot.drawings == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("bad", [{"every": -1.0}, {"every": math.nan}, {"share": 0.0}, {"share": 1.5}])
def test_a_bad_pace_is_refused_by_name(bad: dict[str, Any]) -> None:
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
        LivePlot(**bad)


def test_the_picture_holds_the_losses_the_norm_the_rate_and_the_floor() -> None:
    history = History([*(train_record(step) for step in range(1, 9)), validation_record(8, 1.75)])
    loss, norm, rate = draw_run(history, floor=1.25).axes
    logged, smoothed, validation, floor = loss.lines
    assert points(logged)[0] == points(smoothed)[0] == list(range(1, 9))
    assert points(validation) == ([8], [1.75]) and points(floor)[1] == [1.25, 1.25]
    assert loss.get_ylabel() == "loss (nats per token)"
    assert points(norm.lines[0])[1] == [0.5] * 8 and points(rate.lines[0])[1] == [1e-3] * 8
    assert norm.get_yscale() == "log"


def test_the_loss_reads_as_perplexity_on_the_right() -> None:
    figure = draw_run(History([train_record(step, loss=5 - step / 2) for step in range(1, 9)]))
    figure.canvas.draw()
    loss = figure.axes[0]
    (right,) = loss.child_axes
    assert right.get_ylabel() == "perplexity"
    shown = {label.get_position()[1]: label.get_text() for label in right.get_yticklabels()}
    assert shown and all(text == f"{math.exp(height):.3g}" for height, text in shown.items())


def test_pictures_of_a_run_have_one_size() -> None:
    sizes = set()
    for steps in (2, 2000):
        history = History([train_record(step) for step in range(1, steps)])
        png = live._png(draw_run(history))
        sizes.add(png[16:24])  # width and height stand there in every PNG
    assert len(sizes) == 1


def points(line: Line2D) -> tuple[list[float], list[float]]:
    xs, ys = (np.asarray(data).tolist() for data in line.get_data())
    return xs, ys


@pytest.mark.parametrize(
    "records",
    [
        [],
        [train_record(1)],
        [validation_record(1, math.nan)],
        [train_record(1, math.nan) | {"grad_norm": math.nan}, train_record(2, math.inf) | {"grad_norm": math.inf}],
        [train_record(1) | {"grad_norm": 0.0}],
    ],
)
def test_no_history_is_too_strange_to_be_drawn(records: list[dict[str, Any]], course_figures: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_run(History(records), floor=1.0).savefig(io.BytesIO(), format="png")
        assert live.describe(History(records))


def test_the_words_beside_the_picture_say_first_last_and_best() -> None:
    history = History([train_record(10, 4.0), validation_record(10, 3.5), train_record(20, 3.0)])
    assert live.describe(history) == (
        "Training loss 4.000 at step 10, 3.000 at step 20; lowest validation loss 3.500 at step 10."
    )


RUN = """
from tests.small_run import small_batches, small_trainer
from course_lm.classroom.live import LivePlot

plot = LivePlot(every=0.2, share=0.5)
trainer = small_trainer(200, observers=[plot])
history = trainer.train(small_batches(), small_batches(4))
"""
REPORT = "print(plot.drawings > 2, history.train[-1]['step'])"


@pytest.fixture(scope="module")
def notebook() -> Any:
    cells = [new_code_cell(RUN, metadata={"tags": ["nbval-ignore-output"]}), new_code_cell(REPORT)]
    notebook = new_notebook(cells=cells)
    client = NotebookClient(notebook, timeout=120, record_timing=False, coalesce_streams=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return client.execute(cwd=str(ROOT))


def test_in_a_notebook_a_run_of_200_steps_leaves_one_bar_and_one_picture(notebook: Any) -> None:
    outputs = notebook.cells[0].outputs
    bar, picture = outputs
    assert "application/vnd.jupyter.widget-view+json" in bar.data
    alt = picture.data["text/plain"]
    assert f'alt="{alt}"' in picture.data["text/html"]
    assert alt.startswith("Training loss ") and "at step 200" in alt
    assert notebook.cells[1].outputs[0].text == "True 200\n"


def test_the_bar_in_a_notebook_ends_full_with_every_metric(notebook: Any) -> None:
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"].values()
    texts = [part["state"].get("value", "") for part in state if part["model_name"] == "HTMLModel"]
    (line,) = (text.replace("\u2007", " ") for text in texts if "steps" in text)
    for part in ("200/200 steps", "loss ", "val ", " tok/s", "lr ", "norm "):
        assert part in line
    bars = [part["state"] for part in state if part["model_name"] == "FloatProgressModel"]
    assert [(bar["value"], bar["bar_style"]) for bar in bars] == [(200.0, "success")]


ENDLESS = """
import json
from tests.small_run import small_batches, small_trainer
from course_lm.classroom.live import LivePlot


class Crier:
    def start(self, step, total_steps):
        pass

    def log(self, record):
        if record["step"] == 35:
            print("it trains", flush=True)

    def close(self):
        pass


data = small_batches()
trainer = small_trainer(10**6, observers=[LivePlot(), Crier()], logging_steps=7, eval_steps=None)
history = trainer.train(data)
"""
LEFT = """
print(json.dumps({
    "step": trainer.step,
    "recorded": [record["step"] for record in history.train],
    "tokens": [history.train[-1]["tokens"], 60 * trainer.step],
    "val_loss": trainer.evaluate(data[:4])["val_loss"],
}))
"""


def test_interrupting_the_kernel_leaves_the_model_usable_and_the_history_complete() -> None:
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(ROOT))
    printed: list[str] = []

    def read(message: Any) -> None:
        kind, content = message["msg_type"], message["content"]
        assert kind != "error", "\n".join(content["traceback"])
        if kind == "stream" and content["name"] == "stdout":
            printed.append(content["text"])
            if "it trains" in content["text"]:
                manager.interrupt_kernel()

    try:
        client.execute_interactive(ENDLESS, output_hook=read, timeout=120)
        client.execute_interactive(LEFT, output_hook=read, timeout=120)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    said = "".join(printed)
    left = json.loads(said.splitlines()[-1])
    step = left["step"]
    assert f"stopped by SIGINT after step {step}: nothing was saved" in said
    assert left["recorded"] == [*range(7, step, 7), step]
    assert left["tokens"][0] == left["tokens"][1], "a step is missing from the history"
    assert left["val_loss"] < 4.0


@pytest.mark.usefixtures("course_figures")
@pytest.mark.parametrize("lr", [5e-4, 0.02])
def test_the_names_of_the_axes_do_not_lie_on_each_other(lr: float) -> None:
    train = [{**train_record(step, 7.5 - step / 10), "lr": lr, "grad_norm": 0.003 * step} for step in range(5, 65, 5)]
    figure = draw_run(History([*train, validation_record(60, 2.0)]), floor=0.44)
    figure.draw_without_rendering()
    (right,) = figure.axes[0].child_axes
    labels = [axes.yaxis.label for axes in (*figure.axes, right)]
    places = [label.get_window_extent().padded(1) for label in labels]
    assert "perplexity" in [label.get_text() for label in labels]
    assert [(one, other) for one, other in combinations(places, 2) if one.overlaps(other)] == []
