"""The command `train`: a model trained on a text as configured, its files, and a report."""

import hashlib
import json
import lzma
import math
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from course_lm.checkpoints import atomic_file, export_weights, load_weights
from course_lm.cli.output import outlast
from course_lm.cli.preparation import (
    PreparedRun,
    check_same_tokenizer,
    describe,
    describe_curriculum,
    fit_to_budget,
    prepare,
    settle_curriculum,
)
from course_lm.cli.text import name_after
from course_lm.config import TrainingConfig
from course_lm.display import table
from course_lm.distributed import Group, connect
from course_lm.generate import generate
from course_lm.model import GPT
from course_lm.run_records import TOKENIZER
from course_lm.schedules import build_schedule
from course_lm.shards import gathered, is_sharded
from course_lm.tokenizer import decode, eos_id
from course_lm.trainer import Trainer, budget
from course_lm.trainer.run import run_folder, sole_writer
from course_lm.validation import LARGEST_INT

SAMPLES = 3
SAMPLE_TOKENS = 80
SAMPLE_TEMPERATURE = 0.8


def train_on_text(config: TrainingConfig, _: Namespace) -> int:
    """Train as configured and print a report; return 0, or 128 + the number of the signal that stopped the run.

    The exported weights are the best validated ones, and the report is about them. Under torchrun every rank trains,
    and rank 0 alone writes and prints. A time budget counts from here, the reading of the text included, to the last
    save.
    """
    started = budget.clock()
    outlast(sys.stdout, "the run goes on without standard output")
    config = settle_curriculum(config)
    # Refuses here what the run would refuse once it has read the text; its steps may not be known yet.
    steps = config.training.first_length or LARGEST_INT
    build_schedule(config.lr_scheduler, peak_lr=config.optimizer.learning_rate, total_steps=steps)
    folder = run_folder(config)
    group = connect(config.distributed.timeout_seconds)
    # From here on another process that wants to train in this folder is refused.
    with group.one_fate(), sole_writer(folder, group):
        run = prepare(config)
        check_same_tokenizer(config, run.tokenizer)
        trainer = Trainer(run.model, config, started=started)
        print(describe(run, trainer))
        if folder is not None:
            print(describe_folder(folder, config))
        run = fit_to_budget(run, trainer)
        if curriculum := describe_curriculum(run, trainer):
            print(curriculum)
        trainer.train(run.train_loader, run.val_loader)
        if trainer.interrupted is not None and group.joined:
            # torchrun sends SIGTERM to all others as soon as one has ended; each is to end with the signal's code
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if group.failed:  # within a compile each rank ends by itself: none can be asked for its weights any more
                return 128 + trainer.interrupted
        # What is exported and sampled from are the best weights, which `report` is about.
        trainer.restore_best()
        run = replace(run, model=_whole_model(run, config, group))
        if folder is not None:
            group.leader_does(lambda: _export(folder, run, config, trainer.step))
    if trainer.interrupted is not None:
        return 128 + trainer.interrupted
    if group.leads:
        print(report(run, trainer, budget.clock() - started))
        print(f"\n{sample(run, config.training.seed)}")
    return 0


def describe_folder(folder: Path, config: TrainingConfig) -> str:
    """One line: where the files of the run are, and whether that follows from its text."""
    after_text = config.experiment_name == name_after(config.data.corpus)
    why = ", named after its text; --experiment_name gives it another name" if after_text else ""
    return f"the run is kept in {folder}{why}"


def _whole_model(run: PreparedRun, config: TrainingConfig, group: Group) -> GPT:
    """The model with all its weights; of a sharded one, on rank 0 alone, a copy that needs no other rank."""
    if not any(is_sharded(parameter) for parameter in run.model.parameters()):
        return run.model
    weights = gathered(run.model.state_dict(), keep=group.leads)
    if not group.leads:
        return run.model
    model = GPT(config.model, config.data.vocab_size, config.data.max_length)
    load_weights(model, weights)
    return model


def _export(folder: Path, run: PreparedRun, config: TrainingConfig, step: int) -> None:
    tokenizer = run.tokenizer.to_str(pretty=True).encode()
    with atomic_file(folder / TOKENIZER) as file:
        file.write(tokenizer)
    card = _model_card(config, step) | {"tokenizer": hashlib.sha256(tokenizer).hexdigest()}
    export_weights(folder / "model.safetensors", run.model.state_dict(), card)


def _model_card(config: TrainingConfig, step: int) -> dict[str, str]:
    """What another program must know to build the model, as safetensors metadata holds it, and the run's last step."""
    sizes = {**asdict(config.model), "vocab_size": config.data.vocab_size, "max_length": config.data.max_length}
    return {"model": json.dumps(sizes), "corpus": config.data.corpus, "step": str(step)}


def report(run: PreparedRun, trainer: Trainer, seconds: float) -> str:
    """A table of the finished run's best weights, with `xz -9e` on the same held-out text beside it.

    Of a text that is too large to be held there is no `xz`.
    """
    measured = trainer.history.best or trainer.history.validation[-1]
    speeds = sorted(record["tokens_per_second"] for record in trainer.history.train)
    rows = [
        ("optimizer steps", f"{trainer.step:,}"),
        ("lowest validation loss after step", f"{measured['step']:,}"),
        ("validation loss, nats per token", f"{measured['val_loss']:.4f}"),
        ("accuracy", f"{measured['accuracy']:.1%}"),
        ("tokens per second, median", f"{speeds[len(speeds) // 2]:,.0f}" if speeds else "-"),
        ("seconds", f"{seconds:.0f}"),
        ("bits per byte", f"{measured['bits_per_byte']:.3f}"),
    ]
    if run.val_loader.num_targets > (trainer.settings.eval_tokens or math.inf):
        rows.insert(3, ("its standard error, as of a sample", f"{measured['val_loss_se']:.4f}"))
    if run.store is None:
        alone, primed = xz_bits_per_byte(run.train.documents, run.validation.documents)
        rows.append(("bits per byte, xz -9e alone", f"{alone:.3f}"))
        rows.append(("bits per byte, xz -9e after the training text", f"{primed:.3f}"))
    return table(rows)


def xz_bits_per_byte(train: Sequence[str], validation: Sequence[str]) -> tuple[float, float]:
    """Bits that `xz -9e` needs for each byte of the validation text: alone, and after it has read the training text."""
    known, held_out = ("\n\n".join(documents).encode() for documents in (train, validation))
    alone = _xz_size(held_out)
    primed = _xz_size(known + b"\n\n" + held_out) - _xz_size(known)  # what the held-out text adds to it
    return 8 * alone / len(held_out), 8 * primed / len(held_out)


def _xz_size(text: bytes) -> int:
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def sample(run: PreparedRun, seed: int) -> str:
    """`SAMPLES` documents drawn from the model, each from its first token on, divided by blank lines."""
    generator = torch.Generator().manual_seed(seed)
    eos = eos_id(run.tokenizer)
    documents = [
        generate(
            run.model,
            [eos],
            max_new_tokens=SAMPLE_TOKENS,
            temperature=SAMPLE_TEMPERATURE,
            eos_id=eos,
            generator=generator,
        )
        for _ in range(SAMPLES)
    ]
    return "\n\n".join(decode(run.tokenizer, ids) for ids in documents)
