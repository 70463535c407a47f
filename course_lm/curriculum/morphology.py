"""How much morphology a Hindi text shows: case markers, verbs and compounds, counted by rules from the text alone.

The counts follow the Universal Dependencies treebank of Hindi (HDTB):

- A **case marker** is a free postposition, tagged ADP with relation `case`: ने को से में पर का के की तक, both words of
  a compound one (के लिए, के साथ, की तरह: two), and all three of के रूप में. After a verb (जाने के लिए, करने में) it marks a
  clause; the treebank's relation is then `mark`, so it is no case marker here. पर that opens a clause is "but".
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
from course_lm.curriculum.morphology_forms import (
    FINITE,
    FORMS,
    HABITUAL,
    INFINITIVE,
    MOOD,
    OTHER,
    PERFECTIVE,
    STEM,
    fold,
    forms_of,
)


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
    verbs = _verbs(keys)
    return MorphologyCounts(
        words=words,
        case_markers=_postpositions(keys, verbs).count(_CASE),
        fused_cases=sum(key in _FUSED for key in keys),
        verbs=sum(map(bool, verbs)),
        inflections=_inflections(keys, verbs),
        compounds=_compounds(keys, verbs),
    )


def _fold_all(words: frozenset[str]) -> frozenset[str]:
    return frozenset(map(fold, words))


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

_FUSED, _ERGATIVE, _REFLEXIVE, _GENITIVE_PRONOUNS, _TIMES, _NEVER, _NOUN_STEMS, _CONJUNCT = map(
    _fold_all,
    (
        tables.FUSED,
        tables.ERGATIVE_PRONOUNS,
        tables.REFLEXIVE,
        tables.GENITIVE_PRONOUNS,
        tables.TIMES,
        tables.NEVER,
        tables.NOUN_STEMS,
        tables.CONJUNCT,
    ),
)
_AFTER_GENITIVE = _fold_all(tables.AFTER_GENITIVE)
_GENITIVE_HOSTS = {"के", "की"} | _GENITIVE_PRONOUNS | _REFLEXIVE
_PERFECTIVE_IN_CONTEXT = _fold_all(tables.PERFECTIVE_IN_CONTEXT)
_INFINITIVE_IN_CONTEXT = _fold_all(tables.INFINITIVE_IN_CONTEXT)
_JA, _RAH, _HO = (frozenset(forms_of([stem])) for stem in ("जा", "रह", "हो"))
_PROGRESSIVE = frozenset({"रहा", "रहे", "रही", "रहीं"})
_STRONG = frozenset(forms_of(tables.STRONG_AUXILIARIES)) - _RAH | _PROGRESSIVE
_AUXILIARIES = frozenset(forms_of(tables.WEAK_AUXILIARIES)) | _STRONG | {"कर", "करके"}
_LIGHT = frozenset(forms_of(tables.LIGHT_STEMS)) - {"जाया"}
_LICENSING_INFINITIVE = frozenset(forms_of(tables.AFTER_INFINITIVE)) | tables.AFTER_INFINITIVE_WORDS
_LICENSING_PERFECTIVE = _JA | _HO | tables.PAST | tables.PRESENT
_END = frozenset({"", "."})
_FUTURE_ENDING = re.compile("..(?:[ेए]ं?ग[ाेी]|[ूऊ]ंग[ाी]|[ोओ]ग[ेी])$")


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text.translate(_INVISIBLE))


@lru_cache(maxsize=1 << 16)
def _is_word(token: str) -> bool:
    return any(char.isalnum() for char in token)


@lru_cache(maxsize=1 << 16)
def _key(token: str) -> str:
    return fold(token) if _is_word(token) else _PUNCTUATION.get(token, "")


def _keys(tokens: list[str]) -> list[str]:
    """Keys of the words, with the punctuation between them that rules look at; quotation marks and hyphens vanish."""
    keys = [key for key in map(_key, tokens) if key]
    while keys and keys[-1] in "(),.":
        keys.pop()
    start = next((index for index, key in enumerate(keys) if key not in "(),."), 0)
    return keys[start:]


# Verbs: for each key the readings of FORMS that hold here, 0 where it is no verb.


def _verbs(keys: list[str]) -> list[int]:
    verbs = [0] * len(keys)
    for index, key in enumerate(keys):
        readings = _readings(key)
        if readings:
            rule = _OWN_RULES.get(key)
            verbs[index] = (rule or _ordinary_verb)(keys, index, readings)
        elif key == "के" and index and verbs[index - 1] == STEM and keys[index - 1] in tables.STEMS_BEFORE_KE:
            verbs[index] = OTHER
    return verbs


@lru_cache(maxsize=1 << 16)
def _readings(key: str) -> int:
    """What verb form a key may be. A listed stem tells; without one, only endings that no noun has."""
    if key in FORMS:
        return FORMS[key]
    if key.endswith(("नेवाला", "नेवाले", "नेवाली")):
        return INFINITIVE
    if _FUTURE_ENDING.search(key) and key not in _NEVER:
        return MOOD
    return 0


def _before(keys: list[str], index: int) -> str:
    return keys[index - 1] if index else ""


def _after(keys: list[str], index: int) -> str:
    """The next key, particles (ही भी नहीं) passed over; "" at the end."""
    index += 1
    while index < len(keys) and keys[index] in tables.PARTICLES:
        index += 1
    return keys[index] if index < len(keys) else ""


def _ordinary_verb(keys: list[str], index: int, readings: int) -> int:
    key, after = keys[index], _after(keys, index)
    if key in _AFTER_GENITIVE and _before(keys, index) in _GENITIVE_HOSTS and after not in _JA:
        return 0
    if key in _NEVER and not _is_licensed(keys, index, after):
        return 0
    if readings & STEM:
        if _stem_is_verb(key, after, keys[index + 1 : index + 2]):
            return STEM
        readings &= ~STEM
        if key in _NOUN_STEMS:
            return 0
    if readings & INFINITIVE:
        return INFINITIVE
    if readings & HABITUAL:
        return HABITUAL if after in _LICENSING_PERFECTIVE or readings == HABITUAL else PERFECTIVE
    if readings == PERFECTIVE and keys[index + 1 : index + 2] and keys[index + 1] in tables.NAMES_BEFORE:
        return readings if key in tables.NAMELESS else 0
    return readings


def _is_licensed(keys: list[str], index: int, after: str) -> bool:
    key = keys[index]
    if key in _INFINITIVE_IN_CONTEXT:
        return after in _LICENSING_INFINITIVE or _before(keys, index) in _INFINITIVE_IN_CONTEXT
    if key in _PERFECTIVE_IN_CONTEXT:
        return after in _LICENSING_PERFECTIVE or (after in _END and _has_agent(keys, index))
    if FORMS.get(key, 0) & STEM:
        return after in _STRONG or after in tables.TAKING
    return key.endswith("ाई") and after in _JA


def _stem_is_verb(key: str, after: str, direct: list[str]) -> bool:
    if key in tables.ONLY_PROGRESSIVE:
        return after in _PROGRESSIVE or (after in tables.TAKING and key == "अपना")
    if key in _NOUN_STEMS:
        return after in _STRONG
    if after == "के":
        return key in tables.STEMS_BEFORE_KE
    return after in _AUXILIARIES or direct == [key]


def _perfective_of_do(keys: list[str], index: int, readings: int) -> int:
    """की: घोषणा की, की गई, की है; else the genitive postposition."""
    before, after = _before(keys, index), _after(keys, index)
    if not before:
        return 0
    if before == "नहीं" or after in _JA or after in {"हुई", "हुईं"} or after in _END:
        return readings
    likely = before in _CONJUNCT or _has_agent(keys, index)
    at_a_boundary = after in {",", "कि"} or after in tables.CONJUNCTIONS
    before_a_copula = after in tables.PAST or after in tables.PRESENT or after in {"हो", "हों", "होगी", "होंगी"}
    return readings if likely and (at_a_boundary or before_a_copula) else 0


def _has_agent(keys: list[str], index: int) -> bool:
    """Whether the clause so far has ने or a pronoun that carries it."""
    for key in reversed(keys[:index]):
        if key in tables.CLAUSE_OPENERS:
            return False
        if key == "ने" or key in _ERGATIVE:
            return True
    return False


def _bare_do(keys: list[str], index: int, readings: int) -> int:
    """कर: a verb, or the noun tax."""
    after = _after(keys, index)
    is_tax = _before(keys, index) in tables.TAX_BEFORE or after in tables.TAX_AFTER
    return 0 if is_tax and after not in _AUXILIARIES else readings & STEM


def _for_or_taken(keys: list[str], index: int, readings: int) -> int:
    """लिए: a postposition after a genitive or a bare pronoun, else the perfective of लेना."""
    before = _before(keys, index)
    return 0 if before in _GENITIVE_HOSTS or before in tables.BARE_PRONOUNS else readings


def _two_or_give(keys: list[str], index: int, readings: int) -> int:
    """दो: a number, or the imperative after a stem or an infinitive (बता दो, जाने दो)."""
    before = FORMS.get(_before(keys, index), 0) & (STEM | INFINITIVE)
    return OTHER if before and _before(keys, index) not in _NOUN_STEMS else 0


def _from_taking(keys: list[str], index: int, readings: int) -> int:
    return 0 if _before(keys, index) == "से" else readings


def _given_or_name(keys: list[str], index: int, readings: int) -> int:
    return 0 if keys[index + 1 : index + 2] and keys[index + 1] in tables.POSTPOSITIONS else readings


def _to_be(keys: list[str], index: int, readings: int) -> int:
    return STEM if _after(keys, index) in _AUXILIARIES else MOOD


def _shown(keys: list[str], index: int, readings: int) -> int:
    """दिखाई, सुनाई: nouns in दिखाई देना, सुनाई पड़ना."""
    return 0 if _after(keys, index) in _SHOWING else readings


_SHOWING = frozenset(forms_of(["दे", "पड़"]))
_OWN_RULES = {
    "की": _perfective_of_do,
    "कर": _bare_do,
    "लिए": _for_or_taken,
    "दो": _two_or_give,
    "लेकर": _from_taking,
    "दी": _given_or_name,
    "ली": _given_or_name,
    "हो": _to_be,
    "दे": _to_be,
    "ले": _to_be,
    "दिखाई": _shown,
    "सुनाई": _shown,
}


# Postpositions: for each key whether it marks a case, or something that is none.

_NOTHING, _CASE, _MARK = range(3)


def _postpositions(keys: list[str], verbs: list[int]) -> list[int]:
    marks = [_NOTHING] * len(keys)
    for index, key in enumerate(keys):
        if verbs[index] or key not in _MAY_BE_POSTPOSITION:
            continue
        host = index - 1
        while host > 0 and keys[host] in tables.BETWEEN:
            host -= 1
        if _is_postposition(keys, verbs, index, host):
            after_verb = host >= 0 and (marks[host] == _MARK or verbs[host] & ~(FINITE | MOOD))
            marks[index] = _MARK if after_verb or _follows_brackets(keys, host) else _CASE
    return marks


def _follows_brackets(keys: list[str], host: int) -> bool:
    """The treebank's relation is `dislocated` where brackets part a postposition from its noun: बोर्ड (बीआरपीएसई) के."""
    return host > 0 and keys[host] == ")" and "(" in keys[1:host]


