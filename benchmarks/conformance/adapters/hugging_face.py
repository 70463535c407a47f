"""Hugging Face's Trainer with a causal language model, as the package's own adapter drives it.

`TrainingArguments` has its defaults but for what a run decides: optimizer, rate, decay, accumulation, clipping and an
evaluation after each epoch. The loss is that of the library's causal models, which counts the targets of a step. In the
first line the model's `loss_type` is "ForCausalLM", as that of Llama is, in the second it is None, as that of GPT-2. In
the third the data are an `IterableDataset`, which has no length. A count of too many labels changes a step of one row,
and so the first run.
"""

from typing import Any

import transformers
from torch import nn

from course_lm.audit import huggingface

PACKAGE = "transformers"
NOT_OFFERED: dict[str, str] = {}
NOT_TRIED = {"C12": "the best weights are a checkpoint's, which this adapter does not write"}


class Unlisted(transformers.Trainer):
    """The Trainer of a model with the class attributes of GPT-2."""

    def __init__(self, model: nn.Module, *arguments: Any, **named: Any) -> None:
        model.loss_type = None  # pyrefly: ignore[bad-argument-type]
        super().__init__(model, *arguments, **named)  # pyrefly: ignore[bad-argument-type]


GPT2 = "GPT-2's `loss_type`"
MEANT = {GPT2: {"C1": "C3"}}
LOOPS = {
    "a model with the `loss_type` of Llama": huggingface(),
    GPT2: huggingface(Unlisted),
    "a model with the `loss_type` of Llama, an `IterableDataset`": huggingface(streaming=True),
}
