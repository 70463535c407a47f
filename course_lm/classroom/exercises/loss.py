"""Exercises of lesson 03: a stable log-sum-exp, masked prompts, the loss's gradient."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lm.batching import IGNORE_INDEX
from course_lm.classroom.checks import exercise

_EOS = 0  # the exercises give <eos> and padding one id
_VOCAB_SIZE = 11
_LOGITS = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))


@exercise(
    cases={
        "one position in each of two rows": (torch.tensor([[[1.0, 2.0, 4.0]], [[0.0, 1.0, 0.0]]]),),
        "logits of 1000, of −1000 and far apart": (
            torch.tensor([[[1000.0, 998.0], [-1001.0, -1000.0]], [[1.0, 120.0], [0.0, 300.0]]]),
        ),
        "(2, 3, 5), float64": (_LOGITS.double(),),
    },
    without=("logsumexp", "log_softmax", "LogSoftmax"),
)
def log_sum_exp(logits):
    """The logarithm of the softmax's normaliser: `fn(logits)`, (B, T, V) to (B, T), without overflow."""
    largest = logits.amax(-1, keepdim=True)  # (B, T, 1)
    return (logits - largest).exp().sum(-1).log() + largest.squeeze(-1)


log_sum_exp.also("the sum runs over the positions instead of the vocabulary", lambda logits: logits.logsumexp(-2))
log_sum_exp.also("the sum runs over the rows instead of the vocabulary", lambda logits: logits.logsumexp(0))
log_sum_exp.also("the logarithm has base 2", lambda logits: logits.logsumexp(-1) / math.log(2))
log_sum_exp.also(
    "the exponentials are taken in float64, which overflows beyond 709 as well",
    lambda logits: logits.double().exp().sum(-1).log(),
)
for bound in (50, 80, 85, 88):
    log_sum_exp.also(
        "the logits are cut off before exp, so that large ones count as the bound",
        lambda logits, bound=bound: logits.clamp(max=bound).exp().sum(-1).log(),
        lambda logits, bound=bound: logits.clamp(-bound, bound).exp().sum(-1).log(),
    )


def _rows(lengths: Sequence[int], *, seed: int) -> tuple[Tensor, Tensor]:
    """Ids and mask of rows that begin and end with <eos>; `lengths` count both."""
    generator = torch.Generator().manual_seed(seed)
    attention_mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()  # (B, T)
    words = torch.randint(1, _VOCAB_SIZE, attention_mask.shape, generator=generator)
    input_ids = words.masked_fill(attention_mask == 0, _EOS)
    input_ids[:, 0] = _EOS
    for row, length in enumerate(lengths):
        input_ids[row, length - 1] = _EOS
    if lengths[0] > 6:
        input_ids[0, 3] = _EOS  # one text ends and the next one begins
    return input_ids, attention_mask


def _logits_and_labels(*, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (3, 6), generator=generator)
    labels[0, 4:] = IGNORE_INDEX
    labels[1, 2] = IGNORE_INDEX
    labels[2, 2:] = IGNORE_INDEX
    logits = torch.randn(3, 6, 5, generator=generator, dtype=torch.float64) * scale
    return logits.to(dtype), labels


@exercise(
    cases={
        "ignored targets in float64": _logits_and_labels(seed=0, dtype=torch.float64),
        "logits times 1000": _logits_and_labels(seed=1, scale=1000.0),
    },
    without=("backward", "autograd", "grad", "func", "vjp", "jvp", "jacrev", "jacfwd"),
)
def logits_gradient(logits, labels):
    """The gradient of the mean loss in the logits: `fn(logits, labels)`, (B, T, V), labels not shifted."""
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)  # (B, T)
    counted = (targets != -100).unsqueeze(-1)  # (B, T, 1)
    wanted = F.one_hot(targets.clamp(min=0), logits.size(-1))  # (B, T, V)
    return (logits.softmax(-1) - wanted) * counted / counted.sum()


@exercise(
    cases={
        "a prompt of 2 and an answer of 3 tokens": (*_rows([5], seed=4), torch.tensor([2])),
        "rows of 8, 5 and 6 tokens, prompts of 2, 4 and 1": (*_rows([8, 5, 6], seed=0), torch.tensor([2, 4, 1])),
    },
)
def prompt_masked(input_ids, attention_mask, prompt_lengths):
    """Labels that teach the answer alone: `fn(input_ids, attention_mask, prompt_lengths)`, rows padded on the right."""
    positions = torch.arange(input_ids.size(1))  # (T,)
    is_learnt = (positions >= prompt_lengths.unsqueeze(1)) & (attention_mask == 1)  # (B, T)
    return input_ids.masked_fill(~is_learnt, -100)
