"""Which words of a Hindi sentence are verbs, and in which forms: the rules behind `morphology`.

A sentence comes as keys (`tables.fold`): its words, and between them the punctuation "," "." "(" ")".
"""

import re
from functools import lru_cache
from itertools import islice, takewhile

from course_lm.curriculum.morphology.tables import (
    FORMS,
    HABITUAL,
    INFINITIVE,
    MOOD,
    OTHER,
    PERFECTIVE,
    STEM,
    WORDS,
    forms_of,
)

CLAUSE = 60  # words: no rule looks further back, so that a text without full stops costs no more than one with them
PROGRESSIVE = frozenset({"रहा", "रहे", "रही", "रहीं"})

_JA, _RAH, _HO = (frozenset(forms_of([stem])) for stem in ("जा", "रह", "हो"))
# Of रहना only रहा, रहे, रही, रहीं stand behind a bare stem.
_STRONG = frozenset(forms_of(WORDS["strong_auxiliaries"])) - _RAH | PROGRESSIVE
_AUXILIARIES = frozenset(forms_of(WORDS["weak_auxiliaries"])) | _STRONG | {"कर", "करके"}
_DEED_AUXILIARIES = frozenset(forms_of(WORDS["deed_auxiliaries"]))
_EVENT_AUXILIARIES = frozenset(forms_of(WORDS["event_auxiliaries"]))
_AFTER_NA = frozenset(forms_of(["चाह", "पड़"])) | WORDS["after_na"]
_AFTER_NE = frozenset(forms_of(["लग", "दे", "जा"])) | WORDS["after_ne"]
_COPULA = WORDS["past"] | WORDS["present"]
_HAVE_TO = _COPULA | frozenset(forms_of(["पड़"]))
_END = frozenset({"", "."})
_NO_OBJECTS = frozenset({"", *"(),."}).union(
    WORDS["no_objects"], WORDS["postpositions"], WORDS["fused"], WORDS["particles"], WORDS["conjunctions"]
)
# Endings that cannot agree with a participle in -ा, or with one in -ी.
_NOT_MASCULINE = re.compile("(?:[ीई]ं?|ते|गे|गए|रहे|चुके)$")
_NOT_FEMININE = re.compile("(?:ता|ते|ना|गा|गे|गया|गए|रहा|रहे|चुका|चुके|ऊं|ओ|कर|इए)$")
_FUTURE_ENDING = re.compile("..(?:[ेए]ं?ग[ाेी]ं?|[ूऊ]ंग[ाी]|[ोओ]ग[ेी])$")


def verb_readings(keys: list[str]) -> list[int]:
    """For each key the verb forms (see `tables`) that it may be here, or-ed together; 0 where it is no verb."""
    verbs = [0] * len(keys)
    for index, key in enumerate(keys):
        readings = _readings(key)
        if readings:
            rule = _OWN_RULES.get(key)
            verbs[index] = (rule or _ordinary_verb)(keys, index, readings)
        elif key == "के" and index and verbs[index - 1] == STEM and keys[index - 1] in WORDS["stems_before_ke"]:
            verbs[index] = OTHER
    return verbs


@lru_cache(maxsize=1 << 16)
def _readings(key: str) -> int:
    """What verb form a key may be. A listed stem tells; without one, only endings that no noun has."""
    if key in FORMS:
        return FORMS[key]
    if key.endswith(("नेवाला", "नेवाले", "नेवाली")):
        return INFINITIVE
    if _FUTURE_ENDING.search(key) and key not in WORDS["never"]:
        return MOOD
    return 0


def _before(keys: list[str], index: int) -> str:
    return keys[index - 1] if index else ""


def _after(keys: list[str], index: int) -> str:
    """The next key, particles (ही भी नहीं) passed over; "" at the end."""
    index += 1
    while index < len(keys) and keys[index] in WORDS["particles"]:
        index += 1
    return keys[index] if index < len(keys) else ""


