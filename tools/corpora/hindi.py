"""Write the corpus `hindi`: sentences from a grammar that is known to the last weight and to the last ending.

The words, their classes and the plans of the sentences are data (`hindi.grammar`, explained at its top), their forms
come from the paradigms in `hindi_forms.py`. A word carries tags from the line that wrote it, so what a sentence
counts is known without reading it. The controlling noun's key picks the form of its verb.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from grammar import Form, Row, Symbol, Tables, Writer, read_symbol, search_derivations
from hindi_forms import (
    KEYS,
    THIRD,
    conjugate,
    conjunctive,
    decline,
    decline_noun,
    future,
    infinitive,
    past,
    present,
    stative,
)

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SHIPPED_COUNT = 4800
SENTENCE = Symbol("sentence")
TAGS = {"w": "words", "c": "case_markers", "f": "fused_cases", "v": "verbs", "i": "inflections", "k": "compounds"}


class Sentence(NamedTuple):
    """A sentence, its exact -log p under the grammar in nats, and what it counts (see `data/README.md`)."""

    text: str
    neg_log_p: float
    gold: dict[str, int]


# What a frame becomes, by name: the tense, and how the object is shown. <before> is the place, partner or instrument.
# The verb agrees with the subject, or in the second group with the object: a noun, or a key where <before> holds it.
# "@" is no object: then the perfective follows the subject, and the rest of the second group stays masculine.
WITH_SUBJECT = ("hab", "habpast", "prog", "progpast", "fut", "lightfut", "can", "sbj")
PERFECT = ("perf", "perfpres", "perfpast", "light", "lightpres")
WITH_OBJECT = ("must", "mustpast", "forced")
WITH_OBJECT += ("pashab", "pasprog", "pasfut", "pasperf", "pasperfpres", "pasperfpast")
# Where नहीं stands before them, the present auxiliary falls away: घर नहीं जाता.
SHORT_IF_NEGATED = ("hab", "can", "pashab")
PHRASES = ("np", "nps", "npl", "npg", "npx", "npp", "npk", "npm", "npw")
OBJECT_FORMS = ("np", "npl", "npg", "npx", "npp")


def frame_forms(before: str, thing: str, verb: str) -> dict[str, str]:
    """The templates of one frame; each name also with "not" before it for नहीं."""
    with_noun = thing[0] not in "=@"
    agreement = dict.fromkeys(WITH_SUBJECT, "@subj") | {"sbj": "@person"}
    agreement |= dict.fromkeys(PERFECT + WITH_OBJECT, f"@{thing}" if with_noun else f"_{thing[1:] or '3ms'}")
    if thing == "@":
        agreement |= dict.fromkeys(PERFECT, "@subj")
    forms: dict[str, str] = {}
    for shown in OBJECT_FORMS:
        lead = f"{before} {{{thing}.{shown}}}" if with_noun else before
        forms |= {f"{tense}.{shown}": f"{lead} {{{verb}.{tense}{mark}}}" for tense, mark in agreement.items()}
        for tense, mark in agreement.items():
            negated = "not" * (tense in SHORT_IF_NEGATED) + tense
            forms[f"not{tense}.{shown}"] = f"{lead} नहीं {{{verb}.{negated}{mark}}}"
        forms |= {f"{form}.{shown}": f"{lead} {{{verb}.{form}}}" for form in ("conj", "inf")}
    # को hides the object from its verb, which then is masculine singular whatever the object is.
    if with_noun:
        forms |= {f"{tense}.ko": f"{before} {{{thing}.npko}} को:c {{{verb}.{tense}_3ms}}" for tense in PERFECT}
    return forms


# A second clause has its own words: copies of all tables, with the subject that its verbs agree with.
COPIES = {"b": "subj", "2": "subj2", "r": "rel", "q": "rel"}


@functools.cache
def sentence_tables() -> Tables:
    """The rows of every table of the grammar, by its name."""
    tables: Tables = {}
    # Tables of one row, so that its choice costs nothing; agreement alone picks a form of it.
    tables["be"] = [Row(1, _forms(_copula()))]
    tables["he"] = [Row(1, _forms(_pronoun_he()))]
    name = kind = ""
    for line in (HERE / "hindi.grammar").read_text(encoding="utf-8").splitlines():
        if not line or line[0] == "#":
            continue
        if line[0] in "{[":
            head, _, line = line.partition(":")
            name, _, kind = head.partition(" ")
            name = name[1:-1]
            tables[name] = []
        for source in filter(str.strip, line.split(" / ")):
            tables[name] += _read_rows(kind, source.strip(), tables)
    # A list, since the copies join the dict meanwhile.
    for name, rows in list(tables.items()):
        tables.update({name + suffix: [_renamed(row, suffix) for row in rows] for suffix in COPIES})
    return tables


def _copula() -> dict[str, str]:
    tenses = {"pres": present, "past": past, "fut": functools.partial(future, "हो")}
    return {
        f"{tense}_{key}": shape(key) + (":v" if tense == "pres" else ":vi")  # the present counts no inflection
        for tense, shape in tenses.items()
        for key in KEYS
    }


def _pronoun_he() -> dict[str, str]:
    forms = {"erg": ("उसने", "उन्होंने"), "dat": ("उसे", "उन्हें")}
    return {f"{case}_{key}": forms[case][key[2] == "p"] + ":f" for case in forms for key in THIRD}


def _read_rows(kind: str, source: str, tables: Tables) -> list[Row]:
    kind, *settings = kind.split(maxsplit=1) or [""]
    if kind == "joins":
        return [row for table in source.split() for row in tables[table]]
    number, _, content = source.partition(" ")
    weight = int(number)
    if kind == "nouns":
        return _noun_rows(weight, content, settings[0] if settings else "")
    if kind == "pronouns":
        word, *keys = content.split()
        return [Row(weight, _forms(dict.fromkeys(("dir", "np", "nps"), word)), key, word) for key in keys]
    return [Row(weight, _forms(_content_forms(kind, content)))]


def _content_forms(kind: str, content: str) -> dict[str, str]:
    if kind in ("verbs", "states"):
        stem, _, light = content.partition("+")
        forms = {f"{form}_{key}": shape for key in KEYS for form, shape in conjugate(stem, light, key).items()}
        if kind == "states":
            forms |= {f"{form}_{key}": shape for key in KEYS for form, shape in stative(stem, key).items()}
        # The plural ending ने is that of the oblique infinitive, which stands before postpositions.
        return forms | {"conj": conjunctive(stem) + ":v", "inf": infinitive(stem, "3mp") + ":v"}
    if kind == "adjectives":
        return {f"{case}_{key}": _declined(content, case, key) for case in ("dir", "obl") for key in THIRD}
    if kind == "frames":
        before, thing, verb = (part.strip() for part in content.split("|"))
        return frame_forms(before, thing, verb)
    return {"": content}


def _declined(template: str, case: str, key: str) -> str:
    return re.sub(r"(\S+?)~", lambda match: decline(match[1], case, key), template)


def _noun_rows(weight: int, source: str, settings: str) -> list[Row]:
    """A row for the singular and one for the plural; only one of them for `m1 f1`, and the respectful `m+`."""
    noun, gender = source.split()
    cases = decline_noun(noun, gender[0])
    numbers = {"1": "s", "+": "s"}.get(gender[1:], "sp")
    rows: list[Row] = []
    for number in numbers:
        key = f"3{gender[0]}{'p' if gender[1:] == '+' else number}"
        shapes = {case: cases[f"{case}_{number}"] for case in ("dir", "obl")}
        forms = _noun_phrases(shapes, key, settings, counted=number == "p" and cases["dir_s"] == cases["dir_p"])
        rows.append(Row(weight * (2 if number == "s" else 1), _forms(forms), key, noun))
    return rows


def _noun_phrases(shapes: dict[str, str], key: str, settings: str, counted: bool) -> dict[str, str]:
    """The noun alone and with what may stand before it.

    In a `counted` table, where no verb shows the number, a plural that looks like its singular has a numeral before it.
    """
    is_counted, *phrases = settings.split() if settings.startswith("counted") else ["", *settings.split()]
    many = "[many] " if counted and is_counted else ""
    plans = dict.fromkeys(PHRASES, phrases[0].partition("=")[2] if phrases else "")
    plans |= {name: plan for name, _, plan in (phrase.partition("=") for phrase in phrases)}
    forms = dict(shapes)
    for name, plan in plans.items():
        before = re.findall(r"\[(.+?)\]", plan)
        at = sum(not table.startswith("adj") for table in before)  # numbers stand before adjectives
        # The oblique plural has an ending of its own, so that only the direct one needs a numeral.
        for case, end, number in (("dir", "", many), ("obl", "o", "")):
            words = [f"[{table}.{case}_{key}] " for table in before]
            forms[name + end] = "".join([*words[:at], number, *words[at:]]) + shapes[case]
    return forms


def _forms(templates: dict[str, str]) -> dict[str, Form]:
    return {name: _form(template) for name, template in templates.items()}


def _form(template: str) -> Form:
    """Words apart by spaces, `:` before a word's tags, `-` for nothing; a word in the text begins with its space."""
    pieces: list[str | Symbol] = []
    tags = ""
    for token in template.split():
        if token[0] in "{[":
            pieces.append(read_symbol(token))
        elif token != "-":
            word, _, more = token.partition(":")
            is_word = word not in ",।"  # punctuation joins the word before it
            tags += "w" * is_word + more
            pieces.append(" " * is_word + word)
    # Joined, since the search tries fewer rows where it can compare longer texts.
    return Form(_joined(pieces), tags)


