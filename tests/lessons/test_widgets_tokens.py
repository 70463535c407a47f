"""The explorer of tokens shows the tokens that the tokenizer makes."""

import pytest

from course_lm.classroom import widgets
from course_lm.classroom.widgets.tokens import label_of
from course_lm.tokenizer import encode_documents, train_tokenizer

pytestmark = pytest.mark.usefixtures("course_figures")

TEXTS = ["the cat sat on the mat; that cat ate the oats", "über Äpfel, über Äpfel"]
TOKENIZER = train_tokenizer(TEXTS, 268)


def labels_of(text):
    [ids] = encode_documents(TOKENIZER, [text])
    return [label_of(TOKENIZER, token) for token in ids]


def test_labels_show_spaces_as_dots_and_the_ends():
    first, *labels, last = labels_of("the cat")
    assert (first, last) == ("<eos>", "<eos>")
    assert "".join(labels) == "the·cat"


def test_bytes_that_are_no_character_and_other_scripts_stand_in_hexadecimal():
    assert labels_of("न\n🙂")[1:-1] == ["e0", "a4", "a8", "0a", "f0", "9f", "99", "82"]


def test_a_picture_has_a_box_for_each_token_and_the_words_count_them():
    [ids] = encode_documents(TOKENIZER, [4 * TEXTS[0]])
    figure, words = widgets.draw_tokens(4 * TEXTS[0], TOKENIZER)
    (axes,) = figure.axes
    shown = []
    for row, boxes in zip(axes.texts, axes.collections, strict=True):
        for path in boxes.get_paths():
            ends = path.get_extents()
            shown.append(row.get_text()[round(ends.x0 + 0.3) : round(ends.x1 - 0.3)])
    assert len(axes.texts) > 1 and shown == [label_of(TOKENIZER, token) for token in ids]
    # A letter of the picture is as wide as a place of the boxes.
    letter = axes.texts[0].get_window_extent().width / len(axes.texts[0].get_text())
    assert letter == pytest.approx(axes.bbox.width / axes.get_xlim()[1], rel=0.01)
    assert f"vocabulary of 268: 180 bytes in {len(ids) - 2} tokens" in words


def test_an_empty_text_is_two_ends():
    assert "0 bytes in 0 tokens" in widgets.draw_tokens("", TOKENIZER)[1]
