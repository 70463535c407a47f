"""The command `evaluate`: a trained model measured on a part of its own text, or on another one."""

import math
import warnings
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict

from course_lm.cli.output import as_json
from course_lm.cli.preparation import Text, held_text, known_documents, loader_of, open_text, warn_of_known
from course_lm.cli.text import given_text
from course_lm.corpus import Corpus
from course_lm.corpus.files import describe_division
from course_lm.display import table
from course_lm.precision import Precision
from course_lm.reproducibility import resolve_device
from course_lm.trainer.run import explain_out_of_memory
from course_lm.use.by_document import DocumentSums, evaluate_documents
from course_lm.use.finished_run import FinishedRun, device_for, fingerprints_of, open_run
from course_lm.use.run_folder import read_run
from course_lm.validation import ensure, one_line

SURPRISE = 0.01  # of the loss: another machine's rounding stays far below
WITHIN = 4  # standard errors: so far the loss of a sample may lie from that of the whole text


def evaluate_run(options: Namespace) -> int:
    """Print loss, perplexity, bits per byte and accuracy, each with its 95 % interval over documents; return 0.

    In the run's precision, and all of the text: the numbers of the validation part are those of the run's report where
    `training.eval_tokens` has left nothing out. What is measured is the part `split` of the run's own text, by default
    the test part where the run has one, else the validation part; or another text, `text` or `corpus`, of which all
    documents count, and those that the run was trained on are named in a warning. `batch_size`, `precision` and
    `device` take the place of the run's.

    Raises:
        ValueError: no finished run, a text that cannot be read, or a part that the run does not have.
    """
    split, corpus = options.split, given_text(options.text, options.corpus)
    one_text = split is None or corpus is None
    ensure(one_text, "--split names a part of the run's own text, TEXT or --data.corpus another: give one")
    ensure(corpus != "", "--data.corpus must be a name, a path, a glob or hf:<dataset>, got an empty one")
    opened = open_run(options.run)
    asked = {"batch_size": options.batch_size, "precision": options.precision, "device": options.device}
    given = {key: value for key, value in asked.items() if value is not None}
    config = opened.config.updated({"training": given}, "command line")
    device = device_for(config) if options.device is None else resolve_device(options.device)
    if corpus is None:
        split = split or ("test" if config.data.test_fraction else "validation")
        part, name = _own_part(opened, split), f"{split} part of {config.data.corpus}"
        if split == "validation" and config.data.validation is not None:
            name = f"validation text {config.data.validation}"
    else:
        part, name = held_text(corpus, "--data.corpus"), corpus
        _warn_of_known_documents(part, opened)
    precision = Precision(config.training.precision, device)
    with explain_out_of_memory(config):
        loader = loader_of(part, opened.tokenizer, config, shuffle=False)
        sums = evaluate_documents(opened.model.to(device), loader, precision, show_progress=True)
    if split == "validation":
        _warn_of_another_loss(sums, opened)
    head = {"run": str(opened.folder), "text": name, "precision": precision.name, "device": str(device)}
    divided = {**head, "text": name + describe_division(part.division)}
    print(as_tree(sums, head) if options.json else report(sums, divided))
    return 0


# What is measured: its name in the table, and the form of its numbers there.
NUMBERS = {
    "loss": ("loss, nats per token", ".4f"),
    "perplexity": ("perplexity", ".3f"),
    "bits_per_byte": ("bits per byte", ".3f"),
    "accuracy": ("accuracy", ".1%"),
}


def report(sums: DocumentSums, head: Mapping[str, str]) -> str:
    """A line on what was measured, and a table of the numbers and their intervals."""
    first = (
        f"{head['run']} on the {head['text']}: {len(sums.nats):,} documents, {int(sums.tokens.sum()):,} target tokens; "
        f"{head['precision']} on {head['device']}"
    )
    rows = [("", "", "95 % over documents")]
    for key, one in sums.estimates().items():
        name, form = NUMBERS[key]
        ends = "-" if math.isnan(one.low) else f"{one.low:{form}} to {one.high:{form}}"
        rows.append((name, f"{one.value:{form}}", ends))
    return f"{first}\n{table(rows)}"


def as_tree(sums: DocumentSums, head: Mapping[str, str]) -> str:
    """The same as JSON; null stands for what there is no number for."""
    counts = {"documents": len(sums.nats), "tokens": int(sums.tokens.sum()), "bytes": int(sums.num_bytes.sum())}
    return as_json({**head, **counts, **{key: asdict(one) for key, one in sums.estimates().items()}})


def _own_part(run: FinishedRun, split: str) -> Text:
    config = run.config
    if split == "test" and not config.data.test_fraction:
        raise ValueError(
            "the run kept no test part: its data.test_fraction is 0; take --split validation, or train with a "
            "data.test_fraction such as 0.1"
        )
    try:
        brought = config.training.init_from is not None or config.data.tokenizer is not None
        part, _ = open_text(config, run.tokenizer if brought else None)
        saved = fingerprints_of(run.folder)
        for name, one in (("train", config.data.corpus), ("validation", config.data.validation)):
            if saved.get(name) is not None:
                read_now = loader_of(part(name), run.tokenizer, config, shuffle=name == "train").fingerprint
                if saved[name] != read_now:
                    warnings.warn(f"{one} is read otherwise now than when the run was trained", stacklevel=3)
        return part(split)
    except (OSError, ValueError) as error:
        where = "call this where the run was trained, or give another text as --data.corpus"
        raise ValueError(f"the run's own text cannot be read: {one_line(error)}; {where}") from error


def _warn_of_known_documents(other: Corpus, run: FinishedRun) -> None:
    unknown = "whether the run was trained on these documents is not known"
    try:
        trained_on = _own_part(run, "train")
    except ValueError as error:
        warnings.warn(f"{unknown}: {error}", stacklevel=3)
        return
    warn_of_known(known_documents(other, trained_on), other, run.config.data.corpus, "was trained on")


def _warn_of_another_loss(sums: DocumentSums, run: FinishedRun) -> None:
    """Say so where the run itself measured another loss with these weights: then its text is not what it was."""
    best, bound = read_run(run.folder).best, run.config.training.eval_tokens
    if best is None:
        return
    loss, found = best["val_loss"], sums.estimates()["loss"].value
    sampled = bound is not None and int(sums.tokens.sum()) > bound
    if not abs(found - loss) <= SURPRISE * loss + (WITHIN * best["val_loss_se"] if sampled else 0.0):
        warnings.warn(
            f"the run's own lowest validation loss was {loss:.4f}, this is {found:.4f}: its text has changed since",
            stacklevel=3,
        )
