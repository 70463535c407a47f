"""Claims about a run from outside: its folder, the signals that end it, and a resume that changes no bit."""

import errno
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from filelock import FileLock

from course_lm.batching import labels_of, make_loader
from course_lm.checkpoints import load_checkpoint
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.monitoring import History
from course_lm.run_records import lock_of
from course_lm.schedules import ScheduleConfig, build_schedule
from course_lm.tokenizer import train_tokenizer
from course_lm.trainer import Trainer, resume
from course_lm.trainer.resume import check_rates, check_same_run
from course_lm.trainer.run import STOPPED, Interrupted, default_observers, on_interrupt, sole_writer
from course_lm.use.run_folder import is_locked
from tests import training_run
from tests.fork_server import started
from tests.sets import draws, of_set
from tests.training_run import (
    VOCABULARY,
    Act,
    Crash,
    assert_same,
    counting,
    interrupt_at,
    model_of,
    outcome,
    quiet,
    stop_and_go_on,
)

LENGTH = 8
DOCUMENTS = [f"the {animal} sat on a {place}" for animal in ("cat", "dog") for place in ("mat", "hat", "sun", "bed")]
TOKENIZER = train_tokenizer(DOCUMENTS, VOCABULARY)
LAST = "checkpoint_last.safetensors"


def configure(folder: Path, **training: Any) -> TrainingConfig:
    """Two micro-batches a step with a tail of one, three steps an epoch, three epochs, early stopping on."""
    values: dict[str, Any] = {
        "gradient_accumulation_steps": 2,
        "num_epochs": 3,
        "save_total_limit": 3,
        "early_stopping_patience": 5,
    }
    return training_run.configure(folder, learning_rate=1e-2, **{**values, **training})


def batch_list() -> list[dict[str, Any]]:
    """Five batches of random tokens."""
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(VOCABULARY, (1 + i % 2, LENGTH - i % 3), generator=draw) for i in range(5)]
    return [
        {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": labels_of(ids, torch.ones_like(ids)),
            "num_bytes": ids.numel(),
        }
        for ids in rows
    ]


def loader_of(kind: str, num_workers: int = 0) -> Any:
    """Fresh training data: a list of batches, or a loader of this mode."""
    if kind == "list":
        return batch_list()
    return make_loader(
        DOCUMENTS[:5], TOKENIZER, mode=kind, batch_size=4, max_length=LENGTH, seed=7, num_workers=num_workers
    )


def trainer_of(config: TrainingConfig, dtype: torch.dtype = torch.float32, **parts: Any) -> Trainer:
    """A trainer with a freshly built model, the same every time."""
    given: dict[str, Any] = {"loss_fn": counting(quiet), **parts}
    return Trainer(model_of(LENGTH, dtype), config, **given)


# tests/resume/ stops runs of each mode of batching in each precision.
CASES: dict[str, dict[str, Any]] = {
    "list": {"kind": "list"},
    "fixed": {"kind": "fixed"},
    "float64": {"kind": "list", "dtype": torch.float64, "logging_steps": 4},
    "eval_steps": {"kind": "fixed", "eval_steps": 2, "logging_steps": 3},
    "max_steps": {"kind": "list", "max_steps": 7, "logging_steps": 3},
    "layers": {"kind": "list", "logging_steps": 3, "layer_statistics": 2},
    "stops_early": {"kind": "list", "early_stopping_patience": 1, "early_stopping_threshold": 9.0},
}


def start(case: str, folder: Path, **parts: Any) -> Trainer:
    """Train (or go on training) the case in this folder with everything built anew."""
    settings = dict(CASES[case])
    kind, dtype = settings.pop("kind"), settings.pop("dtype", torch.float32)
    trainer = trainer_of(configure(folder, **settings), dtype, **parts)
    trainer.train(loader_of(kind), loader_of(kind))
    return trainer


