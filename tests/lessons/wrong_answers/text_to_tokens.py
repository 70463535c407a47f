"""Answers to the exercises of lesson 01: wrong ones, each with the mistake that must be named, and right ones."""

import math
import random
import re
import zlib
from fractions import Fraction

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


def lost_whole_documents(lengths, max_length):
    return sum(length - 1 for length in lengths if length > max_length) / targets_of(lengths).sum()


def lost_without_a_clamp(lengths, max_length):
    return sum(length - max_length for length in lengths) / targets_of(lengths).sum()


def lost_ids_of_all_targets(lengths, max_length):
    kept = np.minimum(lengths, max_length).sum()
    return 1 - kept / targets_of(lengths).sum()


def lost_with_an_eos_again(lengths, max_length):
    kept = [min(length, max_length - 1) - 1 for length in lengths]
    return 1 - sum(kept) / targets_of(lengths).sum()


def lost_of_one_text(lengths, max_length):
    targets = int(targets_of(lengths).sum())
    return max(0, targets - (max_length - 1)) / targets


def lost_as_a_fraction(lengths, max_length):
    return sum(Fraction(max(length - max_length, 0)) for length in lengths) / int(targets_of(lengths).sum())


def lost_in_float32(lengths, max_length):
    lengths = torch.tensor(lengths, dtype=torch.float32)
    return ((lengths - 1).sum() - (lengths.clamp(max=max_length) - 1).sum()) / (lengths - 1).sum()


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


def bits_of_the_mean_alone(loss, ids, documents):
    return loss / math.log(2) / sum(len(text.encode()) for text in documents)


def bits_of_eight_in_a_byte(loss, ids, documents):
    return loss * sum(len(row) - 1 for row in ids) / sum(len(text.encode()) for text in documents) / 8


def bits_with_line_ends(loss, ids, documents):
    return loss / math.log(2) * sum(len(row) - 1 for row in ids) / len("\n".join(documents).encode())


def bits_in_utf_16(loss, ids, documents):
    nats = loss * sum(len(row) - 1 for row in ids)
    return nats / math.log(2) / sum(len(text.encode("utf-16-le")) for text in documents)


def bits_with_one_eos_in_all(loss, ids, documents):
    return loss / math.log(2) * (sum(map(len, ids)) - 1) / len("".join(documents).encode())


def bits_in_float32(loss, ids, documents):
    targets = torch.tensor([len(row[1:]) for row in ids], dtype=torch.float32).sum()
    return (loss * targets / len(bytes("".join(documents), "utf-8"))).div(math.log(2))


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


def split_by_the_salted_hash(documents, val_fraction, hash_fraction):
    return split_by(lambda text: str(hash(plain_form(text))))(documents, val_fraction, hash_fraction)


def split_by_the_first_copy(documents, val_fraction, hash_fraction):
    sides, train, validation = {}, [], []
    for document in documents:
        held_out = sides.setdefault(plain_form(document), hash_fraction(document) < val_fraction)
        (validation if held_out else train).append(document)
    return train, validation


def split_with_leaks_dropped(documents, val_fraction, hash_fraction):
    validation = [document for document in documents if hash_fraction(document) < val_fraction]
    forms = set(map(plain_form, validation))
    return [document for document in documents if plain_form(document) not in forms], validation


def split_whole_groups(documents, val_fraction, hash_fraction):
    forms = {plain_form(document) for document in documents if hash_fraction(document) < val_fraction}
    return split_by_groups(documents, 0.5, lambda form: 0.0 if form in forms else 0.9)


def split_at_most(documents, val_fraction, hash_fraction):
    held_out = [hash_fraction(plain_form(document)) <= val_fraction for document in documents]
    return [d for d, held in zip(documents, held_out) if not held], [d for d, held in zip(documents, held_out) if held]


def split_off_the_largest(documents, val_fraction, hash_fraction):
    return split_by_groups(documents, val_fraction, lambda form: 1 - hash_fraction(form))


def split_by_rank(documents, val_fraction, hash_fraction):
    ordered = sorted(set(map(plain_form, documents)), key=hash_fraction)
    held_out = set(ordered[: round(val_fraction * len(ordered))])
    return split_by_groups(documents, 0.5, lambda form: 0.0 if form in held_out else 0.9)


