"""Checks of lesson 03: a stable log-sum-exp, the loss from ids, perplexity, the loss's gradient, masked prompts."""

import math
from collections.abc import Callable, Sequence
from itertools import takewhile

import torch
from torch import Tensor

from course_lm.batching import IGNORE_INDEX, labels_of
from course_lm.classroom.checks.report import AnyOf, Edit, Report, compare, with_gradient, without
from course_lm.loss import next_token_loss, perplexity

_EOS = 0  # the exercise gives <eos> and padding one id
_VOCAB_SIZE = 11


def log_sum_exp(fn: Callable[..., object]) -> Report:
    """The logarithm of the softmax's normaliser: `fn(logits)`, (B, T, V) to (B, T), without overflow."""
    maximum, summed, added = "logits.amax(-1, keepdim=True)", ".sum(-1)", " + largest.squeeze(-1)"
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    return compare(
        fn,
        reference=_log_sum_exp,
        run=without(_log_sum_exp, "logsumexp", "log_softmax", "LogSoftmax"),
        cases={
            "one position in each of two rows": (torch.tensor([[[1.0, 2.0, 4.0]], [[0.0, 1.0, 0.0]]]),),
            "logits of 1000, of −1000 and far apart": (
                torch.tensor([[[1000.0, 998.0], [-1001.0, -1000.0]], [[1.0, 120.0], [0.0, 300.0]]]),
            ),
            "(2, 3, 5), float64": (logits.double(),),
        },
        mistakes={
            "nothing is subtracted before exp, which overflows or vanishes": (
                Edit("(logits - largest)", "logits"),
                Edit(added, ""),
            ),
            "the maximum is not added back": Edit(added, ""),
            "one maximum is taken over the whole tensor instead of one for each position": Edit(
                maximum, "logits.max().view(1, 1, 1)"
            ),
            "one maximum is taken for each row instead of one for each position": Edit(
                maximum, "logits.amax((1, 2), keepdim=True)"
            ),
            "the sum runs over the positions instead of the vocabulary": lambda logits: logits.logsumexp(-2),
            "the sum runs over the rows instead of the vocabulary": lambda logits: logits.logsumexp(0),
            "the mean of the exponentials is taken instead of their sum": Edit(summed, ".mean(-1)"),
            "the logarithm has base 2": lambda logits: logits.logsumexp(-1) / math.log(2),
            "the logarithm has base 2, but what was subtracted is added back as it is": Edit(".log()", ".log2()"),
            "the logarithm has base 10": lambda logits: logits.logsumexp(-1) / math.log(10),
            "the smallest logit is subtracted, so that the others overflow": Edit("amax", "amin"),
            "the mean logit is subtracted, so that the others may overflow": Edit("amax", "mean"),
            "the logarithm is missing: this is the normaliser Z, which overflows": lambda logits: logits.exp().sum(-1),
            "log-probabilities are returned, logits − log Z": lambda logits: logits.log_softmax(-1),
            "the sign is wrong: this is −log Z": lambda logits: -logits.logsumexp(-1),
            "the maximum is returned: the sum of the exponentials is not added": Edit(
                "(logits - largest).exp().sum(-1).log() + ", ""
            ),
            "the exponentials are taken in float64, which overflows beyond 709 as well": lambda logits: (
                logits.double().exp().sum(-1).log()
            ),
            "the logits are cut off before exp, so that large ones count as the bound": AnyOf(
                *(_log_of_cut_off(low, high) for low in (-math.inf, -1.0) for high in (50, 80, 85, 88))
            ),
            "the largest magnitude is subtracted, not the largest logit": Edit("logits.amax", "logits.abs().amax"),
            "a small number is added before the logarithm, which is not needed": Edit(".log()", ".add(1e-6).log()"),
            "the maximum is added twice": Edit(added, " + 2 * largest.squeeze(-1)"),
            "the maximum is subtracted once more instead of added back": Edit(added, " - largest.squeeze(-1)"),
        },
        hints={
            "logits.amax": "One maximum for each position: `logits.amax(-1, keepdim=True)` is (B, T, 1).",
            "largest.squeeze": "exp(a − m) is exp(a) / exp(m): log Z gets m back at the end, once.",
        },
    )


def _log_sum_exp(logits: Tensor) -> Tensor:
    return logits.logsumexp(-1)


