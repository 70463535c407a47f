"""For a `GPT2LMHeadModel`, whose `loss_type` is None, the Trainer counts the first label of each row too, although the
loss shifts it away (huggingface/transformers#46204 mended this for listed types). `model.loss_type = "ForCausalLM"`
before the Trainer is built avoids it, as does a label of -100 at the start of each row.
"""

import sys

import tiny
import torch
from hugging_face_c3_c4_c5_c7_c11 import CONFIG, FULL, GPT2, trained
from transformers import GPT2LMHeadModel

if not GPT2:
    sys.exit(1)
torch.manual_seed(0)
model = GPT2LMHeadModel(CONFIG)
moved = tiny.weights_moved(trained(FULL, optim="sgd", max_grad_norm=0.0).model, model)
model.train()(FULL["input_ids"][None], labels=FULL["labels"][None]).loss.backward()
norm = sum(float(weight.grad.square().sum()) for weight in model.parameters()) ** 0.5
tiny.answer({"c3": lambda: ("distance the weights moved in an SGD step on a row of 5 targets", moved, 1e-2 * norm)})
