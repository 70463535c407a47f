"""The trainer alone: six items in each of two epochs, a `Checkpoint` after two, and `load_objects` in another trainer.

C13: the number of the iteration is kept, and the data are read from the epoch's first batch all the same: some come
twice, the last of the epoch are left out. No random state is kept. `create_supervised_trainer(deterministic=True)` and
one seed at the start of each process avoid both, as in the second line.
"""

import sys
from tempfile import TemporaryDirectory

import torch
from ignite.engine import Events, create_supervised_trainer  # pyrefly: ignore[missing-import]
from ignite.handlers import Checkpoint, DiskSaver  # pyrefly: ignore[missing-import]


def items(folder, stop=None, saved=None):
    """The items that a run reads."""
    seen = []
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = create_supervised_trainer(model, optimizer, torch.nn.functional.mse_loss)
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda: seen.append(int(trainer.state.batch[0])))
    kept = {"trainer": trainer, "model": model, "optimizer": optimizer}
    if saved:
        Checkpoint.load_objects(kept, saved)
    if stop:
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=stop), Checkpoint(kept, DiskSaver(folder), n_saved=1))
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=stop), trainer.terminate)
    data = [(torch.full((1, 1), float(number)), torch.zeros(1, 1)) for number in range(6)]
    trainer.run(data, max_epochs=2)
    return seen


with TemporaryDirectory() as folder:
    right = items(folder)[2:]
    items(folder, stop=2)
    wrong = items(folder, saved=f"{folder}/checkpoint_2.pt")
print(f"items after the stop {wrong}, without it {right}")
sys.exit(wrong == right)
