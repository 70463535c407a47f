"""Write `data/hindi.glosses`: each form that the grammar of the corpus `hindi` knows, in Latin letters and glossed.

A line is a form, its Latin letters and its readings, kind:gloss, in the order in which they are to be tried where a
form has several; `course_lm/corpus/hindi_glosses.py` chooses among them. What a stem means stands in `hindi.meanings`,
its forms come from `hindi.grammar` and the paradigms. The letters are those of ISO 15919, with e and o for vowels that
have no short partner, a tilde on nasal vowels, and x for ख़. Vowels that are written and not spoken are left out.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from hindi import HERE, ROOT, sentence_tables
from hindi_forms import KEYS, conjunctive, decline, future, imperfective, infinitive, perfective, subjunctive

from course_lm.corpus.grammar import Row


def write_lexicon(path: Path) -> None:
    """Write every form, its Latin letters and its readings, a line for each."""
    rows = (
        " ".join([form, transliterate(form), *(f"{kind}:{gloss}" for kind, gloss in readings.items())])
        for form, readings in sorted(lexicon().items())
    )
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8", newline="\n")


def lexicon() -> dict[str, dict[str, str]]:
    """Form → its readings: kind → gloss, in the order in which they are to be tried."""
    entries: dict[str, dict[str, str]] = {"nouns": {}, "verbs": {}, "words": {}}
    kind = ""
    for line in (HERE / "hindi.meanings").read_text(encoding="utf-8").splitlines():
        if line.endswith(":") and line[:-1] in entries:
            kind = line[:-1]
        elif line and line[0] != "#":
            entries[kind] |= dict(entry.split() for entry in line.strip().split(" / "))
    found: list[tuple[str, str, str]] = []
    for word, gloss in entries["words"].items():
        forms = {decline(word[:-1], "dir", key) for key in ("3ms", "3mp", "3fs")} if word[-1] == "~" else {word}
        found += [("word", form, gloss) for form in forms]
    nouns = {(row.word, row.key): row for rows in sentence_tables().values() for row in rows if row.word}
    for row in nouns.values():
        found += _noun_glosses(row, entries["nouns"].get(row.word or "", ""))
    for stem, gloss in entries["verbs"].items():
        found += _verb_glosses(stem, gloss)
    lexicon: dict[str, dict[str, str]] = {}
    for kind in ("word", "infinitive", "subjunctive", "stem", "perfective", "oblique", "noun"):
        for form, gloss in ((form, gloss) for of, form, gloss in found if of == kind):
            lexicon.setdefault(form, {}).setdefault(kind, gloss)
    return lexicon


def _noun_glosses(row: Row, gloss: str) -> list[tuple[str, str, str]]:
    """A noun's forms; number and case are glossed where the form shows them."""
    if not gloss:  # a pronoun
        return []
    direct, oblique = (str(row.forms[case].pieces[0]).strip() for case in ("dir", "obl"))
    number = ".PL" if row.key[2] == "p" and oblique != row.word else ""
    found = [("noun", direct, gloss + (".PL" if direct != row.word else ""))]
    return found + [("oblique", oblique, f"{gloss}{number}.OBL")] * (oblique != row.word)


def _verb_glosses(stem: str, gloss: str) -> list[tuple[str, str, str]]:
    found = [("stem", stem, gloss), ("word", conjunctive(stem), f"{gloss}.CVB")]
    for key in KEYS:
        plural = ".PL" * (key[2] == "p")
        person = ".1SG" * (key[0] + key[2] == "1s")
        agreement = f".{key[1].upper()}"
        if key[0] != "2":
            found += [("word", future(stem, key), f"{gloss}.FUT{person}{agreement}{plural}")]
            found += [("subjunctive", subjunctive(stem, key), f"{gloss}.SBJV{person}{plural}")]
        # The singular comes first in KEYS: so पढ़ती, which is both, is glossed without a number, and पढ़तीं with it.
        for alone in (False, True):
            found += [("word", imperfective(stem, key, alone), f"{gloss}.HAB{agreement}{plural}")]
            found += [("perfective", perfective(stem, key, alone), f"{gloss}.PFV{agreement}{plural}")]
        found += [("infinitive", infinitive(stem, key), f"{gloss}.INF")]
    return found


