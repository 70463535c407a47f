"""The command `evaluate`: a trained model measured on a part of its own text, or on another one."""

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from course_lm.batching import Loader, make_loader
from course_lm.batching.token_store import StoredCorpus
from course_lm.cli.finished_run import FinishedRun, device_for, open_run
from course_lm.cli.output import written_out
from course_lm.cli.preparation import stored
from course_lm.config import TrainingConfig
from course_lm.corpus import Corpus, load_corpus
from course_lm.corpus.large import LARGE_BYTES, find_large_text
from course_lm.precision import Precision
from course_lm.reproducibility import resolve_device
from course_lm.trainer.run import explain_out_of_memory
from course_lm.use.by_document import DocumentSums, Estimate, evaluate_documents
from course_lm.validation import ensure, one_line

SURPRISE = 0.01  # of the loss: another machine's rounding stays far below
WITHIN = 4  # standard errors: so far the loss of a sample may lie from that of the whole text


def evaluate_run(
    run: str, split: str | None, corpus: str | None, settings: Mapping[str, Mapping[str, Any]], as_json: bool
) -> int:
    """Print loss, perplexity, bits per byte and accuracy, each with its 95 % interval over documents; return 0.

    In the run's precision, and all of the text: the numbers of the validation part are those of the run's report where
    `training.eval_tokens` has left nothing out.

    Args:
        split: part of the run's own text; by default the test part where the run has one, else the validation part.
        corpus: another text, of which all documents count; those that the run was trained on are named in a warning.
        settings: keys of the configuration that take the place of the run's, by section.

    Raises:
        ValueError: no finished run, a text that cannot be read, or a part that the run does not have.
    """
    ensure(
        split is None or corpus is None, "--split names a part of the run's own text, --data.corpus another: give one"
    )
    ensure(corpus != "", "--data.corpus must be a name, a path, a glob or hf:<dataset>, got an empty one")
    opened = open_run(run)
    config = opened.config.updated(settings, "command line")
    device = resolve_device(config.training.device) if "device" in settings["training"] else device_for(config)
    if corpus is None:
        split = split or ("test" if config.data.test_fraction else "validation")
        part, name = _own_part(opened, split), f"{split} part of {config.data.corpus}"
    else:
        part, name = _other_text(corpus), corpus
        _warn_of_known_documents(part, opened)
    precision = Precision(config.training.precision, device)
    with explain_out_of_memory(config):
        loader = _loader(part, opened, config)
        sums = evaluate_documents(opened.model.to(device), loader, precision, show_progress=True)
    if split == "validation":
        _warn_of_another_loss(sums, opened)
    head = {"run": str(opened.folder), "text": name, "precision": precision.name, "device": str(device)}
    with written_out():
        print(as_tree(sums, head) if as_json else report(sums, head))
    return 0


def report(sums: DocumentSums, head: Mapping[str, str]) -> str:
    """A line on what was measured, and a table of the numbers and their intervals."""
    first = (
        f"{head['run']} on the {head['text']}: {len(sums.nats):,} documents, {int(sums.tokens.sum()):,} target tokens; "
        f"{head['precision']} on {head['device']}"
    )
    rows = [("", "", "95 % over documents")]
    for name, form, one in (
        ("loss, nats per token", ".4f", sums.loss()),
        ("perplexity", ".3f", sums.perplexity()),
        ("bits per byte", ".3f", sums.bits_per_byte()),
        ("accuracy", ".1%", sums.accuracy()),
    ):
        ends = "-" if math.isnan(one.low) else f"{one.low:{form}} to {one.high:{form}}"
        rows.append((name, f"{one.value:{form}}", ends))
    return "\n".join([first, *(f"{name:<20}  {value:>10}  {ends:>20}".rstrip() for name, value, ends in rows)])


def as_tree(sums: DocumentSums, head: Mapping[str, str]) -> str:
    """The same as JSON; null stands for what there is no number for."""
    numbers = {
        "loss": sums.loss(),
        "perplexity": sums.perplexity(),
        "bits_per_byte": sums.bits_per_byte(),
        "accuracy": sums.accuracy(),
    }
    counts = {"documents": len(sums.nats), "tokens": int(sums.tokens.sum()), "bytes": int(sums.num_bytes.sum())}
    return json.dumps({**head, **counts, **{name: _plain(one) for name, one in numbers.items()}}, indent=1)


def _plain(estimate: Estimate) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in asdict(estimate).items()}


def _own_part(run: FinishedRun, split: str) -> Corpus | StoredCorpus:
    config, data = run.config, run.config.data
    if split == "test" and not data.test_fraction:
        raise ValueError(
            "the run kept no test part: its data.test_fraction is 0; take --split validation, or train with a "
            "data.test_fraction such as 0.1"
        )
    try:
        large = find_large_text(data.corpus)
        if large is not None:
            given = None if config.training.init_from is None else run.tokenizer
            return stored(large, config, given).corpus(split)
        return load_corpus(data.corpus).part(split, data.val_fraction, data.test_fraction, seed=config.training.seed)
    except (OSError, ValueError) as error:
        where = "call this where the run was trained, or give another text as --data.corpus"
        raise ValueError(f"the run's own text cannot be read: {one_line(error)}; {where}") from error


def _other_text(name: str) -> Corpus:
    held = f"more than {LARGE_BYTES // 2**20} MiB: only a run's own text may be so large; give a part of it"
    ensure(find_large_text(name) is None, f"--data.corpus {name} has {held}")
    return load_corpus(name)


def _loader(part: Corpus | StoredCorpus, run: FinishedRun, config: TrainingConfig) -> Loader:
    """The batches that a validation in training has."""
    return make_loader(
        part.documents,
        run.tokenizer,
        mode=config.data.batching,
        batch_size=config.training.batch_size,
        max_length=config.data.max_length,
        seed=config.training.seed,
        shuffle=False,
    )


def _warn_of_known_documents(other: Corpus, run: FinishedRun) -> None:
    unknown = "whether the run was trained on these documents is not known"
    try:
        trained_on = _own_part(run, "train")
    except ValueError as error:
        warnings.warn(f"{unknown}: {error}", stacklevel=3)
        return
    if isinstance(trained_on, StoredCorpus):
        warnings.warn(f"{unknown}: its own text, {run.config.data.corpus}, is too large to compare", stacklevel=3)
        return
    documents = dict.fromkeys(other.documents)
    known = [document for document in trained_on.documents if document in documents]
    if known:
        warnings.warn(
            f"{len(known):,} of {len(documents):,} documents of {other.name} stand in the text that the run was "
            f"trained on, so that the numbers flatter it; the first of them begins {one_line(known[0])[:60]!r}",
            stacklevel=3,
        )


def _warn_of_another_loss(sums: DocumentSums, run: FinishedRun) -> None:
    """Say so where the run itself measured another loss with these weights: then its text is not what it was."""
    file, bound = run.folder / "metrics.jsonl", run.config.training.eval_tokens
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    records = [json.loads(line) for line in lines if '"validation"' in line]
    measured = [record for record in records if isinstance(record.get("val_loss"), float)]
    if not measured:
        return
    best = min(measured, key=lambda record: record["val_loss"])
    loss, found = best["val_loss"], sums.loss().value
    sampled = bound is not None and int(sums.tokens.sum()) > bound
    if not abs(found - loss) <= SURPRISE * loss + (WITHIN * best["val_loss_se"] if sampled else 0.0):
        warnings.warn(
            f"the run's own lowest validation loss was {loss:.4f}, this is {found:.4f}: its text has changed since",
            stacklevel=3,
        )
