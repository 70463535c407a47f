"""The words that the rules of `morphology` look up, each by its `fold`, and the forms of verbs.

`data/hindi_words.toml` lists and explains them.
"""

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator

from course_lm.corpus.shipped import data_file

# A nasal consonant before a stop of its own class is also written as anusvara: हिन्दी, हिंदी.
_NASALS = re.compile("ङ्(?=[क-घ])|ञ्(?=[च-झ])|ण्(?=[ट-ढ])|न्(?=[त-ध])|म्(?=[प-भ])")
_GLIDES = re.compile("(?<=.)य(?:(े)|ी)(?=ं?(?:ग[ाीे])?$)")


def fold(word: str) -> str:
    """One key for all spellings: no nukta, anusvara for every nasal sign, गए and नई for गये and नयी."""
    word = unicodedata.normalize("NFD", word).replace("\u093c", "").replace("ँ", "ं")  # NFD splits ड़ into ड and nukta
    word = _NASALS.sub("ं", word) if "्" in word else word
    return _GLIDES.sub(lambda glide: "ए" if glide[1] else "ई", word)


_FILE = tomllib.loads(data_file("hindi_words.toml").read_text(encoding="utf-8"))
WORDS: dict[str, frozenset[str]] = {name: frozenset(map(fold, text.split())) for name, text in _FILE["words"].items()}
MIDDLE: dict[str, str] = _FILE["middle"]


def _bearing(bases: str, *markers: str) -> frozenset[str]:
    return frozenset(base + marker for base in WORDS[bases] for marker in markers)


WORDS["dative"] = WORDS["dative_pronouns"] | _bearing("oblique_bases", "को")
WORDS["fused"] = WORDS["dative"] | WORDS["ergative_pronouns"] | WORDS["genitive_pronouns"]
WORDS["fused"] |= _bearing("oblique_bases", "से", "में", "पर") | _bearing("genitive_bases", "का", "के", "की")
WORDS["fused"] -= {"सबसे"}  # the treebank's adverb of the superlative
WORDS["hosts"] |= _bearing("genitive_bases", "के")
WORDS["feminine_hosts"] |= _bearing("genitive_bases", "की")

# The readings of a form: कर, करता, करना, किया, करे or करेगा, है or था, करो or करके.
STEM, HABITUAL, INFINITIVE, PERFECTIVE, MOOD, FINITE, OTHER = (1 << bit for bit in range(7))
_READINGS = {"habitual": HABITUAL, "infinitive": INFINITIVE, "perfective": PERFECTIVE, "mood": MOOD, "other": OTHER}


def _forms(stem: str) -> Iterator[tuple[str, int]]:
    """Every (form, reading) of a stem."""
    yield stem, STEM
    if stem in WORDS["stems_before_ke"]:
        yield stem + "के", OTHER
    endings = _FILE["endings"]
    regular = stem, endings["after_vowel" if stem[-1] in "ाोआ" else "after_consonant"]
    own = ("", _FILE["irregular"][stem]) if stem in _FILE["irregular"] else regular
    for start, parts in ((stem, endings["every_stem"]), own):
        for name, ends in parts.items():
            yield from ((start + end, _READINGS[name]) for end in ends.split())


def forms_of(stems: Iterable[str]) -> dict[str, int]:
    """Key of a form → its readings, or-ed together, over all the stems."""
    forms: dict[str, int] = {}
    for stem in map(fold, stems):
        for form, reading in _forms(stem):
            forms[form] = forms.get(form, 0) | reading
    return forms


FORMS = forms_of([*WORDS["stems"], *_FILE["irregular"]])
FORMS |= dict.fromkeys(WORDS["past"] | WORDS["present"] | WORDS["should"], FINITE)
