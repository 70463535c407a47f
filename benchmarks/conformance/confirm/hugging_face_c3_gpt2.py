"""The loss of a `GPT2LMHeadModel` is divided by its labels with the first of each row, which is no target. The Trainer
leaves that one out for models whose `loss_type` is listed (huggingface/transformers#46204); that of GPT-2 is None, and
its loss falls back to the one that shifts. `model.loss_type = "ForCausalLM"` before the Trainer is built avoids it, as
does a label of -100 at the start of each row.
"""

import tiny
import torch
from hugging_face_c3_c4_c5_c7_c11 import CONFIG, FULL, trained
from transformers import GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(CONFIG)
moved = tiny.weights_moved(trained(FULL, optim="sgd", max_grad_norm=0.0, loss_type=None).model, model)
model.train()(FULL["input_ids"][None], labels=FULL["labels"][None]).loss.backward()
norm = sum(float(weight.grad.square().sum()) for weight in model.parameters()) ** 0.5
tiny.answer({"c3": lambda: ("way of the weights in an SGD step on a row of 5 targets", moved, 1e-2 * norm)})