def _log_of_cut_off(low: float, high: float) -> Callable[[Tensor], Tensor]:
    """`low` in units of `high`, for logits that are cut off on both sides."""
    return lambda logits: logits.clamp(low * high, high).exp().sum(-1).log()


def loss_from_ids(fn: Callable[..., object]) -> Report:
    """The mean next-token loss from ids: `fn(logits, input_ids, attention_mask)`, rows padded on the right."""
    scored, targets, end = "logits[:, :-1]", "labels[:, 1:]", ".flatten())"
    ignored = "input_ids.masked_fill(attention_mask == 0, -100)"
    summed = '.flatten(), reduction="sum")'
    no_shift = (Edit(scored, "logits"), Edit(targets, "labels"))
    return compare(
        fn,
        reference=lambda logits, ids, mask: next_token_loss(logits, labels_of(ids, mask)),
        run=with_gradient,
        close=(1e-5, 1e-7),  # computed in float32, as mixed precision does it, the loss is as right
        cases={
            "no padding": _rows([6, 6], seed=1),
            "rows of 8, 5 and 3 tokens": _rows([8, 5, 3], seed=0, dtype=torch.float64),
            "logits times 1000": _rows([7, 4], seed=3, scale=1000.0),
        },
        shown=["no padding", "rows of 8, 5 and 3 tokens"],
        mistakes={
            "there is no shift: position t is scored against token t": no_shift,
            "the shift goes the wrong way: position t is scored against token t − 1": (
                Edit(scored, "logits[:, 1:]"),
                Edit(targets, "labels[:, :-1]"),
            ),
            "the shift is made twice: position t is scored against token t + 2": (
                Edit(scored, "logits[:, :-2]"),
                Edit(targets, "labels[:, 2:]"),
            ),
            "there is no shift: the first position is cut off logits and labels alike": Edit(scored, "logits[:, 1:]"),
            "there is no shift: the last position is cut off logits and labels alike": Edit(targets, "labels[:, :-1]"),
            "the shift wraps around: the last position is scored against the row's first token": (
                Edit(scored, "logits"),
                Edit(targets, "labels.roll(-1, 1)"),
            ),
            "padding counts as a target": Edit(ignored, "input_ids"),
            "there is no shift, and padding counts as a target": (Edit(ignored, "input_ids"), *no_shift),
            "ids decide what is padding, so that real <eos> tokens are left out too": Edit(
                "attention_mask == 0", "input_ids == 0"
            ),
            "the mask is turned around: padding counts and real tokens do not": Edit("== 0", "== 1"),
            "the mask is not shifted with the targets": Edit(
                targets, "input_ids[:, 1:].masked_fill(attention_mask[:, :-1] == 0, -100)"
            ),
            "the last real token of each row is left out too": Edit(
                targets, "labels[:, 1:].masked_fill(F.pad(attention_mask[:, 2:], (0, 1)) == 0, -100)"
            ),
            "every row weighs the same: a mean of means": Edit(
                end,
                '.flatten(), reduction="none").view(len(logits), -1).sum(1).div(attention_mask[:, 1:].sum(1)).mean()',
            ),
            "the losses are summed, not averaged": Edit(end, summed),
            "the mean divides by all positions, ignored ones too": Edit(end, f"{summed} / labels[:, 1:].numel()"),
            "the mean divides by all positions, ignored ones and the last one too": Edit(
                end, f"{summed} / labels.numel()"
            ),
            "the mean divides by all real tokens, each row's first one too, which is no target": Edit(
                end, f"{summed} / attention_mask.sum()"
            ),
            "the mean divides by the number of rows": Edit(end, f"{summed} / len(logits)"),
            "the softmax comes before cross_entropy, which takes logits and makes a softmax itself": Edit(
                ".flatten(0, 1)", ".flatten(0, 1).softmax(-1)"
            ),
            "the logarithm is taken of a softmax, which is 0 for large logits": lambda logits, ids, mask: _picked(
                logits.softmax(-1).log(), ids, mask
            ),
            "a small number is added to the softmax before its logarithm": lambda logits, ids, mask: _picked(
                (logits.softmax(-1) + 1e-8).log(), ids, mask
            ),
            "the probability of the target is averaged, without a logarithm": lambda logits, ids, mask: (
                -_picked(logits.softmax(-1), ids, mask)
            ),
            "the sign is wrong: this is the mean of log p": Edit("return F", "return -F"),
            "the logarithm has base 2: this is bits, not nats": Edit(end, ".flatten()) / 0.6931471805599453"),
            "the exponential is taken: this is the perplexity": Edit(end, ".flatten()).exp()"),
            "padding has logits of 0, which have a loss too, and is not left out": (
                Edit(ignored, "input_ids"),
                Edit(".flatten(0, 1)", ".mul(attention_mask[:, 1:, None]).flatten(0, 1)"),
            ),
            "the loss of the first row alone is returned": (
                Edit(scored, "logits[:1, :-1]"),
                Edit(targets, "labels[:1, 1:]"),
            ),
            "the loss of the last row alone is returned": (
                Edit(scored, "logits[-1:, :-1]"),
                Edit(targets, "labels[-1:, 1:]"),
            ),
        },
        hints={
            "masked_fill": "Only `attention_mask` knows which zeros are padding: the last <eos> is a real target.",
            "logits[:, :-1]": "Position t predicts token t + 1: cut the last logits off, and the first labels.",
            "labels[:, 1:]": "Position t predicts token t + 1: cut the last logits off, and the first labels.",
            ".flatten())": "The mean is one sum over all targets of the batch, divided by their number, once.",
            ".flatten(0, 1)": "`F.cross_entropy` takes the logits as they are; it makes the softmax itself.",
        },
    )


