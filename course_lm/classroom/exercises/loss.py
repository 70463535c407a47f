"""Exercises of lesson 03: a stable log-sum-exp, the loss from ids, perplexity, the loss's gradient, masked prompts."""

import math
from collections.abc import Sequence
from itertools import takewhile

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lm.batching import IGNORE_INDEX
from course_lm.classroom.checks import exercise, with_gradient

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


def _rows(
    lengths: Sequence[int], *, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, ids and mask of rows that begin and end with <eos>; `lengths` count both."""
    generator = torch.Generator().manual_seed(seed)
    attention_mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()  # (B, T)
    words = torch.randint(1, _VOCAB_SIZE, attention_mask.shape, generator=generator)
    input_ids = words.masked_fill(attention_mask == 0, _EOS)
    input_ids[:, 0] = _EOS
    for row, length in enumerate(lengths):
        input_ids[row, length - 1] = _EOS
    if lengths[0] > 6:
        input_ids[0, 3] = _EOS  # one text ends and the next one begins
    logits = torch.randn(*input_ids.shape, _VOCAB_SIZE, generator=generator, dtype=torch.float64)
    return (logits * scale).to(dtype), input_ids, attention_mask


@exercise(
    cases={
        "no padding": _rows([6, 6], seed=1),
        "rows of 8, 5 and 3 tokens": _rows([8, 5, 3], seed=0, dtype=torch.float64),
        "logits times 1000": _rows([7, 4], seed=3, scale=1000.0),
    },
    run=with_gradient,
    close=(1e-5, 1e-7),  # computed in float32, as mixed precision does it, the loss is as right
)
def loss_from_ids(logits, input_ids, attention_mask):
    """The mean next-token loss from ids: `fn(logits, input_ids, attention_mask)`, rows padded on the right."""
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@exercise(
    cases={
        "a large and a small batch": ([2.0, 5.0], [90, 10]),
        "batches of one and two targets": ([1.5, 3.0, 0.5], [1, 20, 2]),
        "a batch without targets, whose mean is nan": ([2.0, float("nan"), 3.0], [10, 0, 30]),
    },
)
def corpus_perplexity(mean_losses, num_targets):
    """Perplexity of several batches: `fn(mean_losses, num_targets)`, nats per target and targets of each batch."""
    nats = sum(mean * count for mean, count in zip(mean_losses, num_targets) if count > 0)
    return math.exp(nats / sum(num_targets))


def _finite(losses: Sequence[float]) -> list[float]:
    return [loss for loss in losses if not math.isnan(loss)]


def _until_empty(losses: Sequence[float], counts: Sequence[int]) -> float:
    first = list(takewhile(lambda batch: batch[1] > 0, zip(losses, counts)))
    return corpus_perplexity.solution(*zip(*first))


corpus_perplexity.also(
    "every batch's mean loss weighs the same, however many targets it has",
    lambda losses, counts: math.exp(sum(_finite(losses)) / len(_finite(losses))),
)
corpus_perplexity.also(
    "every batch weighs the same, the one without targets as a loss of 0",
    lambda losses, counts: math.exp(sum(_finite(losses)) / len(losses)),
)
corpus_perplexity.also(
    "perplexities are averaged, every batch weighing the same",
    lambda losses, counts: sum(map(math.exp, _finite(losses))) / len(_finite(losses)),
)
corpus_perplexity.also(
    "perplexities are averaged over the tokens: the exponential comes before the mean",
    lambda losses, counts: sum(math.exp(loss) * count for loss, count in zip(losses, counts) if count) / sum(counts),
)
corpus_perplexity.also("the batches after one without targets are left out: the loop ends there", _until_empty)


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
        "a prompt of 2 and an answer of 3 tokens": (*_rows([5], seed=4)[1:], torch.tensor([2])),
        "rows of 8, 5 and 6 tokens, prompts of 2, 4 and 1": (*_rows([8, 5, 6], seed=0)[1:], torch.tensor([2, 4, 1])),
    },
)
def prompt_masked(input_ids, attention_mask, prompt_lengths):
    """Labels that teach the answer alone: `fn(input_ids, attention_mask, prompt_lengths)`, rows padded on the right."""
    positions = torch.arange(input_ids.size(1))  # (T,)
    is_learnt = (positions >= prompt_lengths.unsqueeze(1)) & (attention_mask == 1)  # (B, T)
    return input_ids.masked_fill(~is_learnt, -100)
