"""The specification by itself: against torch, against hand-made numbers, against loops with a mistake in them."""

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
    concatenated,
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


def same_size_batches(number: int) -> list[Batch]:
    rng = random.Random(1)
    return [one_row(1, *(rng.randrange(2, 13) for _ in range(5)), 1) for _ in range(number)]


def tiny(seed: int = 0, *, dropout: bool = False) -> nn.Module:
    return make_model(random.Random(seed), "tiny", dropout=dropout)


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    output = model(batch["input_ids"], attention_mask=batch["attention_mask"])
    logits = output if isinstance(output, Tensor) else output.logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def assert_weights(got: dict[str, Tensor], model_or_weights: nn.Module | dict[str, Tensor]) -> None:
    if isinstance(model_or_weights, nn.Module):
        model_or_weights = {name: weight.detach() for name, weight in model_or_weights.named_parameters()}
    assert got.keys() == model_or_weights.keys()
    difference = torch.stack([(got[name] - weight).norm() for name, weight in model_or_weights.items()]).norm()
    assert difference <= 1e-11 * torch.stack([weight.norm() for weight in got.values()]).norm()


def groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    matrices, vectors = ([w for w in trained if (w.ndim >= 2) == matrix] for matrix in (True, False))
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]]], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.8, foreach=False),
    "adam": lambda params: torch.optim.Adam(params, lr=0.05, betas=(0.8, 0.95), eps=1e-6, foreach=False),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.05, betas=(0.8, 0.95), eps=1e-6, foreach=False),
}


HYPERPARAMETERS: dict[str, Any] = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6, "momentum": 0.8, "max_grad_norm": 0.5}


