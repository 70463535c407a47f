"""Text to token ids and back: byte-level BPE with two special tokens.

Every byte is a token of its own, so any Unicode string can be encoded and comes back unchanged: there is no
unknown token. `<pad>` fills up rows and `<eos>` stands between documents; they have separate ids. Text that
happens to contain the characters "<eos>" is encoded as those characters, never as the special token. A tokenizer of
somebody else's may call its end of text otherwise, see `ENDS`, and need not have `<pad>`.

Sources: Sennrich et al. 2016 (BPE), Radford et al. 2019, section 2.2 (byte-level BPE).
"""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from course_lm.validation import ensure, require

PAD = "<pad>"
EOS = "<eos>"
ENDS = (EOS, "<|endoftext|>", "<|end_of_text|>", "</s>")  # what stands between documents, the first that there is
MIN_VOCAB_SIZE = 256 + 2  # every byte, PAD and EOS
MAX_VOCAB_SIZE = 1_000_000  # the trainer sets memory aside for all of them beforehand, and dies where there is none


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn a byte-level BPE of exactly `vocab_size` tokens: `<pad>` is 0, `<eos>` is 1, then the 256 bytes.

    A pair of tokens is merged only where it occurs at least twice. The same texts give the same tokenizer.
    Raises ValueError for a `vocab_size` outside [258, 1,000,000] or above what the text has merges for, and for a text
    that is no valid Unicode string.
    """
    accepted = f"at least {MIN_VOCAB_SIZE} (256 bytes, {PAD} and {EOS}) and at most {MAX_VOCAB_SIZE:,}"
    require(not isinstance(texts, str), "texts", "a list of strings", texts)
    require(type(vocab_size) is int, "vocab_size", "an int", vocab_size)
    require(MIN_VOCAB_SIZE <= vocab_size <= MAX_VOCAB_SIZE, "vocab_size", accepted, vocab_size)
    tokenizer = Tokenizer(models.BPE())
    # no prefix space: it would come back in the decoded text
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[PAD, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # also the bytes that these texts lack
        show_progress=False,
    )
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"texts must be valid Unicode strings: {error}") from None
    reached = tokenizer.get_vocab_size()
    if reached < vocab_size:
        raise ValueError(
            f"vocab_size {vocab_size} is more than this text supports: it has merges for {reached} tokens; "
            f"lower vocab_size to {reached} or less, or give more text"
        )
    return _specials_as_text(tokenizer)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a byte-level tokenizer written by `tokenizer.save(path)`, with an end of text among its tokens.

    Raises OSError where the file cannot be read, ValueError where it holds no such tokenizer.
    """
    content = Path(path).read_bytes()  # by us, so that a missing file is an OSError
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises plain Exception for every kind of bad content
        raise ValueError(f"{path} is not a tokenizer file (JSON written by Tokenizer.save): {error}") from error
    # Of other kinds nobody can tell the bytes of a token: what is counted and generated would lack spaces.
    whole = _is_byte_level(tokenizer.pre_tokenizer) and _is_byte_level(tokenizer.decoder)
    ensure(whole, f"{path} is no byte-level tokenizer, as GPT-2's is: its pre_tokenizer and decoder must be ByteLevel")
    end_of(tokenizer)
    highest = max(tokenizer.get_vocab().values())  # what holds a number for each id is as long
    ensure(highest < MAX_VOCAB_SIZE, f"{path} has the token id {highest}: ids must be below {MAX_VOCAB_SIZE:,}")
    return _specials_as_text(tokenizer)


def pad_id(tokenizer: Tokenizer) -> int:
    """Id of `<pad>`, or where there is none, that of the end of text: a mask tells where padding is, never an id."""
    return _special_ids(tokenizer).get(PAD, eos_id(tokenizer))


def eos_id(tokenizer: Tokenizer) -> int:
    """Id of the end of text, see `ENDS`; ValueError where the tokenizer has none."""
    return _special_ids(tokenizer)[end_of(tokenizer)]


def end_of(tokenizer: Tokenizer) -> str:
    """What the tokenizer calls the end of text: the first of `ENDS` that is a special token; ValueError for none."""
    specials = sorted(_special_ids(tokenizer))
    found = [name for name in ENDS if name in specials]
    got = ", ".join([*specials[:5], *(["…"] if len(specials) > 5 else [])]) or "none"
    accepted = f"one of its special tokens must be {', '.join(ENDS)}"
    ensure(bool(found), f"the tokenizer has no end of text: {accepted}, got {got}")
    return found[0]


def changed_by(tokenizer: Tokenizer, documents: Sequence[str]) -> list[tuple[str, str]]:
    """Each document that its tokens do not give back as it was, and what they give."""
    found = []
    for first in range(0, len(documents), 1024):  # bounds the memory that lists of ids take
        some = documents[first : first + 1024]
        back = tokenizer.decode_batch(encode_documents(tokenizer, some))
        found += [pair for pair in zip(some, back) if pair[0] != pair[1]]
    return found


