"""What the verbs and postpositions of one Hindi sentence add up to: the counts behind `morphology`."""

from functools import lru_cache
from itertools import pairwise

from course_lm.curriculum.morphology.tables import (
    FINITE,
    HABITUAL,
    INFINITIVE,
    MIDDLE,
    MOOD,
    PERFECTIVE,
    STEM,
    WORDS,
    fold,
    forms_of,
)
from course_lm.curriculum.morphology.verbs import CLAUSE, PROGRESSIVE, verb_readings

NO, CASE, MARK = range(3)  # what a postposition does: there is none; it marks a case; it marks a clause

_PUNCTUATION = {**dict.fromkeys("([{", "("), **dict.fromkeys(")]}", ")"), **dict.fromkeys(",;:–—", ","), ".": "."}

_COPULA = WORDS["past"] | WORDS["present"]
_JA, _HO = (frozenset(forms_of([stem])) for stem in ("जा", "हो"))
_LIGHT = frozenset(forms_of(WORDS["light_stems"])) - {"जाया"}
# Verbs of which a wing (पर) is the object.
_FLAPPING = frozenset(forms_of(["फैला", "कतर", "काट", "समेट", "फड़फड़ा", "खोल"]))
_LIKE = frozenset({"जैसे", "जैसा", "जैसी"})
_AFTER = ("after_genitive", "after_feminine", "after_se", "after_noun", "after_time")
_MAY_BE_POSTPOSITION = frozenset().union(WORDS["postpositions"], MIDDLE, _LIKE, *(WORDS[name] for name in _AFTER))


def count_sentence(tokens: list[str]) -> tuple[int, int, int, int, int]:
    """Case markers, fused cases, verbs, inflections and compounds of one sentence."""
    keys = _keys(tokens)
    verbs = verb_readings(keys)
    return (
        postpositions(keys, verbs).count(CASE),
        sum(key in WORDS["fused"] for key in keys),
        sum(map(bool, verbs)),
        _inflections(keys, verbs),
        _compounds(keys, verbs),
    )


@lru_cache(maxsize=1 << 16)
def _key(token: str) -> str:
    return fold(token) if any(map(str.isalnum, token)) else _PUNCTUATION.get(token, "")


def _keys(tokens: list[str]) -> list[str]:
    """Keys of the words, with the punctuation between them that rules look at; quotation marks and hyphens vanish."""
    keys = [key for key in map(_key, tokens) if key]
    # At either end it parts nothing, and a count must not depend on it.
    while keys and keys[-1] in "(),.":
        keys.pop()
    start = next((index for index, key in enumerate(keys) if key not in "(),."), 0)
    return keys[start:]


def postpositions(keys: list[str], verbs: list[int]) -> list[int]:
    """For each key NO, CASE or MARK; `verbs` is what `verb_readings` said of the same keys."""
    marks = [NO] * len(keys)
    for index, key in enumerate(keys):
        if verbs[index] or key not in _MAY_BE_POSTPOSITION:
            continue
        host = index - 1
        while host > 0 and keys[host] in WORDS["between"]:
            host -= 1
        if _is_postposition(keys, verbs, index, host):
            # The second word of जाने के लिए is like its first; a finite verb ends its clause and hosts nothing.
            after_verb = host >= 0 and (marks[host] == MARK or verbs[host] & ~(FINITE | MOOD))
            marks[index] = MARK if after_verb or _follows_brackets(keys, host) else CASE
    return marks


def _follows_brackets(keys: list[str], host: int) -> bool:
    """The treebank's relation is `dislocated` where brackets part a postposition from its noun: बोर्ड (बीआरपीएसई) के."""
    return host > 0 and keys[host] == ")" and "(" in keys[max(1, host - CLAUSE) : host]


def _is_postposition(keys: list[str], verbs: list[int], index: int, host: int) -> bool:
    key, after = keys[index], keys[index + 1] if index + 1 < len(keys) else ""
    noun = keys[host] if host >= 0 else ""
    if key == "पर":
        clause_ends = host < 0 or noun in ",." or (verbs[host] and not verbs[host] & INFINITIVE)
        # After a genitive पर is a wing; अपने पर may be "on oneself", so there the verb decides.
        is_wing = noun in WORDS["hosts"] and (noun != "अपने" or after in _FLAPPING)
        return not clause_ends and not is_wing
    # कम से कम, "at least", is an adverb.
    if key == "से" and (noun in WORDS["no_case_before_se"] or noun == "कम" == after):
        return False
    if key in WORDS["postpositions"]:
        return True
    if host < 0 or noun in "(,.":
        return False
    of_masculine, of_feminine = noun in WORDS["hosts"], noun in WORDS["feminine_hosts"]
    after_pronoun = noun in WORDS["bare_pronouns"]
    if MIDDLE.get(key) == after:
        return of_masculine or of_feminine or (key == "बारे" and after_pronoun)  # इस बारे में, without a genitive
    if of_masculine:
        # उसके समय में: a noun, "in his time"; without में it is a postposition.
        is_noun = key in {"समय", "वक्त"} and after in WORDS["postpositions"]
        return (key in WORDS["after_genitive"] and not is_noun) or key in _LIKE
    if of_feminine:
        return key in WORDS["after_feminine"]
    return (
        # जैसे कि, "such as", is no postposition, whatever it follows.
        (key in _LIKE and noun not in WORDS["not_before_like"] and after not in {"कि", "ही"})
        or key in WORDS["after_noun"]
        or (key in WORDS["after_time"] and noun in WORDS["times"])
        or (key in WORDS["after_se"] and (noun == "से" or (noun in WORDS["fused"] and noun.endswith("से"))))
        or (key == "लिए" and after_pronoun)
    )


def _complexes(keys: list[str], verbs: list[int]) -> list[list[int]]:
    """Indices of verbs that belong together (कर दिया गया है), particles passed over; a finite verb ends a complex."""
    complexes: list[list[int]] = [[]]
    for index, (key, readings) in enumerate(zip(keys, verbs)):
        if readings:
            complexes[-1].append(index)
        ends = key in _COPULA if readings else key not in WORDS["particles"]
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
        if key in WORDS["past"]:
            features.add("past")
        # कर रहा and करता रहा; elsewhere रहा is the perfective of रहना.
        elif key in PROGRESSIVE and before & (STEM | HABITUAL):
            features.add("progressive")
        elif readings & PERFECTIVE and after in _JA:
            if key not in WORDS["gone"]:
                features.add("passive")
        # In करता हुआ the participle is marked, no perfective is added.
        elif readings & PERFECTIVE and not (key in _HO and before & HABITUAL):
            features.add("perfective")
        elif readings & MOOD:
            features.add("mood")
        before = readings
    return features


def _compounds(keys: list[str], verbs: list[int]) -> int:
    pairs = (pair for group in _complexes(keys, verbs) for pair in pairwise(group))
    # A stem and nothing else: चला गया has a participle and is no compound.
    return sum(verbs[first] == STEM and keys[second] in _LIGHT for first, second in pairs)
