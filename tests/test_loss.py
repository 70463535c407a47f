"""The next-token loss: what it scores, what it ignores, and in which precision."""

import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from course_lm.loss import (
    LossConfig,
    build_loss,
    count_correct,
    count_targets,
    next_token_loss,
    perplexity,
)

IGNORE = -100


def random_case(seed: int, *, batch: int = 3, length: int = 6, vocab: int = 7, ignored: float = 0.3):
    """Float64 logits that require a gradient, and labels of which a share is ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, length, vocab, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, vocab, (batch, length), generator=generator)
    labels[torch.rand(batch, length, generator=generator) < ignored] = IGNORE
    return logits, labels


def token_losses_by_hand(logits: Tensor, labels: Tensor) -> list[float]:
    """-log p of each target, one position at a time, straight from the definition of softmax."""
    losses = []
    for row in range(labels.shape[0]):
        for t in range(labels.shape[1] - 1):
            target = int(labels[row, t + 1])
            if target != IGNORE:
                scores = [math.exp(score) for score in logits[row, t].tolist()]
                losses.append(-math.log(scores[target] / sum(scores)))
    return losses


cases = st.builds(
    random_case,
    st.integers(0, 10_000),
    batch=st.integers(1, 4),
    length=st.integers(1, 8),
    vocab=st.integers(2, 9),
    ignored=st.sampled_from([0.0, 0.3, 0.9]),
)


@settings(max_examples=60)
@given(cases)
def test_sum_is_the_sum_of_minus_log_p_of_each_next_token(case):
    logits, labels = case
    expected = sum(token_losses_by_hand(logits, labels))
    assert next_token_loss(logits, labels, reduction="sum").item() == pytest.approx(expected, rel=1e-12)


@settings(max_examples=60)
@given(cases, st.sampled_from([(0.0, 0.0), (0.1, 0.0), (0.0, 0.01), (0.2, 0.5)]))
def test_the_three_reductions_agree(case, extras):
    logits, labels = case
    smoothing, z_loss = extras
    none, total, mean = (
        next_token_loss(logits, labels, reduction=reduction, label_smoothing=smoothing, z_loss=z_loss)
        for reduction in ("none", "sum", "mean")
    )
    assert none.shape == (labels.shape[0], labels.shape[1] - 1)
    assert (none[labels[:, 1:] == IGNORE] == 0).all()
    torch.testing.assert_close(none.sum(), total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mean, total / count_targets(labels), rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_a_thousand_times_larger_stay_finite_and_exact(dtype):
    logits, labels = random_case(2)
    large = (logits.detach() * 1000).to(dtype).requires_grad_()
    loss = next_token_loss(large, labels)
    loss.backward()
    # At this scale the softmax is a maximum: the loss is the distance to the best logit, up to exp(-gap).
    scores = large.detach()[:, :-1].double()
    gaps = scores.max(-1).values - scores.gather(-1, labels[:, 1:].clamp(min=0).unsqueeze(-1)).squeeze(-1)
    expected = gaps[labels[:, 1:] != IGNORE].mean()
    assert loss.item() == pytest.approx(float(expected), rel=1e-5)
    assert large.grad is not None and large.grad.isfinite().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_label_smoothing_equals_torch_on_shifted_tensors(smoothing):
    logits, labels = random_case(3)
    expected = F.cross_entropy(logits[:, :-1].reshape(-1, 7), labels[:, 1:].reshape(-1), label_smoothing=smoothing)
    torch.testing.assert_close(next_token_loss(logits, labels, label_smoothing=smoothing), expected)


def test_z_loss_adds_the_squared_log_normaliser_of_each_target():
    logits, labels = random_case(4)
    squares = [
        math.log(sum(math.exp(score) for score in logits[row, t].tolist())) ** 2
        for row in range(3)
        for t in range(5)
        if labels[row, t + 1] != IGNORE
    ]
    plain = next_token_loss(logits, labels, reduction="sum")
    penalised = next_token_loss(logits, labels, reduction="sum", z_loss=0.01)
    assert (penalised - plain).item() == pytest.approx(0.01 * sum(squares), rel=1e-12)


@pytest.mark.parametrize("extras", [{}, {"label_smoothing": 0.1}, {"z_loss": 0.1}])
def test_only_positions_with_a_target_get_a_gradient(extras):
    logits, labels = random_case(5)
    next_token_loss(logits, labels, reduction="sum", **extras).backward()
    assert logits.grad is not None
    has_target = F.pad(labels[:, 1:] != IGNORE, (0, 1), value=False)
    assert (logits.grad[~has_target] == 0).all()
    assert (logits.grad[has_target] != 0).any(-1).all()


def test_another_ignore_index_is_honoured():
    logits, labels = random_case(6)
    with_zero_ignored = labels.where(labels != IGNORE, 0)
    expected = next_token_loss(logits, with_zero_ignored.where(with_zero_ignored != 0, IGNORE))
    torch.testing.assert_close(next_token_loss(logits, with_zero_ignored, ignore_index=0), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_half_precision_logits_are_scored_in_float32(dtype, z_loss):
    logits, labels = random_case(7)
    half = logits.detach().to(dtype).requires_grad_()
    single = half.detach().float().requires_grad_()
    loss = next_token_loss(half, labels, z_loss=z_loss)
    expected = next_token_loss(single, labels, z_loss=z_loss)
    (loss + expected).backward()
    assert loss.dtype == torch.float32
    assert torch.equal(loss, expected)
    assert half.grad is not None and single.grad is not None
    assert torch.equal(half.grad, single.grad.to(dtype))


def test_a_sum_over_no_targets_is_zero_with_a_zero_gradient():
    logits, labels = random_case(9, ignored=1.0)
    loss = next_token_loss(logits, labels, reduction="sum", label_smoothing=0.1, z_loss=0.1)
    loss.backward()
    assert loss.item() == 0.0
    assert logits.grad is not None and (logits.grad == 0).all()


@pytest.mark.parametrize(("batch", "length"), [(3, 1), (0, 6)])
def test_rows_without_a_next_token_have_no_losses(batch, length):
    logits, labels = random_case(10, batch=batch, length=length)
    assert next_token_loss(logits, labels, reduction="none").shape == (batch, length - 1)
    assert next_token_loss(logits, labels, reduction="sum").item() == 0.0


def test_logits_in_another_memory_order_give_the_same_loss():
    logits, labels = random_case(11)
    reordered = logits.detach().permute(1, 2, 0).contiguous().permute(2, 0, 1)
    torch.testing.assert_close(next_token_loss(reordered, labels), next_token_loss(logits, labels))


def test_the_loss_needs_no_value_on_the_host():
    # Tensors on the meta device have no values, so any read of one raises.
    logits = torch.empty(2, 5, 7, device="meta")
    labels = torch.empty(2, 5, dtype=torch.int64, device="meta")
    assert next_token_loss(logits, labels, label_smoothing=0.1, z_loss=0.1).is_meta
    assert count_correct(logits, labels).is_meta


@settings(max_examples=40)
@given(cases)
def test_count_targets_counts_every_scored_token(case):
    logits, labels = case
    count = count_targets(labels)
    assert count.shape == () and count.dtype == torch.int64
    assert int(count) == len(token_losses_by_hand(logits, labels))


def test_count_correct_counts_best_guesses_among_targets():
    labels = torch.tensor([[0, 1, 2, IGNORE], [0, 2, 2, 0]])
    guesses = torch.tensor([[1, 0, 3, 3], [2, 2, 1, 1]])  # right, wrong, ignored | right, right, wrong
    scores = F.one_hot(guesses, 4).float()
    assert int(count_correct(scores, labels)) == 3
    assert int(count_correct(scores, labels.where(labels != IGNORE, 3), ignore_index=3)) == 3  # nor is 3 guessed right


@pytest.mark.parametrize(("loss", "expected"), [(0.0, 1.0), (2.0, math.e**2), (1000.0, math.inf), (math.nan, math.nan)])
def test_perplexity_is_the_exponential_and_never_overflows(loss, expected):
    for one in (loss, torch.tensor(loss, requires_grad=True)):
        assert perplexity(one) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("logits_shape", "labels_shape"), [((2, 5, 7), (2, 4)), ((2, 5, 7), (2, 5, 1)), ((10, 7), (10,))]
)
def test_shapes_that_do_not_fit_are_named(logits_shape, labels_shape):
    logits, labels = torch.zeros(logits_shape), torch.zeros(labels_shape, dtype=torch.int64)
    for function in (next_token_loss, count_correct):
        with pytest.raises(ValueError) as error:
            function(logits, labels)
        assert str(logits_shape) in str(error.value) and str(labels_shape) in str(error.value)
        assert "\n" not in str(error.value)


def test_labels_of_another_type_are_refused():
    with pytest.raises(ValueError, match=r"labels must be int64, got torch\.int32"):
        next_token_loss(torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.int32))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"reduction": "avg"}, 'reduction must be "mean", "sum" or "none", got \'avg\''),
        ({"label_smoothing": 1.5}, "label_smoothing must be in [0, 1], got 1.5"),
        ({"label_smoothing": math.nan}, "label_smoothing must be in [0, 1], got nan"),
        ({"z_loss": -1.0}, "z_loss must be a finite number of at least 0, got -1.0"),
    ],
)
def test_options_outside_their_range_are_refused(option, message):
    with pytest.raises(ValueError) as error:
        next_token_loss(*random_case(12), **option)
    assert str(error.value) == message


# By configuration


def test_without_numbers_the_configured_loss_is_the_plain_one_itself():
    assert build_loss(LossConfig()) is next_token_loss


@pytest.mark.parametrize(
    "numbers", [{"label_smoothing": 0.1}, {"z_loss": 1e-2}, {"label_smoothing": 0.3, "z_loss": 0.1}]
)
def test_the_configured_loss_is_one_with_these_numbers_and_can_be_pickled(numbers):
    config, case = LossConfig(**numbers), random_case(13)
    for loss_fn in (build_loss(config), pickle.loads(pickle.dumps(build_loss(config)))):
        torch.testing.assert_close(loss_fn(*case), next_token_loss(*case, **numbers), rtol=0, atol=0)
    assert not torch.isclose(build_loss(config)(*case), next_token_loss(*case), rtol=1e-3)
