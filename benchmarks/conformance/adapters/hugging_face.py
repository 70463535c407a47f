"""Hugging Face's Trainer with a causal language model, as the package's own adapter drives it.

`TrainingArguments` has its defaults but for what a run decides: optimizer, rate, decay, accumulation, clipping and an
evaluation after each epoch. The loss is that of the library's causal models, which counts the targets of a step. In the
first line the model's `loss_type` is "ForCausalLM", as that of Llama is, in the second it is None, as that of GPT-2. In
the third the data are an `IterableDataset`, which has no length.
"""

from typing import Any

import transformers
from torch import nn

from course_lm.audit import huggingface

PACKAGE = "transformers"
NOT_OFFERED: dict[str, str] = {}  # C12 is not tried: the best weights are a checkpoint's


class Unlisted(transformers.Trainer):
    """The Trainer of a model with the class attributes of GPT-2."""

    def __init__(self, model: nn.Module, *arguments: Any, **named: Any) -> None:
        model.loss_type = None  # pyrefly: ignore[bad-argument-type]
        super().__init__(model, *arguments, **named)  # pyrefly: ignore[bad-argument-type]


LOOPS = {"": huggingface(), "GPT-2's `loss_type`": huggingface(Unlisted), "a stream": huggingface(streaming=True)}