def _joined(pieces: list[str | Symbol]) -> tuple[str | Symbol, ...]:
    joined: list[str | Symbol] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, str) and isinstance(last, str):
            joined[-1] = last + piece
        else:
            joined.append(piece)
    return tuple(joined)


def _renamed(row: Row, suffix: str) -> Row:
    if not any(isinstance(piece, Symbol) for form in row.forms.values() for piece in form.pieces):
        return row
    forms = {
        name: Form(tuple(_rename(piece, suffix) for piece in form.pieces), form.tags)
        for name, form in row.forms.items()
    }
    return replace(row, forms=forms)


@functools.cache
def _rename(piece: str | Symbol, suffix: str) -> str | Symbol:
    if isinstance(piece, str):
        return piece
    controller = COPIES[suffix] if piece.controller == "subj" else piece.controller and piece.controller + suffix
    return piece._replace(table=piece.table + suffix, controller=controller)


def generate_sentences(count: int = SHIPPED_COUNT, seed: int = 0) -> Iterator[Sentence]:
    """Draw `count` different sentences: one that was drawn before is passed over.

    The same seed draws the same sentences on every machine.
    """
    rng = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < count:
        # Its -log p stays that of one draw, although repeats are left out.
        sentence = draw_sentence(rng)
        if sentence.text not in seen:
            seen.add(sentence.text)
            yield sentence


