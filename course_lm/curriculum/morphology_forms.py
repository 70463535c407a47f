"""The paradigm of the Hindi verb: the forms that a stem can take, and what each may be read as."""

from collections.abc import Iterable, Iterator

from course_lm.curriculum import morphology_tables as tables

# The readings of a form: कर, करता, करना, किया, करे or करेगा, है or था, करो or करके.
STEM, HABITUAL, INFINITIVE, PERFECTIVE, MOOD, FINITE, OTHER = (1 << bit for bit in range(7))

_COMMON = {STEM: " ", HABITUAL: "ता ते ती तीं", INFINITIVE: "ना ने नी नीं", OTHER: "कर"}
_AFTER_CONSONANT = {
    PERFECTIVE: "ा े ी ीं",
    MOOD: "े ें ूं ेगा ेगी ेंगे ेंगी ूंगा ूंगी ोगे ोगी",
    OTHER: "ो िए िएगा",
}
_AFTER_VOWEL = {
    PERFECTIVE: "या ए ई ईं",
    MOOD: "ए एं ऊं एगा एगी एंगे एंगी ऊंगा ऊंगी ओगे ओगी",
    OTHER: "ओ इए इएगा",
}
# Stems whose forms do not follow from the stem; MOOD and OTHER are whole words.
_IRREGULAR = {
    "हो": (
        "हुआ हुए हुई हुईं",
        "हो हों होऊं होगा होगी होंगे होंगी हूंगा हूंगी होओगे",
        "होओ होइए",
    ),
    "जा": ("गया गए गई गईं", "जाए जाएं जाऊं जाएगा जाएगी जाएंगे जाएंगी जाऊंगा जाऊंगी जाओगे जाओगी", "जाओ जाइए जाइएगा जाया"),
    "कर": (
        "किया किए की कीं",
        "करे करें करूं करेगा करेगी करेंगे करेंगी करूंगा करूंगी करोगे करोगी",
        "करो करिए कीजिए कीजिएगा",
    ),
    "दे": ("दिया दिए दी दीं", "दे दें दूं देगा देगी देंगे देंगी दूंगा दूंगी दोगे दोगी", "दो दीजिए दीजिएगा"),
    "ले": ("लिया लिए ली लीं", "ले लें लूं लेगा लेगी लेंगे लेंगी लूंगा लूंगी लोगे लोगी", "लो लीजिए लीजिएगा"),
    "पी": ("पिया पिए पी", "पीए पिएं पीएं पिएगा पीएगा पिएगी पिएंगे पीएंगे पिऊंगा", "पियो पीजिए"),
    "जी": ("जिया जिए", "जीए जिएं जीएं जिएगा जीएगा जिएगी जिएंगे जीएंगे जिऊंगा", "जियो"),
    "छू": ("छुआ छुए छुई छुईं", "छुएं छुएगा छुएगी छुएंगे छूएगा", "छुओ"),
}


def _endings(stem: str) -> Iterator[tuple[str, int]]:
    """Every (form, reading) of a stem."""
    if stem in tables.STEMS_BEFORE_KE:
        yield stem + "के", OTHER
    for reading, suffixes in _COMMON.items():
        yield from ((stem + suffix, reading) for suffix in suffixes.split(" "))
    if stem in _IRREGULAR:
        for reading, words in zip((PERFECTIVE, MOOD, OTHER), _IRREGULAR[stem]):
            yield from ((word, reading) for word in words.split())
        return
    for reading, suffixes in (_AFTER_VOWEL if stem[-1] in "ाोआ" else _AFTER_CONSONANT).items():
        yield from ((stem + suffix, reading) for suffix in suffixes.split())


def forms_of(stems: Iterable[str]) -> dict[str, int]:
    """Key of a form → its readings, or-ed together, over all the stems."""
    forms: dict[str, int] = {}
    for stem in map(tables.fold, stems):
        for form, reading in _endings(stem):
            forms[form] = forms.get(form, 0) | reading
    return forms


FORMS = forms_of(tables.STEMS | set(_IRREGULAR)) | dict.fromkeys(tables.ALWAYS - {"हो", "हों"}, FINITE)
