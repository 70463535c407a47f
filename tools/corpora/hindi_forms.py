"""Hindi paradigms: from a stem to every form that the sentences of the corpus `hindi` need.

Agreement is by a key, person with gender and number: `3fs` is she, `1mp` we. `conjugate` adds to each word the tags
that say what it counts as: v verb, i inflection, k compound.
"""

KEYS = ("1ms", "1fs", "1mp", "2mp", "2fp", "3ms", "3fs", "3mp", "3fp")
THIRD = KEYS[5:]


def decline_noun(noun: str, gender: str) -> dict[str, str]:
    """A noun by number and case: singular direct and oblique, then plural: keys `dir_s obl_s dir_p obl_p`."""
    stem = noun[:-1]
    if gender == "m" and noun[-1] == "ा":
        return _cases(noun, stem + "े", stem + "े", stem + "ों")  # लड़का लड़के, लड़के लड़कों
    if noun[-1] in "ीई":
        short = stem + ("ि" if noun[-1] == "ी" else "इ")  # लड़की लड़कियाँ लड़कियों, आदमी आदमियों
        return _cases(noun, noun, noun if gender == "m" else short + "याँ", short + "यों")
    if noun.endswith("िया"):
        return _cases(noun, noun, noun + "ँ", stem + "ों")  # चिड़िया चिड़ियाँ चिड़ियों
    vowel = noun[-1] == "ा"
    plural = noun if gender == "m" else noun + ("एँ" if vowel else "ें")  # घर घर, किताब किताबें, माता माताएँ
    return _cases(noun, noun, plural, noun + ("ओं" if vowel else "ों"))


def _cases(*forms: str) -> dict[str, str]:
    return dict(zip(("dir_s", "obl_s", "dir_p", "obl_p"), forms))


# Direct singular and plural, then oblique singular and plural.
PRONOUNS = {"यह": ("यह", "ये", "इस", "इन"), "वह": ("वह", "वे", "उस", "उन"), "जो": ("जो", "जो", "जिस", "जिन")}


def decline(word: str, case: str, key: str) -> str:
    """An adjective, a participle, का or a demonstrative as it stands beside a noun of that case and key."""
    if word in PRONOUNS:
        return PRONOUNS[word][2 * (case == "obl") + (key[2] == "p")]
    if key[1:] == "ms" and case == "dir":
        return word
    # After हुआ and गया endings are vowel letters, not signs: हुई, गए.
    vowel = word[-1] == "आ" or word[-2] == "य"
    endings = ("ई", "ए") if vowel else ("ी", "े")
    stem = word[:-2] if word.endswith("या") else word[:-1]
    return stem + endings[key[1] == "m"]  # one form for all of the feminine


PERFECTIVES = {"जा": ("गया", "गए", "गई"), "कर": ("किया", "किए", "की"), "हो": ("हुआ", "हुए", "हुई")}
PERFECTIVES |= {"दे": ("दिया", "दिए", "दी"), "ले": ("लिया", "लिए", "ली"), "पी": ("पिया", "पिए", "पी")}


def perfective(stem: str, key: str, alone: bool = True) -> str:
    """The perfective participle. It shows the feminine plural only where no auxiliary follows: `alone`."""
    regular = (stem + "या", stem + "ए", stem + "ई") if stem[-1] in "ाआो" else (stem + "ा", stem + "े", stem + "ी")
    masculine, plural, feminine = PERFECTIVES.get(stem, regular)
    if key[1] == "m":
        return masculine if key[2] == "s" else plural
    return feminine + ("ं" if alone and key[2] == "p" else "")


def imperfective(stem: str, key: str, alone: bool = False) -> str:
    """The imperfective participle. It shows the feminine plural only where no auxiliary follows: `alone`."""
    if key[1] == "f":
        return stem + ("तीं" if alone and key[2] == "p" else "ती")
    return stem + ("ता" if key[2] == "s" else "ते")


def infinitive(stem: str, key: str) -> str:
    """The infinitive; where it has an object of its own, it agrees with it."""
    return stem + ("नी" if key[1] == "f" else "ना" if key[2] == "s" else "ने")


def conjunctive(stem: str) -> str:
    """The conjunctive participle, "having done": the stem and कर, but करके from करना."""
    return stem + ("के" if stem == "कर" else "कर")