def split_into_arrays(documents, val_fraction, hash_fraction):
    held_out = np.array([hash_fraction(plain_form(document)) for document in documents]) < val_fraction
    return np.array(documents)[~held_out], np.array(documents)[held_out]


def split_into_generators(documents, val_fraction, hash_fraction):
    train, validation = split_by_groups(documents, val_fraction, hash_fraction)
    return iter(train), (document for document in validation)


WRONG_ANSWERS = {
    "lost_to_truncation": [
        (lost_documents, "documents are counted instead of targets"),
        (lost_on_average, "each document's share weighs the same, however long it is"),
        (lost_of_all_ids, "the first <eos> of a document, which nothing predicts, counts as a target"),
        (lost_off_by_one, "max_length ids are taken for max_length targets, but the first id is no target"),
        (kept_share, "the share that is kept is returned"),
        (lost_per_kept, "the lost targets are divided by those that are kept"),
        (lost_count, "the number of lost targets is returned, not their share"),
        (lost_without_a_clamp, "a document that is too short is filled up to max_length: a loss below zero"),
        (lost_ids_of_all_targets, "all is counted in targets, and what is kept in ids"),
        (lost_with_an_eos_again, "one of max_length ids is kept free, for an <eos>"),
        (lost_whole_documents, "a document that is too long is thrown away whole"),
        (lost_of_one_text, "all documents are cut as if they were one text"),
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
        (
            bits_of_the_mean_alone,
            "the loss is only divided by bytes: it is a mean, and not yet multiplied by the targets",
        ),
        (bits_of_eight_in_a_byte, "the division by log 2 is replaced by a division by 8, the bits in a byte"),
        (
            bits_with_line_ends,
            "the bytes of line ends between the documents are counted, which are in no document",
        ),
        (bits_in_utf_16, "bytes are counted in another encoding than UTF-8"),
        (bits_with_one_eos_in_all, "one <eos> is left out for all documents together, not one for each"),
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
        (split_at_the_front, "hash_fraction does not decide, and near copies part"),
        (split_at_the_back, "hash_fraction does not decide, and near copies part"),
        (split_by_chance, "hash_fraction does not decide, and near copies part"),
        (split_exchanged, "training and validation are exchanged"),
        (split_in_plain_form, "the documents are returned in another form than they were written in"),
        (split_without_copies, "near copies are thrown away instead of kept together"),
        (
            split_by_checksum,
            "hash_fraction does not decide (and Python's own hash() changes from process to process)",
        ),
        (split_by_builtin_hash, "Python's own hash() has a part in it, which changes from process to process"),
        (split_by_the_salted_hash, "Python's own hash() has a part in it, which changes from process to process"),
        (split_by(lambda text: text.strip().lower()), "of white space, only that around the text is made equal"),
        (
            split_by(lambda text: " ".join(re.findall(r"[a-z0-9]+", text.lower()))),
            "punctuation is removed, so that different texts count as copies",
        ),
        (
            split_by(lambda text: " ".join(sorted(text.lower().split()))),
            "the words are sorted, so that different texts count as copies",
        ),
        (
            split_with_leaks_dropped,
            "near copies of a held-out document are thrown away, instead of held out with it",
        ),
        (
            split_whole_groups,
            "each copy is hashed as it is written, and one that is held out takes its near copies with it",
        ),
        (split_at_most, "a number equal to val_fraction is held out, but it is not below"),
        (
            split_off_the_largest,
            "the largest numbers are held out, not the smallest: numbers above 1 − val_fraction",
        ),
        (split_by_rank, "a fixed number of documents with the smallest numbers is held out"),
    ],
}

EQUIVALENT = {
    "lost_to_truncation": [
        lost_by_numpy,
        lost_by_cutting,
        lost_as_a_tensor,
        lost_as_a_fraction,
        lost_in_float32,
    ],
    "bits_per_byte": [bits_by_numpy, bits_by_powers, bits_in_float32],
    "split_near_copies": [
        split_by_groups,
        split_by(plain_form),
        split_by(lambda text: text.upper().split().__repr__()),
        split_by_the_first_copy,
        split_into_arrays,
        split_into_generators,
    ],
}
