"""What a person hands to training, looked at once, before anything changes: the one place for refusals.

A refusal is one line with the value, where it came from and what is accepted. `checked_options` looks at model,
optimizer, loss, clip and the rest when a step or a run is put together; `check_window` at the batches of a step when
they arrive, and more closely where a run begins with them.
What only shows while the model runs is looked at there: `loss_sum` at a loss, `check_gradients` at gradients.
"""

import inspect
import math
import warnings
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import eq, itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.optim.lr_scheduler import LRScheduler

from course_lm.batching import IGNORE_INDEX, Loader
from course_lm.checkpoints import OwnState
from course_lm.clipping import check_max_norm, clip_gradients
from course_lm.forward import (
    ANY,
    check_causal,
    device_of,
    in_words,
    inside_compiled,
    keywords_of,
    move_batch,
    packed_inputs,
    unwrap,
)
from course_lm.loss import next_token_loss
from course_lm.model import embedded_tokens, positions_of
from course_lm.optim import checked_rate, fills_a_block, group_rates
from course_lm.precision import Precision
from course_lm.reproducibility import check_default_device, generators_kept
from course_lm.shards import hold_parts, is_expanded, is_sharded, part_of
from course_lm.validation import require, shown

ON_NONFINITE = ("raise", "skip")
NEXT_TO_NEVER = 1e-9  # how likely a right batch may be to be refused by chance: a run has millions
# Whose update of a weight needs no other weight. Adafactor and Muon look at whole matrices, and a rank has parts of
# them.
_ELEMENTWISE = (Adam, AdamW, SGD, Adagrad, Adamax, NAdam, RAdam, RMSprop)
_CALL = 'loss_fn(logits, labels, reduction="sum")'
_WHOLE = (torch.int64, torch.int32)
_DTYPES = {  # of each part of a batch
    "input_ids": _WHOLE,
    "labels": (torch.int64,),  # F.cross_entropy takes no int32
    "attention_mask": (*_WHOLE, torch.bool, torch.uint8, torch.int8, torch.float32, torch.float64),
    "document_ids": _WHOLE,
    "position_ids": _WHOLE,
}
# how many parameters are held, and left out, where their memory was looked at, which takes as long as all else here
_looked_at: weakref.WeakKeyDictionary[Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
_begun: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models whose first batch was looked at
_summing: dict[int, Callable[[], Any]] = {}  # losses that were seen to sum, by id: a loss need not be hashable


class StepOptions(NamedTuple):
    """How steps are taken: the arguments of `train_step` of these names, looked at and completed."""

    loss_fn: Callable[..., Tensor]
    max_grad_norm: float | None
    clip: Callable[..., object]
    precision: Precision
    on_nonfinite: str
    process_group: dist.ProcessGroup | None
    generators: Sequence[Any] = ()  # held by model, loss or clip; seeded with the global ones


def checked_options(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    loss_fn: Callable[..., Tensor] = next_token_loss,
    max_grad_norm: float | None = 1.0,
    clip: Callable[..., object] = clip_gradients,
    precision: Precision | None = None,
    on_nonfinite: str = "raise",
    process_group: dist.ProcessGroup | None = None,
) -> StepOptions:
    """How to take steps with this model and optimizer, for `take_step`; the arguments are those of `train_step`.

    Raises:
        TypeError, ValueError: one of them cannot train the model.
    """
    require(on_nonfinite in ON_NONFINITE, "on_nonfinite", f"one of {', '.join(ON_NONFINITE)}", on_nonfinite)
    check_max_norm(max_grad_norm, "max_grad_norm")
    if clip is not clip_gradients:
        _check_call(clip, "clip must be callable as clip(parameters, max_grad_norm)", None, None)
        if max_grad_norm is None:
            raise ValueError("max_grad_norm None means no clipping, got it beside a clip of your own: give it, or inf")
    if device_of(model).type != "meta":  # on which a step only counts operations and bytes
        check_weights(model)
    if dist.is_available() and dist.is_initialized():
        hold_parts(model)
        process_group = process_group or _group_of(model)
    precision = checked_precision(precision, device_of(model))
    check_optimizer(optimizer, model)
    return StepOptions(adapt_loss(loss_fn), max_grad_norm, clip, precision, on_nonfinite, process_group)


def check_weights(model: nn.Module) -> None:
    """Refuse a model of which a weight has no numbers yet; ValueError names it."""
    for parameter in model.parameters() if isinstance(model, nn.Module) else ():
        if parameter.is_meta or is_lazy(parameter):
            how = "of a lazy module: call the model once on input_ids"
            if parameter.is_meta:
                how = "on the device meta: call to_empty(), and give it weights"
            raise ValueError(f"the model's weights must have numbers, got none for {name_of(parameter, model)}, {how}")


def checked_precision(precision: Precision | None, device: torch.device) -> Precision:
    """The precision of a model on this device: by default fp32.

    Raises:
        TypeError, ValueError: it is none, or one for another device, with which the model would compute in fp32; or
            torch's default device is another one.
    """
    check_default_device(device.type)
    if precision is not None and not isinstance(precision, Precision):
        raise TypeError(f"precision must be a Precision(name, device) or None, got {precision!r}")
    if precision is None or (precision.name == "fp32" and precision.device.type != device.type):
        return Precision("fp32", device)
    fits = precision.device.type == device.type
    require(fits, "precision", f"for the model's device {device.type}", str(precision.device))
    return precision


def check_window(
    model: nn.Module, micro_batches: object, process_group: dist.ProcessGroup | None, *, begins: bool = False
) -> None:
    """Refuse the micro-batches of a step unless they are a list of batches, each as `check_batch` wants it.

    Of batches on an accelerator the first one that a model is given is looked at more closely. Where a run `begins`
    with this window it is again, and the model is tried too: see `check_causal`.
    """
    # a generator would be empty after the first reading, and the targets are counted before the model runs
    if not isinstance(micro_batches, Sequence):
        one = isinstance(micro_batches, Mapping)
        got = "a single batch: put it in a list" if one else type(micro_batches).__name__
        raise TypeError(f"micro_batches must be a list of batches, got {got}")
    if process_group is not None and not micro_batches:
        raise ValueError("micro_batches must hold a batch on every rank, be it one without a target, got an empty list")
    module = unwrap(model)
    for batch in micro_batches:
        check_batch(model, batch, first=begins or module not in _begun)
        _begun.add(module)
    if begins and micro_batches:
        check_causal(module, micro_batches[0]["input_ids"].to(device_of(model)))


def check_batch(model: nn.Module, batch: object, *, first: bool = False) -> None:
    """Refuse a batch that is not a dict of tensors (B, T).

    It must hold `input_ids` and `labels`; `attention_mask`, `document_ids` and `position_ids` are optional. Values are
    looked at on the host, before a batch moves: on an accelerator an id outside the vocabulary ends the process with a
    message that names neither. Of a batch that is there already they are looked at if it is the `first` one alone, as
    every step would wait; but the mask always, where the model's forward takes none.

    Raises:
        TypeError: the batch is no dict, or a part of it no tensor.
        ValueError: a missing part, a wrong shape or dtype, an id outside the model's vocabulary, a mask of anything but
            0 and 1, PAD before a token where the model takes no mask, or documents, positions and mask that do not fit;
            or labels that `check_labels` refuses.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"a batch must be a dict with input_ids and labels, got {in_words(batch)}: give "
            '{"input_ids": ids, "labels": ids}, both (B, T) and neither shifted'
        )
    if batch.get("input_ids") is None or batch.get("labels") is None:
        raise ValueError(f"a batch must hold input_ids and labels, got {', '.join(map(str, batch)) or 'nothing'}")
    parts = {name: batch[name] for name in _DTYPES if batch.get(name) is not None}
    for name, part in parts.items():
        if not isinstance(part, Tensor):
            raise TypeError(f"{name} must be a tensor (B, T), got {in_words(part)}")
        if part.dtype not in _DTYPES[name]:
            accepted = " or ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES[name])
            raise ValueError(f"{name} must be {accepted}, got {str(part.dtype).removeprefix('torch.')}")
        if part.ndim != 2:
            raise ValueError(f"{name} must have the shape (B, T), got {tuple(part.shape)}")
        if part.shape != parts["input_ids"].shape:
            wanted = tuple(parts["input_ids"].shape)
            raise ValueError(f"{name} must have the shape of input_ids {wanted}, got {tuple(part.shape)}")
    module = unwrap(model)
    needs_right = not keywords_of(module) & {"attention_mask", ANY}
    read = set(parts if first else ["attention_mask"] * needs_right)
    host = {
        name: part.cpu()
        for name, part in parts.items()
        if part.device.type == "cpu" or (name in read and not part.is_meta)
    }
    if "attention_mask" in host:
        _check_mask(host["attention_mask"].numpy(), module, needs_right)
    if len(host) == len(parts):
        _check_vocabulary(host, embedded_tokens(module))
        _check_places(host)
        check_labels(host)


def check_labels(batch: Mapping[str, Any]) -> None:
    """Refuse labels that stand before or after their own tokens, at PAD, or where one document follows another.

    Each would train on without a word: a model of the token after next, or one that copies what it has read, or that
    predicts padding or another text.

    Raises:
        ValueError: the labels are such.
    """
    ids, labels = (batch[name].numpy() for name in ("input_ids", "labels"))
    targets, before, behind = labels != IGNORE_INDEX, np.s_[:, :-1], np.s_[:, 1:]
    for name, pad in (("document_ids", -1), ("attention_mask", 0)):
        if batch.get(name) is None:
            continue
        values = batch[name].numpy()
        if (wrong := targets & (values == pad)).any():
            place = f"where {name} is {pad}, got {wrong.sum()} others there: PAD is no target"
            raise ValueError(f"labels must be {IGNORE_INDEX} {place}")
        if pad < 0 and (wrong := targets[behind] & (values[behind] != values[before])).any():
            place = f"where a document begins behind another, got {wrong.sum()} others there: they are of two texts"
            raise ValueError(f"labels must be {IGNORE_INDEX} {place}")
    moved = targets & (labels != ids)
    if not moved.any():  # as almost always
        return
    # two targets in a row: one alone, such as a class, may have to be the token beside it
    pairs = targets[before] & targets[behind]
    for verb, here, there in (("follows", before, behind), ("precedes", behind, before)):
        same, suspect = pairs & (labels[here] == ids[there]), pairs & moved[here]
        # all, or most: where each document was shifted by itself its last label is in no row
        most = 2 * (same & suspect).sum() > pairs.sum() or (same == pairs).all()
        if most and _is_no_chance(labels[here][suspect].tolist(), ids[there][suspect].tolist()):
            raise ValueError(
                f"labels must stand at their own tokens, as the loss shifts them, got the token that {verb} at each: "
                'give the ids of the whole rows as "input_ids" and again as "labels"'
            )


def _is_no_chance(labels: list[int], tokens: list[int]) -> bool:
    """Whether so many of N labels are the token that each is compared with as by chance next to never are.

    Where chance makes a share p equal, it makes p + d equal with a probability of at most exp(-2 N d²) (Hoeffding 1963,
    "Probability Inequalities for Sums of Bounded Random Variables", theorem 1). So at least a dozen must be.
    """
    if not labels:
        return False
    size, counts = len(labels), Counter(tokens)
    chance = sum(map(counts.__getitem__, labels)) / size**2
    beyond = sum(map(eq, labels, tokens)) / size - chance
    return beyond > 0 and math.exp(-2 * size * beyond**2) < NEXT_TO_NEVER


def check_with_data(model: nn.Module, loader: Iterable[Any]) -> None:
    """Refuse, before the first step, what the first batch shows, and a model that mixes the documents of packed rows.

    Of a list the first batch and the one of the widest packed rows are looked at, and of this package's loader one is
    made, for its packed rows are all as wide. Another loader cannot be read without a trace: its batches are looked at
    when they come.

    Raises:
        TypeError, ValueError: see `check_batch`, `check_causal` and `packed_inputs`.
    """
    if isinstance(loader, Loader) and len(loader):
        loader = [loader.collate(loader.order(0)[0])]
    batches = loader if isinstance(loader, list | tuple) else []
    packed = [one for one in batches if isinstance(one, Mapping) and isinstance(one.get("document_ids"), Tensor)]
    widest = sorted(packed, key=lambda batch: batch["document_ids"].shape[-1:])[-1:]
    check_window(model, [*batches[:1], *widest], None, begins=True)
    for batch in widest:
        packed_inputs(unwrap(model), move_batch(batch, device_of(model)))


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    """Refuse an optimizer that cannot train the model; warn once of what it leaves out.

    A parameter that the optimizer does not hold never changes, and one in half precision loses most of its updates to
    rounding; both would train on without a word. An optimizer may hold others besides, such as weights of the loss.

    Raises:
        TypeError: no torch optimizer, or not made by its constructor, or accelerate's.
        ValueError: it holds none of the model's trainable parameters, one twice, or a trainable one in half precision;
            numbers of a weight, or two trained weights, share memory; it is fused and a parameter is no dense block of
            memory, or its moments lie in another order; or the parameters are sharded, and its update of a weight looks
            at others; or a group has no rate, or one that is NaN, infinite or negative.
    """
    _check_rule(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    held = {id(parameter): parameter for parameter in parameters}  # by id, as == would compare numbers
    if len(held) < len(parameters):
        (twice, _), *_ = Counter(map(id, parameters)).most_common(1)
        raise ValueError(f"optimizer must hold each weight once, got {name_of(held[twice], model)} twice")
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.numel()]
    left_out = [parameter for parameter in trainable if id(parameter) not in held]
    if trainable and len(left_out) == len(trainable):
        raise ValueError("optimizer must hold parameters of the model, got one that holds none of its trainable ones")
    for group in optimizer.param_groups:
        _check_group(group, type(optimizer).__name__)
    _check_sharded(optimizer, parameters)
    for parameter in parameters:
        # bfloat16 has 8 significant bits: an update below 1/512 of the weight always rounds to nothing
        if parameter.requires_grad and parameter.itemsize < 4:
            raise ValueError(
                f"trainable weights must be float32 or float64, got {parameter.dtype} for {name_of(parameter, model)}: "
                'updates would be rounded away; call model.float() and set the precision to "bf16"'
            )
    numbers = len(held), len(left_out)
    if _looked_at.get(optimizer) == numbers:
        return
    _check_memory([*model.parameters(), *parameters], model)
    _check_fused(optimizer, parameters, model)
    _looked_at[optimizer] = numbers
    if left_out:
        warnings.warn(
            f"the optimizer leaves out {len(left_out)} of the model's {len(trainable)} trainable parameters, first "
            f"{name_of(left_out[0], model)}: they will not change",
            stacklevel=4,  # the line that called train_step or built the Trainer
        )


def _check_rule(optimizer: Any) -> None:
    """Refuse what is no torch optimizer, or one that need not update when it is told to.

    torch's own refuse in a line, before a weight changes, what they cannot do: LBFGS wants a closure.
    """
    kind = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {shown(optimizer)}")
    if hasattr(optimizer, "gradient_state"):  # of accelerate, which drops the steps of a window but the last
        raise TypeError(f"optimizer must step when it is told to, got {kind}, which need not: give its .optimizer")
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise TypeError(f"optimizer must be made by torch's Optimizer.__init__, got {kind}, which does not call it")


def _check_group(group: Mapping[str, Any], kind: str) -> None:
    """Refuse a parameter group without a rate, or with one that is none; `kind` is the optimizer's class."""
    if "lr" not in group:
        raise ValueError(f'optimizer must have a rate "lr" in each of its groups, got {kind} with {[*group]}')
    # one on an accelerator is not read: the host would have to wait for it
    if not isinstance(group["lr"], Tensor) or group["lr"].device.type == "cpu":
        checked_rate(group["lr"], "the rate of a parameter group")


def _check_sharded(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Refuse an optimizer that would update the parts of a sharded weight otherwise than the whole."""
    if not any(map(is_sharded, parameters)):
        return
    if type(optimizer) not in _ELEMENTWISE:
        raise ValueError(
            "optimizer must update each weight by its own gradient alone where weights are sharded, got "
            f"{type(optimizer).__name__}: take one of {', '.join(sorted(one.__name__ for one in _ELEMENTWISE))}, or "
            'distributed.strategy "ddp"'
        )
    if isinstance(optimizer, SGD) and any(group.get("fused") for group in optimizer.param_groups):
        raise ValueError("optimizer must be SGD with fused=False where weights are sharded, got a fused one")


def _check_fused(optimizer: Optimizer, parameters: Iterable[Tensor], model: nn.Module) -> None:
    """Refuse a fused optimizer over a weight whose numbers its kernel would not take as they lie."""
    if not any(group.get("fused") for group in optimizer.param_groups):
        return
    for parameter in parameters:
        if not _may_be_fused(parameter, optimizer.state.get(parameter, {})):
            raise ValueError(
                "optimizer must be built with fused=False unless a weight and its moments are dense blocks of memory "
                f"in one order, got a fused {type(optimizer).__name__} for {name_of(parameter, model)} with strides "
                f"{parameter.stride()}"
            )


def _may_be_fused(parameter: Tensor, state: Mapping[str, Any]) -> bool:
    """Whether a fused kernel, which takes the numbers of a weight and its moments as they lie, takes the right ones."""
    alike = [parameter, *(one for one in state.values() if isinstance(one, Tensor) and one.shape == parameter.shape)]
    in_rows = all(one.is_contiguous() for one in alike)
    return in_rows or (fills_a_block(parameter) and len({one.stride() for one in alike}) == 1)


@torch.no_grad()
def _check_memory(parameters: Iterable[Tensor], model: nn.Module) -> None:
    """Refuse a weight with several numbers in one place, and two trained ones that share memory, but not as one."""
    end, other = 0, torch.empty(0)
    places = {id(one): (part_of(one).data_ptr(), one) for one in parameters}
    for start, parameter in sorted(places.values(), key=itemgetter(0)):
        part = part_of(parameter)
        if part.device.type not in ("cpu", "cuda"):  # elsewhere a pointer need be no address
            continue
        if is_expanded(part):
            raise ValueError(
                f"a weight must have a place in memory for each of its numbers, got {name_of(parameter, model)} with "
                f"strides {part.stride()}: take a clone() of it"
            )
        if not start or not parameter.requires_grad:  # torch gives an empty tensor the address 0
            continue
        if start < end:
            raise ValueError(
                f"two trained weights must not share memory, got {name_of(other, model)} and "
                f"{name_of(parameter, model)}: make them one parameter, or clone() one"
            )
        end, other = start + (part.nbytes if fills_a_block(part) else 1), parameter  # others may lie in between


def check_schedule(schedule: object) -> None:
    """Raise TypeError unless `schedule` is a function from the number of completed steps to a learning rate.

    One of torch's schedulers is none, nor is a number, a configuration, or a function that needs more arguments; nor,
    by a ValueError, one that counts how often it is asked or draws at random: a run asks more than once for a step.
    """
    accepted = "a schedule must be a function from completed steps to a learning rate, such as build_schedule returns"
    if isinstance(schedule, LRScheduler):
        name = type(schedule).__name__
        raise TypeError(f"{accepted}, got torch's {name}, which keeps its own count and would not be asked")
    _check_call(schedule, accepted, 0)
    rate, again = (checked_rate(schedule(0), f"the rate of {_name(schedule)}(0)") for _ in range(2))  # type: ignore[operator]
    if rate != again:
        raise ValueError(f"{accepted}, got {_name(schedule)}, which gave {rate:g} for 0 and then {again:g}")


def check_peak(optimizer: Optimizer, peak: float) -> None:
    """Refuse an optimizer that was built with another rate than the peak of the configured schedule, which sets it.

    The rates that a schedule has left in an optimizer say nothing: there the rate counts that it was built with.
    """
    rates = [float(group.get("initial_lr", group["lr"])) for group in optimizer.param_groups]
    fitting = [group_rates(optimizer, peak), [peak] * len(rates)]  # an `lr_scale` may not have been applied yet
    if optimizer.state:
        rates, fitting = [float(optimizer.defaults.get("lr", peak))], [[peak]]
    if not any(np.allclose(rates, wanted, rtol=1e-6, atol=0) for wanted in fitting):  # float32 has 7 digits
        raise ValueError(
            f"the optimizer's rate {max(rates):g} would not be heeded beside optimizer.learning_rate {peak:g}, the "
            "peak of the configured schedule: make them equal, or give a schedule of your own"
        )


def adapt_loss(loss_fn: Any) -> Callable[..., Tensor]:
    """The loss as it can be called here: torch's cross-entropy becomes the next-token loss, others stay themselves.

    Raises:
        TypeError: it cannot be called as `loss_fn(logits, labels, reduction="sum")`.
        ValueError: a cross-entropy with class weights, or one that ignores another label than -100.
    """
    if loss_fn is next_token_loss or loss_fn is F.cross_entropy:
        return next_token_loss
    # a subclass with a forward of its own computes something else, and stays itself
    if isinstance(loss_fn, nn.CrossEntropyLoss) and type(loss_fn).forward is nn.CrossEntropyLoss.forward:
        # its mean divides by the sum of the weights, a step by the number of targets
        if loss_fn.weight is not None:
            raise ValueError("loss_fn must weigh every token the same, got a CrossEntropyLoss with class weights")
        loss_fn = partial(next_token_loss, ignore_index=loss_fn.ignore_index, label_smoothing=loss_fn.label_smoothing)
    if isinstance(loss_fn, partial) and loss_fn.func is next_token_loss:
        ignored = loss_fn.keywords.get("ignore_index", IGNORE_INDEX)
        if ignored != IGNORE_INDEX:
            raise ValueError(
                f"loss_fn must ignore the label {IGNORE_INDEX}, as the count of targets does, got {ignored}"
            )
    elif _sums(loss_fn):
        return loss_fn
    _check_call(loss_fn, f"loss_fn must be callable as {_CALL}", None, None, reduction="sum")
    return loss_fn


def loss_sum(loss_fn: Callable[..., Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of a batch, summed over its targets: a 0-d tensor with a gradient.

    A step divides by the number of targets itself, so a mean would be divided twice, and no error would ever tell. The
    first time, a loss other than `next_token_loss` is called twice before, without gradients and on a single row, to
    check that it returns a sum; torch's random generators and all that the loss keeps are left as they were.

    Raises:
        TypeError: it returned something else than a 0-d tensor.
        ValueError: its value has no gradient, or is a mean.
    """
    if not _sums(loss_fn):
        _check_that_it_sums(loss_fn, logits, labels)
    loss = loss_fn(logits, labels, reduction="sum")
    if not isinstance(loss, Tensor) or loss.ndim != 0:
        raise TypeError(f"{_CALL} must return a 0-d tensor, got {in_words(loss)} from {_name(loss_fn)}")
    if not loss.requires_grad:
        raise ValueError(
            f"{_CALL} must return a loss with a gradient, got a value without one from {_name(loss_fn)}: "
            "it is detached, nothing in the model is trainable, or gradients are switched off"
        )
    return loss


def check_gradients(parameters: Sequence[Tensor], model: nn.Module, process_group: dist.ProcessGroup | None) -> None:
    """Refuse sparse gradients, no gradient at all, and ranks of a sharded model that have used different weights.

    Neither clipping nor the update rules here can take a sparse one. Each rank sends the gradients that it has, one
    after the other: what was added up may belong to different weights.

    Raises:
        ValueError: there are some.
    """
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            name = name_of(parameter, model)
            raise ValueError(
                f"gradients must be dense, got a sparse one for {name}: make the embedding with sparse=False"
            )
    if process_group is None and all(one.grad is None for one in (*parameters, *model.parameters())):
        problem = "got none: a hook has taken them, or the model computes with copies of its weights"
        raise ValueError(f"gradients must be there after backward(), {problem}")
    if process_group is None or not any(is_sharded(parameter) for parameter in parameters):
        return
    digest = zlib.crc32(bytes(parameter.grad is not None for parameter in parameters))
    # on the CPU where that group can, and the host waits for no accelerator
    device = "cpu" if "cpu" in dist.get_backend_config(process_group) else parameters[0].device
    extremes = torch.tensor([digest, -digest], device=device)
    dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=process_group)
    if int(extremes[0]) != -int(extremes[1]):
        raise ValueError(
            "the ranks of a sharded model must all use the same of its weights in a step, got gradients of others on "
            'some: take distributed.strategy "ddp"'
        )


def name_of(parameter: Tensor, model: nn.Module) -> str:
    """The parameter's name in the model; "unnamed" for one that belongs to something else, such as a loss."""
    return next((name for name, one in model.named_parameters() if one is parameter), "unnamed")


def _group_of(model: nn.Module) -> dist.ProcessGroup | None:
    """The ranks over which a model averages its gradients; None for a model of one process.

    Raises:
        ValueError: it is sharded over some of the ranks only, so that the others would train without it; or only a
            part of it averages.
    """
    inside: Any = model
    while not isinstance(inside, DistributedDataParallel) and (compiled := inside_compiled(inside)) is not None:
        inside = compiled
    if isinstance(inside, DistributedDataParallel):
        return inside.process_group
    if any(isinstance(one, DistributedDataParallel) for one in inside.modules()):
        raise ValueError(
            f"DistributedDataParallel must be around the whole model, got it inside {type(inside).__name__}: "
            "each rank would divide by its own tokens alone"
        )
    mesh = next((parameter.device_mesh for parameter in model.parameters() if is_sharded(parameter)), None)
    if mesh is None:
        return None
    if mesh.size() != dist.get_world_size():
        raise ValueError(f"the model is sharded over {mesh.size()} of {dist.get_world_size()} ranks; give all of them")
    return dist.group.WORLD


def _check_mask(mask: np.ndarray, module: nn.Module, needs_right: bool) -> None:
    """Refuse a mask that is none, and PAD before a token for a model without a mask: nothing later would show it."""
    if (wrong := mask[(mask != 0) & (mask != 1)]).size:
        raise ValueError(f"attention_mask must be 1 for a token and 0 for PAD, got {wrong[0]}")
    if needs_right and (mask[:, 1:] > mask[:, :-1]).any():
        raise ValueError(
            f"{type(module).__name__}.forward takes no attention_mask, so PAD must stand at the right of rows, "
            "got PAD before a token"
        )


def _check_vocabulary(parts: Mapping[str, Tensor], vocabulary: int | None) -> None:
    """Refuse ids and labels outside the vocabulary; by NumPy, as torch's reads may wait."""
    ids, labels = (parts[name].numpy() for name in ("input_ids", "labels"))
    # most labels are their own tokens, which are looked at already
    for name, values in (("input_ids", ids), ("labels", labels[(labels != IGNORE_INDEX) & (labels != ids)])):
        smallest, largest = (int(values.min()), int(values.max())) if values.size else (0, 0)
        if smallest < 0 or (vocabulary is not None and largest >= vocabulary):
            bound = "at least 0" if vocabulary is None else f"from 0 to {vocabulary - 1}, the model's vocabulary"
            also = f" or {IGNORE_INDEX}" if name == "labels" else ""
            raise ValueError(f"{name} must be {bound}{also}, got {smallest if smallest < 0 else largest}")


def _check_places(parts: Mapping[str, Tensor]) -> None:
    """Refuse documents and positions that do not fit each other and the mask."""
    if "document_ids" not in parts and "position_ids" not in parts:
        return
    ids, mask, documents = parts["input_ids"], parts.get("attention_mask"), parts.get("document_ids")
    real = np.ones(ids.shape, bool) if mask is None else mask.numpy().astype(bool)
    if documents is not None:
        numbers = documents.numpy()
        if mask is not None and ((numbers >= 0) != real).any():
            raise ValueError("document_ids must be -1 exactly where attention_mask is 0, got others")
        real &= numbers >= 0
        # A row has as many runs of equal numbers as it has different numbers, unless one comes back after another.
        # Each PAD gets a number of its own, as PAD may stand in several places.
        each_pad_apart = np.where(numbers < 0, -1 - np.arange(ids.size(1)), numbers)
        pieces, different = ((np.diff(rows) != 0).sum(axis=1) for rows in (each_pad_apart, np.sort(each_pad_apart)))
        if (pieces != different).any():
            raise ValueError(
                "a document's tokens must stand together, got a number of document_ids again after another"
            )
    # Models are given positions that are counted here; other ones would be dropped without a word. Those of PAD are
    # free: no token sees them.
    if "position_ids" in parts:
        counted = positions_of(ids, mask, documents).numpy()
        if (parts["position_ids"].numpy() != counted)[real].any():
            where = "each row (rows of several documents need document_ids)" if documents is None else "each document"
            raise ValueError(f"position_ids must count from 0 in {where}, got others")


def _check_call(function: Any, accepted: str, *arguments: object, **keywords: object) -> None:
    """Raise TypeError "<accepted>, got …" for what cannot be called with such arguments."""
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"{accepted}, got {shown(function)}")
    # a module's __call__ takes anything; what it really takes stands in its forward
    called = function.forward if isinstance(function, nn.Module) else function
    with suppress(ValueError):  # a function written in C may have no signature to look at
        try:
            inspect.signature(called).bind(*arguments, **keywords)
        except TypeError as error:
            raise TypeError(f"{accepted}, got {_name(function)}: {error}") from None


