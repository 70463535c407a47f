"""SGD with momentum, a batch without a target after one with a target. Leaving out such batches avoids it."""

import sys

import torch
from fastai.basics import DataLoaders, Learner, OptimWrapper  # pyrefly: ignore[missing-import]
from fastai.callback import progress  # noqa: F401  # pyrefly: ignore[missing-import]  # adds `no_bar`


def weight(targets):
    model = torch.nn.Linear(1, 3, bias=False)
    torch.nn.init.zeros_(model.weight)
    learner = Learner(
        DataLoaders([(torch.ones(1, 1), torch.tensor([target])) for target in targets], []),
        model,
        loss_func=torch.nn.functional.cross_entropy,
        opt_func=OptimWrapper(opt=torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)),
    )
    with learner.no_bar(), learner.no_logging():
        learner.fit(1, lr=1.0)
    return model.weight[0, 0].item()


got, right = weight([0, -100]), weight([0])
print(f"weight {got:.4f}, without the empty batch {right:.4f}")
sys.exit(got == right)
