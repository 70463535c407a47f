"""Which counts ask for a change of the text, or of the model, and which change."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from course_lm.inspection.measure import LINE_DOCUMENTS, Measurements
from course_lm.validation import one_line

DUPLICATES, NEAR, LINES, SCRIPT, LONGEST = 0.01, 0.01, 0.02, 0.01, 0.5  # shares from which on they are a finding
# Hoffmann et al. 2022, "Training compute-optimal large language models", table 3: about 20 tokens a parameter; of
# these, up to four passes over one text are worth nearly as much as new text (Muennighoff et al. 2023, "Scaling
# data-constrained language models", abstract).
TOKENS_PER_PARAMETER, PASSES = 20, 4
RULE = (
    "20 tokens a parameter (Hoffmann et al. 2022), four passes over one text counted as new (Muennighoff et al. 2023)"
)


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a text: its name, what was counted, and what to do."""

    name: str
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.name}: {self.found}; {self.advice}"


def find(text: Measurements, parameters: int, train_fraction: float, share: float = 1.0) -> list[Finding]:
    """What is wrong with a text for a model of so many parameters that trains on `train_fraction` of it.

    `share` is the share of the text that was measured.
    """
    tokens = train_fraction * (text.bytes - text.duplicate_bytes) / share * text.tokens_per_byte
    return [*_of_documents(text), *_of_copies(text), *_of_characters(text), *_of_size(text, parameters, tokens)]


def _of_documents(text: Measurements) -> Iterator[Finding]:
    if text.documents == 1:
        found = f"all {text.bytes:,} bytes are one document, which no blank line divides"
        advice = "divide documents by blank lines, or give .jsonl: one document has no part to validate on"
        yield Finding("one document", found, advice)
    elif text.longest_share >= LONGEST:
        found = f"the longest document has {text.longest_share:.0%} of all bytes ({text.longest:,})"
        yield Finding("one long document", found, "divide it by blank lines: it goes to one split as a whole")


def _of_copies(text: Measurements) -> Iterator[Finding]:
    if text.exact_duplicates and text.exact_duplicates >= DUPLICATES * text.documents:
        share = text.duplicate_bytes / text.bytes
        found = f"{text.exact_duplicates:,} of {text.documents:,} documents equal an earlier one ({share:.0%} of bytes)"
        advice = "training leaves them out by itself; look how they came into the text"
        yield Finding("exact duplicates", found, advice)
    if text.near and text.near >= NEAR * text.sampled:
        one, other = map(_quoted, text.near_duplicates[0])
        found = f"{text.near:,} of {text.sampled:,} distinct documents are nearly an earlier one"
        advice = f"leave them out, or validation measures what was learnt by heart; such as {one} and {other}"
        yield Finding("near duplicates", found, advice)
    if text.lines and text.repeated_share >= LINES:
        (line, count), share = text.lines[0], text.repeated_share
        found = f"{text.repeated_lines:,} lines, each in {LINE_DOCUMENTS} documents or more ({share:.0%} of characters)"
        advice = f"remove them; the most frequent, in {count:,} documents, is {_quoted(line)}"
        yield Finding("repeated lines", found, advice)


def _of_characters(text: Measurements) -> Iterator[Finding]:
    if text.replacements:
        found = f"{_counted(text.replacements, 'character')} U+FFFD in {_counted(text.replacements_in, 'document')}"
        yield Finding("replacement characters", found, "convert the source again, with its own encoding")
    if text.controls:
        found = f"{_counted(text.controls, 'control character')} in {_counted(text.controls_in, 'document')}"
        yield Finding("control characters", found, "remove them, or look whether this is text at all")
    others = {script: share for script, share in list(text.scripts.items())[1:] if share >= SCRIPT}
    if others:
        found = ", ".join(f"{share:.1%} of the letters are {script}" for script, share in others.items())
        mostly = f"{_counted(text.foreign, 'document')} {'is' if text.foreign == 1 else 'are'} mostly of another script"
        advice = "leave out what is of a language that the model is not to learn"
        yield Finding("several scripts", f"{found}; {mostly}", advice)


def _of_size(text: Measurements, parameters: int, tokens: float) -> Iterator[Finding]:
    if text.vocabulary is not None:
        yield Finding("vocabulary", "no tokenizer of this size can be trained on it", text.vocabulary)
        return
    wanted = needed_tokens(parameters)
    if tokens < wanted:
        found = f"{tokens:,.0f} tokens to train on, and {parameters:,} parameters ask for {wanted:,} by {RULE}"
        advice = "take more text or a smaller model, or stop when validation turns"
        yield Finding("too little text", found, advice)


def needed_tokens(parameters: int) -> int:
    """Distinct tokens that a model of so many parameters asks for; see `RULE`."""
    return math.ceil(TOKENS_PER_PARAMETER * parameters / PASSES)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _quoted(text: str) -> str:
    line = one_line(text)
    return f'"{line if len(line) <= 60 else line[:60] + "…"}"'
