"""Loops made of other people's trainers, and what these get as shipped.

`spec.train` stands beside each loop; the weights are compared by their norm. What a library gets is a fact about its
version, so a test of it holds the version and says so where another one is installed.
"""

import gc
import logging
import math
import os
import random
import sys
from collections.abc import Collection
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest
import torch
from torch import nn

from course_lm import audit
from course_lm.audit import spec
from course_lm.audit.adapters.parts import build_optimizer, build_rates, mean_loss
from course_lm.audit.runs import EOS, Case, Constant, Moving, Rows, without_targets
from course_lm.step import train_step

SGD = spec.Settings(optimizer="sgd", schedule=Constant(0.3), eos_id=EOS)
ADAMW = spec.Settings(schedule=Moving(0.05), weight_decay=0.5, beta1=0.8, beta2=0.95, epsilon=1e-3, eos_id=EOS)


def case(*lengths, settings=SGD, **changes):
    """A run of one epoch whose batches have a row of each of the given lengths."""
    rows = Rows(0)
    batches = [rows.batch(*(length if isinstance(length, tuple) else (length,))) for length in lengths]
    return Case("a run", "loss", "C3", [batches], replace(settings, **changes))


def trained(loop, run: Case):
    """The model after the loop, and what the loop returned."""
    model = run.model()
    returned = loop(model, run.epochs, run.settings)
    return model, returned


def distance(model: nn.Module, run: Case, faults: Collection[str] = ()) -> float:
    """How far the model is from that of the specification with `faults`, by the norm of all weights."""
    right = spec.train(run.model(), run.epochs, run.settings, frozenset(faults)).weights
    apart = sum((weight.detach() - right[name]).square().sum() for name, weight in model.named_parameters())
    return math.sqrt(apart / sum(weight.square().sum() for weight in right.values()))


def step(model, batch, optimizer):
    optimizer.zero_grad()
    mean_loss(model, batch).backward()
    optimizer.step()


# ---- a step function


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_plain_step_function_lands_on_the_specification_with_what_it_does_not_take_left_out(optimizer):
    run = case(6, 4, 5, settings=ADAMW, optimizer=optimizer, momentum=0.7)
    model, returned = trained(audit.step_function(step), run)
    assert distance(model, run) < 1e-12
    assert returned["ignores"] == {
        "accumulation_steps",
        "max_grad_norm",
        "loss_scale",
        "overflow_steps",
        "validation",
    }


def test_the_packages_own_step_takes_whole_windows_and_is_sound():
    run = case(6, 3, 9, 5, 4, settings=ADAMW, accumulation_steps=2, max_grad_norm=0.1)
    model, returned = trained(audit.step_function(train_step), run)
    assert distance(model, run) < 1e-12
    assert returned["ignores"] == {"loss_scale", "overflow_steps", "validation"}


@pytest.mark.filterwarnings("ignore:skipped a step:UserWarning")
def test_a_step_function_without_a_target_to_train_on_leaves_the_rate_where_it_is():
    run = case(6, 5, 4, settings=SGD, schedule=Moving(0.5))
    run.epochs[0][1] = without_targets(run.epochs[0][1])
    model, _ = trained(audit.step_function(train_step), run)
    assert distance(model, run) < 1e-12


def test_a_step_function_is_given_what_it_names_and_nothing_else():
    seen = []

    def named(model, batch, optimizer, step, *, max_grad_norm, loss_scale=1.0, label="own", **rest):
        seen.append((step, max_grad_norm, loss_scale, label, rest))

    run = case(5, 6, loss_scale=8.0)
    run.epochs.append(run.epochs[0])
    _, returned = trained(audit.step_function(named), run)
    assert seen == [(number, math.inf, 8.0, "own", {}) for number in (0, 1, 0, 1)]
    assert returned["ignores"] == {"accumulation_steps", "overflow_steps", "validation"}


