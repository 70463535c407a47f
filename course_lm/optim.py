"""Optimizers and the parameter groups that decide what weight decay touches.

The update rules are torch's own. What is decided here is which weights decay (matrices only), and that the
fused kernels are used, which update all weights in one pass and can skip a step without asking the host.
"""

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop, SparseAdam

from course_lm.muon import MuonWithAdamW, hidden_matrices
from course_lm.shards import is_sharded
from course_lm.validation import require, require_kinds, shown

Groups = list[dict[str, Any]]
FUSED_DEVICES = ("cpu", "cuda")
# Whose update of a weight needs no other weight. Adafactor and Muon look at whole matrices, and a rank has parts of
# them.
_ELEMENTWISE = (Adam, AdamW, SGD, Adagrad, Adamax, NAdam, RAdam, RMSprop)
_left_out: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()  # parameters, where a warning has told of them


def _adamw(groups: Groups, config: "OptimizerConfig", fused: bool) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""
    betas = (config.beta1, config.beta2)
    # no weight_decay here or below: each group brings its own
    return AdamW(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=fused)


def _adam(groups: Groups, config: "OptimizerConfig", fused: bool) -> Optimizer:
    """Adam (Kingma & Ba 2015). Its decay is an L2 term in the gradient, rescaled by the second moment."""
    betas = (config.beta1, config.beta2)
    return Adam(groups, lr=config.learning_rate, betas=betas, eps=config.epsilon, fused=fused)


def _sgd(groups: Groups, config: "OptimizerConfig", fused: bool) -> Optimizer:
    fused = fused and not any(is_sharded(parameter) for group in groups for parameter in group["params"])
    return SGD(groups, lr=config.learning_rate, momentum=config.momentum, fused=fused)


def _adafactor(groups: Groups, config: "OptimizerConfig", fused: bool) -> Optimizer:
    """Adafactor (Shazeer & Stern 2018) with torch's defaults for all else; torch has no fused kernel for it."""
    return Adafactor(groups, lr=config.learning_rate)


def _muon(groups: Groups, config: "OptimizerConfig", fused: bool) -> Optimizer:
    """Muon for hidden matrices, AdamW for the rest (Jordan et al. 2024; one rate for both: Liu et al. 2025)."""
    betas = (config.beta1, config.beta2)
    return MuonWithAdamW(
        groups, lr=config.learning_rate, momentum=config.momentum, betas=betas, eps=config.epsilon, fused=fused
    )


# Every name that a configuration may give, and what builds it; `fused` says whether torch's fused kernels can be used.
OPTIMIZERS: dict[str, Callable[[Groups, "OptimizerConfig", bool], Optimizer]] = {
    "adamw": _adamw,
    "adam": _adam,
    "sgd": _sgd,
    "adafactor": _adafactor,
    "muon": _muon,
}

if TYPE_CHECKING:
    OptimizerType = str  # a type checker cannot read a dict's keys
else:
    OptimizerType = Literal[tuple(OPTIMIZERS)]


