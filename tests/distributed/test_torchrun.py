"""Claims about whole commands under torchrun: one run, whatever the number of its processes, and however it is ended.

Real ranks train a toy model; a run of one process, or one that nobody disturbed, says what must come out.
"""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from course_lm.checkpoints import load_checkpoint
from course_lm.trainer.run import sole_writer
from tests.cli.small_runs import write_text
from tests.distributed.commands import NAME, course_lm, torchrun, train
from tests.fork_server import SECONDS, Command, Ended, Start, anew, forked, started
from tests.sets import draws, of_set
from tests.training_run import assert_same, outcome, without_measures

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux: ranks are found in /proc")
LONG = ("--training.max_steps=40", "--model.dropout=0.1")
FSDP = "--distributed.strategy=fsdp"
DDP = "--distributed.strategy=ddp"
SHARDED = (FSDP, "--distributed.checkpoint=sharded")


class Runs:
    """Runs that nobody disturbs, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.text = folder, write_text(folder / "text.txt", 120)
        self._made: dict[tuple[Any, ...], tuple[Path, Ended]] = {}

    def made(self, ranks: int | None, *arguments: str) -> tuple[Path, Ended]:
        """The output folder of a finished run, and what the command printed."""
        key = (ranks, *arguments)
        if key not in self._made:
            output = self.folder / str(len(self._made))
            ended = self.run(ranks, output, *arguments)
            assert ended.code == 0, ended.err
            self._made[key] = output, ended
        return self._made[key]

    def run(self, ranks: int | None, output: Path, *arguments: str, start: Start = forked) -> Ended:
        """Train, or go on training, to the end."""
        with started(output, self.command(ranks, output, *arguments), start=start) as command:
            return command.end()

    def command(self, ranks: int | None, output: Path, *arguments: str) -> list[str]:
        return course_lm(ranks, *train(self.text, output, *arguments))

    def stop(self, ranks: int, output: Path, end: Callable[[Command], None], *arguments: str) -> Ended:
        """Start a run, and end it once it has made some steps; `end` gets the command."""
        with started(output, self.command(ranks, output, *arguments)) as command:
            command.wait_until(lambda: steps(output) >= 4, "the fourth step")
            end(command)
            return command.end()


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("torchrun"))


def records(output: Path) -> list[dict[str, Any]]:
    lines = (output / NAME / "metrics.jsonl").read_text().splitlines()
    return without_measures([json.loads(line) for line in lines])


def steps(output: Path) -> int:
    """The last step that the run has recorded so far."""
    file = output / NAME / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return json.loads(lines[-1])["step"] if lines else 0


def assert_close(mine: Path, other: Path, absolute: float = 1e-5) -> None:
    """The same records, up to the order of summation."""
    assert len(records(mine)) == len(records(other))
    for one, two in zip(records(mine), records(other)):
        assert one.keys() == two.keys()
        loss = {"validation": "val_loss", "epoch": "train_loss"}.get(one["event"], "loss")
        for key, value in one.items():
            rough = isinstance(value, float)
            tolerance = absolute if key == loss else 30 * absolute * max(1.0, abs(value)) if rough else 0
            assert value == two[key] or (rough and abs(value - two[key]) <= tolerance), (key, one, two)


def end_state(output: Path) -> dict[str, Any]:
    """All that a run has left, but for the serial numbers in the names of folders of shards."""
    state = outcome(output)
    state["files"] = sorted(re.sub(r"\.\d+\.shards$", ".shards", name) for name in state["files"])
    state["weights"] = safetensors.torch.load_file(output / NAME / "model.safetensors")
    return state


def exit_codes(ended: Ended) -> list[int]:
    """What torchrun says of each rank that failed."""
    return [int(code) for code in re.findall(r"exitcode  : (-?\d+) ", ended.err)]


def terminate_a_rank(command: Command) -> None:
    os.kill(command.ranks()[1], signal.SIGTERM)


def terminate_the_first_rank(command: Command) -> None:
    os.kill(command.ranks()[0], signal.SIGTERM)


def terminate_all(command: Command) -> None:
    """As a scheduler does: each rank gets a second signal, from torchrun."""
    for process in command.ranks().values():
        os.kill(process, signal.SIGTERM)
    terminate_torchrun(command)


def terminate_torchrun(command: Command) -> None:
    command.process.send_signal(signal.SIGTERM)


def press_ctrl_c(command: Command) -> None:
    command.process.send_signal(signal.SIGINT)


# torchrun itself: processes that import torch anew


def test_literal_torchrun_trains_as_a_forked_one_does(runs, tmp_path):
    ended = runs.run(2, tmp_path, start=anew)
    output, ended_forked = runs.made(2)
    assert ended.code == 0 and ended.own == ended_forked.own == [], ended.err
    assert_same(end_state(tmp_path), end_state(output))


# The number of processes


@pytest.mark.parametrize(("ranks", "strategy"), [(2, DDP), (4, FSDP)])
def test_one_process_writes_and_the_records_are_the_same_whatever_the_number_of_processes(runs, ranks, strategy):
    output, ended = runs.made(ranks, "--model.dropout=0.1", strategy)
    assert_close(output, runs.made(1, "--model.dropout=0.1")[0])
    for once in ("documents to train on", "optimizer steps", "xz -9e alone"):
        assert ended.out.count(once) == 1
    assert ended.err.count("0/12 steps [00:00<?]") == 1, "one bar"
    lines = [line for line in ended.err.replace("\r", "\n").splitlines() if line.strip()]
    epochs = [line for line in lines if line.startswith("epoch ")]
    assert [line.split(",")[0] for line in epochs] == ["epoch 1", "epoch 2", "epoch 3"], "one line an epoch"
    assert len(lines) - len(epochs) <= ended.err.count("steps ["), ended.err
    trained = [record["step"] for record in records(output) if record["event"] == "train"]
    assert trained == list(range(1, 13))


# Stopping and going on


@pytest.mark.parametrize(
    ("end", "then", "settings"),
    [(terminate_torchrun, None, (DDP,)), (terminate_a_rank, 1, (FSDP,)), (press_ctrl_c, 2, SHARDED)],
)
def test_a_run_stopped_under_four_processes_goes_on_under_fewer(runs, tmp_path, end, then, settings):
    stopped = runs.stop(4, tmp_path, end, *settings, *LONG)
    name = "SIGINT" if end is press_ctrl_c else "SIGTERM"
    assert stopped.out.count(f"stopped by {name} after step") == 1, stopped.err
    assert 4 <= steps(tmp_path) < 40 and not stopped.own
    went_on = runs.run(then, tmp_path, *settings, *LONG)
    assert went_on.code == 0 and went_on.out.count("resumed ") == 1, went_on.err
    assert_close(tmp_path, runs.made(1, *LONG)[0], absolute=1e-4)  # rounding grows from step to step


def test_ctrl_c_before_the_first_step_says_so_once(runs, tmp_path):
    with started(tmp_path, runs.command(2, tmp_path)) as command:
        # the text is read, and the ranks have joined, from the moment that the folder is locked
        command.wait_until(lambda: (tmp_path / f".{NAME}.lock").exists(), "the lock of the folder")
        press_ctrl_c(command)
        ended = command.end()
    assert ended.own in (["course-lm: interrupted"], []), ended.err
    assert "Traceback" not in ended.err.partition("torch/distributed/run.py")[0].rpartition("Traceback")[0], ended.err


# Signals within a compile

# The command, whose fourth step compiles anew, for a minute, until there is a file that says `go on`; each rank notes
# its exit code.
NOTED = """
import os, runpy, signal, time
from pathlib import Path
import torch
from course_lm.trainer import loop

