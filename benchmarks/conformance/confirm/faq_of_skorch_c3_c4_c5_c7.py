"""skorch with the net of its FAQ, "How can I perform gradient accumulation with skorch?".

C3: `get_loss` divides each batch's mean loss by `acc_steps`. Batches with the same number of targets avoid it.

C4: an epoch's last batches make no step, and their gradient is added to the next epoch's first. The FAQ says so, and
that its reader should add a step after the last batch.

C5: SGD with momentum; the FAQ's `train_step` looks at no target. Leaving out such batches avoids it.

C7: the FAQ's `train_step` makes the step whatever the loss is. A test of the loss before `optimizer_.step()` avoids it.
"""

import tiny
from skorch import NeuralNet  # pyrefly: ignore[missing-import]
from skorch_c5_c7_c11 import fitted


def trained(*batches, accumulate=1):
    class GradAccNet(NeuralNet):
        def get_loss(self, *args, **kwargs):
            return super().get_loss(*args, **kwargs) / accumulate

        def train_step(self, batch, **fit_params):
            n_train_batches = len(self.history[-1, "batches"])
            step = self.train_step_single(batch, **fit_params)
            if n_train_batches % accumulate == 0:
                self.optimizer_.step()
                self.optimizer_.zero_grad()
            return step

    return fitted(*batches, net=GradAccNet).module_


tiny.answer(tiny.of_a_mean_loss(trained))