def _sums(loss_fn: Any) -> bool:
    """Whether a loss is known to return a sum: it is the course's own, or it was seen to."""
    if is_next_token_loss(loss_fn):
        return True
    owner, known = _owner(loss_fn), _summing.get(id(_owner(loss_fn)))
    return known is not None and known() is owner


@torch.no_grad()
def _check_that_it_sums(loss_fn: Callable[..., Tensor], logits: Tensor, labels: Tensor) -> None:
    """Refuse a loss that has the same value for a row and for that row twice: it is a mean.

    A value of 0, NaN or infinity proves nothing; the loss is then tested again at the next batch.
    """
    fullest = (labels[:, 1:] != IGNORE_INDEX).sum(1).argmax().view(1)  # a row without targets has the loss 0
    row, targets = logits.index_select(0, fullest), labels.index_select(0, fullest)
    once = twice = math.nan
    asked = False
    with suppress(Exception):  # a loss that is tied to its own batch, or that needs gradients, cannot be asked
        with generators_kept(), OwnState(loss_fn=loss_fn).kept():
            once = float(loss_fn(row, targets, reduction="sum"))
            twice = float(loss_fn(torch.cat([row, row]), torch.cat([targets, targets]), reduction="sum"))
        asked = True
    if asked and once != 0 and abs(twice - once) <= 0.01 * abs(once):
        raise ValueError(
            f'loss_fn must return the sum over the targets for reduction="sum", got a mean from {_name(loss_fn)}: '
            f"a row given twice has the same loss ({twice:g}) as given once ({once:g})"
        )
    if not asked or 0 < abs(once) < math.inf:
        owner = _owner(loss_fn)
        key = id(owner)
        with suppress(TypeError):  # no weak reference to it: it is asked again
            # Python reuses the id of a dead object
            _summing[key] = weakref.ref(owner, lambda _: _summing.pop(key, None))


def is_next_token_loss(loss_fn: Any) -> bool:
    """Whether a loss is `next_token_loss`, with other numbers or compiled as it may be."""
    function = loss_fn.func if isinstance(loss_fn, partial) else loss_fn
    return getattr(function, "_torchdynamo_orig_callable", function) is next_token_loss  # torch.compile's name for it


def _owner(loss_fn: Any) -> Any:
    """The object that lives as long as the loss: Python makes a bound method anew each time that it is looked up."""
    return loss_fn.__self__ if inspect.ismethod(loss_fn) else loss_fn


def _name(loss_fn: Any) -> str:
    loss_fn = loss_fn.func if isinstance(loss_fn, partial) else loss_fn
    return getattr(loss_fn, "__qualname__", type(loss_fn).__name__)
