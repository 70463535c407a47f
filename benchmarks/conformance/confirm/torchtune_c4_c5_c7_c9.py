"""torchtune alone: its recipe full_finetune_single_device set up by hand, with `train` and `_setup_optimizer` its own.

C4: no step is made at the end of an epoch, and neither the gradient nor the count of labels is cleared: both go into
the next epoch's first step (meta-pytorch/torchtune pull request 2745). A number of batches in an epoch that
`gradient_accumulation_steps` divides avoids it.

C5: gradients are scaled by one over zero, and the weights are NaN. Leaving out batches without a label avoids it.

C7: the recipe does not look at the loss or the norm before a step, and no key of its configuration avoids it.

C9: no key of the configuration makes a second group.
"""

from contextlib import nullcontext
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import tiny
import torch

path = distribution("torchtune").locate_file("recipes/full_finetune_single_device.py")
specification: Any = spec_from_file_location("recipe", str(path))
module = module_from_spec(specification)
specification.loader.exec_module(module)


class Loader(list):
    """Labels as batches, a list with the sampler that the recipe asks for."""

    def set_epoch(self, epoch):
        self[:] = [{"input": torch.zeros_like(labels), "labels": labels} for labels in self.rows]

    sampler = property(lambda self: self)


class Logits(torch.nn.Module):
    """The same logits of two tokens at each position, NaN in rows of three."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, input):
        return self.weight.expand(*input.shape, 2) * (float("nan") if input.shape[1] == 3 else 1.0)


def trained(*rows, accumulate=1, epochs=1):
    """The model after training, and how many batches each step was made of."""
    recipe: Any = object.__new__(module.FullFinetuneRecipeSingleDevice)
    recipe._model, recipe._device = Logits(), torch.device("cpu")
    recipe._optimizer = torch.optim.SGD(recipe._model.parameters(), lr=1.0)
    recipe._loss_fn, recipe._dataloader = torch.nn.CrossEntropyLoss(ignore_index=-100), Loader()
    recipe._dataloader.rows = [torch.tensor([row]) for row in rows]
    recipe._lr_scheduler = recipe._clip_grad_norm = recipe.max_steps_per_epoch = None
    recipe._compile = recipe._optimizer_in_bwd = recipe.profiler_profile_memory = False
    recipe._steps_per_epoch, recipe.epochs_run, recipe.global_step, recipe._log_every_n_steps = 1, 0, 0, 100
    recipe._profiler, recipe.activations_handling_ctx = module.DummyProfiler(), nullcontext()
    recipe.ignore_labels_cache = torch.full((2, 1), -100)
    recipe.save_checkpoint = lambda epoch: None
    recipe._gradient_accumulation_steps, recipe.total_epochs = accumulate, epochs
    steps: list[int] = []
    seen: list[int] = []
    recipe._model.weight.register_hook(lambda gradient: seen.append(1))
    recipe._optimizer.register_step_post_hook(lambda *_: steps.append(len(seen)) or seen.clear())
    recipe.train()
    return recipe._model, steps


def c4():
    steps = trained([-100, 0], [-100, 0], [-100, 1], accumulate=2, epochs=2)[1]
    return "batches in the second step, three batches an epoch and two a step", steps[1], 1


def c5():
    return "weights that are not finite", tiny.not_finite(trained([-100, 0], [-100, -100])[0]), 0


def c7():
    return "weights that are not finite after a loss of NaN", tiny.not_finite(trained([-100, 0], [-100, 0, 0])[0]), 0


def c9():
    recipe: Any = object.__new__(module.FullFinetuneRecipeSingleDevice)
    recipe._model = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(recipe._model.bias)
    settings = module.DictConfig({"_component_": "torch.optim.AdamW", "lr": 0.1, "weight_decay": 0.5})
    optimizer = recipe._setup_optimizer(cfg_optimizer=settings)
    for weight in recipe._model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    return "bias after a step of AdamW on a gradient of 0, with decay", recipe._model.bias.item(), 1


tiny.answer({"c4": c4, "c5": c5, "c7": c7, "c9": c9})
