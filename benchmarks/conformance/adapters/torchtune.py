"""The method `train` of torchtune's recipe full_finetune_single_device.

The recipe is loaded from the file that `tune` runs. Its configuration, checkpoint and tokenizer are left out: model,
optimizer, loss, loader and rates are set as its `setup` names them, the rest is off. The optimizer is torch's own over
`model.parameters()`, as `_setup_optimizer` makes it; the loss is `torch.nn.CrossEntropyLoss`, and the rate moves by the
step. The recipe has no validation. It is written for one GPU; `train` itself runs on any device.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torchtune.training import DummyProfiler  # pyrefly: ignore[missing-import]

from course_lm.audit.adapters.parts import Batch, build_rates
from course_lm.audit.spec import Batches, Settings

PACKAGE = "torchtune"
PRECISION = "float32"  # the recipe scales gradients by a float32 number
NOT_OFFERED = {"C11": "the recipe has no validation", "C12": "the recipe keeps each epoch's weights"}
NOT_TRIED = {"C13": "the adapter leaves out the recipe's checkpoints"}
CALLED = {"C9": "differs by choice"}


def recipe_class() -> Any:
    """The class of the recipe, from the installed file: its folder is no package."""
    path = distribution("torchtune").locate_file("recipes/full_finetune_single_device.py")
    specification = spec_from_file_location("full_finetune_single_device", str(path))
    assert specification is not None and specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.FullFinetuneRecipeSingleDevice


RECIPE = recipe_class()


class Loader:
    """The batches of the epoch that the recipe has set on its sampler."""

    def __init__(self, epochs: Sequence[Batches]) -> None:
        self.epochs, self.epoch = epochs, 0
        self.sampler = SimpleNamespace(set_epoch=lambda epoch: setattr(self, "epoch", epoch))

    def __iter__(self) -> Iterator[Batch]:
        return (dict(batch) for batch in self.epochs[self.epoch])  # the recipe takes the labels out


def build_optimizer(model: nn.Module, settings: Settings) -> Optimizer:
    """torch's own optimizer over all parameters in one group, as the recipe makes it; its rate is 1."""
    if settings.optimizer == "sgd":
        return SGD(model.parameters(), lr=1.0, momentum=settings.momentum, weight_decay=settings.weight_decay)
    kind, betas = {"adam": Adam, "adamw": AdamW}[settings.optimizer], (settings.beta1, settings.beta2)
    return kind(model.parameters(), lr=1.0, betas=betas, eps=settings.epsilon, weight_decay=settings.weight_decay)


def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
    """Train `model` in place by the recipe's own `train`."""
    recipe = object.__new__(RECIPE)
    recipe._model, recipe._device = model, torch.device("cpu")
    recipe._optimizer = build_optimizer(model, settings)
    recipe._lr_scheduler = build_rates(recipe._optimizer, settings)
    recipe._loss_fn = nn.CrossEntropyLoss(ignore_index=-100)
    recipe._dataloader = Loader(epochs)
    recipe._gradient_accumulation_steps, recipe._clip_grad_norm = settings.accumulation_steps, settings.max_grad_norm
    recipe._steps_per_epoch, recipe.max_steps_per_epoch = len(epochs[0]) // settings.accumulation_steps, None
    recipe.epochs_run, recipe.total_epochs, recipe.global_step = 0, len(epochs), 0
    recipe._compile = recipe._optimizer_in_bwd = recipe.profiler_profile_memory = False
    recipe._profiler, recipe._log_every_n_steps = DummyProfiler(), 10**9
    recipe.activations_handling_ctx = nullcontext()
    recipe.ignore_labels_cache = torch.full((128, 1), -100)  # as many as the largest batch has rows
    recipe.save_checkpoint = lambda epoch: None
    recipe.train()
    return {"ignores": {"validation", "loss_scale", "overflow_steps"}}