def _picked(scores: Tensor, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """The mean of minus the scores at the targets."""
    real = attention_mask[:, 1:] == 1
    at_target = scores[:, :-1].gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return -at_target[real].mean()


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


def corpus_perplexity(fn: Callable[..., object]) -> Report:
    """Perplexity of several batches: `fn(mean_losses, num_targets)`, nats per target and targets of each batch."""

    def mean_loss(losses: Sequence[float], counts: Sequence[int]) -> float:
        return sum(loss * count for loss, count in zip(losses, counts) if count) / sum(counts)

    def finite(losses: Sequence[float]) -> list[float]:
        return [loss for loss in losses if not math.isnan(loss)]

    def until_empty(losses: Sequence[float], counts: Sequence[int]) -> float:
        first = list(takewhile(lambda batch: batch[1] > 0, zip(losses, counts)))
        return perplexity(sum(loss * count for loss, count in first) / sum(count for _, count in first))

    each = "sum(mean * count for mean, count in zip(mean_losses, num_targets) if count > 0)"
    return compare(
        fn,
        reference=lambda losses, counts: perplexity(mean_loss(losses, counts)),
        cases={
            "a large and a small batch": ([2.0, 5.0], [90, 10]),
            "batches of one and two targets": ([1.5, 3.0, 0.5], [1, 20, 2]),
            "a batch without targets, whose mean is nan": ([2.0, float("nan"), 3.0], [10, 0, 30]),
        },
        shown=["a large and a small batch"],
        mistakes={
            "every batch's mean loss weighs the same, however many targets it has": lambda losses, counts: math.exp(
                sum(finite(losses)) / len(finite(losses))
            ),
            "every batch weighs the same, the one without targets as a loss of 0": lambda losses, counts: math.exp(
                sum(finite(losses)) / len(losses)
            ),
            "perplexities are averaged, every batch weighing the same": lambda losses, counts: (
                sum(map(math.exp, finite(losses))) / len(finite(losses))
            ),
            "perplexities are averaged over the tokens: the exponential comes before the mean": lambda losses, counts: (
                mean_loss([math.exp(loss) for loss in losses], counts)
            ),
            "the nan of a batch without targets spreads": Edit(" if count > 0", ""),
            "the batches after one without targets are left out: the loop ends there": until_empty,
            "the power has base 2, but the losses are in nats": Edit("math.exp(", "2 ** ("),
            "the power has base 10, but the losses are in nats": Edit("math.exp(", "10 ** ("),
            "the exponential is missing": Edit("math.exp", ""),
            "the sum of the means is divided by the number of targets: the means are not weighted": Edit(
                each, "sum(mean for mean, count in zip(mean_losses, num_targets) if count > 0)"
            ),
            "the sum is divided by the number of batches, not of targets": Edit("sum(num_targets)", "len(num_targets)"),
            "the sum is divided by the number of batches that have targets": Edit(
                "sum(num_targets)", "sum(count > 0 for count in num_targets)"
            ),
            "the sign is wrong: the exponential of minus the mean loss": Edit("math.exp(nats", "math.exp(-nats"),
            "batches without targets are counted as one target": Edit(
                "sum(num_targets)", "sum(max(1, count) for count in num_targets)"
            ),
            "the median of the means is taken": lambda losses, counts: math.exp(
                sorted(finite(losses))[len(finite(losses)) // 2]
            ),
            "only the last batch counts": lambda losses, counts: math.exp(finite(losses)[-1]),
            "only the first batch counts": lambda losses, counts: math.exp(losses[0]),
            "only the batch with the largest loss counts": lambda losses, counts: math.exp(max(finite(losses))),
        },
        hints={
            "sum(mean * count": "A batch's sum is its mean times its targets; leave a batch without targets out first.",
            "math.exp": "The exponential comes last, once, after the mean over all targets.",
        },
    )


def logits_gradient(fn: Callable[..., object]) -> Report:
    """The gradient of the mean loss in the logits: `fn(logits, labels)`, (B, T, V), labels not shifted."""
    shifted, divisor = "F.pad(labels[:, 1:], (0, 1), value=-100)", "counted.sum()"
    return compare(
        fn,
        reference=_gradient,
        run=without(_gradient, "backward", "autograd", "grad", "func", "vjp", "jvp", "jacrev", "jacfwd"),
        cases={
            "ignored targets in float64": _logits_and_labels(seed=0, dtype=torch.float64),
            "logits times 1000": _logits_and_labels(seed=1, scale=1000.0),
        },
        mistakes={
            "the sign is turned around: target minus softmax": Edit(
                "logits.softmax(-1) - wanted", "wanted - logits.softmax(-1)"
            ),
            "it is not divided by the number of targets": Edit(" / counted.sum()", ""),
            "it is divided by all positions, ignored ones too": Edit(divisor, "labels[:, 1:].numel()"),
            "it is divided by all positions, ignored ones and the last one too": Edit(divisor, "labels.numel()"),
            "it is divided by all labels that are not −100, each row's first one too": Edit(
                divisor, "(labels != -100).sum()"
            ),
            "it is divided by the number of rows": Edit(divisor, "len(labels)"),
            "every row is divided by its own targets: a mean of means": Edit(
                divisor, "counted.sum(1, keepdim=True) / len(labels)"
            ),
            "every row is divided by its own targets, and the rows are added up": Edit(
                divisor, "counted.sum(1, keepdim=True)"
            ),
            "there is no shift: position t is compared with token t": Edit(shifted, "labels"),
            "the shift goes the wrong way: position t is compared with token t − 1": Edit(
                shifted, "F.pad(labels[:, :-1], (1, 0), value=-100)"
            ),
            "the shift is made twice: position t is compared with token t + 2": Edit(
                shifted, "F.pad(labels[:, 2:], (0, 2), value=-100)"
            ),
            "the shift wraps around: the last position is compared with the row's first token": Edit(
                shifted, "labels.roll(-1, 1)"
            ),
            "ignored targets and the last position have a gradient too": Edit(
                "- wanted) * counted", "- wanted * counted)"
            ),
            "the last position counts as a target of id 0": Edit("value=-100", "value=0"),
            "ignored targets and the last position count as targets of id 0": Edit(" * counted", ""),
            "the softmax stands alone: 1 is not subtracted at the target": Edit(" - wanted", ""),
            "the target stands alone: the softmax is left out": Edit("logits.softmax(-1) - wanted", "-wanted"),
            "1 is added at the target instead of subtracted": Edit("- wanted", "+ wanted"),
            "the exponentials are not divided by their sum: this is no softmax": Edit("softmax(-1)", "exp()"),
            "the softmax is made by hand and overflows: no maximum is subtracted": Edit(
                "logits.softmax(-1)", "(logits.exp() / logits.exp().sum(-1, keepdim=True))"
            ),
            "the softmax runs over the positions": Edit("softmax(-1)", "softmax(1)"),
            "the logits stand where their softmax belongs": Edit("logits.softmax(-1)", "logits"),
            "log-probabilities stand where probabilities belong": Edit("softmax(-1)", "log_softmax(-1)"),
            "the softmax has its own gradient in it, p (1 − p), as for a squared error": Edit(
                "(logits.softmax(-1) - wanted)",
                "(logits.softmax(-1) - wanted) * logits.softmax(-1) * (1 - logits.softmax(-1))",
            ),
        },
        hints={
            "F.pad": "Position t is scored against label t + 1; the last position has no target.",
            "counted.sum": "The loss is one mean over all targets of the batch: divide by their number, once.",
            "(targets != -100)": "A position whose target is −100 adds nothing to the loss: its gradient is 0.",
        },
    )


def prompt_masked(fn: Callable[..., object]) -> Report:
    """Labels that teach the answer alone: `fn(input_ids, attention_mask, prompt_lengths)`, rows padded on the right."""
    answer, learnt = "positions >= prompt_lengths.unsqueeze(1)", "attention_mask == 1"
    made = "input_ids.masked_fill(~is_learnt, -100)"
    _, short, short_mask = _rows([5], seed=4)
    _, ids, mask = _rows([8, 5, 6], seed=0)
    return compare(
        fn,
        reference=_labels_of_answers,
        cases={
            "a prompt of 2 and an answer of 3 tokens": (short, short_mask, torch.tensor([2])),
            "rows of 8, 5 and 6 tokens, prompts of 2, 4 and 1": (ids, mask, torch.tensor([2, 4, 1])),
        },
        shown=["a prompt of 2 and an answer of 3 tokens"],
        mistakes={
            "the first token of the answer is left out: the last token of the prompt predicts it": Edit(">=", ">"),
            "the last token of the prompt is still to be learnt": Edit(
                answer, "positions + 1 >= prompt_lengths[:, None]"
            ),
            "the prompt is to be learnt too: only padding is left out": Edit(f"({answer}) & ", ""),
            "padding is to be learnt too": Edit(f" & ({learnt})", ""),
            "nothing is left out: the labels are the ids": Edit(made, "input_ids.clone()"),
            "the wrong part is left out: the prompt and padding are learnt, the answer is not": Edit("~", ""),
            "the prompt is learnt and the answer is not": Edit(">=", "<"),
            "the mask is turned around: padding is learnt and real tokens are not": Edit(learnt, "attention_mask == 0"),
            "ids decide what is padding, so that the <eos> that ends the answer is not learnt": Edit(
                learnt, "input_ids != 0"
            ),
            "every row is cut at the length of the first row's prompt": Edit(answer, "positions >= prompt_lengths[0]"),
            "every row is cut at the length of the longest prompt": Edit(answer, "positions >= prompt_lengths.max()"),
            "every row is cut at the length of the shortest prompt": Edit(answer, "positions >= prompt_lengths.min()"),
            "the lengths are taken for those of the answers, counted from the end of the row": Edit(
                answer, "positions >= attention_mask.sum(1, keepdim=True) - prompt_lengths[:, None]"
            ),
            "the labels are shifted already, and the loss would shift them again": lambda ids, mask, lengths: (
                torch.nn.functional.pad(_labels_of_answers(ids, mask, lengths)[:, 1:], (0, 1), value=IGNORE_INDEX)
            ),
            "0 stands where −100 belongs, and 0 is the id of a token": Edit("-100", "0"),
            "−1 stands where −100 belongs: the loss does not know that number": Edit("-100", "-1"),
            "this says which tokens are learnt, and holds no labels": Edit(made, "is_learnt"),
        },
        hints={
            "unsqueeze": "`prompt_lengths` is (B,), positions are (T,): unsqueeze one to compare all with all.",
            "attention_mask": "Only `attention_mask` knows which zeros are padding.",
            "masked_fill": "What is not learnt has the label −100; every other label is the id itself, not shifted.",
        },
    )


def _labels_of_answers(input_ids: Tensor, attention_mask: Tensor, prompt_lengths: Tensor) -> Tensor:
    labels = labels_of(input_ids, attention_mask)
    for row, length in zip(labels, prompt_lengths.tolist(), strict=True):
        row[:length] = IGNORE_INDEX
    return labels


def _logits_and_labels(*, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (3, 6), generator=generator)
    labels[0, 4:] = IGNORE_INDEX
    labels[1, 2] = IGNORE_INDEX
    labels[2, 2:] = IGNORE_INDEX
    logits = torch.randn(3, 6, 5, generator=generator, dtype=torch.float64) * scale
    return logits.to(dtype), labels


def _gradient(logits: Tensor, labels: Tensor) -> Tensor:
    logits = logits.detach().requires_grad_()
    return torch.autograd.grad(next_token_loss(logits, labels), logits)[0]
