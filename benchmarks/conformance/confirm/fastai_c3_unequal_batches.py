"""Two samples with one and with nine targets, `n_acc=2`: `GradientAccumulation` weighs a mean loss by its samples.
Samples with the same number of targets avoid it.
"""

import sys

import torch
from fastai.basics import DataLoaders, Learner, OptimWrapper  # pyrefly: ignore[missing-import]
from fastai.callback.training import GradientAccumulation  # pyrefly: ignore[missing-import]


def change(data, samples):
    """The change of the first logit in one step at rate 1."""
    model = torch.nn.Linear(1, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    learner = Learner(
        DataLoaders(data, []),
        model,
        loss_func=lambda pred, y: torch.nn.functional.cross_entropy(pred.flatten(0, 1), y.flatten()),
        opt_func=OptimWrapper(opt=torch.optim.SGD(model.parameters(), lr=1.0)),
    )
    with learner.no_bar(), learner.no_logging():
        learner.fit(1, lr=1.0, cbs=GradientAccumulation(samples))
    return model.weight[0].item()


short, long = torch.tensor([[0] + [-100] * 8]), torch.tensor([[1] * 9])
one = torch.ones(1, 9, 1)
got = change([(one, short), (one, long)], 2)
right = change([(torch.cat([one, one]), torch.cat([short, long]))], 2)
print(f"change of the first logit {got:.4f}, by one batch of both samples {right:.4f}")
sys.exit(abs(got - right) < 1e-5)
