"""Hugging Face's Trainer as a loop that the audit can run."""

import gc
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, IterableDataset

from course_lm.audit.adapters.parts import (
    UNSCALED,
    Batch,
    Loop,
    build_optimizer,
    build_rates,
    check_arguments,
    logits_for,
    silence,
)
from course_lm.audit.features import PACKED
from course_lm.audit.spec import Batches, Settings
from course_lm.validation import import_extra, require

# The Trainer gets its schedule made.
SCHEDULED = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps")


def huggingface(trainer_class: Any = None, *, streaming: bool = False, **training_arguments: Any) -> Loop:
    """A loop in which `trainer_class`, by default `transformers.Trainer`, trains the model on the CPU.

    The model is wrapped as a causal language model of transformers: its forward takes labels, shifts them and returns
    a loss, divided by `num_items_in_batch` where the Trainer gives that. The Trainer builds its own optimizer with its
    own groups; only Adam with coupled decay, which it does not have, is given to it. It reads the given batches in
    their order, each as one item of its dataset. Epochs of one length are one call of `train`; where the length
    changes, another call goes on with the same optimizer and rates.

    Args:
        trainer_class: a subclass of `transformers.Trainer`, such as one with a `compute_loss` of its own.
        streaming: the dataset is an `IterableDataset`, which has no length; `max_steps` bounds the run.
        training_arguments: further fields of `TrainingArguments`, such as `label_smoothing_factor=0.1`.

    Raises:
        ImportError: transformers or accelerate is not installed.
        ValueError: `trainer_class` is none, or an argument is unknown to `TrainingArguments` or decided by each run.
    """
    transformers = import_extra("transformers", "audit")
    import_extra("accelerate", "audit")
    kind = transformers.Trainer if trainer_class is None else trainer_class
    is_trainer = isinstance(kind, type) and issubclass(kind, transformers.Trainer)
    require(is_trainer, "trainer_class", "a subclass of transformers.Trainer", trainer_class)
    decided = {*_arguments(Settings(optimizer="sgd"), "", 0, 0), *SCHEDULED}
    known = transformers.TrainingArguments.__dataclass_fields__
    check_arguments(training_arguments, known, decided, "TrainingArguments")

    def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
        with silence("transformers", "accelerate"), _little_garbage(), TemporaryDirectory() as folder:
            run = _Run(transformers, kind, training_arguments, CausalLM(model), settings, folder)
            if streaming:
                run.stream(epochs)
            else:
                run.train(epochs)
        return {"validation_losses": run.losses[: len(epochs)], "ignores": set(UNSCALED)}

    return loop


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Let Python's collector pass over what is there already.

    Each call of `train` collects garbage; to go through all that transformers has loaded takes far longer than the run.
    """
    if gc.get_freeze_count():  # somebody else has asked for it, and may ask for its end
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class CausalLM(nn.Module):
    """A model with the forward pass of transformers' causal language models: it returns a loss and logits.

    The Trainer reads `loss_type` to learn that labels are shifted inside, and counts the targets accordingly.
    """

    loss_type = "ForCausalLM"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.config = SimpleNamespace(problem_type=None)

    def _get_name(self) -> str:
        return "GPT2LMHeadModel"  # the Trainer's label smoother shifts the labels of the classes that it knows by name

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        document_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        **loss_arguments: Any,
    ) -> Mapping[str, Tensor]:
        """Return a `CausalLMOutput` with "logits" (B, T, V) and, where there are labels (B, T), "loss" in nats.

        The loss is that of `transformers.loss.loss_utils.ForCausalLMLoss`, but float64 stays float64.
        """
        outputs = import_extra("transformers.modeling_outputs", "audit")
        packed = dict(zip(PACKED, (document_ids, position_ids)))
        logits = logits_for(self.model, {"input_ids": input_ids, "attention_mask": attention_mask, **packed})
        loss = None if labels is None else _causal_loss(logits, labels, loss_arguments.get("num_items_in_batch"))
        return outputs.CausalLMOutput(loss=loss, logits=logits)


def _causal_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """The sum over the shifted targets by `num_items_in_batch`, or where the Trainer counts none, their mean."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    targets = F.pad(labels, (0, 1), value=-100)[:, 1:]
    if num_items_in_batch is None:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / num_items_in_batch