_CONSONANTS: dict[str, str] = dict(zip("कखगघङचछजझञ", ["k", "kh", "g", "gh", "ṅ", "c", "ch", "j", "jh", "ñ"]))
_CONSONANTS |= zip("टठडढणतथदधनपफबभम", ["ṭ", "ṭh", "ḍ", "ḍh", "ṇ", "t", "th", "d", "dh", "n", "p", "ph", "b", "bh", "m"])
_CONSONANTS |= zip("यरलवशषसह", ["y", "r", "l", "v", "ś", "ṣ", "s", "h"])
_CONSONANTS |= {"क़": "q", "ख़": "x", "ग़": "ġ", "ज़": "z", "ड़": "ṛ", "ढ़": "ṛh", "फ़": "f"}
_VOWELS: dict[str, str] = dict(zip("अआइईउऊऋएऐओऔऑ", ["a", "ā", "i", "ī", "u", "ū", "r̥", "e", "ai", "o", "au", "ô"]))
_VOWELS |= zip("ािीुूृेैोौॉ", ["ā", "i", "ī", "u", "ū", "r̥", "e", "ai", "o", "au", "ô"])
_VIRAMA, _UNWRITTEN, _NASAL = "्", "ə", "\u0303"
_SYLLABLE = re.compile("(?:([क-ह]़?)([ा-ौ]|्)?|([अ-औ]))([ँं])?")
# The stop before which a nasal sign is its consonant: पसंद pasand; elsewhere it is the tilde of its vowel: मैं maĩ.
_NASALS = (("क-घ", "ṅ"), ("चछजझ", "ñ"), ("ट-ढ", "ṇ"), ("त-ध", "n"), ("प-भ", "m"))
# A vowel is spoken here because the word is मेहनत with an ending.
_EXCEPTIONS = {"मेहनती": "mehnatī"}


def transliterate(text: str) -> str:
    """Hindi in Latin letters, word by word; whatever is not Devanagari stays."""
    return re.sub(r"[ऀ-ॣ]+", lambda match: _latin(match[0]), unicodedata.normalize("NFC", text))


def _latin(word: str) -> str:
    if word in _EXCEPTIONS:
        return _EXCEPTIONS[word]
    syllables: list[list[str]] = []  # consonant and vowel; either may be empty
    for match in _SYLLABLE.finditer(word):
        consonant, sign, vowel, nasal = match.groups()
        spoken = _VOWELS[vowel] if vowel else "" if sign == _VIRAMA else _VOWELS[sign] if sign else _UNWRITTEN
        syllables.append([_CONSONANTS[consonant] if consonant else "", spoken])
        before_stop = [latin for stops, latin in _NASALS if re.match(f"[{stops}]", word[match.end() :])]
        if nasal == "ं" and before_stop:
            syllables.append([before_stop[0], ""])
        elif nasal:
            syllables[-1][1] += _NASAL
    _drop_unspoken(syllables)
    return unicodedata.normalize("NFC", "".join(c + v for c, v in syllables).replace(_UNWRITTEN, "a"))


def _drop_unspoken(syllables: list[list[str]]) -> None:
    """Empty the vowels that are not spoken: the last, then each from the right that stands between VC and CV.

    Ohala, Aspects of Hindi Phonology (1983), ch. 5.
    """
    if len(syllables) > 1 and syllables[-1][1] == _UNWRITTEN:
        syllables[-1][1] = ""
    for at in range(len(syllables) - 2, 0, -1):
        before, this, after = syllables[at - 1 : at + 2]
        if this[1] == _UNWRITTEN and before[1] and after[0] and after[1]:
            this[1] = ""


if __name__ == "__main__":
    write_lexicon(ROOT / "data" / "hindi.glosses")
