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
  has to license it (खाना is food, खाना पड़ा is eating). A bare stem counts only before an auxiliary. की is a verb before
  जाना, at the end of its clause, or before है and था in a clause with an agent (ने); else it is a postposition.
- A **compound** is a bare stem with an inflected light verb: कर लिया, दे दिया, हो गया. सकना, चुकना, रहना and पाना say
  ability and aspect and make no compound.

Words are compared without nukta, with every nasal sign as anusvara and with one spelling of गये/गए, so that spelling
does not change a count. Counting looks no further than one sentence (up to । ॥ | ? ! or the end of the line).

The limits: no list is complete, and rules do not read. A rare verb is missed (its auxiliaries still count); a name
that looks like a verb form (चला, मिली) counts as one; whose की stands before है is guessed from the rest of its clause.
"""

import re
import unicodedata
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from course_lm.curriculum import morphology_tables as tables
from course_lm.curriculum.morphology_forms import HABITUAL, MOOD, PERFECTIVE, STEM, forms_of
from course_lm.curriculum.morphology_rules import CASE, PROGRESSIVE, postpositions, verb_readings


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
    return [token for token in _TOKEN.findall(_normal(text)) if _is_word(token)]


def count_morphology(text: str) -> MorphologyCounts:
    """Counts of one text; see the module's docstring for what is counted."""
    sentences = [_TOKEN.findall(sentence) for sentence in _SENTENCE_END.split(_normal(text))]
    return MorphologyCounts(*map(sum, zip(*map(_count_sentence, sentences))))


def _count_sentence(tokens: list[str]) -> MorphologyCounts:
    words = sum(map(_is_word, tokens))
    keys = _keys(tokens)
    verbs = verb_readings(keys)
    return MorphologyCounts(
        words=words,
        case_markers=postpositions(keys, verbs).count(CASE),
        fused_cases=sum(key in tables.FUSED for key in keys),
        verbs=sum(map(bool, verbs)),
        inflections=_inflections(keys, verbs),
        compounds=_compounds(keys, verbs),
    )


def _character_ranges_of_marks() -> str:
    marks = [code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code))[0] == "M"]
    starts = [code for code, before in zip(marks, [0, *marks]) if code != before + 1]
    ends = [code for code, after in zip(marks, [*marks[1:], 0]) if code != after - 1]
    return "".join(f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends))


_INVISIBLE = dict.fromkeys([0xAD, 0x200C, 0x200D, 0x2060, 0xFEFF]) | {ord("_"): " "}
_RUN = rf"[\w{_character_ranges_of_marks()}]+"
_TOKEN = re.compile(rf"{_RUN}(?:(?:(?<=\d)[.,:/](?=\d)|(?<=[A-Za-z])['’](?=[A-Za-z])){_RUN})*|[^\w\s]")
_SENTENCE_END = re.compile(r"[।॥|?!\r\n]")
_PUNCTUATION = {**dict.fromkeys("([{", "("), **dict.fromkeys(")]}", ")"), **dict.fromkeys(",;:–—", ","), ".": "."}

_JA, _HO = (frozenset(forms_of([stem])) for stem in ("जा", "हो"))
_LIGHT = frozenset(forms_of(tables.LIGHT_STEMS)) - {"जाया"}


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text.translate(_INVISIBLE))


@lru_cache(maxsize=1 << 16)
def _is_word(token: str) -> bool:
    return any(char.isalnum() for char in token)


@lru_cache(maxsize=1 << 16)
def _key(token: str) -> str:
    return tables.fold(token) if _is_word(token) else _PUNCTUATION.get(token, "")


def _keys(tokens: list[str]) -> list[str]:
    """Keys of the words, with the punctuation between them that rules look at; quotation marks and hyphens vanish."""
    keys = [key for key in map(_key, tokens) if key]
    while keys and keys[-1] in "(),.":
        keys.pop()
    start = next((index for index, key in enumerate(keys) if key not in "(),."), 0)
    return keys[start:]


def _complexes(keys: list[str], verbs: list[int]) -> list[list[int]]:
    """Indices of verbs that belong together (कर दिया गया है), particles passed over; a finite verb ends a complex."""
    complexes: list[list[int]] = [[]]
    for index, (key, readings) in enumerate(zip(keys, verbs)):
        if readings:
            complexes[-1].append(index)
        ends = key in tables.PAST or key in tables.PRESENT if readings else key not in tables.PARTICLES
        if ends and complexes[-1]:
            complexes.append([])
    return complexes


def _inflections(keys: list[str], verbs: list[int]) -> int:
    return sum(len(_features([keys[i] for i in group], [verbs[i] for i in group])) for group in _complexes(keys, verbs))


def _features(keys: list[str], verbs: list[int]) -> set[str]:
    """What one verb complex says beyond the habitual present: perfective, progressive, past, mood, passive."""
    features = set()
    before = 0
    for key, after, readings in zip(keys, [*keys[1:], ""], verbs):
        if key in tables.PAST:
            features.add("past")
        elif key in PROGRESSIVE and before & (STEM | HABITUAL):
            features.add("progressive")
        elif readings & PERFECTIVE and after in _JA and key not in tables.GONE:
            features.add("passive")
        elif readings & PERFECTIVE and not (key in _HO and before & HABITUAL):
            features.add("perfective")
        elif readings & MOOD:
            features.add("mood")
        before = readings
    return features


def _compounds(keys: list[str], verbs: list[int]) -> int:
    pairs = (pair for group in _complexes(keys, verbs) for pair in pairwise(group))
    return sum(verbs[first] == STEM and keys[second] in _LIGHT for first, second in pairs)
