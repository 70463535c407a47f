"""A step of AdamW on gradients of 0, with decay: a bias shrinks as a matrix does.

The recipe makes its optimizer of all parameters in one group. Its configuration has no key that avoids it.
"""

import sys
from importlib.metadata import distribution
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import torch

path = distribution("torchtune").locate_file("recipes/full_finetune_single_device.py")
specification: Any = spec_from_file_location("recipe", str(path))
module = module_from_spec(specification)
specification.loader.exec_module(module)
recipe: Any = object.__new__(module.FullFinetuneRecipeSingleDevice)
recipe._model = torch.nn.Linear(1, 1)
torch.nn.init.ones_(recipe._model.bias)
settings = module.DictConfig({"_component_": "torch.optim.AdamW", "lr": 0.1, "weight_decay": 0.5})
optimizer = recipe._setup_optimizer(cfg_optimizer=settings)
for weight in recipe._model.parameters():
    weight.grad = torch.zeros_like(weight)
optimizer.step()
print(f"bias {recipe._model.bias.item():.4f}, without decay {1:.4f}")
sys.exit(recipe._model.bias.item() == 1)
