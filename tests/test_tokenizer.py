"""Claims about the tokenizer: lossless, deterministic, two special ids, exact byte counts, clear errors."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from course_lm.tokenizer import (
    bytes_per_token,
    changed_by,
    decode,
    decode_stream,
    encode_documents,
    eos_id,
    load_tokenizer,
    pad_id,
    train_tokenizer,
)
from tests.refusals import refused

TEXTS = [
    "The cat sat on the mat. The cat sat on the hat.",
    "A cat and a hat; the mat and the cat.",
    "बिल्ली चटाई पर बैठी। बिल्ली टोपी पर बैठी।",
    "<eos> <eos> <pad> <pad>",
] * 2
TOKENIZER = train_tokenizer(TEXTS, 300)
any_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(any_text)
@example("<eos>")
@example("<pad><eos> <eos>\n<pad>")
@example(" \t leading, trailing \r\n ")
@example("बिल्ली 🐈‍⬛ é e\u0301 \x00 \U0010ffff")
def test_any_string_comes_back_unchanged(text):
    [ids] = encode_documents(TOKENIZER, [text])
    assert decode(TOKENIZER, ids) == text


@given(any_text)
@example("a<eos>b<pad>")
def test_a_document_is_its_text_between_two_eos_and_nothing_in_it_is_special(text):
    [ids] = encode_documents(TOKENIZER, [text])
    assert ids[0] == ids[-1] == eos_id(TOKENIZER)
    assert not {pad_id(TOKENIZER), eos_id(TOKENIZER)} & set(ids[1:-1])


@given(any_text)
def test_bytes_of_the_tokens_add_up_to_the_bytes_of_the_text(text):
    [ids] = encode_documents(TOKENIZER, [text])
    assert bytes_per_token(TOKENIZER)[ids].sum() == len(text.encode())


def test_pad_is_0_eos_is_1_and_all_256_bytes_have_a_token():
    assert (pad_id(TOKENIZER), eos_id(TOKENIZER)) == (0, 1)
    tokenizer = train_tokenizer(["a"], 258)
    assert set(pre_tokenizers.ByteLevel.alphabet()) | {"<pad>", "<eos>"} == set(tokenizer.get_vocab())


def test_special_tokens_stand_for_no_bytes():
    sizes = bytes_per_token(TOKENIZER)
    assert sizes.shape == (300,)
    assert (sizes == 0).nonzero().flatten().tolist() == [0, 1]


def test_the_same_texts_give_the_same_tokenizer():
    assert len({train_tokenizer(iter(TEXTS), 300).to_str() for _ in range(5)}) == 1


def test_a_saved_tokenizer_encodes_the_same_also_where_text_spells_a_special_token(tmp_path):
    path = tmp_path / "tokenizer.json"
    TOKENIZER.save(str(path))
    loaded = load_tokenizer(path)
    texts = [*TEXTS, "a<eos>b"]
    assert encode_documents(loaded, texts) == encode_documents(TOKENIZER, texts)
    assert loaded.encode("a<eos>b").ids == TOKENIZER.encode("a<eos>b").ids


def test_encoding_ignores_truncation_and_padding_and_leaves_them_as_they_were():
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    before = tokenizer.to_str()
    assert encode_documents(tokenizer, TEXTS) == encode_documents(TOKENIZER, TEXTS)
    assert tokenizer.to_str() == before
    assert tokenizer.encode_special_tokens is False


def test_a_tokenizer_of_another_kind_works():
    vocabulary = {"<unk>": 0, "<eos>": 1, "<pad>": 2, "né": 3, "cat": 4}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert encode_documents(tokenizer, ["cat né", ""]) == [[1, 4, 3, 1], [1, 1]]
    assert bytes_per_token(tokenizer).tolist() == [5, 0, 0, 3, 3]


def test_decode_takes_tensors_and_leaves_out_special_tokens():
    [ids] = encode_documents(TOKENIZER, ["the cat"])
    assert decode(TOKENIZER, torch.tensor([0, *ids, 0])) == "the cat"


@pytest.mark.parametrize("vocab_size", [257, 10**6 + 1, True, 300.0, "300"])
def test_a_vocabulary_that_no_trainer_can_hold_is_refused(vocab_size):
    with pytest.raises(ValueError, match=r"vocab_size must be .* got"):
        train_tokenizer(TEXTS, vocab_size)


@pytest.mark.parametrize("texts", ["some text", [1], [None], 5, ["a\ud800"], [b"text"]])
def test_a_tokenizer_is_trained_on_strings_alone(texts):
    with refused(ValueError, "texts must be"):
        train_tokenizer(texts, 258)


@pytest.mark.parametrize("documents", ["some text", 5, None, {"a"}])
def test_what_is_no_list_of_documents_is_not_encoded(documents):
    with pytest.raises(ValueError, match=f"must be a list of strings, got {type(documents).__name__}"):
        encode_documents(TOKENIZER, documents)


def test_a_vocabulary_larger_than_the_text_supports_is_refused_with_the_size_that_works():
    with pytest.raises(ValueError, match="vocab_size 50000 is more than this text supports") as raised:
        train_tokenizer(TEXTS, 50_000)
    message = str(raised.value)
    reached = int(message.split("lower vocab_size to ")[1].split()[0])
    assert "\n" not in message
    assert train_tokenizer(TEXTS, reached).get_vocab_size() == reached
    with pytest.raises(ValueError, match="more than this text supports"):
        train_tokenizer(TEXTS, reached + 1)


def foreign(vocab_size: int = 300, specials: Sequence[str] = ("<|endoftext|>",), **byte_level: Any) -> Tokenizer:
    """A tokenizer as others make one: byte-level, with its own name for the end of text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **byte_level})
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