def train_by_torch(
    model: nn.Module, batches: list[Batch], optimizer: torch.optim.Optimizer, max_norm: float = math.inf
) -> None:
    for batch in batches:
        optimizer.zero_grad()
        mean_loss(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_moments_equal_those_of_torch(name, decay):
    model, batches = tiny(), random_batches(6)
    settings = Settings(optimizer=name, schedule=lambda k: 0.05, weight_decay=decay, **HYPERPARAMETERS)
    result = train(model, [batches], settings)
    optimizer = OPTIMIZERS[name](groups(model, decay))
    train_by_torch(model, batches, optimizer, max_norm=0.5)
    assert_weights(result.weights, model)
    for weight_name, weight in model.named_parameters():
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


def careless_loss(model: nn.Module, batch: Batch, mistakes: set[str]) -> Tensor:
    """The mean loss of one micro-batch, as many a tutorial takes it."""
    labels = batch["labels"]
    if "shifted_twice" in mistakes:
        labels = F.pad(labels[:, 1:], (0, 1), value=-100)
    mask = {} if "mask_forgotten" in mistakes else {"attention_mask": batch["attention_mask"]}
    output = model(batch["input_ids"], **mask)
    logits = output if isinstance(output, Tensor) else output.logits
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")  # (B, T - 1)
    if "pads_divide" in mistakes:
        return losses.mean()
    targets = (labels[:, 1:] != -100).sum(dim=1)  # (B,)
    return (losses.sum(dim=1) / targets).mean() if "row_means" in mistakes else losses.sum() / targets.sum()


def careless_clip(model: nn.Module, norm: float, mistakes: set[str]) -> None:
    if "clip_by_value" in mistakes:
        nn.utils.clip_grad_value_(model.parameters(), norm)
    elif "clip_per_tensor" in mistakes:
        for weight in model.parameters():
            nn.utils.clip_grad_norm_(weight, norm)
    else:
        nn.utils.clip_grad_norm_(model.parameters(), norm)


def careless_loop(model: nn.Module, epochs: list[list[Batch]], settings: Settings, mistakes: set[str]) -> nn.Module:
    """The loop of many a tutorial. It is right where all micro-batches hold as many targets and no tail is left."""
    model = copy.deepcopy(model)
    steps, norm = settings.accumulation_steps, settings.max_grad_norm or math.inf
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.schedule(0), momentum=settings.momentum)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: settings.schedule(k) / settings.schedule(0))
    another_clock = {"schedule_off_by_one", "schedule_per_micro_batch", "schedule_per_epoch", "schedule_never_moves"}
    seen = 0
    for batches in epochs:
        if "optimizer_per_epoch" in mistakes:
            optimizer.state.clear()
        for index, batch in enumerate(batches, start=seen + 1):
            if "zero_grad_per_micro_batch" in mistakes:
                optimizer.zero_grad()
            divisor = 1 if "accumulation_not_divided" in mistakes else steps
            (careless_loss(model, batch, mistakes) / divisor).backward()
            if "bf16_gradients" in mistakes:
                for weight in model.parameters():
                    weight.grad = None if weight.grad is None else weight.grad.bfloat16().double()
            if "clip_per_micro_batch" in mistakes or index % steps == 0:
                careless_clip(model, norm, mistakes)
            if index % steps == 0:
                if "schedule_off_by_one" in mistakes:
                    scheduler.step()
                optimizer.step()
                if "missing_zero_grad" not in mistakes:
                    optimizer.zero_grad()
            late = not mistakes & another_clock
            if "schedule_per_micro_batch" in mistakes or (late and index % steps == 0):
                scheduler.step()
        if "schedule_per_epoch" in mistakes:
            scheduler.step()
        if "windows_across_epochs" in mistakes:
            seen += len(batches)
    return model


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("faults", "batches"),
    [
        (set(), same_size_batches(4)),
        ({"accumulation_not_divided"}, same_size_batches(4)),
        ({"zero_grad_per_micro_batch"}, same_size_batches(4)),
        ({"missing_zero_grad"}, same_size_batches(4)),
        ({"clip_per_micro_batch"}, same_size_batches(4)),
        ({"schedule_per_micro_batch"}, same_size_batches(4)),
        ({"schedule_off_by_one"}, same_size_batches(4)),
        ({"schedule_per_epoch"}, same_size_batches(4)),
        ({"schedule_never_moves"}, same_size_batches(4)),
        ({"optimizer_per_epoch"}, same_size_batches(4)),
        ({"clip_by_value"}, same_size_batches(4)),
        ({"clip_per_tensor"}, same_size_batches(4)),
        ({"clip_per_micro_batch", "clip_by_value"}, same_size_batches(4)),
        ({"bf16_gradients"}, same_size_batches(4)),
        ({"shifted_twice"}, same_size_batches(4)),
        ({"windows_across_epochs"}, same_size_batches(5)),
        ({"mean_of_means"}, random_batches(4)),
        ({"mean_of_means", "pads_divide"}, random_batches(4)),
        ({"mean_of_means", "row_means"}, random_batches(4)),
        ({"mean_of_means", "mask_forgotten"}, random_batches(4, left=True)),
        ({"tail_leaks", "tail_divided_by_full"}, same_size_batches(5)),
    ],
    ids=lambda value: "+".join(sorted(value)) or "none" if isinstance(value, set) else "",
)
def test_a_loop_with_the_mistake_leaves_the_weights_of_the_fault(faults, batches):
    model = tiny(seed=3)
    norm = {"clip_per_micro_batch": 0.3, "clip_by_value": 0.05, "clip_per_tensor": 0.05}
    settings = dataclasses.replace(
        PLAIN,
        accumulation_steps=2,
        max_grad_norm=next((bound for fault, bound in norm.items() if fault in faults), None),
        momentum=0.9 if "optimizer_per_epoch" in faults else 0.0,
        loss_scale=1024.0 if "clip_per_micro_batch" in faults else 1.0,
    )
    epochs = [batches, batches]
    assert_weights(train(model, epochs, settings, faults).weights, careless_loop(model, epochs, settings, faults))


