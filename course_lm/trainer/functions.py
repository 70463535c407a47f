"""The loss and the clip of a run: what its configuration asks for, or a function of the user's own, never both."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from course_lm.clipping import build_clip, clip_values
from course_lm.config import TrainingConfig
from course_lm.guard import adapt_loss
from course_lm.loss import LossConfig, build_loss, next_token_loss
from course_lm.validation import shown

_NUMBERS = next_token_loss.__kwdefaults__ or {}  # what a loss has where it is given no others


def loss_of(config: TrainingConfig, given: Callable[..., Tensor] | None) -> Callable[..., Tensor]:
    """The loss that `given` stands for, or where it is None, the one that `config.loss` asks for.

    Raises:
        TypeError, ValueError: see `adapt_loss`; or the configuration asks for another one.
    """
    configured = build_loss(config.loss)
    if given is None:
        return configured
    loss_fn = adapt_loss(given)
    if config.loss != LossConfig() and not is_same_loss(loss_fn, configured):
        numbers = ", ".join(f"loss.{key} {shown(value)}" for key, value in vars(config.loss).items())
        raise ValueError(f"{numbers} would not be heeded beside a loss_fn of your own: give one of the two")
    return loss_fn


def clip_of(config: TrainingConfig, given: Callable[..., object] | None) -> Callable[..., object]:
    """The clip that is `given`, or where it is None, the one that `training.max_grad_value` asks for.

    Raises:
        ValueError: the configuration asks for another one.
    """
    value = config.training.max_grad_value
    if given is None:
        return build_clip(value)
    same = isinstance(given, partial) and given.func is clip_values and given.keywords == {"max_value": value}
    if value is not None and not same:
        raise ValueError(
            f"training.max_grad_value {shown(value)} would not be heeded beside a clip of your own: give one of the two"
        )
    return given


def is_same_loss(one: Callable[..., Tensor], other: Callable[..., Tensor]) -> bool:
    """Whether two losses that `adapt_loss` returned compute the same: `next_token_loss` with the same numbers."""
    if any((loss.func if isinstance(loss, partial) else loss) is not next_token_loss for loss in (one, other)):
        return one is other
    first, second = ({**_NUMBERS, **(loss.keywords if isinstance(loss, partial) else {})} for loss in (one, other))
    return first == second