end, rank, three = os._exit, int(os.environ["RANK"]), Path("runs/toy/checkpoint_step_3.safetensors")

def noted(code):
    Path(f"code{rank}").write_text(str(code))
    end(code)

def is_time():
    return three.exists() and not Path("go on").exists()

os._exit = noted
compile, take_step = torch.compile, loop.take_step

def backend(graph, inputs):
    if is_time():
        Path(f"trouble{rank}").touch()
        for _ in range(600):
            time.sleep(0.1)
    return graph.forward

def anew(*arguments, **options):
    if is_time():
        torch._dynamo.reset()
    return take_step(*arguments, **options)

torch.compile, loop.take_step = lambda model: compile(model, backend=backend), anew
runpy.run_module("course_lm", run_name="__main__", alter_sys=True)
"""


def compiling(runs: Runs, folder: Path, strategy: str) -> list[str]:
    """The words of a run of three ranks."""
    script = folder / "script.py"
    script.write_text(NOTED)
    compiled = ["--training.compile=true", "--training.max_steps=4"]
    return torchrun(3, program=[str(script), *train(runs.text, folder / "runs", *compiled, strategy)])


def go_on(runs: Runs, folder: Path) -> Ended:
    """The end of a run of three ranks without trouble."""
    (folder / "go on").touch()
    with started(folder, compiling(runs, folder, DDP)) as command:
        ended = command.end()
    assert ended.code == 0, ended.err
    return ended


def stop_within_a_compile(runs: Runs, folder: Path, strategy: str, end: Callable[[Command], None]) -> Ended:
    with started(folder, compiling(runs, folder, strategy)) as command:
        command.wait_until(lambda: len(list(folder.glob("trouble*"))) == 3, "the trouble of all ranks")
        end(command)
        return command.end(20)


@pytest.fixture(scope="session")
def untroubled(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of such a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("untroubled")
    go_on(runs, folder)
    return folder / "runs"


@pytest.mark.parametrize(
    "end", [terminate_torchrun, press_ctrl_c, terminate_a_rank, terminate_the_first_rank, terminate_all]
)
def test_a_signal_ends_a_compile_and_no_completed_step_is_lost(runs, untroubled, tmp_path, end):
    stopped, folder = stop_within_a_compile(runs, tmp_path, DDP, end), tmp_path / "runs" / NAME
    name, code = ("SIGINT", 130) if end is press_ctrl_c else ("SIGTERM", 143)
    assert load_checkpoint(folder / "checkpoint_last.safetensors")["step"] == 3
    told = f"stopped by {name} after step 3: all 3 steps are saved: run it again to go on from {folder}"
    assert stopped.out.count("stopped by") == stopped.out.splitlines().count(told) == 1, stopped.out
    assert not stopped.own, stopped.err
    codes = {path.name: int(path.read_text()) for path in tmp_path.glob("code*")}
    assert codes == {f"code{rank}": code for rank in range(3)}, stopped.err
    assert go_on(runs, tmp_path).out.count("resumed ") == 1
    assert_same(end_state(tmp_path / "runs"), end_state(untroubled))


def test_a_signal_within_a_compile_of_a_sharded_model_says_that_the_step_is_not_saved(runs, tmp_path):
    stopped, folder = stop_within_a_compile(runs, tmp_path, FSDP, terminate_torchrun), tmp_path / "runs" / NAME
    told = f"step 3 could not be saved: the newest checkpoint in {folder} is where it goes on"
    assert stopped.out.splitlines().count(f"stopped by SIGTERM after step 3: {told}") == 1, stopped.out
    assert sorted(int(path.read_text()) for path in tmp_path.glob("code*")) == [143] * 3 and not stopped.own
    assert [path.name for path in folder.glob("checkpoint_*")] == ["checkpoint_step_3.safetensors"]


# Processes that die


def next_ranks(command: Command, known: set[int]) -> list[int]:
    """The processes of both ranks, once torchrun has started them anew; `known` holds those of earlier starts."""
    command.wait_until(lambda: len(set(command.ranks().values()) - known) == 2, "the next start of the ranks")
    ranks = command.ranks()
    known |= set(ranks.values())
    return list(ranks.values())


def has_come(output: Path, step: int, late: float) -> bool:
    return steps(output) >= step or time.monotonic() > late


def kill_at_random(command: Command, output: Path, kills: int) -> list[int]:
    """Kill a random rank at a random moment, again and again; return the steps that were recorded until then."""
    draw, hit, known = draws("killed ranks"), [0], set()
    for number in range(kills):
        ranks = next_ranks(command, known)
        step = hit[-1] + draw.randint(1, 8)
        # every third time it may be before the ranks have joined
        late = time.monotonic() + (draw.uniform(0, 1) if number % 3 == 0 else SECONDS)
        command.wait_until(partial(has_come, output, step, late), f"step {step}")
        time.sleep(draw.uniform(0, 0.05))
        os.kill(draw.choice(ranks), signal.SIGKILL)
        hit.append(steps(output))
    return hit


@pytest.mark.parametrize("settings", [(DDP,), SHARDED])
def test_a_run_whose_ranks_are_killed_and_started_anew_ends_like_one_never_disturbed(runs, tmp_path, settings):
    kills = of_set(4, 10)
    length = f"--training.max_steps={15 * kills}"  # more than it makes until the last kill
    long = (*settings, "--model.dropout=0.1", length, "--training.save_steps=2")
    arguments = ["-m", "course_lm", *train(runs.text, tmp_path, *long)]
    with started(tmp_path, torchrun(2, "--max-restarts=20", program=arguments)) as command:
        hit = kill_at_random(command, tmp_path, kills)
        ended = command.end()
    assert ended.code == 0, ended.err
    print("killed after steps", hit)
    assert len(set(hit)) > kills // 2, "the run must get on between the kills"
    assert_same(end_state(tmp_path), end_state(runs.made(2, *long)[0]))


# A rank in trouble

# The command, on whose rank 1 something happens in the third step; a file says when.
TROUBLE = """
import os, sys, time
from pathlib import Path
from course_lm.cli import main
from course_lm.trainer import loop

