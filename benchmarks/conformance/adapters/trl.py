"""trl's `SFTTrainer` with a model of transformers around the audit's, and rows of tokens with their labels.

`SFTConfig` has its defaults but for what a run decides, as in `hugging_face.py`, and for bf16 and the checkpoints of
activations, which are off. An item of the data set is a whole batch. In the first line trl's collator pads its rows; in
the second the rows are one packed row, as `packing=True` makes it, and the model is told the positions alone. The loss
is trl's own in float32, from the hidden states and the head's weights. Validation batches without a target are left
out, as trl's own preparation leaves out such rows.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
import trl  # pyrefly: ignore[missing-import]
from datasets import Dataset  # pyrefly: ignore[missing-import]
from tokenizers import Tokenizer, models
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling  # pyrefly: ignore[missing-import]

from course_lm.audit import huggingface
from course_lm.audit.adapters import hugging_face
from course_lm.audit.adapters.parts import Batch, logits_for
from course_lm.audit.model import EOS, PAD
from course_lm.audit.runs import count_targets
from course_lm.audit.spec import Settings

PACKAGE = "trl"
PRECISION = "float32"  # the loss is computed in it
NOT_OFFERED: dict[str, str] = {}
NOT_TRIED = {"C12": "the best weights are a checkpoint's, which this adapter does not write"}
DECIDED = tuple(hugging_face._arguments(Settings(optimizer="sgd"), "", 0, 0))
Item = Mapping[str, Any]


class Backbone(nn.Module):
    """The audit's model without its head."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        """The hidden states (B, T, C). Where positions begin anew, so does a document."""
        kept: list[Tensor] = []
        hook = self.model.head.register_forward_pre_hook(lambda _, given: kept.append(given[0]))  # type: ignore[operator]
        documents = None if position_ids is None else (position_ids == 0).cumsum(1)
        packed = {"document_ids": documents, "position_ids": position_ids}
        logits = logits_for(self.model, {"input_ids": input_ids, "attention_mask": attention_mask, **packed})
        hook.remove()
        # 0 where the logits and their gradient are finite: what the audit poisons is behind the head
        return BaseModelOutput(last_hidden_state=kept[0] + 0.0 * logits.sum())  # pyrefly: ignore[bad-argument-type]


class AuditForCausalLM(PreTrainedModel, GenerationMixin):
    """The audit's model as a causal language model of transformers; its name makes its `loss_type` that of Llama."""

    config_class, base_model_prefix = PretrainedConfig, "backbone"

    def __init__(self, model: nn.Module) -> None:
        super().__init__(PretrainedConfig())
        self.backbone = Backbone(model)

    def get_output_embeddings(self) -> nn.Module:
        return self.backbone.model.head  # type: ignore[return-value]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **loss_arguments: Any,
    ) -> Any:
        raise NotImplementedError("trl asks for the hidden states")


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer that knows the names of the audit's special tokens, of which trl asks."""
    words = models.WordLevel({"<pad>": PAD, "<eos>": EOS, "<unk>": EOS + 1}, unk_token="<unk>")
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), pad_token="<pad>", eos_token="<eos>")


class Padded(trl.SFTTrainer):
    """The trainer with rows that its collator pads."""

    packing = False

    def __init__(
        self,
        model: Any,
        args: Any,
        data_collator: Any,
        train_dataset: Any,
        eval_dataset: Any,
        callbacks: Any,
        optimizers: Any,
    ) -> None:
        chosen = {name: getattr(args, name) for name in DECIDED}
        validation = [batch for batch in eval_dataset or () if count_targets(batch)]
        super().__init__(
            AuditForCausalLM(model.model),
            trl.SFTConfig(
                **chosen,
                packing=self.packing,
                bf16=False,
                gradient_checkpointing=False,
                remove_unused_columns=False,
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            None if self.packing else collate,
            dataset(train_dataset, self.item),
            dataset(validation, self.item) if validation else None,
            tokenizer(),
            callbacks=callbacks,
            optimizers=optimizers,
        )

    @staticmethod
    def item(rows: Sequence[Item]) -> Item:
        """An item of the data set from a batch's rows."""
        return {"rows": rows}


class Packed(Padded):
    """The trainer with packed rows."""

    packing = True

    @staticmethod
    def item(rows: Sequence[Item]) -> Item:
        """The rows as one, with their lengths, as trl's `pack_dataset` makes it."""
        joined = {name: [one for row in rows for one in row[name]] for name in ("input_ids", "labels")}
        return joined | {"seq_lengths": [len(row["input_ids"]) for row in rows]}


def collate(items: Sequence[Item]) -> Mapping[str, Tensor]:
    """The rows of the one item, padded by trl's collator."""
    return DataCollatorForLanguageModeling(pad_token_id=PAD)(items[0]["rows"])


def dataset(batches: Any, item: Any) -> Any:
    """A `Dataset` that reads the batches when it is asked for them, as those of an epoch are others."""
    source = Dataset.from_dict({"at": range(len(batches))})

    def read(asked: Mapping[str, Sequence[int]]) -> Mapping[str, Sequence[Any]]:
        made = [item(rows_of(batches[at])) for at in asked["at"]]
        return {name: list(map(itemgetter(name), made)) for name in made[0]}

    return source.with_transform(read)


def rows_of(batch: Batch) -> list[Item]:
    """The documents of a batch without their pads."""
    rows: list[Item] = []
    documents = batch.get("document_ids", torch.zeros_like(batch["input_ids"]))
    for ids, labels, real, document in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], documents):
        for one in document[real.bool()].unique():
            kept = real.bool() & (document == one)
            rows.append({"input_ids": ids[kept].tolist(), "labels": labels[kept].tolist()})
    return rows


LOOPS = {
    "`SFTTrainer`, rows prepared by the user": huggingface(Padded),
    "`SFTTrainer`, `packing=True`": huggingface(Packed),
}
