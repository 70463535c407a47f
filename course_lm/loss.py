"""Next-token cross-entropy, and the counts that go with it.

Labels arrive unshifted, the same length as the logits, and are shifted here and nowhere else: the logits at
position t are scored against the label at t + 1. The shift moves the labels (one integer per token) and not
the logits (a vocabulary per token), so the logits are flattened as a view; the last position gets an
ignored label.

`train_step` divides by the number of targets itself, so a loss function of one's own must return the *sum* over the
targets, with a gradient. A mean would be divided twice, and no error would ever tell, so `loss_sum` checks for one.
"""

import inspect
import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from course_lm.validation import require, require_kinds

Reduction = Literal["mean", "sum", "none"]
IGNORED = -100  # the label of what is no target
_NUMBERS = {"ignore_index": IGNORED, "reduction": "mean", "label_smoothing": 0.0, "z_loss": 0.0}  # the defaults
_CALL = 'loss_fn(logits, labels, reduction="sum")'
_summing: dict[int, Callable[[], Any]] = {}  # losses that were seen to sum, by id: a loss need not be hashable


@dataclass(frozen=True)
class LossConfig:
    """What is trained on beside the plain next-token loss; validation has neither.

    Args:
        label_smoothing: share of each target that goes to all tokens alike, in [0, 1].
        z_loss: factor of logsumexp(logits)², which is added for each target (PaLM has 1e-4).

    Raises ValueError naming key, value and what is accepted.
    """

    label_smoothing: float = 0.0
    z_loss: float = 0.0

    def __post_init__(self) -> None:
        require_kinds(type(self), vars(self))
        require(0 <= self.label_smoothing <= 1, "label_smoothing", "in [0, 1]", self.label_smoothing)
        require(0 <= self.z_loss < math.inf, "z_loss", "a finite number of at least 0", self.z_loss)