def _ordinary_verb(keys: list[str], index: int, readings: int) -> int:
    key, after = keys[index], _after(keys, index)
    # के चलते, के मारे: postpositions that are spelt like participles; but के मारे जाने is a verb.
    if key in WORDS["after_genitive"] and _before(keys, index) in WORDS["hosts"] and after not in _JA:
        return 0
    if key in WORDS["never"] and not _is_licensed(keys, index, after):
        return 0
    if readings & STEM and readings & PERFECTIVE and after in _JA and _is_participle(keys, index):
        return PERFECTIVE
    if readings & STEM:
        if _stem_is_verb(key, after, keys[index + 1 : index + 2]):
            return STEM
        readings &= ~STEM
        if key in WORDS["noun_stems"]:
            return 0
    if readings & INFINITIVE:
        return INFINITIVE
    if readings & HABITUAL:
        # जीता is of जीना (lives) or of जीतना (won): an auxiliary behind it shows the habitual.
        return HABITUAL if readings == HABITUAL or after in _COPULA or after in _HO else PERFECTIVE
    if readings & PERFECTIVE and key not in WORDS["nameless"] and _is_inflected_noun(key, keys[index + 1 : index + 2]):
        return 0
    return readings


def _is_inflected_noun(key: str, following: list[str]) -> bool:
    """No participle stands right before these postpositions: मिली ने is a name, मसले पर a matter."""
    return any(word in WORDS["names_before"] or (word == "पर" and key[-1] in "ेए") for word in following)


def _is_licensed(keys: list[str], index: int, after: str) -> bool:
    key = keys[index]
    if key in WORDS["infinitive_in_context"]:
        # मुझे खाना है, आम खाने पड़े, "have to eat": the doer is a dative.
        is_due = after in _HAVE_TO and any(
            word == "को" or word in WORDS["dative"] for word in keys[max(0, index - CLAUSE) : index]
        )
        after_infinitive = _AFTER_NE if key.endswith("ने") else _AFTER_NA
        is_event = key.endswith("ने") and _before_event(keys, index) and _follows_object(keys, index)  # फल खाने के बाद
        # खाना खाना, गाना गाना: the noun is the object of its own verb.
        return after in after_infinitive or is_due or is_event or _before(keys, index) in {"खाना", "गाना"}
    if key in WORDS["habitual_in_context"]:
        # Negated, the habitual does without its auxiliary: चावल नहीं खाता, "does not eat rice".
        is_negated = _before(keys, index) == "नहीं" and (after in _END or _opens_clause(after))
        return after in _COPULA or after in PROGRESSIVE or after == "हुए" or is_negated
    if key in WORDS["perfective_in_context"]:
        is_speaking = key == "बोली" and after == "कि"
        in_place = _before(keys, index) == "ने" or _follows_object(keys, index)
        ends = after in _COPULA or after in _END or (_opens_clause(after) and in_place)
        return after in _JA or after in _HO or is_speaking or (ends and _has_agent(keys, index))
    if FORMS.get(key, 0) & STEM:
        return after in _STRONG or after in WORDS["taking"]
    return key.endswith("ाई") and after in _JA


def _before_event(keys: list[str], index: int) -> bool:
    """Whether the words after an infinitive say when or what for: खाने के बाद, खाने से."""
    return keys[index + 1 : index + 2] == ["से"] or (
        keys[index + 1 : index + 2] == ["के"] and _after(keys, index + 1) in WORDS["event_postpositions"]
    )


def _follows_object(keys: list[str], index: int) -> bool:
    """Whether the word before can be the object of a verb; there is no list of nouns, only of what is none."""
    before = _before(keys, index)
    is_participle = FORMS.get(before, 0) & (PERFECTIVE | HABITUAL) and before not in WORDS["never"]
    return before not in _NO_OBJECTS and not is_participle


def _opens_clause(key: str) -> bool:
    return key in {",", "कि"} or key in WORDS["conjunctions"]


def _is_participle(keys: list[str], index: int) -> bool:
    """Whether a perfective spelt like a stem makes a passive with जाना: गाना सुना गया, against गाना सुना गई.

    The participle agrees with what follows. Where जाना is perfective too, the stem is as likely, unless the verb takes
    an object (पढ़ा गया) or the clause has a doer in से (उससे चाय नहीं पी गई; but बिल्ली दूध पी गई).
    """
    key = keys[index]
    behind = (keys[at] for at in range(index + 1, len(keys)) if keys[at] not in WORDS["particles"])
    following = list(islice(behind, 6))  # not the whole line, which may be long
    clash = _NOT_FEMININE if key.endswith("ी") else _NOT_MASCULINE
    # Auxiliaries of another gender or number show that the word is a stem, which agrees with nothing.
    if any(clash.search(word) for word in takewhile(_AUXILIARIES.__contains__, following)):
        return False
    if key in WORDS["gone"] or not FORMS[following[0]] & PERFECTIVE:
        return True
    if not key.endswith("ी"):
        return key[:-1] in WORDS["transitive_doublets"]
    return any(word.endswith("से") or word == "द्वारा" for word in keys[max(0, index - CLAUSE) : index])