def test_a_step_function_that_takes_the_scheduler_and_forgets_it_never_moves_the_rate():
    def forgetful(model, batch, optimizer, scheduler):
        step(model, batch, optimizer)

    run = case(6, 4, 5, schedule=Moving(0.5))
    model, _ = trained(audit.step_function(forgetful), run)
    assert distance(model, run, {"schedule_never_moves"}) < 1e-12 < distance(model, run)


def test_a_step_function_that_waits_for_full_windows_leaks_its_tails():
    def accumulating(model, batch, optimizer, scheduler, step, accumulation_steps):
        (mean_loss(model, batch) / accumulation_steps).backward()
        if (step + 1) % accumulation_steps == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    run = case(6, 3, 9, accumulation_steps=2)
    run.epochs.append(run.epochs[0][:2])
    model, _ = trained(audit.step_function(accumulating), run)
    faults = {"mean_of_means", "tail_leaks", "tail_divided_by_full"}
    assert distance(model, run, faults) < 1e-12
    assert all(distance(model, run, faults - {one}) > 1e-6 for one in faults)


def test_the_audit_names_the_fault_of_a_step_function():
    def uncleared(model, batch, optimizer):
        mean_loss(model, batch).backward()
        optimizer.step()

    report = audit.audit(audit.step_function(uncleared), parts=["loss", "data"], progress=False)
    assert report.faults == ("missing_zero_grad",)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda model, batch: None, "<lambda> must take model, batch and optimizer, it takes 2 positional arguments"),
        (lambda model, batch, optimizer, device: None, "a further parameter of <lambda> must be one of scheduler, lr"),
        (lambda model, batch, optimizer, step, /: None, "a further parameter of <lambda> must be one of"),
    ],
)
def test_a_step_function_that_cannot_be_called_is_refused_in_one_line(fn, words):
    with pytest.raises(ValueError) as refusal:
        audit.step_function(fn)
    assert str(refusal.value).startswith(words)
    assert "\n" not in str(refusal.value)


def test_what_is_no_function_is_no_step_function():
    with pytest.raises(TypeError, match=r"^fn must be callable as fn\(model, batch, optimizer\), got int$"):
        audit.step_function(3)  # pyrefly: ignore[bad-argument-type]


# ---- other people's trainers


@pytest.fixture(params=["huggingface", "lightning"])
def library(request):
    """Each adapter of a trainer whose library is installed."""
    if request.param == "huggingface":
        pytest.importorskip("accelerate")
        pytest.importorskip("transformers", minversion="5.23")
        return audit.huggingface
    pytest.importorskip("lightning")
    return audit.lightning


@pytest.mark.parametrize("adapter", [audit.huggingface, audit.lightning])
def test_a_library_that_is_missing_is_named_with_the_extra_that_brings_it(adapter, monkeypatch):
    for name in ("transformers", "accelerate", "lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r'^\w+ is not installed: pip install "course-lm\[audit\]"$'):
        adapter()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_trainer_with_one_batch_for_each_step_lands_on_the_specification(library, optimizer):
    run = case(6, (9, 2), 5, settings=ADAMW, optimizer=optimizer, momentum=0.7, max_grad_norm=0.3)
    run.epochs.append([Rows(1).batch(7, 4), Rows(2).batch(5)])
    model, returned = trained(library(), run)
    assert distance(model, run) < 1e-12
    assert returned["ignores"] == {"loss_scale", "overflow_steps"}


def test_a_trainer_sees_the_given_batches_in_their_order_in_epochs_of_any_length(library):
    rows = Rows(0)
    epochs = [
        [rows.batch(6), rows.batch(5)],
        [rows.batch(6), rows.batch(3)],
        [rows.batch(4), rows.batch(9), rows.batch(7)],
    ]
    run, model = Case("a run", "data", "C10", epochs, SGD), case(6).model()
    seen = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args or (kwargs["input_ids"],))[0].tolist()), with_kwargs=True
    )
    library()(model, run.epochs, run.settings)
    assert seen == [batch["input_ids"].tolist() for batches in epochs for batch in batches]


