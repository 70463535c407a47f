"""Clipping by the global norm: what is measured, what is scaled, and what is left alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from course_lm.clipping import build_clip, clip_gradients, clip_values


def parameter_with_gradient(gradient: list[float] | Tensor | None) -> nn.Parameter:
    if gradient is None:
        return nn.Parameter(torch.ones(3))
    gradient = torch.as_tensor(gradient, dtype=torch.float32)
    parameter = nn.Parameter(torch.ones_like(gradient))
    parameter.grad = gradient.clone()
    return parameter


def gradients_of(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


SHAPES = [(4, 3), (5,), (2, 2, 2), (1,)]


def random_parameters(
    seed: int, scale: float = 1.0, dtypes: tuple[torch.dtype, ...] = (torch.float32,)
) -> list[nn.Parameter]:
    """Parameters of several shapes, their types taking turns, one of them without a gradient."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.ones(3))]
    for shape, dtype in zip(SHAPES, (dtypes * len(SHAPES))[: len(SHAPES)]):
        parameter = nn.Parameter(torch.ones(shape, dtype=dtype))
        parameter.grad = (torch.randn(shape, generator=generator) * scale).to(dtype)
        parameters.append(parameter)
    return parameters


BF16_ROUNDINGS = 3 * 2**-8  # of the norm, of the coefficient and of its product with a gradient
DTYPES = [  # and how near to the limit the norm comes after rounding
    ((torch.float32,), 1e-6),
    ((torch.float64,), 1e-14),
    ((torch.bfloat16,), BF16_ROUNDINGS),
    ((torch.float32, torch.bfloat16), BF16_ROUNDINGS),
    ((torch.float64, torch.float32), 1e-6),
]
of_each_dtype = pytest.mark.parametrize(("dtypes", "tolerance"), DTYPES)
seeds, scales, limits = st.integers(0, 10_000), st.floats(0.01, 100), st.floats(0.01, 100)


@of_each_dtype
@settings(max_examples=60)
@given(seeds, scales, limits)
def test_norm_and_gradients_equal_torch_clip_grad_norm(dtypes, tolerance, seed, scale, max_norm):
    ours, theirs = random_parameters(seed, scale, dtypes), random_parameters(seed, scale, dtypes)
    norm = clip_gradients(ours, max_norm)
    assert not norm.requires_grad
    expected_norm = nn.utils.clip_grad_norm_(theirs, max_norm)
    assert torch.equal(norm, expected_norm)
    for gradient, expected in zip(gradients_of(ours), gradients_of(theirs), strict=True):
        assert torch.equal(gradient, expected)


@pytest.mark.parametrize("max_norm", [None, math.inf, 6.0])
def test_gradients_within_the_limit_stay_bit_for_bit(max_norm):
    parameter = parameter_with_gradient([3.0, 4.0])
    assert float(clip_gradients([parameter], max_norm)) == 5.0
    assert gradients_of([parameter])[0].tolist() == [3.0, 4.0]


@pytest.mark.parametrize("max_norm", [1.0, None, math.inf])
@settings(max_examples=30)
@given(seeds, st.sampled_from([math.inf, -math.inf, math.nan]), st.integers(0, len(SHAPES) - 1))
def test_a_non_finite_norm_is_reported_and_the_gradients_are_left(max_norm, seed, bad, place):
    parameters = random_parameters(seed)
    gradients_of(parameters)[place].view(-1)[0] = bad
    before = [gradient.clone() for gradient in gradients_of(parameters)]
    assert not clip_gradients(parameters, max_norm).isfinite()
    torch.testing.assert_close(gradients_of(parameters), before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("max_norm", [1.0, None])
@pytest.mark.parametrize("parameters", [[], [parameter_with_gradient(None)]])
def test_without_gradients_the_norm_is_zero(parameters, max_norm):
    assert float(clip_gradients(parameters, max_norm)) == 0.0


def test_parameters_may_come_from_a_generator():
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    assert float(clip_gradients(model.parameters(), 1.0)) == pytest.approx(math.sqrt(8))
    assert float(clip_gradients(model.parameters(), None)) == pytest.approx(1.0, rel=1e-5)


def test_a_tied_weight_that_is_given_twice_counts_once():
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([weight, weight], 1.0) == 5
    torch.testing.assert_close(weight.grad, torch.tensor([0.6, 0.8]))


def test_three_four_five_is_scaled_to_length_one_also_as_a_tensor_alone():
    parameter = parameter_with_gradient([3.0, 4.0])
    assert float(clip_gradients(parameter, 1.0)) == 5.0
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8]))


def test_clipping_needs_no_value_on_the_host():
    # Tensors on the meta device have no values, so any read of one raises.
    parameter = nn.Parameter(torch.empty(3, 2, device="meta"))
    parameter.grad = torch.empty(3, 2, device="meta")
    assert clip_gradients([parameter], 1.0).is_meta


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan])
def test_a_limit_that_is_not_positive_is_refused(max_norm):
    with pytest.raises(ValueError, match=f"max_norm must be a positive number or None, got {max_norm}"):
        clip_gradients([parameter_with_gradient([1.0])], max_norm)


@pytest.mark.parametrize("max_value", [0.0, -1.0, math.nan, True, "1"])
def test_a_bound_on_values_that_is_none_is_refused(max_value):
    with pytest.raises((ValueError, TypeError), match="max_value must be a positive number or None, got "):
        clip_values([parameter_with_gradient([1.0])], None, max_value=max_value)


# By value


def test_numbers_are_cut_before_the_norm_is_bounded():
    parameter = parameter_with_gradient([1000.0, 1.0, -1.0])
    norm = clip_values([parameter], 1.0, max_value=1.0)
    assert float(norm) == pytest.approx(math.sqrt(1_000_002))  # of the gradient as it came
    torch.testing.assert_close(parameter.grad, torch.tensor([1.0, 1.0, -1.0]) / math.sqrt(3))


@of_each_dtype
@settings(max_examples=30)
@given(seeds, scales, limits)
def test_values_alone_are_clipped_as_torch_clips_them(dtypes, tolerance, seed, scale, max_value):
    mine, theirs = (random_parameters(seed, scale, dtypes) for _ in range(2))
    clip_values(mine, math.inf, max_value=max_value)
    nn.utils.clip_grad_value_(theirs, max_value)
    torch.testing.assert_close(gradients_of(mine), gradients_of(theirs), rtol=tolerance, atol=0)


@pytest.mark.parametrize("max_norm", [1.0, math.inf])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_bound_on_values_leaves_what_is_not_finite(bad, max_norm):
    parameters = [parameter_with_gradient([3.0, bad]), parameter_with_gradient([5.0])]
    assert not clip_values(parameters, max_norm, max_value=1.0).isfinite()
    torch.testing.assert_close(
        gradients_of(parameters), [torch.tensor([3.0, bad]), torch.tensor([5.0])], equal_nan=True
    )


def test_without_a_bound_on_values_a_step_clips_as_ever():
    assert build_clip(None) is clip_gradients
