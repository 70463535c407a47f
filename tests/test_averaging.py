"""The average of the weights: what it is, who uses it, and who does not."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from course_lm import averaging
from course_lm.averaging import WeightAverage
from course_lm.checkpoints import load_checkpoint, load_weights, weights_for_use
from course_lm.loss import next_token_loss
from course_lm.monitoring import evaluate
from course_lm.trainer import Trainer
from tests.records import Recorder
from tests.refusals import refused
from tests.small_run import small_batches, small_trainer
from tests.training_run import assert_same, configure, model_of

DECAY = 0.7


class Walk(Recorder):
    """An observer that keeps the model's weights at each record."""

    trainer: Trainer

    def log(self, record: dict[str, Any]) -> None:
        if record["event"] == "train":
            self.told.append(copy.deepcopy(self.trainer.model.state_dict()))


def average_by_hand(walk: list[dict[str, Tensor]], decay: float) -> dict[str, Tensor]:
    """The sum of d^(k-i) w_i over the sum of d^(k-i), in float64."""
    factors = [decay ** (len(walk) - number) for number in range(1, len(walk) + 1)]
    terms = {name: [factor * step[name].double() for factor, step in zip(factors, walk)] for name in walk[0]}
    return {name: sum(parts[1:], parts[0]) / math.fsum(factors) for name, parts in terms.items()}


def walked(steps: int, **training: Any) -> tuple[Trainer, list[dict[str, Tensor]]]:
    """A trained trainer, and its weights after each step."""
    walk = Walk()
    trainer = small_trainer(steps, [walk], logging_steps=1, **training)
    walk.trainer = trainer
    trainer.train(small_batches(5), small_batches(2))
    return trainer, [told for told in walk.told if isinstance(told, dict)]


# The average


@settings(max_examples=25)
@given(decay=st.floats(1e-3, 0.9999), steps=st.integers(1, 30))
def test_the_average_is_the_weighted_mean_over_all_steps_and_the_first_weights_do_not_count(decay, steps):
    torch.manual_seed(steps)
    model = nn.Linear(3, 2).double()
    average = WeightAverage(model, decay)
    walk = []
    for step in range(1, steps + 1):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter))
        average.update(step)
        walk.append(copy.deepcopy(model.state_dict()))
    expected = average_by_hand(walk, decay)
    torch.testing.assert_close(average.state_dict(), expected, rtol=1e-10, atol=1e-12)


def test_a_run_averages_its_weights_after_each_step():
    trainer, walk = walked(12, average_weights=DECAY)
    assert trainer.average is not None and len(walk) == 12
    expected = average_by_hand(walk, DECAY)
    mine = {name: part.double() for name, part in trainer.average.state_dict().items()}
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-7)


def test_training_takes_the_same_steps_with_an_average_as_without():
    with_average, walk = walked(12, average_weights=DECAY, eval_steps=2)
    without, plain = walked(12, eval_steps=2)
    assert_same(walk, plain)
    losses = [[record["loss"] for record in trainer.history.train] for trainer in (with_average, without)]
    assert losses[0] == losses[1]


def test_a_skipped_step_leaves_the_average_as_it_was():
    trainer = small_trainer(9, average_weights=DECAY, on_nonfinite="skip", eval_steps=None)
    batches = small_batches(3)
    trainer.train_epoch(batches)
    assert trainer.average is not None and trainer.step == 3
    before = copy.deepcopy(trainer.average.state_dict())
    nowhere = lambda logits, labels, reduction: next_token_loss(logits, labels, reduction="sum") * math.nan  # noqa: E731
    trainer.options = trainer.options._replace(loss_fn=nowhere)
    trainer.train_epoch(batches)
    assert trainer.step == 3 and trainer.log.skipped == 3
    assert_same(trainer.average.state_dict(), before)


def test_a_weight_of_two_names_has_one_average_under_both():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    average = WeightAverage(model, DECAY)
    state = average.state_dict()
    assert list(state) == ["0.weight", "1.weight"] and state["0.weight"] is state["1.weight"]


def test_a_parameter_that_the_model_does_not_save_is_refused():
    model = nn.Linear(2, 2)
    model.register_state_dict_post_hook(lambda module, state, prefix, meta: state.__delitem__(f"{prefix}bias"))
    with pytest.raises(ValueError, match="must be null for a model whose state_dict"):
        WeightAverage(model, DECAY)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_while_the_model_has_the_average_gives_it_its_own_weights_back(error):
    trainer, _ = walked(3, average_weights=DECAY)
    assert trainer.average is not None
    before = copy.deepcopy(trainer.model.state_dict())
    with pytest.raises(error), trainer.average.in_place():
        assert not torch.equal(trainer.model.norm.weight, before["norm.weight"])  # type: ignore[union-attr]
        raise error
    assert_same(trainer.model.state_dict(), before)


def test_a_signal_that_breaks_the_giving_back_off_leaves_no_average_in_the_model(monkeypatch):
    trainer, _ = walked(3, average_weights=DECAY)
    assert trainer.average is not None
    before, copied, calls = copy.deepcopy(trainer.model.state_dict()), averaging._copy, []

    def broken_off(sources, targets):
        calls.append(sources)
        copied(sources[:1], targets[:1])
        if len(calls) == 2:
            raise KeyboardInterrupt
        copied(sources, targets)

    monkeypatch.setattr(averaging, "_copy", broken_off)
    with pytest.raises(KeyboardInterrupt), trainer.average.in_place():
        pass
    assert_same(trainer.model.state_dict(), before)


