"""Clipping by the global norm: what is measured, what is scaled, and what is left alone."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from course_lm.clipping import clip_gradients


def parameter_with_gradient(gradient: list[float] | Tensor | None) -> nn.Parameter:
    if gradient is None:
        return nn.Parameter(torch.ones(3))
    gradient = torch.as_tensor(gradient, dtype=torch.float32)
    parameter = nn.Parameter(torch.ones_like(gradient))
    parameter.grad = gradient.clone()
    return parameter


def gradients_of(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def random_parameters(seed: int, scale: float = 1.0) -> list[nn.Parameter]:
    """Parameters of several shapes, one of them without a gradient."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 3), (5,), (2, 2, 2), (1,)]
    gradients = [torch.randn(shape, generator=generator) * scale for shape in shapes]
    return [parameter_with_gradient(gradient) for gradient in (*gradients, None)]


def test_three_four_five_is_scaled_to_length_one():
    parameter = parameter_with_gradient([3.0, 4.0])
    assert float(clip_gradients([parameter], 1.0)) == 5.0
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8]))


def test_the_norm_is_global_and_not_one_per_parameter():
    three, four = parameter_with_gradient([3.0]), parameter_with_gradient([4.0])
    assert float(clip_gradients([three, four], 1.0)) == 5.0
    torch.testing.assert_close(three.grad, torch.tensor([0.6]))
    torch.testing.assert_close(four.grad, torch.tensor([0.8]))


def test_a_frozen_parameter_without_gradient_takes_no_part():
    frozen, trained = parameter_with_gradient(None).requires_grad_(False), parameter_with_gradient([3.0, 4.0])
    assert float(clip_gradients([frozen, trained], 1.0)) == 5.0
    assert frozen.grad is None
    torch.testing.assert_close(trained.grad, torch.tensor([0.6, 0.8]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 100), st.floats(0.01, 100))
def test_norm_and_gradients_equal_torch_clip_grad_norm(seed, scale, max_norm):
    ours, theirs = random_parameters(seed, scale), random_parameters(seed, scale)
    norm = clip_gradients(ours, max_norm)
    expected_norm = nn.utils.clip_grad_norm_(theirs, max_norm)
    assert torch.equal(norm, expected_norm)
    for gradient, expected in zip(gradients_of(ours), gradients_of(theirs), strict=True):
        assert torch.equal(gradient, expected)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 100), st.floats(0.01, 10))
def test_the_clipped_norm_is_the_smaller_of_norm_and_limit(seed, scale, max_norm):
    parameters = random_parameters(seed, scale)
    before = float(clip_gradients(parameters, max_norm))
    after = float(clip_gradients(parameters, None))
    assert after == pytest.approx(min(before, max_norm), rel=1e-3)


@pytest.mark.parametrize("max_norm", [None, math.inf, 6.0])
def test_gradients_within_the_limit_stay_bit_for_bit(max_norm):
    parameter = parameter_with_gradient([3.0, 4.0])
    assert float(clip_gradients([parameter], max_norm)) == 5.0
    assert gradients_of([parameter])[0].tolist() == [3.0, 4.0]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_non_finite_norm_is_reported_and_the_gradients_are_left(bad):
    healthy, broken = parameter_with_gradient([30.0, 40.0]), parameter_with_gradient([bad, 1.0])
    norm = clip_gradients([healthy, broken], 1.0)
    assert not norm.isfinite()
    assert gradients_of([healthy])[0].tolist() == [30.0, 40.0]
    torch.testing.assert_close(broken.grad, torch.tensor([bad, 1.0]), equal_nan=True)


def test_zero_gradients_stay_zero():
    parameter = parameter_with_gradient([0.0, 0.0])
    assert float(clip_gradients([parameter], 1.0)) == 0.0
    assert gradients_of([parameter])[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("max_norm", [1.0, None])
@pytest.mark.parametrize("parameters", [[], [parameter_with_gradient(None)]])
def test_without_gradients_the_norm_is_zero(parameters, max_norm):
    assert float(clip_gradients(parameters, max_norm)) == 0.0


def test_parameters_may_come_from_a_generator():
    model = nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    assert float(clip_gradients(model.parameters(), 1.0)) == pytest.approx(math.sqrt(8))
    assert float(clip_gradients(model.parameters(), None)) == pytest.approx(1.0, rel=1e-5)


def test_the_returned_norm_is_not_part_of_a_graph():
    assert not clip_gradients(random_parameters(0), 1.0).requires_grad


def test_clipping_needs_no_value_on_the_host():
    # Tensors on the meta device have no values, so any read of one raises.
    parameter = nn.Parameter(torch.empty(3, 2, device="meta"))
    parameter.grad = torch.empty(3, 2, device="meta")
    assert clip_gradients([parameter], 1.0).is_meta


@pytest.mark.parametrize("max_norm", [0.0, -1.0, math.nan])
def test_a_limit_that_is_not_positive_is_refused(max_norm):
    with pytest.raises(ValueError, match=f"max_norm must be a positive number or None, got {max_norm}"):
        clip_gradients([parameter_with_gradient([1.0])], max_norm)
