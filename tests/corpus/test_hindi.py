"""The corpus hindi: right forms, right agreement, gold counts that hold, and a -log p that reading recovers."""

import random
import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest
from hindi import SHIPPED_COUNT, draw_sentence, sentence_derivations, sentence_neg_log_p, write_sentences
from hindi_forms import decline, decline_noun, future, perfective

from course_lm.corpus import Corpus, load_corpus
from course_lm.corpus.shipped import data_file

GRADED = ["मैं घर जाता हूँ।", "वह स्कूल में पढ़ता है।", "लड़के ने किताब को पढ़ा था।"]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus("hindi")


@cache
def words_of_all() -> list[list[str]]:
    return [re.findall(r"[^\s,।]+|[,।]", text) for text in load_corpus("hindi").documents]


# Paradigms, as grammars of Hindi give them

NOUNS = """
लड़का m: लड़का लड़के लड़के लड़कों
दरवाज़ा m: दरवाज़ा दरवाज़े दरवाज़े दरवाज़ों
घर m: घर घर घर घरों
आदमी m: आदमी आदमी आदमी आदमियों
भाई m: भाई भाई भाई भाइयों
लड़की f: लड़की लड़की लड़कियाँ लड़कियों
मिठाई f: मिठाई मिठाई मिठाइयाँ मिठाइयों
किताब f: किताब किताब किताबें किताबों
कविता f: कविता कविता कविताएँ कविताओं
चिड़िया f: चिड़िया चिड़िया चिड़ियाँ चिड़ियों
"""
ADJECTIVES = """
अच्छा: अच्छा अच्छे अच्छी अच्छे अच्छी
नया: नया नए नई नए नई
का: का के की के की
हुआ: हुआ हुए हुई हुए हुई
बनाया: बनाया बनाए बनाई बनाए बनाई
यह: यह ये यह इस इस
वह: वह वे वह उस उस
जो: जो जो जो जिस जिस
"""
PERFECTIVES = """
पढ़: पढ़ा पढ़े पढ़ी पढ़ीं
खा: खाया खाए खाई खाईं
सो: सोया सोए सोई सोईं
पी: पिया पिए पी पीं
कर: किया किए की कीं
दे: दिया दिए दी दीं
ले: लिया लिए ली लीं
जा: गया गए गई गईं
हो: हुआ हुए हुई हुईं
"""
FUTURES = """
पढ़: पढ़ूँगा पढ़ूँगी पढ़ेगा पढ़ेगी पढ़ेंगे पढ़ेंगी
जा: जाऊँगा जाऊँगी जाएगा जाएगी जाएँगे जाएँगी
सो: सोऊँगा सोऊँगी सोएगा सोएगी सोएँगे सोएँगी
पी: पिऊँगा पिऊँगी पिएगा पिएगी पिएँगे पिएँगी
दे: दूँगा दूँगी देगा देगी देंगे देंगी
ले: लूँगा लूँगी लेगा लेगी लेंगे लेंगी
कर: करूँगा करूँगी करेगा करेगी करेंगे करेंगी
"""
CASES = [("dir", "3ms"), ("dir", "3mp"), ("dir", "3fs"), ("obl", "3ms"), ("obl", "3fs")]
PARADIGMS = {
    "nouns": (NOUNS, lambda noun: decline_noun(*noun.split()).values()),
    "adjectives": (ADJECTIVES, lambda word: [decline(word, case, key) for case, key in CASES]),
    "perfectives": (PERFECTIVES, lambda stem: [perfective(stem, key) for key in ("3ms", "3mp", "3fs", "3fp")]),
    "futures": (FUTURES, lambda stem: [future(stem, key) for key in ("1ms", "1fs", "3ms", "3fs", "3mp", "3fp")]),
}


@pytest.mark.parametrize("kind", PARADIGMS)
def test_words_are_inflected_as_grammars_of_hindi_say(kind: str) -> None:
    table, inflect = PARADIGMS[kind]
    rows = dict(line.split(": ") for line in table.strip().splitlines())
    assert {word: " ".join(inflect(word)) for word in rows} == rows


# What people say, by rules and lists of this file alone

THINGS = {
    "f": "किताब कहानी कविता रोटी मिठाई चाय कुर्सी मेज़ गाड़ी साइकिल घड़ी",
    "m": "पत्र अख़बार गाना खाना चावल फल आम दूध पानी घर शहर बाग़ फूल कपड़ा",
}
THING_OBLIQUES = {
    decline_noun(noun, gender)[form]
    for gender, nouns in THINGS.items()
    for noun in nouns.split()
    for form in ("obl_s", "obl_p")
}


def sentences_with(pattern: str) -> list[str]:
    """The sentences, each word and mark of punctuation apart, in which the pattern is found."""
    return [text for text in (" ".join(words) for words in words_of_all()) if re.search(pattern, text)]


def test_things_bear_ko_rarely_and_with_a_demonstrative_where_they_do() -> None:
    marked = [
        (words[at - 2], " ".join(words))
        for words in words_of_all()
        for at, word in enumerate(words)
        if word == "को" and words[at - 1] in THING_OBLIQUES
    ]
    bare = [text for before, text in marked if before not in {"इस", "उस", "इन", "उन"}]
    assert 0 < len(marked) < 0.01 * SHIPPED_COUNT, marked[:5]
    assert len(bare) < 0.001 * SHIPPED_COUNT, bare[:5]


