"""Answers to the exercises of lesson 03: wrong ones, each with the mistake that must be named, and right ones."""

import math

import numpy as np
import torch
from torch.nn import functional as F

from course_lm import loss as package

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("loss",)
SABOTAGE = (
    "loss.py",
    "return losses / count_targets(labels, ignore_index)",
    "return losses / labels[:, 1:].numel()",
)


def lse_naive(logits):
    return torch.log(torch.exp(logits).sum(dim=-1))


def lse_without_the_maximum(logits):
    largest = logits.max(dim=-1, keepdim=True).values
    return torch.log(torch.sum(torch.exp(logits - largest), dim=2))


def lse_with_one_maximum(logits):
    largest = torch.max(logits)
    return largest + torch.log(torch.exp(logits - largest).sum(-1))


def lse_over_positions(logits):
    largest = logits.amax(1, keepdim=True)
    return ((logits - largest).exp().sum(1, keepdim=True).log() + largest).squeeze(1)


def lse_of_the_mean(logits):
    largest = logits.amax(-1)
    return largest + (logits - largest.unsqueeze(-1)).exp().mean(-1).log()


def lse_in_base_two(logits):
    largest = logits.amax(-1)
    return largest / math.log(2) + (logits - largest.unsqueeze(-1)).exp().sum(-1).log2()


def lse_by_log_softmax(logits):
    return (logits - F.log_softmax(logits, dim=-1))[..., 0]


def lse_by_logaddexp(logits):
    total = logits[..., 0]
    for column in range(1, logits.size(-1)):
        total = torch.logaddexp(total, logits[..., column])
    return total


def from_ids(*, offset=1, padding_counts=False, by_ids=False, mask_offset=None, rows=False, sums=False, all_rows=False):
    """A loss written with loops over rows, right unless told otherwise."""

    def loss_from_ids(logits, input_ids, attention_mask):
        log_p = torch.log_softmax(logits, dim=-1)
        nats, counts = [], []
        for row in range(input_ids.size(0)):
            row_nats, row_count = logits.new_zeros(()), 0
            for t in range(max(0, -offset), input_ids.size(1) - max(0, offset)):
                target = int(input_ids[row, t + offset])
                at = t + (offset if mask_offset is None else mask_offset)
                real = target != 0 if by_ids else bool(attention_mask[row, at])
                if real or padding_counts:
                    row_nats, row_count = row_nats - log_p[row, t, target], row_count + 1
            nats.append(row_nats)
            counts.append(row_count)
        if rows:
            return sum(one / count for one, count in zip(nats, counts)) / len(nats)
        positions = input_ids.size(0) * (input_ids.size(1) - 1)
        return sum(nats) / (1 if sums else positions if all_rows else sum(counts))

    return loss_from_ids


def from_ids_with_cross_entropy(logits, input_ids, attention_mask):
    targets = torch.where(attention_mask == 1, input_ids, -100)[:, 1:]
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), targets)


def from_ids_with_the_package(logits, input_ids, attention_mask):
    return package.next_token_loss(logits, torch.where(attention_mask.bool(), input_ids, -100))


def from_ids_with_softmax_first(logits, input_ids, attention_mask):
    probabilities = torch.softmax(logits, dim=2)
    return from_ids_with_cross_entropy(probabilities, input_ids, attention_mask)


def from_ids_with_rolled_targets(logits, input_ids, attention_mask):
    targets = torch.roll(torch.where(attention_mask == 1, input_ids, -100), shifts=-1, dims=1)
    return F.cross_entropy(logits.transpose(1, 2), targets)


def perplexity_until_an_empty_batch(mean_losses, num_targets):
    nats = targets = 0
    for mean_loss, count in zip(mean_losses, num_targets):
        if math.isnan(mean_loss):
            break
        nats, targets = nats + mean_loss * count, targets + count
    return math.exp(nats / targets)


def perplexity_of_unweighted_means(mean_losses, num_targets):
    return float(np.exp(np.nanmean(mean_losses)))