def _arguments(settings: Settings, folder: str, epochs: int, max_steps: int) -> dict[str, Any]:
    """The fields of `TrainingArguments` that each run decides: what its settings say, silence, and no files."""
    return {
        "learning_rate": 1.0,  # the factor of the rates
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.beta1,
        "adam_beta2": settings.beta2,
        "adam_epsilon": settings.epsilon,
        "gradient_accumulation_steps": settings.accumulation_steps,
        "max_grad_norm": 0.0 if settings.max_grad_norm is None else settings.max_grad_norm,  # 0: no clipping
        "num_train_epochs": epochs,
        "max_steps": max_steps,
        "per_device_train_batch_size": 1,  # items are whole batches
        "per_device_eval_batch_size": 1,
        "train_sampling_strategy": "sequential",
        "eval_strategy": "epoch" if settings.validation else "no",
        "save_strategy": "no",
        "logging_strategy": "no",
        "output_dir": folder,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    } | ({"optim": "sgd", "optim_args": f"momentum={settings.momentum}"} if settings.optimizer == "sgd" else {})


@dataclass
class _Run:
    """One call of the loop: `losses` gathers the validation losses, while the Trainer changes the model."""

    transformers: ModuleType
    trainer_class: Any
    further_arguments: Mapping[str, Any]
    model: CausalLM
    settings: Settings
    folder: str
    losses: list[float] = field(default_factory=list)
    optimizer: Optimizer | None = None
    rates: LambdaLR | None = None

    def train(self, epochs: Sequence[Batches]) -> None:
        """Call the Trainer once for all successive epochs of one length."""
        for length, group in groupby(epochs, key=len):
            data = _Epochs(list(group))
            trainer = self.trainer(data, len(data.epochs), -1)
            if length:
                trainer.train()
            elif self.settings.validation:  # the Trainer refuses to train on nothing
                for _ in data.epochs:
                    trainer.evaluate()

    def stream(self, epochs: Sequence[Batches]) -> None:
        """Call the Trainer once; it learns where an epoch ends when the data set does."""
        steps = sum(math.ceil(len(batches) / self.settings.accumulation_steps) for batches in epochs)
        self.trainer(_Stream(epochs), 1, steps).train()

    def trainer(self, data: Any, epochs: int, max_steps: int) -> Any:
        """A Trainer for `data` that goes on with the optimizer and the rates of an earlier one."""
        chosen = _arguments(self.settings, self.folder, epochs, max_steps)
        if self.settings.optimizer == "adam" and self.optimizer is None:
            self.optimizer = build_optimizer(self.model, self.settings)
        trainer = self.trainer_class(
            model=self.model,
            args=self.transformers.TrainingArguments(**{**chosen, **self.further_arguments}),
            data_collator=itemgetter(0),
            train_dataset=data,
            eval_dataset=list(self.settings.validation) or None,
            callbacks=[self.observer(data)],
            optimizers=(self.optimizer, self.rates),
        )
        trainer.remove_callback(self.transformers.PrinterCallback)
        if self.rates is None:
            self.optimizer = trainer.create_optimizer()
            trainer.lr_scheduler = self.rates = build_rates(self.optimizer, self.settings)
        return trainer

    def observer(self, data: Any) -> Any:
        """A callback that opens each epoch's batches, stops after the last, and keeps the validation losses."""
        run = self

        class Observer(self.transformers.TrainerCallback):
            def on_epoch_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
                data.epoch += 1

            def on_epoch_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
                control.should_training_stop = data.epoch == len(data.epochs) - 1

            def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **rest: Any) -> None:
                run.losses.append(metrics["eval_loss"])

        return Observer()


class _Epochs(Dataset[Batch]):
    """The batches of the epoch that has begun last; all epochs are equally long."""

    def __init__(self, epochs: Sequence[Batches]) -> None:
        self.epochs, self.epoch = epochs, -1

    def __len__(self) -> int:
        return len(self.epochs[0])

    def __getitem__(self, index: int) -> Batch:
        return self.epochs[self.epoch][index]


class _Stream(IterableDataset[Batch]):
    """The batches of the epoch that has begun last, without a length."""

    def __init__(self, epochs: Sequence[Batches]) -> None:
        self.epochs, self.epoch = epochs, -1

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.epochs[self.epoch])
