"""Accelerate alone: a loader of six items stops in its second epoch, and another goes on with it.

C13: `save_state` does not keep the number of the epoch, and a loader that is prepared anew begins with the order of the
first (huggingface/accelerate#3242, open). The loader's `set_epoch` before each epoch avoids it, as in the second line.
What is left there: the iterator after `skip_first_batches` draws a number from the random state that `load_state` has
put back, so dropout has other masks. To put that state back once more after the iterator's first batch avoids it.
"""

import sys
from itertools import islice
from tempfile import TemporaryDirectory

import torch
from accelerate import Accelerator  # pyrefly: ignore[missing-import]
from torch.utils.data import DataLoader, DistributedSampler

SETS_EPOCH = sys.argv[2] == "targets counted first"
peer = Accelerator(cpu=True)


def loader():
    data = range(6)
    return peer.prepare(DataLoader(data, batch_size=1, sampler=DistributedSampler(data, num_replicas=1, rank=0)))


def seen(batches):
    """The items, with a random number that is drawn for each."""
    return [(int(item), round(torch.rand(()).item(), 4)) for item in batches]


torch.manual_seed(0)
with TemporaryDirectory() as folder:
    first = loader()
    seen(first)
    second = iter(first)
    seen(islice(second, 2))
    peer.save_state(folder)
    right = seen(second)
    torch.manual_seed(1)
    again = loader()
    if SETS_EPOCH:
        again.set_epoch(1)
    peer.load_state(folder)
    wrong = seen(peer.skip_first_batches(again, 2))
shown = 1 if SETS_EPOCH else 0
wrong, right = ([one[shown] for one in each] for each in (wrong, right))
print(f"{('items', 'random numbers')[shown]} after the stop {wrong}, without it {right}")
sys.exit(wrong == right)