def test_clipping_scaled_gradients_is_what_a_scaler_without_unscale_does():
    model, batch = tiny(seed=3), random_batches(1)[0]
    settings = dataclasses.replace(PLAIN, max_grad_norm=0.5, loss_scale=256.0)
    result = train(model, [[batch]], settings, {"clip_before_unscale"})
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.schedule(0))
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(mean_loss(model, batch)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    assert_weights(result.weights, model)


@pytest.mark.parametrize(
    ("fault", "optimizer_type", "has_groups"),
    [("coupled_decay", torch.optim.Adam, True), ("decays_everything", torch.optim.AdamW, False)],
)
def test_a_fault_of_the_decay_is_another_torch_optimizer(fault, optimizer_type, has_groups):
    model, batches = tiny(), random_batches(3)
    result = train(model, [batches], Settings(schedule=lambda k: 0.05, weight_decay=0.3), {fault})
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    params: Any = groups(model, 0.3) if has_groups else trained
    optimizer = optimizer_type(params, lr=0.05, weight_decay=0.3, foreach=False)
    train_by_torch(model, batches, optimizer)
    assert_weights(result.weights, model)


def test_exchanged_betas_are_those_of_torch_the_other_way_round():
    model, batches = tiny(), random_batches(3)
    settings = Settings(schedule=lambda k: 0.05, beta1=0.8, beta2=0.95)
    result = train(model, [batches], settings, {"betas_exchanged"})
    optimizer = torch.optim.AdamW(groups(model, 0.0), lr=0.05, betas=(0.95, 0.8), foreach=False)
    train_by_torch(model, batches, optimizer)
    assert_weights(result.weights, model)


def test_decay_at_the_peak_rate_is_as_strong_in_every_step():
    model, batches = tiny(), random_batches(3)
    rates = [0.01, 0.1, 0.05]
    settings = Settings(schedule=rates.__getitem__, weight_decay=0.3)
    result = train(model, [batches], settings, {"decay_at_peak_rate"})
    optimizer = torch.optim.AdamW(groups(model, 0.0), foreach=False)
    for batch, rate in zip(batches, rates, strict=True):
        optimizer.zero_grad()
        mean_loss(model, batch).backward()
        for group in optimizer.param_groups:
            group["lr"] = rate
        for weight in groups(model, 0.0)[0]["params"]:
            weight.data.mul_(1 - 0.1 * 0.3)
        optimizer.step()
    assert_weights(result.weights, model)


def test_without_bias_correction_adams_first_step_is_the_longer_by_the_moments_start_at_zero():
    settings = Settings(schedule=lambda k: 0.01, epsilon=0.0)
    weights = train(Slope(2.0), [[one_row(1, 1)]], settings, {"no_bias_correction"}).weights
    assert weights["weight"].tolist() == [pytest.approx(-0.01 * 0.1 / math.sqrt(0.001), rel=1e-12)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_on_an_empty_window_is_what_torch_makes_of_a_mean_over_nothing(name):
    model, b = tiny(), random_batches(3)
    batches = [b[0], without_targets(b[1]), b[2]]
    settings = Settings(optimizer=name, schedule=Decay(0.05, 0.7), weight_decay=0.3, **HYPERPARAMETERS)
    result = train(model, [batches], settings, {"steps_on_empty_window"})
    optimizer = OPTIMIZERS[name](groups(model, 0.3))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.7**k)
    for batch in batches:
        optimizer.zero_grad()
        mean_loss(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
    assert_weights(result.weights, model)
    assert (result.k, result.skipped, result.norms[1]) == (3, [], 0.0)
    assert math.isnan(result.losses[1])


def test_validation_weighted_by_rows_is_the_mean_of_the_batches_means_each_repeated_for_its_rows():
    model, held_out = tiny(), [concatenated(random_batches(3, seed=6)), *random_batches(2, seed=5)]
    rows = [len(batch["labels"]) for batch in held_out]
    settings = dataclasses.replace(PLAIN, schedule=lambda k: 0.0, validation=held_out)
    result = train(model, [random_batches(1)], settings, {"val_weighted_by_rows"})
    means = [mean_loss(model, batch).item() for batch, number in zip(held_out, rows) for _ in range(number)]
    assert len(set(rows)) > 1
    assert result.validation_losses == [pytest.approx(sum(means) / len(means), rel=1e-13)]
    assert result.validation_losses != train(model, [random_batches(1)], settings).validation_losses


def test_validation_weighted_by_rows_is_not_a_number_where_a_batch_has_no_target():
    held_out = random_batches(2, seed=5)
    held_out[1] = without_targets(held_out[1])
    settings = dataclasses.replace(PLAIN, validation=held_out)
    result = train(tiny(), [random_batches(1)], settings, {"val_weighted_by_rows"})
    assert math.isnan(result.validation_losses[0])
    assert result.best_weights is None


def test_a_second_shift_makes_up_for_a_loss_that_does_not_shift():
    model, batches = tiny(), random_batches(3)
    both = train(model, [batches], PLAIN, {"unshifted_labels", "shifted_twice"})
    assert_weights(both.weights, train(model, [batches], PLAIN).weights)


def test_row_means_alone_weigh_all_rows_of_a_window_the_same():
    model, batches = tiny(), random_batches(2)
    rows: list[Batch] = [
        {name: batch[name][[row]] for name in batch if name != "num_bytes"} for batch in batches for row in (0, -1)
    ]
    two_rows = [concatenated(rows[:2]), concatenated(rows[2:])]
    got = train(model, [two_rows], dataclasses.replace(PLAIN, accumulation_steps=2), {"row_means"})
    one_by_one = train(model, [rows], dataclasses.replace(PLAIN, accumulation_steps=4), {"mean_of_means"})
    assert_weights(got.weights, one_by_one.weights)


def test_a_window_across_epochs_is_read_before_and_after_the_validation():
    model, (before, after) = tiny(dropout=True), same_size_batches(2)
    settings = dataclasses.replace(PLAIN, accumulation_steps=2, validation=random_batches(1, seed=5))
    result = train(model, [[before], [after]], settings, {"windows_across_epochs", "stays_in_eval_mode"})
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.schedule(0))
    (mean_loss(model.train(), before) / 2).backward()
    (mean_loss(model.eval(), after) / 2).backward()
    optimizer.step()
    assert_weights(result.weights, model)
    assert result.validation_losses[0] > result.validation_losses[1]


def test_the_last_window_across_epochs_is_a_tail():
    model, b = tiny(), random_batches(3)
    settings = dataclasses.replace(PLAIN, accumulation_steps=2)
    across = train(model, [b[:1], b[1:]], settings, {"windows_across_epochs"})
    assert_weights(across.weights, train(model, [b], settings).weights)
    assert train(model, [b[:1], b[1:]], settings, {"windows_across_epochs", "tail_dropped"}).k == 1


def test_clipping_by_value_does_not_make_an_overflow_finite():
    settings = dataclasses.replace(PLAIN, max_grad_norm=0.1, overflow_steps={0})
    result = train(tiny(), [random_batches(1)], settings, {"clip_by_value"})
    assert (result.k, result.skipped) == (0, [0])


@pytest.mark.parametrize("fault", ["validation_in_train_mode", "val_label_smoothing"])
def test_a_fault_of_the_validation_shows_in_its_loss_and_in_no_weight(fault):
    model, batches, held_out = tiny(dropout=True), random_batches(2), random_batches(3, seed=5)
    settings = dataclasses.replace(PLAIN, validation=held_out)
    result = train(model, [batches], settings, {fault})
    assert_weights(result.weights, train(model, [batches], settings).weights)
    model.load_state_dict(result.weights, strict=False)
    model.train(fault == "validation_in_train_mode")
    whole = concatenated(held_out)
    output = model(whole["input_ids"], attention_mask=whole["attention_mask"])
    logits = output if isinstance(output, Tensor) else output.logits
    expected = F.cross_entropy(
        logits[:, :-1].flatten(0, 1),
        whole["labels"][:, 1:].flatten(),
        label_smoothing=0.1 if fault == "val_label_smoothing" else 0.0,
    )
    assert result.validation_losses == [pytest.approx(expected.item(), rel=1e-12)]


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