def mean_of_perplexities(mean_losses, num_targets):
    return float(np.nanmean(np.exp(mean_losses)))


def weighted_mean_of_perplexities(mean_losses, num_targets):
    total = 0.0
    for mean_loss, count in zip(mean_losses, num_targets):
        if count > 0:
            total += count * math.exp(mean_loss)
    return total / sum(num_targets)


def perplexity_with_nan(mean_losses, num_targets):
    return float(np.exp(np.average(mean_losses, weights=num_targets)))


def perplexity_in_base_two(mean_losses, num_targets):
    return 2 ** perplexity_without_exp(mean_losses, num_targets)


def perplexity_without_exp(mean_losses, num_targets):
    return float(np.nansum(np.array(mean_losses) * np.array(num_targets)) / np.sum(num_targets))


def perplexity_by_numpy(mean_losses, num_targets):
    return np.exp(perplexity_without_exp(mean_losses, num_targets))


def gradient(*, sign=1, divide="targets", offset=1, ignore=True, onehot=1.0):
    """The gradient position by position, right unless told otherwise."""

    def logits_gradient(logits, labels):
        result = torch.zeros_like(logits)
        length = labels.size(1)
        for row in range(labels.size(0)):
            own = int((labels[row, 1:] != -100).sum())
            for t in range(length):
                target = int(labels[row, t + offset]) if t + offset < length else -100
                if target == -100 and ignore:
                    continue
                result[row, t] = torch.softmax(logits[row, t], dim=0)
                if target != -100:
                    result[row, t, target] -= onehot
                result[row, t] /= own * labels.size(0) if divide == "row" else 1
        targets = {"targets": int((labels[:, offset:] != -100).sum()), "positions": labels.size(0) * (length - 1)}
        return sign * result / targets.get(divide, 1)

    return logits_gradient


def gradient_by_autograd(logits, labels):
    leaf = logits.clone().requires_grad_()
    F.cross_entropy(leaf[:, :-1].transpose(1, 2), labels[:, 1:]).backward()
    return leaf.grad


def masked(*, late=0, padding: int | None = -100, prompt: int | None = -100, ids_decide=False, lengths=None, shift=0):
    """Labels token by token, right unless told otherwise; None keeps the ids."""

    def prompt_masked(input_ids, attention_mask, prompt_lengths):
        labels = torch.empty_like(input_ids)
        cuts = lengths(prompt_lengths) if lengths else prompt_lengths
        for row in range(input_ids.size(0)):
            for t in range(input_ids.size(1)):
                token = int(input_ids[row, t])
                real = token != 0 if ids_decide else int(attention_mask[row, t]) == 1
                label = padding if not real else prompt if t < cuts[row] + late else token
                labels[row, t] = token if label is None else label
        return torch.cat([labels[:, shift:], labels.new_full((len(labels), shift), -100)], dim=1)

    return prompt_masked


def masked_by_slices(input_ids, attention_mask, prompt_lengths):
    labels = torch.full_like(input_ids, -100)
    for row, (start, end) in enumerate(zip(prompt_lengths.tolist(), attention_mask.sum(1).tolist())):
        labels[row, start:end] = input_ids[row, start:end]
    return labels


def masked_by_counting(input_ids, attention_mask, prompt_lengths):
    return torch.where((attention_mask.cumsum(1) * attention_mask) > prompt_lengths[:, None], input_ids, -100)