def test_a_trainer_runs_without_a_word_a_file_or_a_trace(library, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop, run = library(), case(6, 5, 4, accumulation_steps=2, validation=[Rows(3).batch(5)])
    trained(loop, run)  # a library may write of its import
    capfd.readouterr()
    before = traces()
    trained(loop, run)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert traces() == before


def traces():
    """What a run could change for the whole process."""
    levels = {name: logging.getLogger(name).level for name in ("transformers", "accelerate", "lightning.pytorch")}
    generators = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    return dict(os.environ), levels, generators, gc.get_freeze_count(), torch.get_default_dtype()


def test_a_trainer_runs_validation_once_after_each_epoch(library):
    run = case(6, 5, validation=[Rows(3).batch(5, 5), Rows(4).batch(5, 5)])
    run.epochs.append([Rows(1).batch(7)])
    _, returned = trained(library(), run)
    right = spec.train(run.model(), run.epochs, run.settings).validation_losses
    assert returned["validation_losses"] == pytest.approx(right, rel=1e-7)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_grad_norm": 1.0, "gradient_clip_val": 1.0}, "is decided by each run of the audit: leave it out of"),
        ({"precison": "bf16"}, "has no argument precison"),
    ],
)
def test_arguments_that_cannot_be_passed_on_are_refused_in_one_line(library, arguments, words):
    known = {"max_grad_norm"} if library is audit.huggingface else {"gradient_clip_val"}
    with pytest.raises(ValueError, match=words) as refusal:
        library(**{name: value for name, value in arguments.items() if name in known or "precison" in arguments})
    assert "\n" not in str(refusal.value)


# ---- Hugging Face


@pytest.fixture
def transformers():
    pytest.importorskip("accelerate")
    return pytest.importorskip("transformers", minversion="5.23")


def test_what_is_no_trainer_is_refused(transformers):
    with pytest.raises(
        ValueError, match=r"^trainer_class must be a subclass of transformers.Trainer, got <class 'int'>$"
    ):
        audit.huggingface(int)


