"""The command `export`: a run's model and tokenizer as a folder that Hugging Face's transformers open."""

import os
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import save

from course_lm.checkpoints import atomic_file, check_folder
from course_lm.transformers_export import (
    FILES,
    as_json,
    generation_config,
    model_config,
    tokenizer_config,
    tokenizer_file,
    transformers_weights,
)
from course_lm.use.finished_run import FinishedRun, open_run
from course_lm.validation import ensure

MARK = "course_lm_run"  # a key of config.json that transformers keep and do not read


def export_run(options: Namespace) -> int:
    """Write the finished `run` into the folder `to`, whole or not at all; return 0.

    Raises:
        ValueError: no finished run, or `to` holds something else than an earlier export.
        OSError: the folder cannot be written.
    """
    target, place = options.to, Path(os.path.realpath(options.to))  # a link stays one
    ensure(place != Path.cwd(), f"--to must be another folder than the current one, got {target}")
    _refuse_other_content(target)
    opened = open_run(options.run)
    place.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{place.name}.", suffix=".tmp", dir=place.parent) as temporary:
        new = Path(temporary, "new")
        new.mkdir()
        for name, content in _files(opened).items():
            with atomic_file(new / name) as file:
                file.write(content)
        _take_the_name(new, place)
    kind = model_config(opened.model, opened.tokenizer)["architectures"][0]
    print(f"{target}: {kind}, {sum(tensor.numel() for tensor in opened.model.parameters()):,} parameters")
    return 0


def _files(run: FinishedRun) -> dict[str, bytes]:
    config = model_config(run.model, run.tokenizer) | {MARK: run.config.experiment_name}
    texts = {
        "config.json": as_json(config),
        "generation_config.json": as_json(generation_config(run.tokenizer)),
        "tokenizer.json": tokenizer_file(run.tokenizer),
        "tokenizer_config.json": as_json(tokenizer_config(run.model, run.tokenizer)),
    }
    weights = save(transformers_weights(run.model), metadata={"format": "pt"})  # transformers ask for this word
    return {"model.safetensors": weights} | {name: text.encode() for name, text in texts.items()}


def _refuse_other_content(target: Path) -> None:
    ensure(not target.exists() or target.is_dir(), f"--to must be a folder, {target} is a file")
    check_folder(target)
    held = sorted(path.name for path in target.iterdir()) if target.is_dir() else []
    config = target / "config.json"
    ours = set(held) <= set(FILES) and config.is_file() and f'"{MARK}"' in config.read_text(errors="replace")
    ensure(
        not held or ours,
        f"{target} holds something else ({', '.join(held[:3])}{', …' if len(held) > 3 else ''}): "
        "give a folder that is new, empty, or an earlier export",
    )


def _take_the_name(new: Path, target: Path) -> None:
    """Rename the new folder; one that is in its place is kept beside the new one until then."""
    if not target.exists():
        new.rename(target)
        return
    old = new.with_name("old")
    try:
        target.rename(old)
        new.rename(target)
    except BaseException:  # Ctrl-C too: the earlier export would go with the temporary folder
        if not target.exists():
            old.rename(target)
        raise