@pytest.mark.parametrize("name", ["<eos>", "<|endoftext|>", "<|end_of_text|>", "</s>"])
def test_each_name_of_the_end_of_text_stands_between_documents_and_pads_where_there_is_no_pad(name):
    tokenizer = foreign(specials=("<unk>", name))
    assert encode_documents(tokenizer, ["a"])[0][::2] == [1, 1] and eos_id(tokenizer) == pad_id(tokenizer) == 1
    assert pad_id(foreign(specials=(name, "<pad>"))) == 1


def test_a_token_of_text_that_spells_an_end_of_text_is_none():
    tokenizer = foreign(specials=("<|endoftext|>", "<unk>"))
    tokenizer.add_tokens(["</s>", "<|end_of_text|>"])
    [ids] = encode_documents(tokenizer, ["a</s>"])
    assert tokenizer.token_to_id("</s>") in ids and eos_id(tokenizer) == 0
    assert bytes_per_token(tokenizer)[ids].sum() == 5
    assert "".join(decode_stream(tokenizer, ids)) == decode(tokenizer, ids) == "a</s>"
    with pytest.raises(ValueError, match=r"no end of text: one of its special tokens must be <eos>, <\|endoftext\|>"):
        eos_id(Tokenizer(models.WordLevel({"</s>": 0}, unk_token="</s>")))


def test_an_added_token_with_signs_of_no_byte_streams_and_counts_as_its_own_text():
    tokenizer = foreign()
    tokenizer.add_tokens([AddedToken("  ", normalized=False), "东"])
    tokenizer.add_special_tokens(["<|im_start|>"])
    [ids] = encode_documents(tokenizer, ["a  cat 东<|im_start|>"])
    assert {300, 301} <= set(ids) and 302 not in ids
    ids.append(302)
    assert "".join(decode_stream(tokenizer, ids)) == decode(tokenizer, ids) == "a  cat 东<|im_start|>"
    assert bytes_per_token(tokenizer)[ids].sum() == len("a  cat 东<|im_start|>".encode())


def test_bytes_are_told_up_to_the_highest_id_where_ids_have_gaps():
    tokenizer = Tokenizer(models.WordLevel({"<eos>": 0, "cat": 7}, unk_token="<eos>"))
    assert (tokenizer.get_vocab_size(), len(bytes_per_token(tokenizer))) == (2, 8)


def test_what_a_tokenizer_changes_is_found_and_nothing_else():
    texts = ["e\u0301", "plain", " a ", "<|endoftext|>"] * 600  # more than are tried at once
    assert changed_by(foreign(), texts) == []
    assert changed_by(foreign(add_prefix_space=True), texts[:4]) == [
        ("e\u0301", " e\u0301"),
        ("plain", " plain"),
        ("<|endoftext|>", " <|endoftext|>"),
    ]
    composes = foreign()
    composes.normalizer = normalizers.NFC()
    assert changed_by(composes, texts) == [("e\u0301", "\u00e9")] * 600


def test_a_tokenizer_file_that_is_not_byte_level_is_refused(tmp_path):
    tokenizer = foreign()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.save(str(tmp_path / "other.json"))
    with pytest.raises(ValueError, match=r"other\.json is no byte-level tokenizer"):
        load_tokenizer(tmp_path / "other.json")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"not JSON"])
def test_a_file_that_holds_no_tokenizer_is_refused_by_name(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.json is not a tokenizer file"):
        load_tokenizer(path)


def test_a_tokenizer_file_without_the_special_tokens_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    foreign(specials=()).save(str(path))
    with pytest.raises(ValueError, match="no end of text"):
        load_tokenizer(path)


def test_a_missing_tokenizer_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_tokenizer(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("document", "reason"),
    [("\ud800", "document 1 holds a lone surrogate"), (None, "got NoneType as document 1")],
)
def test_a_document_that_is_no_unicode_string_is_named(document, reason):
    with pytest.raises(ValueError, match=reason):
        encode_documents(TOKENIZER, ["fine", document])


@given(st.lists(st.integers(0, 299), max_size=40))
def test_a_stream_of_ids_decodes_to_the_text_of_all_of_them(ids):
    assert "".join(decode_stream(TOKENIZER, ids)) == decode(TOKENIZER, ids)


def test_a_character_of_several_bytes_comes_with_the_last_of_them_and_the_rest_at_once():
    [[_, *ids, _]] = encode_documents(TOKENIZER, ["a🐈b"])
    assert list(decode_stream(TOKENIZER, ids)) == ["a", "🐈", "b"]
    assert list(decode_stream(TOKENIZER, ids[:3])) == ["a", "\ufffd"]
