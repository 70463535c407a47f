"""Lightning's Trainer with the module of its tutorials: the mean loss of a batch, and a rate by the step.

`Trainer` has its defaults but for accumulation, clipping and the number of epochs. `val_loss` is logged as the
tutorials log it. The loss and the optimizer are the user's.
"""

from course_lm.audit import lightning

USERS = "the user writes the loss"
PACKAGE = "lightning"
NOT_OFFERED = {"C1": USERS, "C2": USERS, "C9": "the user builds the optimizer", "C12": "not written by this adapter"}
LOOPS = {"": lightning()}
