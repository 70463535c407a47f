"""skorch with the net that accumulates of its FAQ, retold.

Source: docs/user/FAQ.rst at commit 5db0ddc, "How can I perform gradient accumulation with skorch?". The FAQ calls it a
starting point and says that the user has to add a step after an epoch's last batch. Its `train_step` calls no callback
between the gradient and the step, so `GradientNormClipping` has no effect in it. The FAQ has no case of a validation.
"""

from typing import Any

from skorch import NeuralNet  # pyrefly: ignore[missing-import]

from benchmarks.conformance.adapters.skorch import USERS, driven
from course_lm.audit.adapters.parts import UNSCALED
from course_lm.audit.spec import Settings

PACKAGE = "skorch"
NOT_OFFERED = {"C1": USERS, "C2": USERS, "C6": "the FAQ has no case of it", "C9": "the user builds the optimizer"}
CALLED = dict.fromkeys(("C4", "C5", "C7"), "not guarded")  # the user's `train_step` calls `optimizer_.step()`


def accumulating(settings: Settings) -> Any:
    """The FAQ's class, with the settings' steps."""

    class GradAccNet(NeuralNet):
        def __init__(self, *args: Any, acc_steps: int = settings.accumulation_steps, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.acc_steps = acc_steps

        def get_loss(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().get_loss(*args, **kwargs)
            return loss / self.acc_steps

        def train_step(self, batch: Any, **fit_params: Any) -> Any:
            n_train_batches = len(self.history[-1, "batches"])
            step = self.train_step_single(batch, **fit_params)
            if n_train_batches % self.acc_steps == 0:
                self.optimizer_.step()
                self.optimizer_.zero_grad()
            return step

    return GradAccNet


LOOPS = {"the FAQ's `GradAccNet`, retold": driven(accumulating, frozenset({"max_grad_norm", "validation", *UNSCALED}))}
