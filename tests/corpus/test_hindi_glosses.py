"""The corpus hindi in Latin letters and glossed: every word has both, and the glosses show what gold counts."""

import re
import unicodedata
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hindi_lexicon import write_lexicon

from course_lm.corpus import load_corpus
from course_lm.corpus.hindi_glosses import GlossedWord, gloss_words, interlinear
from course_lm.corpus.shipped import data_file


@cache
def glossed_corpus() -> list[list[GlossedWord]]:
    return [gloss_words(text) for text in load_corpus("hindi").documents]


def test_the_generator_reproduces_the_shipped_glosses_byte_for_byte(tmp_path: Path) -> None:
    write_lexicon(tmp_path / "hindi.glosses")
    assert (tmp_path / "hindi.glosses").read_bytes() == data_file("hindi.glosses").read_bytes()


@pytest.mark.daily(0)
def test_every_word_of_every_sentence_has_latin_letters_and_a_gloss() -> None:
    latin, gloss = set(), set()
    for text, words in zip(load_corpus("hindi").documents, glossed_corpus(), strict=True):
        assert [word.word for word in words] == re.findall(r"[^\s,।]+", text)
        latin |= {word.latin for word in words}
        gloss |= {word.gloss for word in words}
    letters = {unicodedata.name(letter) for word in latin for letter in unicodedata.normalize("NFD", word)}
    assert [name for name in letters if not re.match(r"LATIN SMALL LETTER|COMBINING|HYPHEN", name)] == []
    assert [some for some in gloss if not re.fullmatch(r"[A-Za-z][A-Za-z./-]*(?:\.1SG)?(?:\.[A-Z]+)*", some)] == []


STEMS = "read write hear eat drink make buy see give take do call wake look.for go come return sit lie sleep live meet"
VERB = r".*\.(?:HAB|PFV|INF|CVB|FUT|SBJV|PRS|PST|PTCP)\b.*|PROG.*"
MARKER = "ERG|DAT|GEN|from|in|on|by|near|with|after|for"


def counted(words: list[GlossedWord]) -> dict[str, int]:
    """What the glosses of a sentence say of the counts in gold: a gloss alone tells, but for markers and compounds."""
    found: Counter[str] = Counter(words=len(words))
    stems = STEMS.split()
    before = ["", ""]
    for word in words:
        # After an infinitive both words of के लिए and के बाद join clauses.
        hosts = before if word.gloss in ("after", "for") else before[-1:]
        after_infinitive = any(host.endswith(".INF") for host in hosts)
        found["case_markers"] += bool(re.fullmatch(MARKER, word.gloss)) and not after_infinitive
        found["fused_cases"] += bool(re.fullmatch(r"(?:I|we|you|he/she|they)\.(?:ERG|DAT|GEN|from)", word.gloss))
        found["verbs"] += word.gloss in stems or bool(re.fullmatch(VERB, word.gloss))
        found["inflections"] += bool(re.search(r"\.(?:PFV|FUT|SBJV|PST)\b|PROG", word.gloss))
        found["compounds"] += before[-1] in stems and bool(re.search(r"\.(?:PFV|FUT)\b", word.gloss))
        before = [before[-1], word.gloss]
    return dict(found)


@pytest.mark.parametrize("count", ["words", "case_markers", "fused_cases", "verbs", "inflections", "compounds"])
def test_the_glosses_show_what_gold_counts(count: str) -> None:
    corpus = load_corpus("hindi")
    assert corpus.gold is not None
    for text, words, gold in zip(corpus.documents, glossed_corpus(), corpus.gold, strict=True):
        assert counted(words).get(count, 0) == gold[count], (text, [word.gloss for word in words])


def rows_of(table: str) -> dict[str, str]:
    return dict(line.split(": ") for line in table.strip().splitlines())


# Several have a form with two readings, which its place tells apart.
GLOSSED = """
मैं घर जाता हूँ: I house go.HAB.M be.PRS.1SG
वह स्कूल में पढ़ता है।: he/she/that school in read.HAB.M be.PRS
लड़के ने किताब को पढ़ा था: boy.OBL ERG book DAT read.PFV.M be.PST.M
लड़के गाने सुनते हैं।: boy.PL song.PL hear.HAB.M.PL be.PRS.PL
उन्होंने मोहन की मदद की।: they.ERG Mohan GEN help do.PFV.F
राम ने आज काम करने के लिए फल ख़रीद लिए।: Ram ERG today work do.INF GEN for fruit buy take.PFV.M.PL
मुझे खाना खाना है।: I.DAT food eat.INF be.PRS
माँ चाय पी रही हैं।: mother tea drink PROG.F be.PRS.PL
माँ ने चाय पी।: mother ERG tea drink.PFV.F
मैं चाहती हूँ कि वह घर आए।: I want.HAB.F be.PRS.1SG COMP he/she/that house come.SBJV
वे घर आए।: they/those house come.PFV.M.PL
लड़कियाँ बैठी हुई हैं।: girl.PL sit.PFV.F be.PTCP be.PRS.PL
"""


def test_forms_with_several_readings_are_told_apart_by_their_place() -> None:
    rows = rows_of(GLOSSED)
    assert {text: " ".join(word.gloss for word in gloss_words(text)) for text in rows} == rows


def test_three_lines_stand_under_one_another() -> None:
    assert interlinear("मैं घर जाता हूँ").splitlines() == [
        "मैं घर जाता हूँ",
        "maĩ ghar  jātā     hū̃",
        "I   house go.HAB.M be.PRS.1SG",
    ]


def test_a_long_sentence_goes_on_below_in_whole_words() -> None:
    text = max(load_corpus("hindi").documents, key=len)
    words = gloss_words(text)
    first, *lines = interlinear(text, width=60).splitlines()
    assert first == text and len(lines) >= 4
    assert max(sum(not unicodedata.combining(letter) for letter in line) for line in lines) <= 60
    for of, part in (("latin", lines[0::2]), ("gloss", lines[1::2])):
        assert " ".join(part).split() == [getattr(word, of) for word in words]


def test_a_word_that_the_grammar_does_not_know_is_named() -> None:
    with pytest.raises(ValueError, match="no gloss for 'हाथी', word 1 of 'हाथी घर जाता है'"):
        gloss_words("हाथी घर जाता है")
