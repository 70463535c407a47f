"""The handler `TerminateOnNan` reads the loss after the step, and ends the run without an error.

None of the trainer's arguments avoids it; an update function of the user's own that looks before `optimizer.step()`
does.
"""

import logging
import sys

import torch
from ignite.engine import Events, create_supervised_trainer  # pyrefly: ignore[missing-import]
from ignite.handlers import TerminateOnNan  # pyrefly: ignore[missing-import]

logging.disable()
model = torch.nn.Linear(1, 1, bias=False).double()
torch.nn.init.ones_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = create_supervised_trainer(model, optimizer, lambda y_pred, y: (y_pred * y).sum())
trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())
one = torch.ones(1, 1, dtype=torch.float64)
trainer.run([(one, one), (one, float("nan") * one), (one, one)], max_epochs=1)
print(f"weight {model.weight.item()}, before that batch 0.9")
sys.exit(bool(model.weight.isfinite().all()))
