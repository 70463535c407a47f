"""The text of a command, given as TEXT or as `--data.corpus`, and the name that a run has after its text."""

import glob
import os
import re
from argparse import Namespace
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from course_lm.config import TrainingConfig, find_config, shipped_configs
from course_lm.validation import shown
from course_lm.yaml_tree import read_yaml_file

MOST_NAMED = 60  # characters of a name: no system takes one of more than 255 bytes


def with_text(config: TrainingConfig, given: Namespace, base: TrainingConfig, file: str) -> TrainingConfig:
    """The configuration with the text that the arguments give, and with a name after it.

    A name that was given stays: as `--experiment_name`, or by a configuration of the user's. That of a shipped one
    tells of its own text, and two texts under one name would meet in one folder.

    Args:
        given: the arguments, which stand in `config` already, but for TEXT.
        base: the shipped configuration that `file` is, or is laid over.

    Raises:
        ValueError: TEXT and `--data.corpus` name different texts.
    """
    arguments = vars(given)
    text = given_text(arguments.get("text"), arguments.get("data.corpus"))
    text = config.data.corpus if text is None else text
    config = config.updated({"data": {"corpus": text}}, "command line")
    if text == base.data.corpus or "experiment_name" in arguments or _is_named(file):
        return config
    return replace(config, experiment_name=name_after(text) or config.experiment_name)


def given_text(text: str | None, corpus: str | None) -> str | None:
    """What TEXT or `--data.corpus` is, or both are; None where neither is given."""
    if None not in (text, corpus) and text != corpus:
        raise ValueError(f"command line: TEXT is {shown(text)} and --data.corpus {shown(corpus)}: give one of them")
    return corpus if text is None else text


def _is_named(file: str) -> bool:
    """Whether the user's own configuration names the run."""
    return file not in shipped_configs() and "experiment_name" in read_yaml_file(find_config(file))


def name_after(corpus: str) -> str | None:
    """What a run is called after its text; None where that has no character that a name may have.

    It is the file's name without its endings, the folder of a glob, or the name of a dataset.
    """
    if corpus.startswith("hf:"):
        name = corpus.removeprefix("hf:").split(":")[0]
        name = _stem(name) if os.path.isfile(name) else Path(name).name
    elif glob.has_magic(corpus) and not os.path.lexists(corpus):
        fixed = takewhile(lambda part: not glob.has_magic(part), Path(corpus).parts)
        name = Path(*fixed).absolute().name
    else:
        name = _stem(corpus)
    # Not what shells and other systems read something into; \w alone would take the vowel signs of Hindi for that too.
    plain = re.sub(r"([^\w.+\-\x80-\U0010ffff]|\s)+", "-", name)
    return plain[:MOST_NAMED].strip("-.") or None


def _stem(file: str) -> str:
    name = Path(file).name
    return Path(re.sub(r"\.(gz|zst)$", "", name, flags=re.IGNORECASE)).stem
