"""Answers to the exercises of lesson 02: wrong ones, each with the mistake that must be named, and right ones."""

import random
import time
from fractions import Fraction

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from course_lm import batching

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("batching.loader",)
SABOTAGE = (
    "batching/loader.py",
    "segments = attention_mask if document_ids is None else document_ids",
    "segments = attention_mask",
)

# padding_share(lengths, batch_size)


def shape_of_padding(lengths, batch_size):
    """Real tokens and positions of each batch, one row each."""
    found = []
    while lengths:
        batch, lengths = lengths[:batch_size], lengths[batch_size:]
        found.append([sum(batch), len(batch) * max(batch)])
    return np.array(found)


def share_by_numpy(lengths, batch_size):
    real, positions = shape_of_padding(lengths, batch_size).sum(axis=0)
    return (positions - real) / positions


def share_of_tensors(lengths, batch_size):
    masks = [torch.ones(length) for length in lengths]
    batches = [pad_sequence(masks[i : i + batch_size], batch_first=True) for i in range(0, len(masks), batch_size)]
    return 1 - torch.cat([batch.flatten() for batch in batches]).double().mean()


def share_averaged_over_batches(lengths, batch_size):
    real, positions = shape_of_padding(lengths, batch_size).T
    return np.mean((positions - real) / positions)


def share_at_fixed_width(lengths, batch_size):
    padding = [max(lengths) - length for length in lengths]
    return np.mean(padding) / max(lengths)


def share_that_is_real(lengths, batch_size):
    return 1 - share_by_numpy(lengths, batch_size)


def share_per_real_token(lengths, batch_size):
    real, positions = shape_of_padding(lengths, batch_size).sum(axis=0)
    return (positions - real) / real


def share_of_full_batches(lengths, batch_size):
    return share_by_numpy(lengths[: len(lengths) - len(lengths) % batch_size], batch_size)


def share_of_sorted_rows(lengths, batch_size):
    return share_by_numpy(sorted(lengths), batch_size)


def share_in_fractions(lengths, batch_size):
    real, positions = shape_of_padding(lengths, batch_size).sum(axis=0).tolist()
    return 1 - Fraction(real, positions)


def share_averaged_over_rows(lengths, batch_size):
    widths = [max(lengths[i - i % batch_size :][:batch_size]) for i in range(len(lengths))]
    return np.mean([1 - length / width for length, width in zip(lengths, widths)])


def padding_in_positions(lengths, batch_size):
    real, positions = shape_of_padding(lengths, batch_size).sum(axis=0)
    return positions - real


# labels_of(input_ids, attention_mask, document_ids)


def labels_by_loops(input_ids, attention_mask, document_ids=None):
    labels = input_ids.clone()
    for row in range(len(input_ids)):
        for t in range(input_ids.size(1)):
            starts = t > 0 and not attention_mask[row, t - 1]
            if document_ids is not None:
                starts = t == 0 or bool(document_ids[row, t] != document_ids[row, t - 1])
            if not attention_mask[row, t] or starts:
                labels[row, t] = -100
    return labels


def labels_that_never_hold_position_0(input_ids, attention_mask, document_ids=None):
    labels = batching.labels_of(input_ids, attention_mask, document_ids)
    labels[:, 0] = -100
    return labels


def labels_with_padding(input_ids, attention_mask, document_ids=None):
    labels = input_ids.clone()
    if document_ids is not None:
        labels[:, 1:][document_ids.diff(dim=1) != 0] = -100
        labels[:, 0] = -100
    return labels


def labels_by_id_zero(input_ids, attention_mask, document_ids=None):
    return torch.where(input_ids == 0, -100, input_ids)


def labels_without_padding(input_ids, attention_mask, document_ids=None):
    labels = input_ids.clone()
    labels[attention_mask == 0] = -100
    return labels


def labels_by_pad_id(input_ids, attention_mask, document_ids=None):
    labels = labels_by_loops(input_ids, attention_mask, document_ids)
    if (attention_mask == 0).any():
        pad = input_ids[attention_mask == 0][0]
        labels[input_ids == pad] = -100
    return labels


def labels_of_the_mask_alone(input_ids, attention_mask, document_ids=None):
    labels = torch.where(attention_mask.bool(), input_ids, -100)
    labels[:, 1:][attention_mask.diff(dim=1) == 1] = -100
    return labels


def labels_after_left_padding(input_ids, attention_mask, document_ids=None):
    labels = torch.where(attention_mask.bool(), input_ids, -100)
    if document_ids is not None:
        labels[:, 1:][document_ids.diff(dim=1) != 0] = -100
        labels[:, 0] = -100
    return labels


def labels_shifted_by_roll(input_ids, attention_mask, document_ids=None):
    labels = labels_by_loops(input_ids, attention_mask, document_ids).roll(-1, dims=1)
    labels[:, -1] = -100
    return labels


def labels_of_zero(input_ids, attention_mask, document_ids=None):
    labels = labels_by_loops(input_ids, attention_mask, document_ids)
    return torch.where(labels == -100, 0, labels)