def run_with(config: TrainingConfig, **parts: Any) -> Trainer:
    """Train, or go on training, on the list of batches with everything built anew."""
    trainer = trainer_of(config, **parts)
    trainer.train(batch_list(), batch_list())
    return trainer


@cache
def straight(case: str) -> tuple[dict[str, Any], int]:
    """What the case leaves when nothing stops it, and how many micro-batches it takes."""
    counts, folder = list[int](), Path(mkdtemp())
    start(case, folder, loss_fn=counting(counts.append))
    return outcome(folder), len(counts)


def assert_recorded_to_the_last_step(trainer: Trainer) -> None:
    """The history and the log end with the last finished step, and count all tokens."""
    assert trainer.folder is not None
    lines = [json.loads(line) for line in (trainer.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in trainer.history.train]
    assert steps == sorted(set(steps)) and steps[-1] == trainer.step
    assert [line["step"] for line in lines if line["event"] == "train"] == steps
    unrecorded = sum(int(result.tokens) for result in trainer.log.pending if not result.skipped)
    assert trainer.history.train[-1]["tokens"] == trainer.log.tokens + unrecorded


# Resume


@pytest.mark.parametrize("case", CASES)
def test_stopping_at_a_micro_batch_of_the_day_changes_no_bit(tmp_path, case):
    expected, total = straight(case)
    for micro_batch in draws(case).sample(range(1, total + 1), of_set(2, total)):
        folder = tmp_path / str(micro_batch)

        def run(act: Act, folder: Path = folder) -> Trainer:
            return start(case, folder, loss_fn=counting(act))

        stop_and_go_on(run, micro_batch, check_stopped=assert_recorded_to_the_last_step)
        assert_same(outcome(folder), expected)
        run(quiet)  # it is over
        assert_same(outcome(folder), expected)


def test_lines_that_the_log_has_lost_are_written_again_from_the_checkpoint(tmp_path):
    start("list", tmp_path, loss_fn=counting(interrupt_at(13)))
    log = tmp_path / "toy" / "metrics.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    del lines[1:3]
    log.write_bytes(b"".join(lines))
    start("list", tmp_path)
    assert_same(outcome(tmp_path), straight("list")[0])


def without_errors(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without standard errors: data that may be lost are no loader of ours, and do not tell their documents."""
    return [{**one, "val_loss_se": None} for one in lines]


class DyingAt:
    """Validation data that is lost at the n-th reading."""

    def __init__(self, reading: int, kind: str = "list") -> None:
        self.left = iter(range(reading - 1))  # validation reads copies, which share it
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        if next(self.left, None) is None:
            raise Crash
        return iter(loader_of(self.kind))


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("case", ["list", "eval_steps"])
@pytest.mark.parametrize("reading", [1, 3])
def test_a_validation_that_an_error_broke_off_is_made_up_for(tmp_path, case, reading, anew):
    """In another process, or in the same one: a cell of a notebook that is run again after a second Ctrl-C."""
    settings = dict(CASES[case])
    kind = settings.pop("kind")
    config, data = configure(tmp_path, save_total_limit=None, **settings), loader_of(kind)
    trainer = trainer_of(config)
    with pytest.raises(Crash):
        trainer.train(data, DyingAt(reading, kind))
    if anew:
        trainer, data = trainer_of(config), loader_of(kind)
    trainer.train(data, loader_of(kind))
    mine, expected = outcome(tmp_path), straight(case)[0]
    assert_same(without_errors(mine["lines"]), without_errors(expected["lines"]))
    for name, part in (
        (LAST, "model"),
        (LAST, "optimizer"),
        (LAST, "tokens"),
        ("checkpoint_best.safetensors", "model"),
    ):
        assert_same(mine["checkpoints"][name][part], expected["checkpoints"][name][part])
    ends = sorted(path.stem for path in (tmp_path / "toy").glob("checkpoint_epoch_*.safetensors"))
    assert ends == ["checkpoint_epoch_1", "checkpoint_epoch_2", "checkpoint_epoch_3"]


def test_a_finished_run_is_not_trained_again_and_says_so(tmp_path, capsys):
    trainer = run_with(configure(tmp_path))
    last = tmp_path / "toy" / "checkpoint_last.safetensors"
    before = load_checkpoint(last)["data"]
    trainer.train(batch_list(), batch_list())
    assert_same(load_checkpoint(last)["data"], before)
    capsys.readouterr()
    start("list", tmp_path)
    assert_same(outcome(tmp_path), straight("list")[0])
    out = capsys.readouterr().out
    assert "resumed" in out and "the run has come to its end after step 9: nothing is left to train" in out
    assert f"those in {tmp_path / 'toy'}; to train anew, choose another experiment_name" in out


def test_a_run_without_a_folder_goes_on_in_the_same_process():
    config = configure(Path(), output_dir=None)
    trainer = trainer_of(config, loss_fn=counting(interrupt_at(8)))
    data = loader_of("list")
    trainer.train(data, data)
    trainer.train(data, data)
    assert_same(dict(trainer.model.state_dict()), straight("list")[0]["checkpoints"][LAST]["model"])


def test_workers_change_nothing(tmp_path):
    def run(act: Act) -> Trainer:
        trainer = trainer_of(configure(tmp_path), loss_fn=counting(act))
        trainer.train(loader_of("fixed", num_workers=1), loader_of("fixed"))
        return trainer

    stop_and_go_on(run, 6)
    assert_same(outcome(tmp_path), straight("fixed")[0])


# What a resume refuses


FREE = resume.MAY_CHANGE | resume.LENGTH
KEYS = [
    f"{section}.{key}" for section, part in asdict(TrainingConfig()).items() if isinstance(part, dict) for key in part
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_decides_the_run_or_is_declared_to_be_free_or_to_round(key):
    config = TrainingConfig()
    section, _, name = key.partition(".")
    unread = getattr(config, section).unread()  # a run does not depend on what it does not read
    saved: dict[str, Any] = asdict(config)
    del saved[section][name]  # as of a run from before there was this key
    check_same_run(config, saved)
    saved[section][name] = "another"
    said = rf"saved with {key} 'another', this run has .*"
    if key in resume.ROUNDING:
        with pytest.warns(UserWarning, match=f"{said}: it may not go on bit for bit"):
            check_same_run(config, saved)
    elif key in FREE or name in unread:
        check_same_run(config, saved)
    else:
        with pytest.raises(ValueError, match=f"{said}training.resume") as caught:
            check_same_run(config, saved)
        assert "\n" not in str(caught.value)


def test_what_is_declared_to_be_free_or_to_round_is_a_key():
    assert {*KEYS, "experiment_name"} >= FREE | resume.ROUNDING


CONSTANT = ScheduleConfig(type="constant", warmup_steps=2)


def test_a_run_can_be_made_longer_under_a_schedule_that_does_not_look_at_its_end(tmp_path, capsys):
    short, long = (replace(configure(tmp_path, num_epochs=epochs), lr_scheduler=CONSTANT) for epochs in (3, 5))
    trainer_of(short).train(loader_of("fixed"))
    trainer = trainer_of(long)
    trainer.train(loader_of("fixed"))
    unbroken = trainer_of(replace(long, experiment_name="unbroken"))
    unbroken.train(loader_of("fixed"))
    assert "goes on to step" in capsys.readouterr().out
    assert trainer.epoch == 5
    for part in ("model", "optimizer", "data"):
        assert_same(trainer.state_dict()[part], unbroken.state_dict()[part], part)
    assert TrainingConfig.from_yaml(tmp_path / "toy" / "config.yaml") == long


@pytest.mark.parametrize("change", [{"num_epochs": 5}, {"max_steps": 2}])
def test_another_length_under_a_schedule_that_spans_the_run_is_refused(tmp_path, change):
    start("list", tmp_path, loss_fn=counting(interrupt_at(7)))  # three steps an epoch: in the second one
    with pytest.raises(ValueError) as caught:
        trainer_of(configure(tmp_path, **change)).train(batch_list())
    assert "training.resume" in str(caught.value) and "\n" not in str(caught.value)
    start("list", tmp_path)
    assert_same(outcome(tmp_path), straight("list")[0])


def test_a_decay_that_has_not_begun_can_be_put_off():
    """A run under warmup_stable_decay may be given more steps until its decay begins, and no longer."""
    config = ScheduleConfig(type="warmup_stable_decay", warmup_steps=10, decay_ratio=0.2)
    saved: dict[str, Any] = {
        "own_schedule": False,
        "last_rate": 1.0,
        "total_steps": 100,
    }
    saved["config"] = {
        "training": asdict(LoopConfig(max_steps=100)),
        "lr_scheduler": asdict(config),
        "optimizer": {"learning_rate": 1.0},
    }
    longer, now = build_schedule(config, peak_lr=1.0, total_steps=200), LoopConfig(max_steps=200)
    check_rates({**saved, "step": 81}, longer, 200, now)
    with pytest.raises(
        ValueError, match=r"step 82 was taken with learning rate 0.95, and would now have 1: training.max_steps was 100"
    ):
        check_rates({**saved, "step": 82}, longer, 200, now)


def test_what_precision_auto_meant_is_saved(tmp_path):
    trainer = trainer_of(configure(tmp_path, precision="auto", num_epochs=1))
    trainer.train(batch_list())
    assert TrainingConfig.from_yaml(tmp_path / "toy" / "config.yaml").training.precision == trainer.precision.name


def test_a_patience_given_later_counts_from_the_start(tmp_path):
    hopeless: dict[str, Any] = {"early_stopping_threshold": 9.0}
    run_with(configure(tmp_path, early_stopping_patience=None, **hopeless), loss_fn=counting(interrupt_at(8)))
    patient = configure(tmp_path, early_stopping_patience=2, **hopeless)
    trainer = run_with(patient)
    unbroken = run_with(replace(patient, experiment_name="unbroken"))
    assert (trainer.step, trainer.epoch) == (unbroken.step, unbroken.epoch) == (9, 3)


def test_a_run_that_nobody_named_says_loudly_that_it_goes_on_with_an_old_one(tmp_path, monkeypatch, recwarn):
    monkeypatch.chdir(tmp_path)
    nameless = replace(TrainingConfig(), training=LoopConfig(max_steps=2, precision="fp32", device="cpu"))
    for named in (nameless, replace(nameless, experiment_name="mine")):
        for _ in range(2):
            run_with(named)
    (warned,) = [str(one.message) for one in recwarn if "experiment_name" in str(one.message)]
    assert "goes on with the one in runs/my-lm" in warned and "training.resume to never" in warned


def test_a_state_loaded_by_hand_does_not_overwrite_another_run(tmp_path):
    start("list", tmp_path)
    other = run_with(configure(tmp_path / "other"), loss_fn=counting(interrupt_at(3)))
    assert other.folder is not None
    trainer = trainer_of(configure(tmp_path))
    trainer.load_checkpoint(other.folder / "checkpoint_last.safetensors")
    with pytest.raises(ValueError, match="holds another run"):
        trainer.train(batch_list())


def test_a_run_leaves_the_settings_of_the_process_as_it_found_them(tmp_path, monkeypatch):
    """Kernels, memory filling and the environment: with each of the values that may be found."""
    memory: Any = importlib.import_module("torch.utils.deterministic")

    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for found in (False, True):
        torch.use_deterministic_algorithms(found, warn_only=found)
        memory.fill_uninitialized_memory = found
        trainer_of(configure(tmp_path, resume="never", deterministic=not found, num_epochs=1)).train(batch_list())
        assert torch.are_deterministic_algorithms_enabled() is found
        assert torch.is_deterministic_algorithms_warn_only_enabled() is found
        assert memory.fill_uninitialized_memory is found
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    torch.use_deterministic_algorithms(False)
    memory.fill_uninitialized_memory = True


def test_resume_never_starts_anew_and_keeps_the_old_run(tmp_path):
    first = start("list", tmp_path)
    for number in (1, 2):
        trainer = trainer_of(configure(tmp_path, resume="never"))
        trainer.train(loader_of("list"), loader_of("list"))
        assert_same(trainer.history.records[0]["loss"], first.history.records[0]["loss"])
        assert (tmp_path / f"toy.{number}" / "checkpoint_last.safetensors").exists()
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["toy", "toy.1", "toy.2"]


def test_a_link_to_a_folder_stays_where_a_run_starts_anew_and_leads_to_the_new_one(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "toy").symlink_to("elsewhere")
    start("list", tmp_path)
    trainer = trainer_of(configure(tmp_path, resume="never"))
    trainer.train(loader_of("list"), loader_of("list"))
    assert (tmp_path / "toy").readlink() == Path("elsewhere")
    assert (tmp_path / "elsewhere.1" / "checkpoint_last.safetensors").exists()
    assert load_checkpoint(tmp_path / "elsewhere" / "checkpoint_last.safetensors")["step"] == trainer.step


# The folder and its loggers


def test_a_run_without_a_folder_has_a_progress_bar_and_no_metrics_file():
    names = [type(observer).__name__ for observer in default_observers(configure(Path(), output_dir=None), History())]
    assert names == ["ProgressBar"]


# Signals


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "run it again to go on from {folder}"),
        ({"resume": "never"}, "run it again with training.resume auto to go on from {folder}"),
        ({"output_dir": None}, "nothing was saved"),
    ],
)
def test_a_stopped_run_says_in_one_line_how_it_goes_on(tmp_path, capsys, settings, told):
    run_with(configure(tmp_path, **settings), loss_fn=counting(interrupt_at(3)))
    line = f"stopped by SIGINT after step 2: {told.format(folder=tmp_path / 'toy')}"
    assert capsys.readouterr().out.splitlines() == [line]


@pytest.mark.parametrize("found", [signal.SIG_IGN, None])
def test_a_signal_that_is_ignored_or_handled_outside_python_is_left_alone(monkeypatch, found):
    """None is what Python answers for a handler that was installed from C: it could not be given back."""
    installed: list[int] = []
    monkeypatch.setattr(signal, "getsignal", lambda number: found)
    monkeypatch.setattr(signal, "signal", lambda number, handler: installed.append(number))
    with on_interrupt(lambda number: None):
        pass
    assert installed == []


def test_a_run_outside_the_main_thread_is_ended_by_stop_and_goes_on(tmp_path, capsys):
    reached, stopped = threading.Event(), threading.Event()

    def wait(count: int) -> None:
        if count == 5:
            reached.set()
            assert stopped.wait(60)

    trainer = trainer_of(configure(tmp_path), loss_fn=counting(wait))
    thread = threading.Thread(target=lambda: trainer.train(batch_list(), batch_list()))
    with pytest.warns(UserWarning, match="no signal ends it, Trainer.stop"):
        thread.start()
        assert reached.wait(60)
        trainer.stop()
        stopped.set()
        thread.join()
    assert (trainer.interrupted, trainer.step) == (STOPPED, 3)
    assert "stopped by Trainer.stop() after step 3: run it again" in capsys.readouterr().out
    start("list", tmp_path)
    assert_same(outcome(tmp_path), straight("list")[0])


@pytest.mark.parametrize("name", ["toy", "link", "runs/toy", "nested/../link", "nested/link"])
def test_a_folder_is_one_by_all_its_names(tmp_path, name):
    (tmp_path / "toy").mkdir()
    (tmp_path / "nested").mkdir()
    for link, place in {"link": "toy", "runs": tmp_path, "nested/link": "../link"}.items():
        (tmp_path / link).symlink_to(place)
    with FileLock(lock_of(tmp_path / "toy")):
        assert is_locked(tmp_path / name)
        with pytest.raises(BlockingIOError, match="another process is training in"), sole_writer(tmp_path / name):
            pass


def test_a_link_that_leads_nowhere_is_refused_in_one_line(tmp_path):
    for name, place in {"toy": "toy", "other": "gone"}.items():
        (tmp_path / name).symlink_to(place)
        with pytest.raises(NotADirectoryError, match="is no folder"), sole_writer(tmp_path / name):
            pass


def test_who_lists_runs_keeps_none_from_starting(tmp_path):
    reader = FileLock(lock_of(tmp_path / "toy"), thread_local=False)
    reader.acquire()
    threading.Timer(0.2, reader.release).start()
    with sole_writer(tmp_path / "toy"):
        assert not reader.is_locked and is_locked(tmp_path / "toy")


def test_a_folder_is_free_again_when_its_process_has_died(tmp_path):
    program = tmp_path / "hold.py"
    program.write_text(f"""
import pathlib, time
from course_lm.trainer.run import sole_writer
with sole_writer(pathlib.Path({str(tmp_path / "toy")!r})):
    print("in", flush=True)
    time.sleep(60)
""")
    with started(tmp_path, [sys.executable, str(program)]) as other:
        other.wait_until(lambda: other.texts()[0], "the lock of the folder")
        with pytest.raises(BlockingIOError, match="another process is training in"):
            start("list", tmp_path)
        other.process.kill()
        other.end()
    start("list", tmp_path)
    assert_same(outcome(tmp_path), straight("list")[0])


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.EIO])
def test_a_folder_that_cannot_be_locked_is_trained_in_and_one_warning_says_so(tmp_path, monkeypatch, number):
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    words = rf"cannot be locked \({os.strerror(number)}\)"
    with pytest.warns(UserWarning, match=words) as caught, sole_writer(tmp_path / "toy"):
        start("list", tmp_path)
    assert len(caught) == 1
    assert_same(outcome(tmp_path), straight("list")[0])


def test_the_best_weights_that_cannot_be_read_leave_the_last_ones_with_a_warning(tmp_path):
    trainer = start("list", tmp_path)
    (tmp_path / "toy" / "checkpoint_best.safetensors").unlink()
    last = {name: part.clone() for name, part in trainer.model.state_dict().items()}
    with pytest.warns(UserWarning, match="the model keeps its last weights"):
        trainer.restore_best()
    assert_same(dict(trainer.model.state_dict()), last)


def test_the_first_signal_notifies_the_second_ends_the_step_and_the_third_has_its_usual_effect():
    numbers: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(KeyboardInterrupt), on_interrupt(numbers.append):
        assert all(signal.getsignal(number) is not before[number] for number in before)
        os.kill(os.getpid(), signal.SIGINT)
        assert numbers == [signal.SIGINT]
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert numbers == [signal.SIGINT]
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.parametrize("value", ["LESSER", "medium"])
def test_a_run_that_goes_on_with_other_kernels_says_so(tmp_path, monkeypatch, value):
    config = configure(tmp_path, num_epochs=1)
    trainer_of(config).train(loader_of("list"))
    if value == "medium":
        torch.set_float32_matmul_precision(value)
    else:
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: value)
    try:
        with pytest.warns(UserWarning, match=rf"was saved with .* \(now {value}\): it may not go on bit for bit"):
            trainer_of(config).train(loader_of("list"))
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_default_device_that_came_after_the_trainer_is_refused_in_one_line(tmp_path):
    trainer = trainer_of(configure(tmp_path))
    with torch.device("meta"), pytest.raises(ValueError, match="set_default_device must be cpu, got meta: training"):
        trainer.train(loader_of("list"))
