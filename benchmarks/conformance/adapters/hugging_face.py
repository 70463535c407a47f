"""Hugging Face's Trainer with a causal language model, as the package's own adapter drives it.

`TrainingArguments` has its defaults but for what a run decides: optimizer, rate, decay, accumulation, clipping and an
evaluation after each epoch. The loss is that of the library's causal models, which counts the targets of a step.
"""

from course_lm.audit import huggingface

PACKAGE = "transformers"
NOT_OFFERED = {"C12": "the best weights are a checkpoint's, which this adapter does not write"}
LOOPS = {"": huggingface()}
