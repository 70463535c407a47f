"""The names of a step's parts: those of the course for its own model, and for any other the names of its modules."""

from typing import NamedTuple

from torch import nn

from course_lm.forward import unwrap
from course_lm.model import GPT

BACKWARD = ", backward"  # follows a part's name
ATTENTION, PERCEPTRON, REST, HEAD = "attention", "perceptron", "norms and embeddings", "head and loss"
LOSS = "loss"
LEVELS = 2  # of names; a list of layers counts as none
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


class Names(NamedTuple):
    """Parts of a model.

    Attributes:
        inside: the part of what runs in a module, by the module's path; "" is the model itself. A module that is not
            here belongs to the one around it.
        after: the part of what the module around it does after this one, up to its next module or its end.
        loss: the part of what runs between the model and the backward pass.
    """

    inside: dict[str, str]
    after: dict[str, str]
    loss: str


def names_of(model: nn.Module) -> Names:
    """The parts of a model.

    Of a `GPT`: attention; the perceptron with its GELU; norms, embeddings, dropout and residual sums; the head with the
    loss. Of any other module the paths of its modules, without the numbers of equal layers and cut after two levels,
    such as "transformer.h.attn" and "lm_head"; what a module computes itself, outside these, has its own path.
    """
    module = unwrap(model)
    return _of_gpt(module) if isinstance(module, GPT) else _of_modules(module)


def _of_gpt(model: GPT) -> Names:
    inside = {"": REST, "norm": REST}
    after = {"": HEAD, "norm": HEAD}  # the head is no module: its weights are the embedding's
    for index in range(len(model.blocks)):
        block = f"blocks.{index}"
        inside |= {block: REST, f"{block}.attention": ATTENTION}
        inside |= {f"{block}.up": PERCEPTRON, f"{block}.down": PERCEPTRON}
        after[f"{block}.up"] = PERCEPTRON  # neither is GELU
    return Names(inside, after, HEAD)


def _of_modules(model: nn.Module) -> Names:
    inside = {"": type(model).__name__}
    for path, module in model.named_modules():
        if path and not isinstance(module, _CONTAINERS):
            inside[path] = _short(model, path)
    return Names(inside, {"": LOSS}, LOSS)


def _short(model: nn.Module, path: str) -> str:
    """The path without the numbers of layers, cut after `LEVELS` names that are no containers'."""
    kept: list[str] = []
    levels, at = 0, model
    for name in path.split("."):
        at = getattr(at, name)
        if levels == LEVELS:
            break
        if name.isdigit() and kept:
            continue
        kept.append(name)
        levels += not isinstance(at, _CONTAINERS)
    return ".".join(kept)