WRONG_ANSWERS = {
    "log_sum_exp": [
        (lse_naive, "nothing is subtracted before exp, which overflows or vanishes"),
        (lse_without_the_maximum, "the maximum is not added back"),
        (lse_with_one_maximum, "one maximum is taken over the whole tensor instead of one for each position"),
        (lse_over_positions, "the sum runs over the positions instead of the vocabulary"),
        (lse_of_the_mean, "the mean of the exponentials is taken instead of their sum"),
        (lse_in_base_two, "the logarithm has base 2"),
    ],
    "loss_from_ids": [
        (from_ids(offset=0), "there is no shift: position t is scored against token t"),
        (from_ids(offset=-1), "the shift goes the wrong way: position t is scored against token t − 1"),
        (from_ids(offset=2), "the shift is made twice: position t is scored against token t + 2"),
        (from_ids(padding_counts=True), "padding counts as a target"),
        (from_ids(offset=0, padding_counts=True), "there is no shift, and padding counts as a target"),
        (from_ids(by_ids=True), "ids decide what is padding, so that real <eos> tokens are left out too"),
        (from_ids(mask_offset=0), "the mask is not shifted with the targets"),
        (from_ids(rows=True), "every row weighs the same: a mean of means"),
        (from_ids(sums=True), "the losses are summed, not averaged"),
        (from_ids(all_rows=True), "the mean divides by all positions, ignored ones too"),
        (
            from_ids_with_softmax_first,
            "the softmax comes before cross_entropy, which takes logits and makes a softmax itself",
        ),
        (
            from_ids_with_rolled_targets,
            "the shift wraps around: the last position is scored against the row's first token",
        ),
    ],
    "corpus_perplexity": [
        (
            perplexity_of_unweighted_means,
            "every batch's mean loss weighs the same, however many targets it has",
        ),
        (mean_of_perplexities, "perplexities are averaged, every batch weighing the same"),
        (
            weighted_mean_of_perplexities,
            "perplexities are averaged over the tokens: the exponential comes before the mean",
        ),
        (perplexity_with_nan, "the nan of a batch without targets spreads"),
        (perplexity_in_base_two, "the power has base 2, but the losses are in nats"),
        (perplexity_without_exp, "the exponential is missing"),
        (
            perplexity_until_an_empty_batch,
            "the batches after one without targets are left out: the loop ends there",
        ),
    ],
    "logits_gradient": [
        (gradient(sign=-1), "the sign is turned around: target minus softmax"),
        (gradient(divide="nothing"), "it is not divided by the number of targets"),
        (gradient(divide="positions"), "it is divided by all positions, ignored ones too"),
        (gradient(divide="row"), "every row is divided by its own targets: a mean of means"),
        (gradient(offset=0), "there is no shift: position t is compared with token t"),
        (gradient(ignore=False), "ignored targets and the last position have a gradient too"),
        (gradient(onehot=0.0), "the softmax stands alone: 1 is not subtracted at the target"),
    ],
    "prompt_masked": [
        (
            masked(late=1),
            "the first token of the answer is left out: the last token of the prompt predicts it",
        ),
        (masked(late=-1), "the last token of the prompt is still to be learnt"),
        (masked(padding=None), "padding is to be learnt too"),
        (masked(prompt=None), "the prompt is to be learnt too: only padding is left out"),
        (
            masked(ids_decide=True),
            "ids decide what is padding, so that the <eos> that ends the answer is not learnt",
        ),
        (masked(padding=0, prompt=0), "0 stands where −100 belongs, and 0 is the id of a token"),
        (
            masked(lengths=lambda lengths: lengths[:1].expand(len(lengths))),
            "every row is cut at the length of the first row's prompt",
        ),
        (masked(shift=1), "the labels are shifted already, and the loss would shift them again"),
    ],
}

EQUIVALENT = {
    "log_sum_exp": [lse_by_logaddexp],
    "loss_from_ids": [from_ids(), from_ids_with_cross_entropy, from_ids_with_the_package],
    "corpus_perplexity": [perplexity_by_numpy],
    "logits_gradient": [gradient()],
    "prompt_masked": [masked(), masked_by_slices, masked_by_counting],
}

# What the exercise's text forbids, right as it is.
FORBIDDEN = {
    "log_sum_exp": [lse_by_log_softmax, lambda logits: torch.logsumexp(logits, dim=-1)],
    "logits_gradient": [gradient_by_autograd],
}