def _is_postposition(keys: list[str], verbs: list[int], index: int, host: int) -> bool:
    key, after = keys[index], keys[index + 1] if index + 1 < len(keys) else ""
    noun = keys[host] if host >= 0 else ""
    if key == "पर":
        clause_ends = host < 0 or noun in ",." or (verbs[host] and not verbs[host] & INFINITIVE)
        return not clause_ends and noun not in _GENITIVE_HOSTS
    if key == "से" and (noun in tables.NO_CASE_BEFORE_SE or noun == "कम" == after):
        return False
    if key in tables.POSTPOSITIONS:
        return True
    if host < 0 or noun in "(,.":
        return False
    if noun in _GENITIVE_HOSTS:
        return key in _AFTER_GENITIVE or tables.MIDDLE.get(key) == after or key == "जैसे"
    return (
        (key in _LIKE and noun not in tables.NOT_BEFORE_LIKE and after not in {"कि", "ही"})
        or key in tables.AFTER_NOUN
        or (key in tables.AFTER_TIME and noun in _TIMES)
        or (key in tables.AFTER_SE and (noun == "से" or (noun in _FUSED and noun.endswith("से"))))
        or (key == "लिए" and noun in tables.BARE_PRONOUNS)
    )


_LIKE = frozenset({"जैसे", "जैसा", "जैसी"})
_MAY_BE_POSTPOSITION = (
    tables.POSTPOSITIONS
    | _AFTER_GENITIVE
    | set(tables.MIDDLE)
    | tables.AFTER_SE
    | tables.AFTER_NOUN
    | tables.AFTER_TIME
    | _LIKE
)


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
        elif key in _PROGRESSIVE and before & (STEM | HABITUAL):
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
