"""Answers to the exercises of lesson 01: wrong ones, each with the mistake that must be named, and right ones."""

import math
import random
import re
import zlib

import numpy as np
import torch

from course_lm.batching.packing import ranges

# The modules that the lesson teaches, and a fault in the package that must turn it red: file, right, wrong.
TAUGHT = ("corpus", "tokenizer")
SABOTAGE = (
    "tokenizer.py",
    "sizes[index] = len(token)  # one character of the byte alphabet stands for one byte",
    "sizes[index] = len(tokenizer.decode([index]))",
)

# lost_to_truncation(lengths, max_length)


def targets_of(lengths):
    return np.array(lengths) - 1


def lost_by_numpy(lengths, max_length):
    targets = targets_of(lengths)
    return np.maximum(targets - (max_length - 1), 0).sum() / targets.sum()


def lost_by_cutting(lengths, max_length):
    documents = [list(range(length)) for length in lengths]
    lost = sum(len(ids[max_length:]) for ids in documents)
    return lost / sum(len(ids[1:]) for ids in documents)


def lost_as_a_tensor(lengths, max_length):
    positions = ranges(torch.zeros(len(lengths), dtype=torch.int64), torch.tensor(lengths))
    return (positions >= max_length).sum().double() / (positions > 0).sum()


def lost_documents(lengths, max_length):
    return np.mean([length > max_length for length in lengths])


def lost_on_average(lengths, max_length):
    return np.mean([lost_by_numpy([length], max_length) for length in lengths])


def lost_of_all_ids(lengths, max_length):
    kept = np.minimum(lengths, max_length).sum()
    return 1 - kept / sum(lengths)


def lost_off_by_one(lengths, max_length):
    targets = targets_of(lengths)
    return 1 - np.minimum(targets, max_length).sum() / targets.sum()


def kept_share(lengths, max_length):
    kept = [min(length, max_length) - 1 for length in lengths]
    return sum(kept) / targets_of(lengths).sum()


def lost_per_kept(lengths, max_length):
    kept = sum(min(length, max_length) - 1 for length in lengths)
    return (targets_of(lengths).sum() - kept) / kept


def lost_count(lengths, max_length):
    return sum(length - max_length for length in lengths if length > max_length)


# bits_per_byte(loss, ids, documents)


def bits_by_numpy(loss, ids, documents):
    nats = loss * (np.array([len(row) for row in ids]) - 1)
    return nats.sum() * np.log2(np.e) / len("".join(documents).encode())


def bits_by_powers(loss, ids, documents):
    targets = torch.tensor([len(row) for row in ids]).sub(1).sum().item()
    perplexity_of_a_byte = math.exp(loss * targets / len(b"".join(map(str.encode, documents))))
    return math.log2(perplexity_of_a_byte)


def nats_per_byte(loss, ids, documents):
    return bits_by_numpy(loss, ids, documents) / np.log2(np.e)


def bits_the_wrong_way(loss, ids, documents):
    return nats_per_byte(loss, ids, documents) / np.log2(np.e)


def bits_per_character(loss, ids, documents):
    text = "".join(documents)
    return bits_by_numpy(loss, ids, documents) * len(text.encode()) / len(text)


def bits_times_bytes_per_token(loss, ids, documents):
    bytes_per_token = sum(len(text.encode("utf-8")) for text in documents) / (sum(map(len, ids)) - len(ids))
    return loss * math.log2(math.e) * bytes_per_token


def bits_with_both_ends(loss, ids, documents):
    return loss / math.log(2) * sum(map(len, ids)) / len("".join(documents).encode())


def bits_without_ends(loss, ids, documents):
    tokens = [token for row in ids for token in row if token != 1]
    return loss / math.log(2) * len(tokens) / len("".join(documents).encode())


def bits_on_average(loss, ids, documents):
    return np.mean([bits_by_numpy(loss, [row], [text]) for row, text in zip(ids, documents)])


def bits_per_token(loss, ids, documents):
    return math.log2(math.exp(loss))


# split_near_copies(documents, val_fraction, hash_fraction)


def plain_form(text):
    return re.sub(r"\s+", " ", text).strip().lower()


def split_by(key):
    def split(documents, val_fraction, hash_fraction):
        sides = [], []
        for document in documents:
            sides[hash_fraction(key(document)) < val_fraction].append(document)
        return sides

    return split


def split_by_groups(documents, val_fraction, hash_fraction):
    groups = {}
    for document in documents:
        groups.setdefault(plain_form(document), []).append(document)
    held_out = {form for form in groups if hash_fraction(form) < val_fraction}
    train = [document for document in documents if plain_form(document) not in held_out]
    return train, [document for document in documents if plain_form(document) in held_out]


