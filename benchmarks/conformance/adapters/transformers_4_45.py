"""Hugging Face's Trainer of September 2024, before its gradient accumulation was mended: the proof of the table.

As `hugging_face.py`, but for what 4.45 does not know: the order of the batches is a sampler's, and as `optim="sgd"`
reads no `optim_args`, `create_optimizer` sets the momentum.
"""

from typing import Any

import transformers
from torch.utils.data import SequentialSampler

from course_lm.audit.adapters import hugging_face

PACKAGE, CONFIRM = "transformers", "hugging_face"
NOT_OFFERED: dict[str, str] = {}
NOT_TRIED = {"C12": "the best weights are a checkpoint's, which this adapter does not write"}
newer = hugging_face._arguments


def known_arguments(*run: Any) -> dict[str, Any]:
    """The arguments of a run that this version has."""
    fields = transformers.TrainingArguments.__dataclass_fields__
    return {name: value for name, value in newer(*run).items() if name in fields}


class InOrder(transformers.Trainer):
    """The Trainer without its shuffle, and with the momentum of SGD."""

    def create_optimizer(self, *given: Any) -> Any:  # pyrefly: ignore[bad-override]
        optimizer = super().create_optimizer(*given)
        for group in optimizer.param_groups if self.args.optim == "sgd" else ():
            group["momentum"] = float(str(self.args.optim_args).partition("=")[2])
        return optimizer

    def _get_train_sampler(self, *_: Any) -> Any:  # pyrefly: ignore[bad-override]
        return SequentialSampler(self.train_dataset)  # pyrefly: ignore[bad-argument-type]


hugging_face._arguments = known_arguments  # pyrefly: ignore[bad-assignment]
LOOPS = {"": hugging_face.huggingface(InOrder)}