def labels_one_shorter(input_ids, attention_mask, document_ids=None):
    return labels_by_loops(input_ids, attention_mask, document_ids)[:, 1:]


def labels_as_lists(input_ids, attention_mask, document_ids=None):
    return labels_by_loops(input_ids, attention_mask, document_ids).tolist()


def labels_in_place(input_ids, attention_mask, document_ids=None):
    labels = input_ids
    labels[labels_by_loops(input_ids, attention_mask, document_ids) == -100] = -100
    return labels


# epoch_order(count, seed, epoch)


def order_by_text(count, seed, epoch):
    return random.Random(f"{seed}, {epoch}").sample(range(count), count)


def order_by_two_shuffles(count, seed, epoch):
    first = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return first[torch.randperm(count, generator=torch.Generator().manual_seed(2**40 + epoch))]


def order_of_the_process(count, seed, epoch):
    return torch.rand(count).argsort()


def order_of_python(count, seed, epoch):
    return random.sample(range(count), count)


def order_that_seeds_everything(count, seed, epoch):
    torch.manual_seed(hash((seed, epoch)))
    return torch.randperm(count)


def order_that_adds_and_seeds(count, seed, epoch):
    torch.manual_seed(epoch + seed)
    return torch.rand(count).argsort()


def order_that_adds_and_seeds_python(count, seed, epoch):
    rows = list(range(count))
    random.seed(seed + epoch)
    random.shuffle(rows)
    return rows


def order_that_adds(count, seed, epoch):
    return np.random.default_rng(seed + epoch).permutation(count)


def order_of_the_seed(count, seed, epoch):
    return random.Random(seed).sample(range(count), count)


def order_of_the_lowest_bits(count, seed, epoch):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed << 32 | epoch))


def order_of_the_epoch(count, seed, epoch):
    return np.random.default_rng(epoch).permutation(count)


def order_with_replacement(count, seed, epoch):
    return random.Random(f"{seed} {epoch}").choices(range(count), k=count)


def order_of_the_corpus(count, seed, epoch):
    return list(range(count))


def order_by_digits(count, seed, epoch):
    return torch.randperm(count, generator=torch.Generator().manual_seed(10 * seed + epoch)).tolist()


def order_by_thousands(count, seed, epoch):
    return np.random.default_rng(1000 * seed + epoch).permutation(count)


def order_by_hash_of_text(count, seed, epoch):
    return random.Random(hash(f"{seed}/{epoch}")).sample(range(count), count)


def order_by_digits_in_a_row(count, seed, epoch):
    return random.Random(f"{seed}{epoch}").sample(range(count), count)


def order_by_exclusive_or(count, seed, epoch):
    return np.random.default_rng(seed ^ epoch).permutation(count)


def order_of_the_clock(count, seed, epoch):
    return random.Random(int(time.time()) + seed * 100_000 + epoch).sample(range(count), count)


def order_of_numpy_from_the_seed(count, seed, epoch):
    np.random.seed(seed)
    return np.random.permutation(count)


def order_by_numbers_that_hash(count, seed, epoch):
    return random.Random(hash((seed, epoch))).sample(range(count), count)


def order_by_sequence(count, seed, epoch):
    return np.random.default_rng([seed, epoch]).permutation(count)


def order_in_a_fork(count, seed, epoch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed << 16 | epoch)
        return iter(torch.randperm(count).tolist())


# allowed_attention(document_ids)


def allowed_by_loops(document_ids, *, future=False, apart=True, pads=False, itself=True):
    """Who may look at whom, right unless told otherwise."""
    batch, length = document_ids.shape
    allowed = torch.zeros(batch, length, length, dtype=torch.bool)
    for row, documents in enumerate(document_ids.tolist()):
        for query in range(length):
            for key in range(length):
                in_time = key <= query or future
                same = documents[key] == documents[query] or not apart
                real = documents[key] >= 0 or pads
                allowed[row, query, key] = (in_time and same and real) or (key == query)
                if key == query and not itself:
                    allowed[row, query, key] = False
    return allowed


def allowed_with_future(document_ids):
    return allowed_by_loops(document_ids, future=True)


def allowed_backwards(document_ids):
    return allowed_by_loops(document_ids.flip(1)).flip(1, 2)


def allowed_across_documents(document_ids):
    return allowed_by_loops(document_ids, apart=False)


def allowed_causally(document_ids):
    return allowed_by_loops(document_ids, apart=False, pads=True)


def allowed_in_the_document(document_ids):
    return document_ids.unsqueeze(1) == document_ids.unsqueeze(2)


def allowed_among_pads(document_ids):
    return allowed_by_loops(document_ids, pads=True)


def allowed_but_itself(document_ids):
    return allowed_by_loops(document_ids, itself=False)


def allowed_to_no_pad(document_ids):
    return allowed_by_loops(document_ids) * (document_ids != -1).unsqueeze(-1)


def allowed_as_numbers(document_ids):
    return allowed_by_loops(document_ids).long()