def draw_sentence(rng: random.Random) -> Sentence:
    """One sentence, independent of all others."""
    writer = Writer(sentence_tables(), rng)
    text = writer.write(SENTENCE)[1:]  # without the space of the first word
    return Sentence(text, writer.neg_log_p, {name: writer.tags.count(tag) for tag, name in TAGS.items()})


def sentence_neg_log_p(text: str) -> float:
    """-log p of a sentence in nats, from its text alone.

    Raises ValueError for a text that the grammar cannot write.
    """
    costs, furthest = search_derivations(sentence_tables(), SENTENCE, " " + text)
    if not costs:
        at = max(furthest - 1, 0)
        raise ValueError(f"not a sentence of the grammar: nothing fits from character {at} on, {text[at:][:30]!r}")
    return costs[0]


def sentence_derivations(text: str) -> list[float]:
    """The cost in nats of each way in which the grammar can write exactly this text."""
    return search_derivations(sentence_tables(), SENTENCE, " " + text)[0]


def write_sentences(path: str | Path, count: int = SHIPPED_COUNT, seed: int = 0) -> None:
    """Write sentences as JSON lines {"text", "neg_log_p", "gold"}, in nats to six decimals.

    With the default arguments this is the shipped `data/hindi.jsonl`, byte for byte.
    """
    rows = [
        sentence._asdict() | {"neg_log_p": round(sentence.neg_log_p, 6)} for sentence in generate_sentences(count, seed)
    ]
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows]
    Path(path).write_text("".join(lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write sentences of the corpus hindi; by default the shipped ones.")
    parser.add_argument("path", nargs="?", type=Path, default=ROOT / "data" / "hindi.jsonl")
    parser.add_argument("--count", type=int, default=SHIPPED_COUNT, help="how many different sentences (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other sentences (%(default)s)")
    asked = parser.parse_args()
    write_sentences(asked.path, asked.count, asked.seed)