def _stem_is_verb(key: str, after: str, direct: list[str]) -> bool:
    if key in WORDS["only_progressive"]:
        return after in PROGRESSIVE or (after in WORDS["taking"] and key == "अपना")  # अपना लिया, "adopted"
    if key in WORDS["noun_stems"]:
        is_deed, is_event = key in WORDS["noun_stems_of_deeds"], key in WORDS["noun_stems_of_events"]
        is_done = direct == ["कर"] and (is_deed or is_event) and key not in WORDS["nouns_with_do"]
        follows = (is_deed and after in _DEED_AUXILIARIES) or (is_event and after in _EVENT_AUXILIARIES)
        return after in _STRONG or follows or is_done
    if after == "के":
        return key in WORDS["stems_before_ke"]
    return after in _AUXILIARIES or direct == [key]  # said twice: देख देख कर


def _perfective_of_do(keys: list[str], index: int, readings: int) -> int:
    """की: घोषणा की, की गई, की है; else the genitive postposition."""
    before, after = _before(keys, index), _after(keys, index)
    if not before:
        return 0
    if before == "नहीं" or after in _JA or after in {"हुई", "हुईं"} or after in _END:
        return readings
    likely = before in WORDS["conjunct"] or _has_agent(keys, index)
    before_a_copula = after in _COPULA or after in {"हो", "हों", "होगी", "होंगी"}
    return readings if likely and (_opens_clause(after) or before_a_copula) else 0


def _has_agent(keys: list[str], index: int) -> bool:
    """Whether the clause so far has ने or a pronoun that carries it."""
    for key in reversed(keys[max(0, index - CLAUSE) : index]):
        if key in WORDS["clause_openers"]:
            return False
        if key == "ने" or key in WORDS["ergative_pronouns"]:
            return True
    return False


def _bare_do(keys: list[str], index: int, readings: int) -> int:
    """कर: a verb, or the noun tax."""
    after = _after(keys, index)
    is_tax = _before(keys, index) in WORDS["tax_before"] or after in WORDS["tax_after"]
    return 0 if is_tax and after not in _AUXILIARIES else readings & STEM


def _for_or_taken(keys: list[str], index: int, readings: int) -> int:
    """लिए: a postposition after a genitive or a bare pronoun, else the perfective of लेना."""
    before = _before(keys, index)
    return 0 if before in WORDS["hosts"] or before in WORDS["bare_pronouns"] else readings


def _two_or_give(keys: list[str], index: int, readings: int) -> int:
    """दो: a number, or the imperative after a stem or an infinitive (बता दो, जाने दो)."""
    before = FORMS.get(_before(keys, index), 0) & (STEM | INFINITIVE)
    return OTHER if before and _before(keys, index) not in WORDS["noun_stems"] else 0


def _from_taking(keys: list[str], index: int, readings: int) -> int:
    """लेकर: a conjunctive participle, or the postposition in से लेकर."""
    return 0 if _before(keys, index) == "से" else readings


def _given_or_name(keys: list[str], index: int, readings: int) -> int:
    """दी, ली: a verb, or a sister or a name before its postposition (दीपा दी ने)."""
    return 0 if keys[index + 1 : index + 2] and keys[index + 1] in WORDS["postpositions"] else readings


def _stem_or_mood(keys: list[str], index: int, readings: int) -> int:
    """हो, दे, ले: a stem before an auxiliary, else the subjunctive."""
    return STEM if _after(keys, index) in _AUXILIARIES else MOOD


_OWN_RULES = {
    "की": _perfective_of_do,
    "कर": _bare_do,
    "लिए": _for_or_taken,
    "दो": _two_or_give,
    "लेकर": _from_taking,
    "दी": _given_or_name,
    "ली": _given_or_name,
    "हो": _stem_or_mood,
    "दे": _stem_or_mood,
    "ले": _stem_or_mood,
}