count, take_step = 0, loop.take_step

def troubled(*arguments, **options):
    global count
    count += 1
    if count == 3 and os.environ["RANK"] == "1":
        Path("trouble").touch()
        {trouble}
    return take_step(*arguments, **options)

loop.take_step = troubled
sys.exit(main())
"""


def end_in_trouble(runs: Runs, folder: Path, trouble: str, seconds: float, *arguments: str) -> Ended:
    """The end of a command of two ranks, which must come within so many seconds of the trouble."""
    script = folder / "script.py"
    script.write_text(TROUBLE.format(trouble=trouble))
    words = torchrun(2, program=[str(script), *train(runs.text, folder / "runs", *arguments)])
    with started(folder, words) as command:
        command.wait_until((folder / "trouble").exists, "the trouble")
        return command.end(seconds)


@pytest.mark.parametrize("strategy", [DDP, FSDP])
@pytest.mark.parametrize(("error", "code"), [("OSError", 2), ("FloatingPointError", 1), ("LookupError", 1)])
def test_a_rank_that_raises_ends_all_with_its_exit_code_and_its_message_once(runs, tmp_path, error, code, strategy):
    ended = end_in_trouble(runs, tmp_path, f"raise {error}('the dog has' + ' eaten it')", 30, strategy)
    assert ended.err.count("the dog has eaten it") == 1, ended.err
    assert code in exit_codes(ended) and set(exit_codes(ended)) <= {code, -15}, ended.err
    assert len(ended.own) == 1 and "in troubled" not in ended.err, ended.err


def test_a_rank_that_hangs_ends_the_run_after_the_time_out_that_the_message_names(runs, tmp_path):
    # torchrun gives a rank that does not obey SIGTERM thirty seconds, which nobody need wait for here
    hang = "import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL); time.sleep(3600)"
    ended = end_in_trouble(runs, tmp_path, hang, 30, "--distributed.timeout_seconds=5")
    (line,) = ended.own
    assert "rank 0 has waited for another rank for 5 s (distributed.timeout_seconds)" in line
    assert exit_codes(ended)[-1] == 1 and set(exit_codes(ended)) <= {1, -9, -15}, ended.err


# Bad input

BAD = {
    "no corpus": (["--data.corpus=/nowhere/text.txt"], "no file /nowhere/text.txt"),
    "an optimizer that cannot be sharded": ([FSDP, "--optimizer.type=adafactor"], "Adafactor"),
    "a shard size that does not divide": (
        ["--distributed.strategy=hybrid", "--distributed.shard_size=3"],
        "shard_size must divide the number of ranks, 2, got 3",
    ),
    "no place to write": (["--training.output_dir=/proc/runs"], "/proc"),
}


def assert_refused(ended: Ended, *parts: str) -> None:
    """One line of ours, exit code 2, and nothing on standard output."""
    assert len(ended.own) == 1 and not ended.out, ended.err
    assert all(part in ended.own[0] for part in parts), ended.own
    if ended.code != 2:  # torchrun itself ends with 1
        assert 2 in exit_codes(ended) and set(exit_codes(ended)) <= {2, -15}, ended.err
    assert ended.err.count("Traceback") <= ended.err.count("torch/distributed/run.py"), ended.err


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_once_and_nothing_is_written(runs, tmp_path, case):
    arguments, part = BAD[case]
    assert_refused(runs.run(2, tmp_path, *arguments), part)
    assert not (tmp_path / NAME).exists()


# The command, for which one rank comes late.
LATE = """
import os, runpy, time

