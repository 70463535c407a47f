"""Lightning's Trainer alone: six items in each of two epochs, a checkpoint after two, and `fit(ckpt_path=…)`.

C13: with a loader that has no state the number of batches read is kept, and the epoch is read from its first batch all
the same: some come twice, the last are left out. The Trainer warns of it (Lightning-AI/pytorch-lightning#19764, open).
A loader with `state_dict` and `load_state_dict` avoids it, as in the second line. What is left there: a checkpoint has
no random state, nor does the documentation promise one, and dropout has other masks.
"""

import logging
import sys
import warnings
from itertools import islice
from tempfile import TemporaryDirectory

import lightning  # pyrefly: ignore[missing-import]
import torch
from lightning.pytorch.callbacks import ModelCheckpoint  # pyrefly: ignore[missing-import]
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
CAREFUL = sys.argv[2] != ""


class Stateful(DataLoader):
    read = 0

    def __iter__(self):
        self.read %= len(self)
        for item in islice(super().__iter__(), self.read, None):
            self.read += 1
            yield item

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen = []

    def training_step(self, batch, index):
        self.seen.append((int(batch), round(torch.rand(()).item(), 4)))
        return self.weight * 1.0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def seen(seed, folder, stop=-1, saved=None):
    """The items of a run, with a random number that is drawn for each."""
    torch.manual_seed(seed)
    module, kind = Module(), Stateful if CAREFUL else DataLoader
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        max_steps=stop,
        logger=False,
        callbacks=ModelCheckpoint(folder, "stop", every_n_train_steps=2) if stop > 0 else None,
        enable_checkpointing=stop > 0,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, kind(range(6), batch_size=1), ckpt_path=saved)
    return module.seen


with TemporaryDirectory() as folder:
    right = seen(0, folder)[2:]
    seen(0, folder, stop=2)
    wrong = seen(1, folder, saved=f"{folder}/stop.ckpt")
shown = 1 if CAREFUL else 0
wrong, right = ([one[shown] for one in each] for each in (wrong, right))
print(f"{('items', 'random numbers')[shown]} after the stop {wrong}, without it {right}")
sys.exit(wrong == right)