PEOPLE = "(?:राम|सीता|मोहन|गीता|रवि|मीना|लड़का|लड़की|बच्चा|छात्रा?|माँ|पिताजी|दोस्त|भाई|बहन)"
# Each claim: what never stands in a sentence, and what stands there more often than so many times.
NEVER_BUT = {
    "people as objects bear को": (
        rf"(?:^| ){PEOPLE} (?:नहीं )?(?:देख|बुला|जगा|ढूँढ)",
        (r" (?:को|उसे|उन्हें) (?:देख|बुला|जगा|ढूँढ)", 150),
    ),
    "who sits or lies is seated and not sitting down": (
        r"(?:बैठ|लेट) रह",
        (r"(?:बैठ|लेट)[ाीे](?: हु[आईए])? (?:है|हैं|हूँ|था|थे|थीं?)(?= )", 50),
    ),
    "a negated habitual drops its auxiliary": (
        r"नहीं (?:\S+ )?\S+(?:ता|ते|तीं?) (?:है|हैं|हूँ)(?= )",
        (r"नहीं (?:\S+ )?\S+(?:ता|ते|तीं?) [,।]", 150),
    ),
    "a negated habitual shows the feminine plural": (
        r"(?:लड़कियाँ|बहनें|औरतें|छात्राएँ) [^,]*नहीं (?:\S+ )?\S+ती(?= )",
        (r"नहीं (?:\S+ )?\S+तीं(?= )", 5),
    ),
    "a feminine plural is marked once": (r"(?:ीं|ईं) (?:हैं|थीं)(?= )", (r"(?:ी|ई) (?:हैं|थीं)(?= )", 50)),
    "own needs an owner in its clause": ("^अपन", (" अपन", 50)),
}


@pytest.mark.parametrize("claim", NEVER_BUT)
def test_people_would_say_it_so(claim: str) -> None:
    never, (instead, least) = NEVER_BUT[claim]
    assert sentences_with(never) == []
    assert len(sentences_with(instead)) > least


# Of agreement, case and aspect: a stored sentence has a derivation of the grammar, and these have none.
WRONG = """मैं घर जाता है। / लड़की घर जाता है। / लड़का ने किताब पढ़ी। / लड़के ने किताब पढ़ा। / लड़के ने किताब को पढ़ी थी।
लड़के ने घर गया। / मैं किताब पढ़ी। / राम का किताब नई है। / मैं मेरी किताब पढ़ता हूँ। / लड़के ने घर खाया। / मैं घर नहीं जाता हूँ।
राम कुर्सी पर बैठ रहा है। / माँ घर जाती है। / राम ने बच्चा बुलाया। / लड़का घर जाता है / लड़का  घर जाता है।"""


@pytest.mark.parametrize("text", ["", *re.split(" / |\n", WRONG)])
def test_a_sentence_that_no_hindi_speaker_would_write_has_no_probability(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a sentence of the grammar: nothing fits from character \d+ on"):
        sentence_neg_log_p(text)


# Probabilities


def test_the_three_graded_sentences_cost_more_from_first_to_last() -> None:
    costs = [sentence_neg_log_p(text) for text in GRADED]
    assert costs == sorted(costs)


def check_derivations(corpus: Corpus, every: int) -> None:
    assert corpus.neg_log_p is not None
    for text, cost in zip(corpus.documents[::every], corpus.neg_log_p[::every], strict=True):
        assert sentence_derivations(text) == [pytest.approx(cost, abs=1e-6)], text


def test_stored_sentences_have_one_derivation_with_the_stored_cost(corpus: Corpus) -> None:
    check_derivations(corpus, every=24)


@pytest.mark.daily(0)
def test_every_stored_sentence_has_one_derivation_with_the_stored_cost(corpus: Corpus) -> None:
    check_derivations(corpus, every=1)


# The shipped file


def test_the_generator_reproduces_the_shipped_sentences_byte_for_byte(tmp_path: Path) -> None:
    write_sentences(tmp_path / "hindi.jsonl")
    assert (tmp_path / "hindi.jsonl").read_bytes() == data_file("hindi.jsonl").read_bytes()


def test_the_file_holds_different_sentences_in_nfc_that_end_with_a_danda(corpus: Corpus) -> None:
    lines = data_file("hindi.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(corpus.documents)) == SHIPPED_COUNT
    for text in corpus.documents:
        assert unicodedata.is_normalized("NFC", text) and re.fullmatch(r"[ऀ-ॣ]+((, | )[ऀ-ॣ]+)+।", text), text


def test_the_sentences_are_what_their_data_sheet_says(corpus: Corpus) -> None:
    sheet = data_file("README.md").read_text(encoding="utf-8").partition("\n## hindi")[2].partition("\n## ")[0]
    assert corpus.neg_log_p is not None and corpus.gold is not None
    words, nats = sum(gold["words"] for gold in corpus.gold), sum(corpus.neg_log_p)
    vocabulary = len({word for text in corpus.documents for word in re.findall(r"[^\s,।]+", text)})
    rng, seen, draws = random.Random(0), set(), 0
    while len(seen) < SHIPPED_COUNT:
        seen.add(draw_sentence(rng).text)
        draws += 1
    figures = [
        f"{len(corpus.documents):,} sentences",
        f"{data_file('hindi.jsonl').stat().st_size:,} bytes",
        f"{words:,} words",
        f"{vocabulary} different word forms",
        f"{nats / len(corpus.documents):.1f} nats per sentence",
        f"{nats / words:.2f} nats per word",
        f"{draws - SHIPPED_COUNT} were drawn again",
    ]
    assert [figure for figure in figures if figure not in sheet] == []
    assert draws - SHIPPED_COUNT < 0.02 * SHIPPED_COUNT