# Who uses it


def loss_of(trainer: Trainer, weights: dict[str, Tensor]) -> float:
    model = copy.deepcopy(trainer.model)
    load_weights(model, weights)
    return evaluate(model, small_batches(2))["val_loss"]


def test_validation_measures_the_average_and_leaves_the_model_as_it_was():
    trainer, walk = walked(12, average_weights=DECAY, eval_steps=12)
    assert trainer.average is not None
    measured = trainer.history.validation[-1]["val_loss"]
    assert measured == loss_of(trainer, trainer.average.state_dict()) != loss_of(trainer, walk[-1])
    assert trainer.evaluate(small_batches(2))["val_loss"] == measured
    assert_same(trainer.model.state_dict(), walk[-1])


def test_before_the_first_step_the_weights_are_the_models_own_whatever_was_loaded_into_it():
    trainer = small_trainer(3, average_weights=DECAY)
    with torch.no_grad():
        trainer.model.get_parameter("norm.weight").mul_(2.0)
    assert trainer.evaluate(small_batches(2))["val_loss"] == loss_of(trainer, trainer.model.state_dict())


@pytest.mark.parametrize("place", [None, "folder"])
def test_the_best_weights_are_the_average_of_the_best_validation(place, tmp_path):
    folder = None if place is None else str(tmp_path)
    trainer, walk = walked(12, average_weights=DECAY, eval_steps=2, output_dir=folder, restore_best=True)
    best = trainer.history.best
    assert best is not None
    assert loss_of(trainer, trainer.model.state_dict()) == best["val_loss"]
    assert trainer.evaluate(small_batches(2))["val_loss"] == best["val_loss"]
    expected = average_by_hand(walk[: best["step"]], DECAY)
    mine = {name: part.double() for name, part in trainer.model.state_dict().items()}
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-7)


def test_without_a_validation_the_last_average_is_what_is_given():
    trainer = small_trainer(4, average_weights=DECAY)
    trainer.train(small_batches(5))
    assert trainer.average is not None
    expected = copy.deepcopy(trainer.average.state_dict())
    trainer.restore_best()
    assert_same(dict(trainer.model.state_dict()), expected)


def test_a_checkpoint_holds_both_and_says_which_weights_are_for_use(tmp_path):
    trainer, walk = walked(6, average_weights=DECAY, output_dir=str(tmp_path))
    state = load_checkpoint(tmp_path / "my-lm" / "checkpoint_last.safetensors")
    assert trainer.average is not None
    assert_same(state["model"], dict(walk[-1]))
    assert_same(weights_for_use(state), trainer.average.state_dict())
    plain, _ = walked(6)
    assert_same(weights_for_use(plain.state_dict()), dict(walk[-1]))


# Refusals


def test_a_checkpoint_without_an_average_is_taken_by_a_run_without_one_and_refused_by_one_with():
    state = Trainer(model_of(), configure("unused")).state_dict()
    del state["config"]["training"]["average_weights"]  # as an older version has written it
    Trainer(model_of(), configure("unused")).load_state_dict(state)
    with refused(ValueError, r"saved with training\.average_weights None, this run has 0\.9"):
        Trainer(model_of(), configure("unused", average_weights=0.9)).load_state_dict(state)


def test_an_average_of_another_form_is_refused_before_anything_changes():
    config = configure("unused", average_weights=0.9)
    state = Trainer(model_of(), config).state_dict()
    name, value = next(iter(state["average"].items()))
    without = {key: part for key, part in state.items() if key != "average"}
    cases: dict[str, dict[str, Any]] = {
        "must have an average exactly where training.average_weights is a number": without,
        f"another model: {name} is": {**state, "average": {**state["average"], name: value.double()}},
        "another model: the checkpoint has no": {**state, "average": {}},
    }
    for told, bad in cases.items():
        trainer = Trainer(model_of(), config)
        before = trainer.state_dict()
        with pytest.raises(ValueError, match=told):
            trainer.load_state_dict(bad)
        assert_same(trainer.state_dict()["model"], before["model"])
    plain = Trainer(model_of(), replace(config, training=replace(config.training, average_weights=None)))
    with pytest.raises(ValueError, match=r"must have an average exactly where training\.average_weights is a number"):
        plain.load_state_dict({**plain.state_dict(), "average": state["average"]})


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1, math.nan])
def test_a_decay_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match=r"decay must be in \(0, 1\), got"):
        WeightAverage(model_of(), value)


class Complex(nn.Module):
    """A model with a weight of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(2, 3, dtype=torch.complex64))


def test_complex_weights_are_averaged_too():
    model = Complex()
    average, walk = WeightAverage(model, DECAY), []
    for step in range(1, 4):
        with torch.no_grad():
            model.table.mul_(1 + 2j)
        average.update(step)
        walk.append({"table": torch.view_as_real(model.table.detach().clone())})
    expected = average_by_hand(walk, DECAY)["table"]
    torch.testing.assert_close(torch.view_as_real(average.state_dict()["table"]).double(), expected, rtol=1e-6, atol=0)