if os.environ["RANK"] == "{late}":
    time.sleep(1)
runpy.run_module("course_lm", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("late", [0, 1])
def test_a_misspelt_key_is_said_once_whichever_rank_is_late(runs, tmp_path, late):
    script = tmp_path / "script.py"
    script.write_text(LATE.format(late=late))
    words = torchrun(2, program=[str(script), *train(runs.text, tmp_path, "--training.max_stps=3")])
    with started(tmp_path, words) as command:
        assert_refused(command.end(), "max_stps")


def test_a_range_test_on_several_ranks_is_refused(runs, tmp_path):
    words = course_lm(2, "find-lr", *train(runs.text, tmp_path)[1:])
    with started(tmp_path, words) as command:
        assert_refused(command.end(), "find-lr runs in one process")


def test_a_folder_in_which_another_run_trains_is_refused(runs, tmp_path):
    with sole_writer(tmp_path / NAME):
        assert_refused(runs.run(2, tmp_path), "another process is training in")
    assert not (tmp_path / NAME).exists()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def test_a_folder_that_holds_a_run_with_other_settings_is_refused_and_stays_as_it_is(runs, tmp_path):
    shutil.copytree(runs.made(None)[0] / NAME, tmp_path / NAME)
    before = files(tmp_path / NAME)
    ended = runs.run(2, tmp_path, "--optimizer.learning_rate=1e-3")
    assert "optimizer.learning_rate 0.003, this run has 0.001" in "".join(ended.own)
    assert len(ended.own) == 1 and exit_codes(ended)[-1] == 2, ended.err
    assert files(tmp_path / NAME) == before


# What people do

SETTINGS = {
    "curriculum": ["--curriculum.enabled=true", "--curriculum.strategy=length"],
    "early stopping": [
        "--training.early_stopping_patience=1",
        "--training.early_stopping_threshold=9.0",
        "--training.eval_steps=2",
        "--training.max_steps=40",
    ],
    "epochs": ["--training.max_steps=null", "--training.num_epochs=2"],
}


@pytest.mark.parametrize("strategy", [DDP, FSDP])
@pytest.mark.parametrize("case", SETTINGS)
def test_settings_mean_under_torchrun_what_they_mean_without(runs, case, strategy):
    alone, _ = runs.made(None, *SETTINGS[case])
    together, _ = runs.made(2, strategy, *SETTINGS[case])
    assert_close(together, alone)
    if case == "early stopping":
        assert steps(together) == 4


def test_resume_never_puts_the_old_run_aside_once(runs, tmp_path):
    shutil.copytree(runs.made(None)[0] / NAME, tmp_path / NAME)
    ended = runs.run(2, tmp_path, "--training.resume=never")
    assert ended.code == 0 and "resumed" not in ended.out, ended.err
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [NAME, f"{NAME}.1"]
    assert_close(tmp_path, runs.made(None)[0])


def test_a_finished_run_started_again_has_nothing_left_to_train(runs, tmp_path):
    shutil.copytree(runs.made(2)[0] / NAME, tmp_path / NAME)
    ended = runs.run(2, tmp_path)
    assert ended.code == 0 and ended.out.count("nothing is left to train") == 1, ended.err
    assert_close(tmp_path, runs.made(2)[0])


@pytest.mark.parametrize("words", [["train", "--help"], ["plan", "--config=tiny", "--ranks=2"]])
def test_rank_0_alone_prints(tmp_path, words: Sequence[str]):
    with started(tmp_path, course_lm(2, *words)) as many, started(tmp_path, course_lm(None, *words)) as one:
        assert many.end().out == one.end().out
