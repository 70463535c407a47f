"""Lightning's Trainer as a loop that the audit can run."""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from course_lm.audit.adapters.parts import (
    UNSCALED,
    Batch,
    Loop,
    build_optimizer,
    build_rates,
    check_arguments,
    mean_loss,
    silence,
)
from course_lm.audit.spec import Batches, Settings
from course_lm.validation import ensure, import_extra, require


def lightning(module_class: Callable[..., Any] | None = None, **trainer_arguments: Any) -> Loop:
    """A loop in which `lightning.Trainer` trains a `LightningModule` around the model on the CPU.

    Accumulation, clipping, epochs and validation are the Trainer's; loss, optimizer and schedule are the module's.

    Args:
        module_class: called as `module_class(model, settings)`, it returns a `LightningModule` that trains `model`. It
            must have `training_step(batch, batch_idx)`, which returns a loss, and `configure_optimizers()`, which makes
            an optimizer of the settings, and its rates by the step. A `validation_step` must log "val_loss"; without
            one, the loop says that it ignores `validation`. One with `automatic_optimization = False` accumulates and
            clips itself. None stands for `textbook_module`.
        trainer_arguments: further arguments of `Trainer`, such as `gradient_clip_algorithm="value"`.

    Raises:
        ImportError: lightning is not installed.
        ValueError: an argument that `Trainer` does not have, or that each run of the audit decides.
    """
    library = import_extra(_namespace(module_class), "audit")
    make = textbook_module if module_class is None else module_class
    decided = {*_arguments(Settings(), 0), "max_steps", "min_epochs", "min_steps", "max_time", "default_root_dir"}
    check_arguments(trainer_arguments, signature(library.Trainer).parameters, decided, "lightning.Trainer")

    def loop(model: nn.Module, epochs: Sequence[Batches], settings: Settings) -> Mapping[str, Any]:
        losses: list[float] = []
        module = make(model, settings)
        is_module = isinstance(module, library.LightningModule)
        require(is_module, "module_class", "a class or function that returns a LightningModule", module_class)
        ignored, has_validation = set(UNSCALED), _overrides(module, library.LightningModule, "validation_step")
        if not has_validation:
            ignored.add("validation")
        arguments = {**_arguments(settings, len(epochs)), **trainer_arguments}
        if not module.automatic_optimization:  # then Lightning refuses both, and the module has the settings
            arguments |= {"accumulate_grad_batches": 1, "gradient_clip_val": None}
        further = arguments.pop("callbacks", None) or []
        observer = _observer(library, losses)
        arguments["callbacks"] = [observer, *(further if isinstance(further, Sequence) else [further])]
        with silence("lightning.pytorch", "lightning.fabric", "pytorch_lightning"), TemporaryDirectory() as folder:
            trainer = library.Trainer(**arguments, default_root_dir=folder)
            trainer.fit(module, datamodule=_data(library, epochs, settings.validation if has_validation else ()))
        return {"validation_losses": losses, "ignores": ignored}

    return loop


def textbook_module(model: nn.Module, settings: Settings) -> Any:
    """The `LightningModule` of the tutorials: the mean loss of each batch, an optimizer, a rate by the step."""
    library = import_extra("lightning", "audit")

    class Textbook(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            return mean_loss(self.model, batch)

        def validation_step(self, batch: Batch, batch_idx: int) -> None:
            self.log("val_loss", mean_loss(self.model, batch))

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = build_optimizer(self.model, settings)
            rates = build_rates(optimizer, settings)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rates, "interval": "step"}}

    return Textbook()


def _arguments(settings: Settings, epochs: int) -> dict[str, Any]:
    """The arguments of `Trainer` that each run decides: what its settings say, silence, and no files."""
    return {
        "accumulate_grad_batches": settings.accumulation_steps,
        "gradient_clip_val": settings.max_grad_norm,
        "max_epochs": epochs,
        "reload_dataloaders_every_n_epochs": 1,  # each epoch has its own batches
        "accelerator": "cpu",
        "devices": 1,
        "num_nodes": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }


def _data(library: Any, epochs: Sequence[Batches], validation: Batches) -> Any:
    """The batches as they are, in their order: `batch_size=None` says that they are batches already."""

    class Data(library.LightningDataModule):
        def train_dataloader(self) -> "DataLoader[Batch]":
            return DataLoader(list(epochs[self.trainer.current_epoch]), batch_size=None)  # type: ignore[arg-type]

        def val_dataloader(self) -> "DataLoader[Batch] | list[Any]":
            return DataLoader(list(validation), batch_size=None) if validation else []  # type: ignore[arg-type]

    return Data()


def _observer(library: Any, losses: list[float]) -> Any:
    """A callback that appends each epoch's "val_loss" to `losses`."""

    class Observer(library.Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.sanity_checking:  # batches of the validation, before the training
                return
            logged = trainer.callback_metrics
            ensure("val_loss" in logged, f"validation_step must log val_loss, it logs {', '.join(logged) or 'nothing'}")
            losses.append(float(logged["val_loss"]))

    return Observer()


def _overrides(module: Any, base: type, method: str) -> bool:
    return getattr(type(module), method) is not getattr(base, method)


def _namespace(module_class: Any) -> str:
    """The library under whose name the module is written: Lightning has two, and neither takes the other's modules."""
    bases = getattr(module_class, "__mro__", ())
    is_old = any(base.__module__.partition(".")[0] == "pytorch_lightning" for base in bases)
    return "pytorch_lightning" if is_old else "lightning"
