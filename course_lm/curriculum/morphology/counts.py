"""How much morphology a Hindi text shows: case markers, verbs and compounds, counted by rules from the text alone.

The counts follow the Universal Dependencies treebank of Hindi (HDTB):

- A **case marker** is a free postposition, tagged ADP with relation `case`: ने को से में पर का के की तक, both words
  of a compound one (के लिए, के साथ, की तरह: two), and all three of के रूप में. After a verb (जाने के लिए, करने में) it
  marks a clause: the treebank's relation is then `mark`, so it is no case marker here. Nor is it one after brackets,
  थल (सेना) ने, where the relation is `dislocated`. पर that opens a clause is "but".
- A **fused case** is a pronoun with its marker inside: मुझे, उसने, इसका, मेरा, जिसमें. Written apart (उस ने) it is a
  pronoun and a free marker. अपना is left out: the treebank gives it no marker, and it agrees like an adjective.
- A **verb** is a token tagged VERB or AUX: finite forms, participles, infinitives, conjunctive participles,
  auxiliaries. A word is one if it is a form of a listed stem, unless it is listed as a noun as well; then a neighbour
  has to license it (खाना is food, खाना पड़ा and फल खाने के बाद are eating). A bare stem counts only before an auxiliary,
  and only before one that suits it if it is a noun too (रोक दिया, बोल उठा; but फूल दिया gives a flower). की is a verb
  before जाना, at the end of its clause, or before है and था in a clause with an agent (ने); else it is a postposition.
- A **compound** is a bare stem with an inflected light verb: कर लिया, दे दिया, हो गया. सकना, चुकना, रहना and पाना say
  ability and aspect and make no compound, nor does a participle with जाना (चला गया, and the passive पढ़ा गया).

Words are compared without nukta, with every nasal sign as anusvara and with one spelling of गये/गए, so that spelling
does not change a count. Counting looks no further than one sentence (up to । ॥ | ? ! or the end of the line).

The limits: no list is complete, and rules do not read. A rare verb is missed (its auxiliaries still count); a name
that looks like a verb form (चला, मिली) counts as one; whose की stands before है is guessed from the rest of its clause,
and so is whether पी गई means "was drunk" (a doer in से) or "drank up".
"""

import re
import unicodedata
from functools import cache
from typing import NamedTuple

# Soft hyphen, joiners, word joiner and byte-order mark vanish; _ parts words, although \w holds it.
_INVISIBLE = dict.fromkeys([0xAD, 0x200C, 0x200D, 0x2060, 0xFEFF]) | {ord("_"): " "}
_SENTENCE_END = re.compile(r"[।॥|?!\r\n]")


class MorphologyCounts(NamedTuple):
    """What one text shows. Counts add up over sentences.

    words: tokens with a letter or digit. case_markers: free postpositions. fused_cases: pronouns with a marker inside.
    verbs: verbs and auxiliaries, each token once. compounds: a verb stem with its light verb (कर लिया).
    inflections: for each verb complex, one each for perfective aspect, progressive (रहा), past (था), future or
    subjunctive, and passive (participle with जाना; that participle is then not perfective: किया जाता है has one,
    किया गया है two). The habitual present, infinitives, bare stems, imperatives and conjunctive participles add none.
    """

    words: int
    case_markers: int
    fused_cases: int
    verbs: int
    inflections: int
    compounds: int


def words_of(text: str) -> list[str]:
    """The words of a text in any language, NFC: runs of letters, marks and digits. A hyphen separates."""
    return [token for token in _token().findall(_normal(text)) if _is_word(token)]


def count_morphology(text: str) -> MorphologyCounts:
    """Counts of one text; see the module's docstring for what is counted."""
    # Imported on first use: the tables of the rules take time to build, and most users of the package never count.
    from course_lm.curriculum.morphology.sentence import count_sentence

    sentences = [_token().findall(sentence) for sentence in _SENTENCE_END.split(_normal(text))]
    counts = [(sum(map(_is_word, tokens)), *count_sentence(tokens)) for tokens in sentences]
    return MorphologyCounts(*(sum(column) for column in zip(*counts)))


def _is_word(token: str) -> bool:
    return any(map(str.isalnum, token))  # punctuation is a token of its own


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text.translate(_INVISIBLE))


@cache
def _token() -> re.Pattern[str]:
    """A word or one punctuation mark. 2.5 and 10:30 are one word each, as is isn't."""
    # \w holds no vowel signs (Unicode category M), without which a Hindi word falls apart.
    run = rf"[\w{_character_ranges_of_marks()}]+"
    return re.compile(rf"{run}(?:(?:(?<=\d)[.,:/](?=\d)|(?<=[A-Za-z])['’](?=[A-Za-z])){run})*|[^\w\s]")


def _character_ranges_of_marks() -> str:
    marks = [code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M"]
    starts = [code for code, before in zip(marks, [0, *marks]) if code != before + 1]
    ends = [code for code, after in zip(marks, [*marks[1:], 0]) if code != after - 1]
    return "".join(f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends))
