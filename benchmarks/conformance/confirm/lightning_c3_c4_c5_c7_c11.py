"""Lightning's Trainer alone, with a mean loss, as in its tutorials.

C3: Lightning-AI/pytorch-lightning#20350, open. A module with `automatic_optimization = False` can count the targets of
a window itself.

C4: it is divided by `accumulate_grad_batches` (Lightning-AI/pytorch-lightning#19987, open); manual optimization avoids
it.

C5: `training_step` may return None for such a batch: the weights then stay, but `global_step` counts a step.

C7: `Trainer(detect_anomaly=True)` raises where the backward pass makes a NaN; an infinite gradient without one passes.

C11: `self.log("val_loss", ...)` weighs a batch by its rows; `batch_size=` of `self.log` set to the number of targets
avoids it.
"""

import logging
import sys
import warnings

import lightning  # pyrefly: ignore[missing-import]
import tiny
import torch
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
CAREFUL = sys.argv[2] != ""


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = tiny.model()

    def training_step(self, batch, index):
        has_targets = bool((batch[1] != -100).any())
        return tiny.loss_of(self.model(batch[0]), batch) if has_targets or not CAREFUL else None

    def validation_step(self, batch, index):
        self.log("val_loss", tiny.loss_of(self.model(batch[0]), batch))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


def trained(*batches, accumulate=1, validation=()):
    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=accumulate,
        detect_anomaly=CAREFUL,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    validated = DataLoader(validation, batch_size=None) if validation else None
    trainer.fit(module, DataLoader(batches, batch_size=None), validated)
    return module, trainer


def steps_made():
    """The steps that are counted where `training_step` returns None for the second of two batches."""
    return "`global_step` after a batch with and one without targets", trained(tiny.FOUR, tiny.EMPTY)[1].global_step, 1


def c11():
    module, trainer = trained(tiny.FOUR, validation=(tiny.ONE, tiny.FOUR))
    right = float(tiny.loss_of(module.model(tiny.BOTH[0]), tiny.BOTH).detach())
    return "val_loss of batches of 1 and 4 targets, nats per target", float(trainer.callback_metrics["val_loss"]), right


shown = tiny.of_a_mean_loss(lambda *batches, accumulate=1: trained(*batches, accumulate=accumulate)[0])
tiny.answer(shown | {"c11": c11} | ({"c5": steps_made} if CAREFUL else {}))