def test_a_trainer_whose_own_loss_is_a_mean_adds_up_its_micro_batches(transformers):
    class OwnLoss(transformers.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    run = case(9, 3, accumulation_steps=2)
    model, _ = trained(audit.huggingface(OwnLoss), run)
    assert distance(model, run, {"accumulation_not_divided"}) < 1e-12 < distance(model, run)


def test_training_arguments_are_passed_on(transformers):
    run = case(6, 5)
    model, _ = trained(audit.huggingface(label_smoothing_factor=0.1), run)
    assert distance(model, run) > 1e-4


# ---- Lightning


@pytest.fixture
def own_module():
    """A LightningModule as a user writes it, for classes that change one of its methods."""
    pytorch_lightning = pytest.importorskip("lightning.pytorch")

    class OwnModule(pytorch_lightning.LightningModule):
        def __init__(self, model, settings):
            super().__init__()
            self.model, self.settings = model, settings

        def training_step(self, batch, batch_idx):
            return mean_loss(self.model, batch)

        def configure_optimizers(self):
            optimizer = build_optimizer(self.model, self.settings)
            return {"optimizer": optimizer, "lr_scheduler": build_rates(optimizer, self.settings)}

    return OwnModule


def test_a_module_whose_scheduler_has_lightnings_default_interval_moves_its_rate_by_the_epoch(own_module):
    run = case(6, 5, schedule=Moving(0.5))
    run.epochs.append([Rows(1).batch(7)])
    model, returned = trained(audit.lightning(own_module), run)
    assert distance(model, run, {"schedule_per_epoch"}) < 1e-12 < distance(model, run)
    assert "validation" in returned["ignores"]  # it has no validation_step


def test_a_module_that_optimizes_by_hand_accumulates_and_clips_by_itself(own_module):
    class ByHand(own_module):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            train_step(self.model, [batch], self.optimizers().optimizer, max_grad_norm=self.settings.max_grad_norm)

        def configure_optimizers(self):
            return build_optimizer(self.model, self.settings)

    run = case(6, 5, settings=replace(ADAMW, schedule=Constant(1.0)), max_grad_norm=0.1)
    model, _ = trained(audit.lightning(ByHand), run)
    assert distance(model, run) < 1e-12


def test_a_module_that_logs_no_val_loss_is_refused_in_one_line(own_module):
    class Other(own_module):
        def validation_step(self, batch, batch_idx):
            self.log("loss_of_validation", mean_loss(self.model, batch))

    run = case(6, validation=[Rows(3).batch(5)])
    with pytest.raises(ValueError, match=r"^validation_step must log val_loss, it logs loss_of_validation$"):
        trained(audit.lightning(Other), run)


def test_what_makes_no_module_is_refused(own_module):
    with pytest.raises(
        ValueError, match=r"^module_class must be a class or function that returns a LightningModule, got"
    ):
        trained(audit.lightning(lambda model, settings: model), case(6))


def test_trainer_arguments_are_passed_on(own_module):
    run = case((6, 6), max_grad_norm=0.01)
    model, _ = trained(audit.lightning(gradient_clip_algorithm="value"), run)
    assert distance(model, run, {"clip_by_value"}) < 1e-12 < distance(model, run)


# ---- what the trainers get as shipped

SEEN = {"transformers": "5.24.0", "accelerate": "1.15.0", "lightning": "2.6.6"}


def seen_on(*names):
    """Skip where another version is installed than the one whose figures these are."""
    for name in names:
        pytest.importorskip(name)
        if version(name) != SEEN[name]:
            pytest.skip(f"seen on {name} {SEEN[name]}, {version(name)} is installed: measure it again")


@pytest.fixture
def trainer():
    """Hugging Face's Trainer as shipped."""
    seen_on("transformers", "accelerate")
    return audit.huggingface()


@pytest.fixture
def lightning_trainer():
    """Lightning's Trainer as shipped, with the module of its tutorials."""
    seen_on("lightning")
    return audit.lightning()


def test_hugging_face_leaks_the_tail_of_a_stream_into_the_next_epoch():
    seen_on("transformers", "accelerate")
    fours = {"accumulation_steps": 4, "max_grad_norm": 1.0, "schedule": Moving(0.5)}
    run = case(9, 3, 6, (4, 8), 5, 8, **fours)  # a window of four and a tail of two
    run.epochs.append([Rows(1).batch(length) for length in (7, 3, 5, 6)])
    model, _ = trained(audit.huggingface(streaming=True), run)
    assert distance(model, run, {"tail_leaks"}) < 1e-12 < distance(model, run)


def test_the_audit_names_all_that_hugging_face_gets_wrong(trainer):
    report = audit.audit(trainer, progress=False)
    assert report.faults == ("steps_on_empty_window", "steps_on_nonfinite", "val_mean_of_means"), str(report)
    assert not report.alternatives
    assert report.case is not None and report.case.name == "a window without a target"


LIGHTNINGS = {
    "precision": (),
    "accumulation": ("mean_of_means", "steps_on_empty_window", "tail_divided_by_full"),
    "validation": ("val_weighted_by_rows",),
    "finite": ("steps_on_nonfinite",),
}


@pytest.mark.parametrize("part", LIGHTNINGS)
def test_the_audit_names_what_lightning_gets_wrong_in_one_part(lightning_trainer, part):
    report = audit.audit(lightning_trainer, parts=[part], progress=False)
    assert report.faults == LIGHTNINGS[part] and not report.alternatives, str(report)


def test_the_audit_names_all_that_lightning_gets_wrong(lightning_trainer):
    report = audit.audit(lightning_trainer, progress=False)
    assert {*report.faults} == {fault for part in LIGHTNINGS.values() for fault in part}, str(report)
    assert not report.alternatives
    assert report.case is not None and report.case.name == "micro-batches of unequal tokens"