@dataclass(frozen=True)
class OptimizerConfig:
    """Which optimizer, and its numbers. Each type reads only the ones that it has.

    Args:
        type: a name in `OPTIMIZERS`.
        learning_rate: the peak that a schedule scales; for "adafactor" relative to each tensor's RMS, and at most
            1/sqrt(step).
        beta1: for "adamw", "adam" and the AdamW in "muon": how much of the mean gradient stays from step to step.
        beta2: for the same: how much of the mean squared gradient stays.
        epsilon: for the same: added to the root of the mean square.
        weight_decay: of matrices: decoupled for "adamw", "adafactor" and "muon", coupled for "adam" and "sgd".
        momentum: for "sgd": how much of the last update stays; for "muon": of the mean gradient (often 0.95).

    Raises ValueError naming key, value and what is accepted: plain numbers, of which True is none.
    """

    type: OptimizerType = "adamw"
    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    momentum: float = 0.9

    def __post_init__(self) -> None:
        require_kinds(type(self), vars(self))
        require(0 < self.learning_rate < math.inf, "learning_rate", "a positive number", self.learning_rate)
        require(0 <= self.beta1 < 1, "beta1", "in [0, 1)", self.beta1)
        require(0 <= self.beta2 < 1, "beta2", "in [0, 1)", self.beta2)
        require(0 < self.epsilon < math.inf, "epsilon", "a positive number", self.epsilon)
        require(0 <= self.weight_decay < math.inf, "weight_decay", "a number of at least 0", self.weight_decay)
        require(0 <= self.momentum < 1, "momentum", "in [0, 1)", self.momentum)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices with `weight_decay`, the rest with none.

    A matrix has two dimensions or more (linear and embedding weights); biases and norm gains have one. A
    tied weight appears once, a frozen one not at all, and an empty group is left out. Raises ValueError
    where nothing is trainable.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError(f"the model ({type(model).__name__}) has no trainable parameter")
    matrices = [parameter for parameter in trainable if parameter.ndim >= 2]
    vectors = [parameter for parameter in trainable if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def muon_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The groups of `parameter_groups`, the hidden matrices in one of their own; "use_muon" marks it."""
    hidden = {id(parameter) for parameter in hidden_matrices(model)}
    groups = [
        {**group, "params": [one for one in group["params"] if (id(one) in hidden) is uses_muon], "use_muon": uses_muon}
        for group in parameter_groups(model, weight_decay)
        for uses_muon in (True, False)
    ]
    return [group for group in groups if group["params"]]


# How the types that treat some weights otherwise group them.
GROUPINGS: dict[str, Callable[[nn.Module, float], Groups]] = {"muon": muon_groups}


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """The configured torch optimizer over `parameter_groups`, fused on a CPU and on CUDA.

    Adam, AdamW and SGD are fused where every trainable parameter is a floating-point tensor on a CPU or a
    CUDA device; of sharded parameters torch has no fused SGD. Raises ValueError where nothing is trainable.
    """
    groups = GROUPINGS.get(config.type, parameter_groups)(model, config.weight_decay)
    fused = _can_fuse([parameter for group in groups for parameter in group["params"]])
    return OPTIMIZERS[config.type](groups, config, fused)


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of the tensors that the optimizer keeps from step to step, step counters included.

    The first step makes them; before it there are none. Per fp32 weight SGD with momentum keeps 4 bytes and Adam 8;
    Adafactor keeps a row and a column of each matrix, and Muon 4 bytes for each weight of a hidden one.
    """
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    return sum(tensor.nbytes for tensor in kept)


def check_optimizer(optimizer: Any, model: nn.Module) -> None:
    """Refuse an optimizer that cannot train the model; warn once of what it leaves out.

    A parameter that the optimizer does not hold never changes, and one in half precision loses most of its updates to
    rounding; both would train on without a word. An optimizer may hold others besides, such as weights of the loss.

    Raises:
        TypeError: no torch optimizer, or one that calls for the loss by itself (LBFGS) or takes sparse gradients alone.
        ValueError: it holds none of the model's trainable parameters, or a trainable one in half precision; or the
            parameters are sharded, and its update of a weight looks at others.
    """
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {shown(optimizer)}")
    if _needs_closure(type(optimizer)):
        kind = type(optimizer).__name__
        raise TypeError(f"optimizer must update from one gradient, got {kind}, which evaluates the loss by itself")
    if isinstance(optimizer, SparseAdam):
        raise TypeError("optimizer must take dense gradients, got SparseAdam: take AdamW, and sparse=False")
    # by id, as == would compare numbers
    held = {id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    left_out = [parameter for parameter in trainable if id(parameter) not in held]
    if trainable and len(left_out) == len(trainable):
        raise ValueError("optimizer must hold parameters of the model, got one that holds none of its trainable ones")
    for parameter in held.values():
        # bfloat16 has 8 significant bits: an update below 1/512 of the weight always rounds to nothing
        if parameter.requires_grad and parameter.itemsize < 4:
            raise ValueError(
                f"trainable weights must be float32 or float64, got {parameter.dtype} for {name_of(parameter, model)}: "
                'updates would be rounded away; call model.float() and set the precision to "bf16"'
            )
    if any(is_sharded(parameter) for parameter in held.values()):
        _check_takes_shards(optimizer)
    if left_out and len(left_out) != _left_out.get(optimizer):
        _left_out[optimizer] = len(left_out)
        warnings.warn(
            f"the optimizer leaves out {len(left_out)} of the model's {len(trainable)} trainable parameters, first "
            f"{name_of(left_out[0], model)}: they will not change",
            stacklevel=3,  # the line that called train_step or built the Trainer
        )


def check_gradients(parameters: list[torch.Tensor], model: nn.Module) -> None:
    """Raise ValueError for a sparse gradient, which neither clipping nor the update rules here can take."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            name = name_of(parameter, model)
            raise ValueError(
                f"gradients must be dense, got a sparse one for {name}: make the embedding with sparse=False"
            )


def name_of(parameter: torch.Tensor, model: nn.Module) -> str:
    """The parameter's name in the model; "unnamed" for one that belongs to something else, such as a loss."""
    return next((name for name, one in model.named_parameters() if one is parameter), "unnamed")


def _check_takes_shards(optimizer: Optimizer) -> None:
    kind = type(optimizer).__name__
    if type(optimizer) not in _ELEMENTWISE:
        raise ValueError(
            f"optimizer must update each weight by its own gradient alone where weights are sharded, got {kind}: take "
            f'one of {", ".join(sorted(one.__name__ for one in _ELEMENTWISE))}, or distributed.strategy "ddp"'
        )
    if isinstance(optimizer, SGD) and any(group["fused"] for group in optimizer.param_groups):
        raise ValueError("optimizer must be SGD with fused=False where weights are sharded, got a fused one")


@lru_cache
def _needs_closure(kind: type[Optimizer]) -> bool:
    closure = inspect.signature(kind.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty  # elsewhere its default is None


def _can_fuse(parameters: list[torch.Tensor]) -> bool:
    return all(parameter.device.type in FUSED_DEVICES and parameter.is_floating_point() for parameter in parameters)