def encode_documents(tokenizer: Tokenizer, documents: Sequence[str]) -> list[list[int]]:
    """Ids of each document between two `<eos>`: the first predicts the first token, the last ends the text.

    Leaves `tokenizer` as it is, and ignores any truncation, padding or template that it carries.
    Raises ValueError naming a document that is no valid Unicode string.
    """
    eos = eos_id(tokenizer)
    try:
        encodings = _encoder(tokenizer.to_str()).encode_batch_fast(documents, add_special_tokens=False)
    except TypeError as error:
        raise ValueError(_first_invalid(documents)) from error
    return [[eos, *encoding.ids, eos] for encoding in encodings]


@lru_cache(maxsize=1)  # a Tokenizer leaves memory behind when it goes: a copy for each call would fill it up
def _encoder(form: str) -> Tokenizer:
    """A tokenizer for text alone: specials are text to it, and it neither truncates nor pads."""
    encoder = _specials_as_text(Tokenizer.from_str(form))
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def decode(tokenizer: Tokenizer, ids: Sequence[int] | Tensor) -> str:
    """The text of `ids` without special tokens; bytes that are no valid UTF-8 become U+FFFD."""
    ids = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    return tokenizer.decode(ids, skip_special_tokens=True)


def decode_stream(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """The text of `ids`, which `decode` gives at once, in parts as the ids come; for byte-level tokenizers.

    A character of several bytes comes when its last byte has come.
    """
    specials = set(_special_ids(tokenizer).values())
    # What is no valid UTF-8 becomes U+FFFD here as it does there.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for index in ids:
        if index in specials:
            continue
        token = tokenizer.id_to_token(index) or ""  # `decode` passes over an id without a token, too
        # an added token, such as one of spaces, may have signs of no byte, and stands for its own text
        known = all(sign in BYTE_OF for sign in token)
        if part := decoder.decode(bytes(BYTE_OF[sign] for sign in token) if known else token.encode()):
            yield part
    if part := decoder.decode(b"", final=True):
        yield part


def bytes_per_token(tokenizer: Tokenizer) -> Tensor:
    """UTF-8 bytes that each token stands for, (V,) int64, 0 for special tokens; V is the highest id plus one.

    Exact for byte-level tokenizers. For other kinds it is the length of the token decoded alone, which misses
    what they drop from the text, such as white space.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    sizes = torch.zeros(max(vocabulary.values()) + 1, dtype=torch.int64)  # ids may have gaps
    added, specials = tokenizer.get_added_tokens_decoder(), set(_special_ids(tokenizer).values())
    byte_level = _is_byte_level(tokenizer.pre_tokenizer)
    for token, index in vocabulary.items():
        if index in specials:
            continue
        if index in added:
            sizes[index] = len(token.encode())  # stands for its own text
        elif byte_level:
            sizes[index] = len(token)  # one character of the byte alphabet stands for one byte
        else:
            sizes[index] = len(tokenizer.decode([index]).encode())
    return sizes


def _byte_of_signs() -> dict[str, int]:
    """The byte that each sign of a byte-level token stands for (GPT-2's encoder.py, `bytes_to_unicode`)."""
    # A byte that can be printed in Latin-1 is its own sign; the others have the signs from U+0100 on, in their order.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_OF = _byte_of_signs()


def _specials_as_text(tokenizer: Tokenizer) -> Tokenizer:
    # The file format does not hold this switch, so it is set wherever a tokenizer comes into being.
    tokenizer.encode_special_tokens = True
    return tokenizer


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens that are no text, by name; another name than ours may be a token of text where it is not special."""
    added = tokenizer.get_added_tokens_decoder()
    own = {name: index for name in (PAD, EOS) if (index := tokenizer.token_to_id(name)) is not None}
    return own | {token.content: index for index, token in added.items() if token.special}


def _is_byte_level(part: Any) -> bool:
    # the library tells what a pre-tokenizer or a decoder is made of only in its JSON
    return part is not None and b'"ByteLevel"' in part.__getstate__()


def _first_invalid(documents: Sequence[str]) -> str:
    if isinstance(documents, str) or not isinstance(documents, Sequence):
        return f"documents must be a list of strings, got {type(documents).__name__}"
    for number, document in enumerate(documents):
        if not isinstance(document, str):
            return f"documents must be strings, got {type(document).__name__} as document {number}"
        if any("\ud800" <= character <= "\udfff" for character in document):
            return f"documents must be valid Unicode, document {number} holds a lone surrogate"
    return "documents must be a list of strings"