def split_as_written(documents, val_fraction, hash_fraction):
    validation = [document for document in documents if hash_fraction(document) < val_fraction]
    return [document for document in documents if document not in validation], validation


def split_at_the_front(documents, val_fraction, hash_fraction):
    first = int(val_fraction * len(documents) + 0.5)
    return documents[first:], documents[:first]


def split_at_the_back(documents, val_fraction, hash_fraction):
    held_out = int(val_fraction * len(documents) + 0.5)
    return documents[:-held_out], documents[-held_out:]


def split_exchanged(documents, val_fraction, hash_fraction):
    train, validation = split_by_groups(documents, val_fraction, hash_fraction)
    return validation, train


def split_in_plain_form(documents, val_fraction, hash_fraction):
    return split_by_groups([plain_form(document) for document in documents], val_fraction, hash_fraction)


def split_without_copies(documents, val_fraction, hash_fraction):
    seen, kept = set(), []
    for document in documents:
        if plain_form(document) not in seen:
            seen.add(plain_form(document))
            kept.append(document)
    return split_by_groups(kept, val_fraction, hash_fraction)


def split_by_chance(documents, val_fraction, hash_fraction):
    draw = random.Random(0)
    held_out = [draw.random() < val_fraction for _ in documents]
    return [d for d, held in zip(documents, held_out) if not held], [d for d, held in zip(documents, held_out) if held]


def split_by_checksum(documents, val_fraction, hash_fraction):
    return split_by_groups(documents, val_fraction, lambda text: zlib.crc32(text.encode()) / 2**32)


def split_by_builtin_hash(documents, val_fraction, hash_fraction):
    return split_by_groups(documents, val_fraction, lambda text: hash(text) % 1000 / 1000)


WRONG_ANSWERS = {
    "lost_to_truncation": [
        (lost_documents, "documents are counted instead of targets"),
        (lost_on_average, "each document's share weighs the same, however long it is"),
        (lost_of_all_ids, "the first <eos> of a document, which nothing predicts, counts as a target"),
        (lost_off_by_one, "max_length ids are taken for max_length targets, but the first id is no target"),
        (kept_share, "the share that is kept is returned"),
        (lost_per_kept, "the lost targets are divided by those that are kept"),
        (lost_count, "the number of lost targets is returned, not their share"),
    ],
    "bits_per_byte": [
        (nats_per_byte, "the division by log 2 is forgotten: nats per byte"),
        (bits_the_wrong_way, "nats are turned into bits the wrong way: multiplied by log 2"),
        (bits_per_character, "characters are counted instead of bytes"),
        (bits_times_bytes_per_token, "the loss is multiplied by bytes per token instead of divided by it"),
        (bits_with_both_ends, "the first <eos> of a document, which nothing predicts, counts as a target"),
        (bits_without_ends, "neither <eos> counts as a target, although the model pays for the last one"),
        (bits_on_average, "each document weighs the same, however long it is"),
        (bits_per_token, "the loss is only turned into bits: bits per token"),
    ],
    "split_near_copies": [
        (split_as_written, "the text is hashed as it is written, so that near copies part"),
        (split_by(lambda text: text.lower()), "only upper and lower case are made equal, not white space"),
        (
            split_by(lambda text: re.sub(r"\s+", " ", text).strip()),
            "only white space is made equal, not upper and lower case",
        ),
        (
            split_by(lambda text: re.sub(r"\s", "", text).lower()),
            "white space is removed, so that different texts count as copies",
        ),
        (split_at_the_front, "the position decides instead of the text"),
        (split_at_the_back, "the position decides instead of the text"),
        (split_by_chance, "the position decides instead of the text"),
        (split_exchanged, "training and validation are exchanged"),
        (split_in_plain_form, "the documents are returned in another form than they were written in"),
        (split_without_copies, "near copies are thrown away instead of kept together"),
        (
            split_by_checksum,
            "hash_fraction does not decide (and Python's own hash() changes from process to process)",
        ),
        (
            split_by_builtin_hash,
            "hash_fraction does not decide (and Python's own hash() changes from process to process)",
        ),
    ],
}

EQUIVALENT = {
    "lost_to_truncation": [lost_by_numpy, lost_by_cutting, lost_as_a_tensor],
    "bits_per_byte": [bits_by_numpy, bits_by_powers],
    "split_near_copies": [
        split_by_groups,
        split_by(plain_form),
        split_by(lambda text: text.upper().split().__repr__()),
    ],
}
