"""A trial on a live model: afterwards model, optimizer, data and random generators are what they were, bit for bit."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from course_lm.batching.reading import Undo, keep_generators, keep_position, second_reader
from course_lm.reproducibility import generators_kept
from course_lm.step import all_parameters


@contextmanager
def restored(model: nn.Module, optimizer: Optimizer, loader: Iterable[Any]) -> Iterator[Iterable[Any]]:
    """Let the body train; when it ends, by an error or an interrupt too, undo all that it did.

    Put back are weights, buffers, gradients, `requires_grad` and each module's mode; the optimizer's state (one that
    was empty is empty again), hyper-parameters and attributes; the global random generators; the loader's position
    and the generators that it draws from.

    Yields:
        A second reader over the same data, from the loader's position on. Read it in place of the loader.
    """
    with generators_kept():  # around all: to ask a loader for its position may draw a seed
        undo = [
            keep_generators(loader),
            keep_position(loader),
            _weights(model, optimizer),
            _modules(model),
            _optimizer(optimizer),
        ]
        try:
            _put_aside(model, optimizer)
            yield second_reader(loader)
        finally:
            for put_back in reversed(undo):
                put_back()


def _put_aside(model: nn.Module, optimizer: Optimizer) -> None:
    """Give the body no gradients and copies of the optimizer's state and groups, so that none of theirs is touched."""
    for parameter in all_parameters(model, optimizer):
        parameter.grad = None
    # copy keeps the kind, a defaultdict; the values follow, so that no tensor of the old state is written to.
    optimizer.state = copy(optimizer.state)
    for parameter, state in optimizer.state.items():
        optimizer.state[parameter] = deepcopy(state)
    optimizer.param_groups = [
        # The parameters themselves, which the body is to move; a learning rate may be a tensor and is copied.
        {key: value if key == "params" else deepcopy(value) for key, value in group.items()}
        for group in optimizer.param_groups
    ]


def _weights(model: nn.Module, optimizer: Optimizer) -> Undo:
    parameters = [(one, one.requires_grad, one.grad) for one in all_parameters(model, optimizer)]
    tensors = [*(one for one, _, _ in parameters), *model.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]

    @torch.no_grad()
    def put_back() -> None:
        for tensor, value in zip(tensors, values, strict=True):
            # In place: the optimizer, and whoever else holds these tensors, must find the old values in them.
            tensor.copy_(value)
        for parameter, requires_grad, gradient in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient  # the very tensor of before

    return put_back


def _modules(model: nn.Module) -> Undo:
    modules = [(module, module.training, dict(module._buffers)) for module in model.modules()]

    def put_back() -> None:
        for module, training, buffers in modules:
            module.training = training
            module._buffers.clear()  # a forward pass may have put another tensor in a buffer's place
            module._buffers.update(buffers)

    return put_back


def _optimizer(optimizer: Optimizer) -> Undo:
    attributes = dict(vars(optimizer))

    def put_back() -> None:
        vars(optimizer).clear()  # a scheduler leaves a wrapped `step` behind
        vars(optimizer).update(attributes)

    return put_back
