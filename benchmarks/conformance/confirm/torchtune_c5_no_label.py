"""A step of a batch without a label: gradients are scaled by one over zero, and the weights are NaN.

Leaving out batches without a label avoids it. The recipe is set up by hand, its `train` is its own.
"""

import sys
from contextlib import nullcontext
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import torch

path = distribution("torchtune").locate_file("recipes/full_finetune_single_device.py")
specification: Any = spec_from_file_location("recipe", str(path))
module = module_from_spec(specification)
specification.loader.exec_module(module)
recipe: Any = object.__new__(module.FullFinetuneRecipeSingleDevice)
BATCHES = [torch.tensor([[-100, 0]]), torch.tensor([[-100, -100]])]


class Loader(list):
    """A list with the sampler that the recipe asks for."""

    def set_epoch(self, epoch):
        self[:] = [{"input": torch.zeros_like(labels), "labels": labels} for labels in BATCHES]

    sampler = property(lambda self: self)


class Logits(torch.nn.Module):
    """The same logits of two tokens at each position."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, input):
        return self.weight.expand(*input.shape, 2)


recipe._model, recipe._device = Logits(), torch.device("cpu")
recipe._optimizer = torch.optim.SGD(recipe._model.parameters(), lr=1.0)
recipe._loss_fn, recipe._dataloader = torch.nn.CrossEntropyLoss(ignore_index=-100), Loader()
recipe._lr_scheduler = recipe._clip_grad_norm = recipe.max_steps_per_epoch = None
recipe._compile = recipe._optimizer_in_bwd = recipe.profiler_profile_memory = False
recipe._steps_per_epoch, recipe.epochs_run, recipe.global_step, recipe._log_every_n_steps = 1, 0, 0, 100
recipe._profiler, recipe.activations_handling_ctx = module.DummyProfiler(), nullcontext()
recipe.ignore_labels_cache = torch.full((2, 1), -100)
recipe.save_checkpoint = lambda epoch: None
recipe._gradient_accumulation_steps, recipe.total_epochs = 1, 1
recipe.train()
print(f"weight {recipe._model.weight[0].item()}, without the empty batch 0.5")
sys.exit(bool(recipe._model.weight.isfinite().all()))