def subjunctive(stem: str, key: str) -> str:
    """The subjunctive, "may do"; the future adds गा to it."""
    ending = {"1s": "ूँ", "2p": "ो", "3s": "े"}.get(key[0] + key[2], "ें")
    # दूँ, दे, दें, दो: the ending takes the place of the stem's vowel.
    if stem in ("दे", "ले"):
        return stem[:-1] + ending
    if stem == "हो":
        return {"ूँ": "होऊँ", "ें": "हों"}.get(ending, "हो")
    if stem[-1] in "ाआोी":
        short = stem[:-1] + "ि" if stem[-1] == "ी" else stem
        return short + {"ूँ": "ऊँ", "े": "ए", "ें": "एँ", "ो": "यो" if stem[-1] == "ी" else "ओ"}[ending]
    return stem + ending


def future(stem: str, key: str) -> str:
    """The future, "will do"."""
    return subjunctive(stem, key) + ("गी" if key[1] == "f" else "गा" if key[2] == "s" else "गे")


def present(key: str) -> str:
    """The present of होना, also the auxiliary of other verbs."""
    return {"1s": "हूँ", "2p": "हो", "3s": "है"}.get(key[0] + key[2], "हैं")


def past(key: str) -> str:
    """The past of होना, also the auxiliary of other verbs."""
    return {"ms": "था", "mp": "थे", "fs": "थी", "fp": "थीं"}[key[1:]]


def conjugate(stem: str, light: str, key: str) -> dict[str, str]:
    """Every form of a verb for one key, with tags: the tenses, with its light verb, passive, and with other verbs."""
    hai, tha = f"{present(key)}:v", f"{past(key)}:vi"
    done, done_before = f"{perfective(stem, key)}:vi", f"{perfective(stem, key, alone=False)}:vi"
    going = f"{perfective('रह', key, alone=False)}:vi"
    # In a passive this participle counts the voice; the aspect is that of जाना behind it.
    passive, infinite = f"{perfective(stem, key, alone=False)}:vi", f"{infinitive(stem, key)}:v"
    forms = {
        "hab": f"{imperfective(stem, key)}:v {hai}",
        "nothab": f"{imperfective(stem, key, alone=True)}:v",
        "habpast": f"{imperfective(stem, key)}:v {tha}",
        "prog": f"{stem}:v {going} {hai}",
        "progpast": f"{stem}:v {going} {tha}",
        "fut": f"{future(stem, key)}:vi",
        "sbj": f"{subjunctive(stem, key)}:vi",
        "perf": done,
        "perfpres": f"{done_before} {hai}",
        "perfpast": f"{done_before} {tha}",
        "can": f"{stem}:v {imperfective('सक', key)}:v {hai}",
        "notcan": f"{stem}:v {imperfective('सक', key, alone=True)}:v",
        "must": f"{infinite} {hai}",
        "mustpast": f"{infinite} {tha}",
        "forced": f"{infinite} {perfective('पड़', key)}:vi",
        "pashab": f"{passive} {imperfective('जा', key)}:v {hai}",
        "notpashab": f"{passive} {imperfective('जा', key, alone=True)}:v",
        "pasprog": f"{passive} जा:v {going} {hai}",
        "pasfut": f"{passive} {future('जा', key)}:vi",
        "pasperf": f"{passive} {perfective('जा', key)}:vi",
        "pasperfpres": f"{passive} {perfective('जा', key, alone=False)}:vi {hai}",
        "pasperfpast": f"{passive} {perfective('जा', key, alone=False)}:vi {tha}",
    }
    if light:
        forms |= {
            "light": f"{stem}:v {perfective(light, key)}:vik",
            "lightpres": f"{stem}:v {perfective(light, key, alone=False)}:vik {hai}",
            "lightfut": f"{stem}:v {future(light, key)}:vik",
        }
    return forms


def stative(stem: str, key: str) -> dict[str, str]:
    """What takes the place of the progressive where a posture lasts: बैठा है or बैठा हुआ है, "is seated"."""
    seated = f"{perfective(stem, key, alone=False)}:vi [been.dir_3{key[1:]}]"
    return {"prog": f"{seated} {present(key)}:v", "progpast": f"{seated} {past(key)}:vi"}