WRONG_ANSWERS = {
    "padding_share": [
        (
            share_averaged_over_batches,
            "the batches' shares are averaged: a small last batch then weighs as much as a full one",
        ),
        (share_at_fixed_width, "every batch is as wide as the longest row of all (fixed, not dynamic)"),
        (share_that_is_real, "the share of the real tokens is returned instead of the padding's"),
        (share_per_real_token, "padding is divided by the real tokens instead of by all positions"),
        (share_of_full_batches, "a smaller last batch is dropped"),
        (share_of_sorted_rows, "the rows are sorted by length first (bucketed, not dynamic)"),
        (
            share_averaged_over_rows,
            "every row's own share is averaged: a row of a narrow batch weighs as much as one of a wide batch",
        ),
        (padding_in_positions, "the number of PADs is returned, not their share of the positions"),
    ],
    "labels_of": [
        (labels_with_padding, "padding is a target"),
        (labels_by_id_zero, "every token with the id 0 is ignored, and the mask is not looked at"),
        (
            labels_without_padding,
            "only PAD is ignored, and no first token after PAD or another document",
        ),
        (labels_by_pad_id, "every token with PAD's id is ignored: a real EOS too, where they share it"),
        (labels_of_the_mask_alone, "the first token of a document inside a packed row is a target"),
        (labels_after_left_padding, "the first real token after left padding is a target"),
        (labels_shifted_by_roll, "the labels are already shifted, and the loss shifts them again"),
        (labels_of_zero, "what is no target gets label 0, which is a token like any other"),
        (
            labels_one_shorter,
            "the labels are one position shorter: they are cut as if the loss did not shift",
        ),
        (labels_in_place, "the answer writes into input_ids: the model then reads -100 as a token"),
    ],
    "epoch_order": [
        (
            order_of_the_process,
            "the numbers come from the global generator: the next call gives another order",
        ),
        (
            order_of_the_clock,
            "the clock is in the seed: started again, a run has another order",
        ),
        (order_of_python, "the numbers come from the global generator: the next call gives another order"),
        (
            order_that_seeds_everything,
            "the global generator is seeded: dropout and all other random numbers are disturbed",
        ),
        (
            order_that_adds_and_seeds,
            "the global generator is seeded with seed + epoch: other random numbers are disturbed, and seed 0 in "
            "epoch 1 has the order of seed 1 in epoch 0",
        ),
        (
            order_that_adds_and_seeds_python,
            "the global generator is seeded with seed + epoch: other random numbers are disturbed, and seed 0 in "
            "epoch 1 has the order of seed 1 in epoch 0",
        ),
        (order_that_adds, "seed and epoch are added: seed 0 in epoch 1 has the order of seed 1 in epoch 0"),
        (order_of_the_seed, "the epoch is not used: every epoch has the same order"),
        (
            order_of_the_epoch,
            "the seed is not used, or lies above the 32 bits that torch looks at: every run has the same orders",
        ),
        (
            order_of_the_lowest_bits,
            "the seed is not used, or lies above the 32 bits that torch looks at: every run has the same orders",
        ),
        (order_with_replacement, "rows are drawn with replacement: some come twice and some never"),
        (order_of_the_corpus, "nothing is shuffled"),
        (
            order_by_digits,
            "the seed is multiplied by a number and the epoch added: an epoch as large as the number is the next "
            "seed's epoch 0",
        ),
        (
            order_by_thousands,
            "the seed is multiplied by a number and the epoch added: an epoch as large as the number is the next "
            "seed's epoch 0",
        ),
        (
            order_by_hash_of_text,
            "the order depends on `hash` of a text, which every process salts anew: a resumed run has other orders",
        ),
        (
            order_by_digits_in_a_row,
            "the two numbers are written without a sign between them: seed 1 in epoch 11 has the order of seed 11 in "
            "epoch 1",
        ),
        (
            order_by_exclusive_or,
            "seed and epoch are joined by ^ (exclusive or): seed 0 in epoch 1 has the order of seed 1 in epoch 0",
        ),
        (
            order_of_numpy_from_the_seed,
            "the global generator is seeded with the seed alone: every epoch has the same order",
        ),
    ],
    "allowed_attention": [
        (allowed_with_future, "the future is visible: a document's tokens see those after them"),
        (allowed_backwards, "time runs backwards: queries and keys are exchanged"),
        (allowed_across_documents, "documents are not kept apart"),
        (allowed_causally, "only the future is hidden: neither documents nor padding are kept apart"),
        (allowed_in_the_document, "only documents are kept apart: a token sees the future, and PAD sees PAD"),
        (allowed_among_pads, "PAD sees the PAD before it"),
        (allowed_to_no_pad, "PAD sees nothing, not even itself: its softmax gives NaN"),
        (allowed_but_itself, "a token does not see itself"),
        (allowed_as_numbers, "numbers are given where truth values are asked for"),
    ],
}

EQUIVALENT = {
    "padding_share": [share_by_numpy, share_of_tensors, share_in_fractions],
    "labels_of": [batching.labels_of, labels_by_loops, labels_that_never_hold_position_0, labels_as_lists],
    "epoch_order": [
        order_by_text,
        order_by_two_shuffles,
        order_by_numbers_that_hash,
        order_by_sequence,
        order_in_a_fork,
    ],
    "allowed_attention": [allowed_by_loops],
}
