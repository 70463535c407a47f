"""The specification by itself: against torch and against hand-made numbers.

That each of its faults is the mistake of its name, tests/audit/test_named.py shows by loops that share nothing with it.
"""

import copy
import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from course_lm.audit import spec
from course_lm.audit.spec import Settings, train
from tests.sets import examples

from .cases import (
    Batch,
    Decay,
    TinyTransformer,
    cases,
    make_batch,
    make_model,
    without_targets,
)

PLAIN = Settings(optimizer="sgd", schedule=Decay(0.1, 0.7))


class Slope(nn.Module):
    """Two tokens; token 0 has the logit `slopes · weight`, token 1 has 0. At weight 0 a target of 1 gives the
    gradient `slopes / 2`, a target of 0 its opposite."""

    def __init__(self, *slopes: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(len(slopes), dtype=torch.float64))
        self.slopes = torch.tensor(slopes, dtype=torch.float64)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        logit = (self.slopes * self.weight).sum()
        return torch.stack([logit, torch.zeros_like(logit)]).expand(*input_ids.shape, 2)


class Bigram(nn.Module):
    """Logits that are looked up by the token read."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(vocabulary, vocabulary, dtype=torch.float64))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.table[input_ids]


def one_row(*tokens: int, labels: tuple[int, ...] | None = None) -> Batch:
    ids = torch.tensor([tokens])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": ids.clone() if labels is None else torch.tensor([labels]),
    }


def random_batches(number: int, seed: int = 0, **options: Any) -> list[Batch]:
    rng = random.Random(seed)
    return [make_batch(rng, shortest=3, **options) for _ in range(number)]


def tiny(seed: int = 0, *, dropout: bool = False) -> nn.Module:
    return make_model(random.Random(seed), "tiny", dropout=dropout)


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    output = model(batch["input_ids"], attention_mask=batch["attention_mask"])
    logits = output if isinstance(output, Tensor) else output.logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    matrices, vectors = ([w for w in trained if (w.ndim >= 2) == matrix] for matrix in (True, False))
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]]], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.8, foreach=False),
    "adam": lambda params: torch.optim.Adam(params, lr=0.05, betas=(0.8, 0.95), eps=1e-6, foreach=False),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.05, betas=(0.8, 0.95), eps=1e-6, foreach=False),
}


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_moments_equal_those_of_torch(name, decay):
    model, batches = tiny(), random_batches(6)
    shared: dict[str, Any] = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "momentum": 0.8, "max_grad_norm": 0.5}
    result = train(model, [batches], Settings(name, schedule=lambda k: 0.05, weight_decay=decay, **shared))
    optimizer = OPTIMIZERS[name](groups(model, decay))
    for batch in batches:
        optimizer.zero_grad()
        mean_loss(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    for weight_name, weight in model.named_parameters():
        torch.testing.assert_close(result.weights[weight_name], weight.detach(), rtol=1e-11, atol=1e-14)
        for kind, value in optimizer.state[weight].items() if weight.requires_grad else ():
            torch.testing.assert_close(
                torch.as_tensor(result.moments[weight_name][kind], dtype=torch.float64), value.double()
            )


def test_the_loss_of_equal_logits_is_the_logarithm_of_the_vocabulary():
    assert train(Bigram(7), [[one_row(1, 2, 3)]], PLAIN).losses == [pytest.approx(math.log(7), rel=1e-14)]


def test_a_gradient_of_3_and_4_has_norm_5_and_is_clipped_to_1():
    settings = Settings(optimizer="sgd", schedule=lambda k: 1.0, max_grad_norm=1.0)
    result = train(Slope(6.0, 8.0), [[one_row(1, 1)]], settings)
    assert result.norms == [pytest.approx(5.0, rel=1e-14)]
    torch.testing.assert_close(result.weights["weight"], -torch.tensor([0.6, 0.8]).double(), rtol=1e-6, atol=0)


def test_position_t_predicts_token_t_plus_1():
    table = train(Bigram(6), [[one_row(1, 4, 2, 5)]], PLAIN).weights["table"]
    assert {(row, int(table[row].argmax())) for row in range(6) if table[row].any()} == {(1, 4), (4, 2), (2, 5)}


def test_end_of_text_is_a_target_where_pad_has_the_same_id():
    batch = {**one_row(1, 4, 1, 1, labels=(1, 4, 1, -100)), "attention_mask": torch.tensor([[1, 1, 1, 0]])}
    table = train(Bigram(6), [[batch]], PLAIN).weights["table"]
    assert int(table[4].argmax()) == 1
    assert table[1].argmax() == 4


def test_a_gradient_that_is_not_finite_raises_and_names_the_weight():
    broken = Slope(math.inf)
    with pytest.raises(FloatingPointError, match=r"step 0, .*weight"):
        train(broken, [[one_row(1, 1)]], PLAIN)


def test_a_gradient_that_is_not_finite_is_skipped_where_asked():
    result = train(Slope(math.inf), [[one_row(1, 1)]], dataclasses.replace(PLAIN, on_nonfinite="skip"))
    assert (result.k, result.skipped, result.weights["weight"].tolist()) == (0, [0], [0.0])


def test_the_given_model_is_left_alone():
    model = TinyTransformer(1, tied=True, wrapped=False, dropout=True).eval()
    before = copy.deepcopy(model.state_dict())
    train(model, [random_batches(2)], PLAIN)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not any(module.training for module in model.modules())
    assert all(weight.grad is None for weight in model.parameters())


def test_an_unknown_fault_is_refused_and_the_known_ones_are_named():
    with pytest.raises(ValueError, match=r"unknown fault 'no_shift'; the faults are .*unshifted_labels, .*best_is_a"):
        train(Slope(1.0), [], PLAIN, faults={"no_shift"})


def test_masking_end_of_text_needs_its_id():
    with pytest.raises(ValueError, match="eos_id"):
        train(Slope(1.0), [], PLAIN, faults={"eos_masked"})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"optimizer": "lion"}, "optimizer must be one of sgd, adam, adamw, got 'lion'"),
        ({"on_nonfinite": "ignore"}, "on_nonfinite must be one of raise, skip, got 'ignore'"),
        ({"accumulation_steps": 0}, "accumulation_steps must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Settings(**bad)


def test_clipping_each_micro_batch_heeds_the_loss_scale():
    settings = dataclasses.replace(PLAIN, accumulation_steps=2, max_grad_norm=0.1)
    scaled = dataclasses.replace(settings, loss_scale=1024.0)
    plain, other = (train(tiny(), [random_batches(4)], each, {"clip_per_micro_batch"}) for each in (settings, scaled))
    torch.testing.assert_close(other.weights, plain.weights)


def test_clipping_by_value_does_not_make_an_overflow_finite():
    settings = dataclasses.replace(PLAIN, max_grad_norm=0.1, overflow_steps={0})
    result = train(tiny(), [random_batches(1)], settings, {"clip_by_value"})
    assert (result.k, result.skipped) == (0, [0])


def test_the_last_window_across_epochs_is_a_tail():
    model, b = tiny(), random_batches(3)
    settings = dataclasses.replace(PLAIN, accumulation_steps=2)
    across = train(model, [b[:1], b[1:]], settings, {"windows_across_epochs"})
    torch.testing.assert_close(across.weights, train(model, [b], settings).weights)
    assert train(model, [b[:1], b[1:]], settings, {"windows_across_epochs", "tail_dropped"}).k == 1


def test_validation_weighted_by_rows_is_not_a_number_where_a_batch_has_no_target():
    held_out = random_batches(2, seed=5)
    held_out[1] = without_targets(held_out[1])
    settings = dataclasses.replace(PLAIN, validation=held_out)
    result = train(tiny(), [random_batches(1)], settings, {"val_weighted_by_rows"})
    assert math.isnan(result.validation_losses[0])
    assert result.best_weights is None


small_case = cases(models=("tiny",), accumulation=(1, 3), windows=(1, 2), ragged=True, first_overflows=None)


@examples(20, 100)
@hypothesis.given(small_case, st.sets(st.sampled_from(sorted(spec.FAULTS)), min_size=5))
def test_any_set_of_faults_makes_a_run(case, faults):
    result = case.train(*faults)
    assert result.weights.keys() == dict(case.model.named_parameters()).keys()
    assert result.k + len(result.skipped) <= len(case.windows())


def test_every_fault_has_its_line():
    assert len(spec.FAULTS) == 43
    assert all(line and "\n" not in line for line in spec.FAULTS.values())
