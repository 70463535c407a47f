"""Lightning's Trainer alone, with a mean loss, as in its tutorials.

C3: each micro-batch counts the same, however many targets it has (Lightning-AI/pytorch-lightning#20350, open); a module
with `automatic_optimization = False` can count the targets of a window itself.

C4: the loss of the last, smaller window of an epoch is divided by `accumulate_grad_batches`, not by its own number of
batches (Lightning-AI/pytorch-lightning#19987, open); manual optimization avoids it.

C5: a batch without a target, whose loss is NaN and whose gradient is 0, makes a step: momentum goes on;
`training_step` may return None for such a batch, which was not tried.

C7: a loss that is not finite reaches the weights; `Trainer(detect_anomaly=True)` raises instead.

C11: `self.log("val_loss", ...)` weighs a batch by its rows, not by its targets; `batch_size=` of `self.log` set to the
number of targets avoids it.
"""

import logging
import warnings

import lightning  # pyrefly: ignore[missing-import]
import tiny
import torch
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = tiny.model()

    def training_step(self, batch, index):
        return tiny.loss_of(self.model(batch[0]), batch)

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
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    validated = DataLoader(validation, batch_size=None) if validation else None
    trainer.fit(module, DataLoader(batches, batch_size=None), validated)
    return module, trainer


def c3():
    whole, parts = trained(tiny.BOTH)[0], trained(tiny.ONE, tiny.FOUR, accumulate=2)[0]
    return "distance from the weights of one batch of the same targets", tiny.weights_moved(whole, parts), 0


def c4():
    whole, parts = trained(tiny.FOUR)[0], trained(tiny.FOUR, accumulate=2)[0]
    moved = [tiny.weights_moved(Module(), one) for one in (parts, whole)]
    return "way of the weights in a window of one batch, accumulate_grad_batches=2", *moved


def c5():
    moved = tiny.weights_moved(trained(tiny.FOUR)[0], trained(tiny.FOUR, tiny.EMPTY)[0])
    return "way of the weights in a step on a batch without a target", moved, 0


def c7():
    return "weights that are not finite after a loss of NaN", tiny.not_finite(trained(tiny.FOUR, tiny.POISON)[0]), 0


def c11():
    module, trainer = trained(tiny.FOUR, validation=(tiny.ONE, tiny.FOUR))
    right = float(tiny.loss_of(module.model(tiny.BOTH[0]), tiny.BOTH).detach())
    return "val_loss of batches of 1 and 4 targets, nats per token", float(trainer.callback_metrics["val_loss"]), right


tiny.answer({"c3": c3, "c4": c4, "c5": c5, "c7": c7, "c11": c11})