def next_token_loss(
    logits: Float[Tensor, "B T V"],
    labels: Int64[Tensor, "B T"],
    *,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Float[Tensor, ""] | Float[Tensor, "B T-1"]:
    """Cross-entropy of each position's prediction of the next token, in nats.

    Labels are not shifted. Targets equal to `ignore_index` add nothing to the loss, the gradient or the count.
    float16 and bfloat16 logits are scored in float32; float64 stays float64.

    `reduction`: "mean" is the sum divided by the number of targets, and nan where there is none (a mean over
    nothing); "sum" is then 0 with a zero gradient; "none" gives (B, T - 1), 0 at ignored targets.

    `label_smoothing` in [0, 1] mixes the target with the uniform distribution (Szegedy et al. 2016, section
    7). `z_loss` adds z_loss * logsumexp(logits)² for each target, which holds the softmax normaliser near 1
    (Chowdhery et al. 2022, PaLM, section 5, with 1e-4).

    Raises ValueError for shapes that do not fit, labels that are not int64 or (on the CPU) outside [0, V), and options
    outside their range.
    """
    _check_inputs(logits, labels)
    _check_options(reduction, label_smoothing, z_loss)
    batch_size, length, vocab_size = logits.shape
    targets = F.pad(labels[:, 1:], (0, 1), value=ignore_index).reshape(-1)
    scores = logits.reshape(-1, vocab_size)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    over_targets = "none" if reduction == "none" else "sum"
    try:
        losses = F.cross_entropy(
            scores, targets, ignore_index=ignore_index, reduction=over_targets, label_smoothing=label_smoothing
        )
    except IndexError:
        raise ValueError(_out_of_range(targets, ignore_index, vocab_size)) from None
    if z_loss > 0:
        log_z_squared = scores.logsumexp(-1).square()
        penalties = z_loss * log_z_squared.masked_fill(targets == ignore_index, 0.0)
        losses = losses + (penalties if reduction == "none" else penalties.sum())
    if reduction == "none":
        return losses.view(batch_size, length)[:, :-1]
    if reduction == "mean":
        return losses / count_targets(labels, ignore_index)
    return losses


def count_targets(labels: Int64[Tensor, "B T"], ignore_index: int = -100) -> Int64[Tensor, ""]:
    """Number of target tokens in unshifted `labels` (B, T): a 0-d int64 tensor on the labels' device.

    The first label of each row is no target, because nothing precedes it. Raises ValueError for another shape.
    """
    if labels.ndim != 2:
        raise ValueError(f"labels must be (B, T), got shape {tuple(labels.shape)}")
    return (labels[:, 1:] != ignore_index).sum()


@torch.no_grad()
def count_correct(
    logits: Float[Tensor, "B T V"], labels: Int64[Tensor, "B T"], ignore_index: int = -100
) -> Int64[Tensor, ""]:
    """Number of targets that have the highest logit: a 0-d int64 tensor.

    `logits` (B, T, V), `labels` (B, T) not shifted; divide by `count_targets` for the accuracy. Raises
    ValueError for shapes that do not fit.
    """
    _check_inputs(logits, labels)
    targets = labels[:, 1:]
    hits = logits.argmax(-1)[:, :-1] == targets  # (B, T - 1)
    return (hits & (targets != ignore_index)).sum()


def perplexity(loss: float | Tensor) -> float:
    """exp(loss) for a mean loss in nats per token; inf where that exceeds a float, nan for nan."""
    value = loss.item() if isinstance(loss, Tensor) else loss
    try:
        return math.exp(value)
    except OverflowError:  # math.exp raises where torch.exp gives inf
        return math.inf


def build_loss(config: LossConfig) -> Callable[..., Tensor]:
    """`next_token_loss` with the configured numbers; where all of these are 0, the function itself."""
    return next_token_loss if config == LossConfig() else partial(next_token_loss, **asdict(config))


def is_same_loss(one: Callable[..., Tensor], other: Callable[..., Tensor]) -> bool:
    """Whether two losses that `adapt_loss` returned compute the same: `next_token_loss` with the same numbers."""
    if not (_is_next_token_loss(one) and _is_next_token_loss(other)):
        return one is other
    first, second = ({**_NUMBERS, **(loss.keywords if isinstance(loss, partial) else {})} for loss in (one, other))
    return first == second


def adapt_loss(loss_fn: Any) -> Callable[..., Tensor]:
    """The loss as it can be called here: torch's cross-entropy becomes the next-token loss, others stay themselves.

    Raises:
        TypeError: it cannot be called as `loss_fn(logits, labels, reduction="sum")`.
        ValueError: a cross-entropy with class weights, or one that ignores another label than -100.
    """
    if loss_fn is next_token_loss or _is_known(loss_fn):
        return loss_fn
    if loss_fn is F.cross_entropy:
        return next_token_loss
    # a subclass with a forward of its own computes something else, and stays itself
    if isinstance(loss_fn, nn.CrossEntropyLoss) and type(loss_fn).forward is nn.CrossEntropyLoss.forward:
        # its mean divides by the sum of the weights, a step by the number of targets
        if loss_fn.weight is not None:
            raise ValueError("loss_fn must weigh every token the same, got a CrossEntropyLoss with class weights")
        _require_ignored(loss_fn.ignore_index)
        return partial(next_token_loss, label_smoothing=loss_fn.label_smoothing)
    if isinstance(loss_fn, partial) and loss_fn.func is next_token_loss:
        _require_ignored(loss_fn.keywords.get("ignore_index", IGNORED))
    _check_call(loss_fn)
    return loss_fn


def loss_sum(loss_fn: Callable[..., Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of a batch, summed over its targets: a 0-d tensor with a gradient.

    The first time, a loss other than `next_token_loss` is called twice more, without gradients and on a single row, to
    check that it returns a sum; torch's random generators are left as they were.

    Raises:
        TypeError: it returned something else than a 0-d tensor.
        ValueError: its value has no gradient, or is a mean.
    """
    loss = loss_fn(logits, labels, reduction="sum")
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise TypeError(f"{_CALL} must return a 0-d tensor, got {got} from {_name(loss_fn)}")
    if not loss.requires_grad:
        raise ValueError(
            f"{_CALL} must return a loss with a gradient, got a value without one from {_name(loss_fn)}: "
            "it is detached, nothing in the model is trainable, or gradients are switched off"
        )
    if not _is_next_token_loss(loss_fn) and not _is_known(loss_fn):
        _check_that_it_sums(loss_fn, logits, labels)
    return loss


def _check_inputs(logits: Tensor, labels: Tensor) -> None:
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            "logits must be (B, T, V) and labels (B, T), "
            f"got logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        )
    if labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64, got {labels.dtype}")


def _out_of_range(targets: Tensor, ignore_index: int, vocab_size: int) -> str:
    wrong = targets[((targets < 0) | (targets >= vocab_size)) & (targets != ignore_index)]
    return f"labels must be in [0, {vocab_size}), the model's vocabulary, or {ignore_index}, got {int(wrong[0])}"


def _check_options(reduction: str, label_smoothing: float, z_loss: float) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction must be "mean", "sum" or "none", got {reduction!r}')
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
    if not 0 <= z_loss < math.inf:
        raise ValueError(f"z_loss must be a finite number of at least 0, got {z_loss}")


@torch.no_grad()
def _check_that_it_sums(loss_fn: Callable[..., Tensor], logits: Tensor, labels: Tensor) -> None:
    """Refuse a loss that has the same value for a row and for that row twice: it is a mean.

    A value of 0, NaN or infinity proves nothing; the loss is then tested again at the next batch.
    """
    fullest = (labels[:, 1:] != IGNORED).sum(1).argmax().view(1)  # a row without targets has the loss 0
    row, targets = logits.index_select(0, fullest), labels.index_select(0, fullest)
    devices = [logits.device] if logits.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            once = float(loss_fn(row, targets, reduction="sum"))
            twice = float(loss_fn(torch.cat([row, row]), torch.cat([targets, targets]), reduction="sum"))
    except Exception:  # a loss that is tied to its own batch, or that needs gradients, cannot be asked
        _remember(loss_fn)
        return
    if abs(twice - once) <= 0.01 * abs(once) and once != 0:
        raise ValueError(
            f'loss_fn must return the sum over the targets for reduction="sum", got a mean from {_name(loss_fn)}: '
            f"a row given twice has the same loss ({twice:g}) as given once ({once:g})"
        )
    if 0 < abs(once) < math.inf:
        _remember(loss_fn)


def _check_call(loss_fn: Any) -> None:
    if isinstance(loss_fn, type):
        raise TypeError(f"loss_fn must be callable as {_CALL}, got the class {loss_fn.__name__} itself")
    if not callable(loss_fn):
        raise TypeError(f"loss_fn must be callable as {_CALL}, got {type(loss_fn).__name__}")
    # a module's __call__ takes anything; what it really takes stands in its forward
    called = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
    try:
        inspect.signature(called).bind(None, None, reduction="sum")
    except TypeError as error:
        raise TypeError(f"loss_fn must be callable as {_CALL}, got {_name(loss_fn)}: {error}") from None
    except ValueError:
        return  # a function written in C may have no signature to look at


def _require_ignored(ignore_index: int) -> None:
    if ignore_index != IGNORED:
        raise ValueError(f"loss_fn must ignore the label {IGNORED}, as the count of targets does, got {ignore_index}")


def _is_next_token_loss(loss_fn: Any) -> bool:
    return (loss_fn.func if isinstance(loss_fn, partial) else loss_fn) is next_token_loss


def _is_known(loss_fn: Any) -> bool:
    known = _summing.get(id(_owner(loss_fn)))
    return known is not None and known() is _owner(loss_fn)


def _remember(loss_fn: Any) -> None:
    owner = _owner(loss_fn)
    key = id(owner)
    with suppress(TypeError):  # no weak reference to it: it is asked again
        _summing[key] = weakref.ref(owner, lambda _: _summing.pop(key, None))  # Python reuses the id of a dead object


def _owner(loss_fn: Any) -> Any:
    """The object that lives as long as the loss: Python makes a bound method anew each time that it is looked up."""
    return loss_fn.__self__ if inspect.ismethod(loss_fn) else loss_fn


def _name(loss_fn: Any) -> str:
    loss_fn = loss_fn.func if isinstance(loss_fn, partial) else loss_fn
    return getattr(loss_fn, "__qualname__", type(loss_fn).__name__)
