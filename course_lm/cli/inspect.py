"""The command `inspect`: what a text holds, and what is wrong with it, before one trains on it."""

import math
from argparse import Namespace
from dataclasses import asdict

import torch

from course_lm.cli.output import as_json
from course_lm.cli.preparation import own_tokenizer
from course_lm.config import TrainingConfig
from course_lm.corpus.files import Division, describe_division
from course_lm.corpus.large import LARGE_BYTES, LONGEST, find_large_text
from course_lm.corpus.load import hash_fraction, read_corpus
from course_lm.display import table
from course_lm.inspection import Finding, Measurements, find, measure
from course_lm.model import GPT, count_parameters
from course_lm.validation import one_line

WIDTH = 40  # of the longest bar of the histogram


def inspect_text(config: TrainingConfig, options: Namespace) -> int:
    """Count what the configured text holds and print it, with a line for each finding; return 0."""
    data = config.data
    documents, share, division = read_share(data.corpus)
    text = measure(documents, data.vocab_size, own_tokenizer(config))
    with torch.device("meta"):
        parameters = count_parameters(GPT(config.model, data.vocab_size, data.max_length))
    findings = find(text, parameters, 1 - sum(data.fractions), share)
    if options.json:
        measured = {"text": data.corpus, "division": division, "share": share, **asdict(text), "parameters": parameters}
        print(as_json(measured | {"findings": [asdict(finding) for finding in findings]}))
        return 0
    counted_on = "" if share == 1 else f"; all counts are on {share:.1%} of its documents, drawn by their hash"
    name = data.corpus + describe_division(division) + counted_on
    print(describe(name, text, data.vocab_size, parameters, findings))
    return 0


def read_share(corpus: str) -> tuple[list[str], float, Division | None]:
    """The documents of a text, the share of it that they are, and how it was cut where no blank line divides it.

    The share is below 1 for a text that is too large to be held. The documents are drawn by their hash, so that all
    copies of a document are among them, or none.
    """
    large = find_large_text(corpus)
    if large is None:
        held = read_corpus(corpus)
        return held.documents, 1.0, held.division
    size = large.size or sum(len(document.encode()) for document in large.documents())
    share = LARGE_BYTES / size
    documents = [one for one in large.documents(longest=LONGEST) if hash_fraction(one, seed=0) < share]
    return documents, share, large.division


def describe(name: str, text: Measurements, vocab_size: int, parameters: int, findings: list[Finding]) -> str:
    """The counts as a table, the lengths as bars, the repeated lines, and the findings, one a line."""
    scripts = ", ".join(f"{script} {share:.1%}" for script, share in list(text.scripts.items())[:4]) or "no letters"
    tokens = "-" if math.isnan(text.tokens_per_byte) else f"{text.tokens_per_byte:.3f}"
    rows = [
        ("documents", f"{text.documents:,}"),
        ("bytes", f"{text.bytes:,}"),
        ("bytes of a document, median", f"{text.median:,.0f}"),
        ("bytes of the longest, and share", f"{text.longest:,} ({text.longest_share:.1%})"),
        ("exact duplicates", f"{text.exact_duplicates:,}"),
        ("characters U+FFFD, and control", f"{text.replacements:,}, {text.controls:,}"),
        ("distinct documents looked at below", f"{text.sampled:,} ({text.sampled_bytes:,} bytes)"),
        ("near duplicates", f"{text.near:,}"),
        ("repeated lines, share of characters", f"{text.repeated_lines:,} ({text.repeated_share:.1%})"),
        ("letters by script", scripts),
        (f"tokens per byte, vocabulary {vocab_size:,}", tokens),
        ("parameters of the model", f"{parameters:,}"),
    ]
    parts = [f"{name}\n{table(rows)}", _bars(text)]
    if text.lines:
        lines = [(f"{count:,}", one_line(line)) for line, count in text.lines]
        parts.append(table([("documents", "with a repeated line"), *lines], left=(1,)))
    if findings:
        parts.append("\n".join(map(str, findings)))
    return "\n\n".join(parts)


def _bars(text: Measurements) -> str:
    most = max(count for _, _, count in text.lengths)
    rows = [
        (f"{low:,} to", f"{below - 1:,}", f"{count:,}", "█" * math.ceil(WIDTH * count / most))
        for low, below, count in text.lengths
    ]
    return table([("", "bytes", "documents", ""), *rows], left=(3,))
