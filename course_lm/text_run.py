"""From a configuration to a trained model, or to a learning rate for it: text, tokenizer, loaders, and a report."""

import json
import lzma
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer

from course_lm.atomic import atomic_file
from course_lm.batching import Loader, make_loader
from course_lm.config import LoopConfig, TrainingConfig, seed_everything
from course_lm.corpus import Corpus, load_corpus
from course_lm.curriculum import CurriculumLoader, CurriculumTrainingManager
from course_lm.lr_curve import LRFinderResult
from course_lm.model import GPT, count_parameters, generate
from course_lm.runs import explain_out_of_memory, run_folder, sole_writer
from course_lm.tokenizer import decode, eos_id, train_tokenizer
from course_lm.trainer import Trainer
from course_lm.weights import export_weights

SAMPLES = 3
SAMPLE_TOKENS = 80
SAMPLE_TEMPERATURE = 0.8


@dataclass(frozen=True)
class TextRun:
    """What a configuration makes before the first step: both splits, the tokenizer, loaders and the model."""

    train: Corpus
    validation: Corpus
    tokenizer: Tokenizer
    train_loader: Loader | CurriculumLoader
    val_loader: Loader
    model: GPT


def prepare(config: TrainingConfig) -> TextRun:
    """Read the text and build everything from it; ValueError or OSError for bad input."""
    data, settings = config.data, config.training
    seed_everything(settings.seed, settings.deterministic)
    train, validation = load_corpus(data.corpus).split(data.val_fraction, settings.seed)
    tokenizer = train_tokenizer(train.documents, data.vocab_size)

    def loader(corpus: Corpus, shuffle: bool) -> Loader:
        return make_loader(
            corpus.documents,
            tokenizer,
            mode=data.batching,
            batch_size=settings.batch_size,
            max_length=data.max_length,
            seed=settings.seed,
            shuffle=shuffle,
            pin_memory=True,
        )

    with explain_out_of_memory(config):
        model = GPT(config.model, data.vocab_size, data.max_length)
    train_loader = with_curriculum(config, loader(train, True), train)
    return TextRun(train, validation, tokenizer, train_loader, loader(validation, False), model)


def settle_curriculum(config: TrainingConfig) -> TrainingConfig:
    """The configuration with numbers where the times of its curriculum follow the length of the run.

    A run saves these numbers, so that one that goes on for longer keeps the curriculum that it began with. Raises
    ValueError where the run is too short for the warm-up.
    """
    if not config.curriculum.enabled:
        return config
    try:
        curriculum = config.curriculum.for_run(config.training.num_epochs, config.training.max_steps)
    except ValueError as error:
        raise ValueError(f"curriculum.{error}") from None
    return replace(config, curriculum=curriculum)


def with_curriculum(config: TrainingConfig, loader: Loader, corpus: Corpus) -> Loader | CurriculumLoader:
    """The loader itself, or, where the configuration enables one, the curriculum over it.

    Warns where the run ends before the curriculum admits all that it ever will; of a curriculum that listens to the
    validation loss nobody can tell.
    """
    curriculum = settle_curriculum(config).curriculum
    if not curriculum.enabled:
        return loader
    manager = CurriculumTrainingManager(curriculum.strategy, curriculum.schedule, asdict(curriculum))
    steps = config.training.gradient_accumulation_steps
    over = CurriculumLoader(loader, corpus.documents, manager, accumulation_steps=steps)
    if not manager.listens:
        _warn_of_early_end(over, config.training)
    return over


def _warn_of_early_end(loader: CurriculumLoader, settings: LoopConfig) -> None:
    admitted, final = loader.end_of_run(settings.num_epochs, settings.max_steps)
    if admitted == final:
        return
    documents, curriculum = len(loader.difficulty), loader.manager.config
    length = (
        f"num_epochs ({settings.num_epochs})" if settings.max_steps is None else f"max_steps ({settings.max_steps})"
    )
    unit = "epochs" if curriculum.num_steps is None else "steps"
    jumps = curriculum.schedule == "step" and curriculum.step_epochs
    other = f"step_epochs ({jumps})" if jumps else f"num_{unit} ({curriculum.total})"
    warnings.warn(
        f"the run ends before its curriculum does: its last epoch admits {admitted:,} of {documents:,} documents "
        f"({admitted / documents:.0%}), the curriculum in the end {final:,}; raise training.{length}"
        + (f" or lower curriculum.{other}" if jumps or curriculum.total > 1 else ""),
        stacklevel=3,
    )


def train_on_text(config: TrainingConfig) -> int:
    """Train as configured and print a report; return 0, or 128 + the number of the signal that stopped the run.

    The exported weights are the best validated ones, and the report is about them.
    """
    started = time.perf_counter()
    config = settle_curriculum(config)
    folder = run_folder(config)
    with sole_writer(folder):
        run = prepare(config)
        trainer = Trainer(run.model, config)
        print(describe(run, trainer))
        trainer.train(run.train_loader, run.val_loader)
        trainer.restore_best()
        if folder is not None:
            with atomic_file(folder / "tokenizer.json") as file:
                file.write(run.tokenizer.to_str(pretty=True).encode())
            export_weights(folder / "model.safetensors", run.model.state_dict(), _model_card(config))
    if trainer.interrupted is not None:
        return 128 + trainer.interrupted
    print(report(run, trainer, time.perf_counter() - started))
    print(f"\n{sample(run, config.training.seed)}")
    return 0


def _model_card(config: TrainingConfig) -> dict[str, str]:
    """What another program must know to build the model, as safetensors metadata holds it."""
    sizes = {**asdict(config.model), "vocab_size": config.data.vocab_size, "max_length": config.data.max_length}
    return {"model": json.dumps(sizes), "corpus": config.data.corpus}


def find_lr_on_text(config: TrainingConfig, png: Path, *, start_lr: float, end_lr: float, num_iter: int) -> int:
    """Run a learning-rate range test as configured, draw it into the file `png` and print how it reads; return 0."""
    from course_lm.lr_finder import find_lr  # it brings matplotlib, which a training run does not need

    if not png.parent.is_dir() or png.is_dir():
        raise OSError(f"cannot write {png}: " + ("it is a folder" if png.is_dir() else f"no folder {png.parent}"))
    run = prepare(config)
    trainer = Trainer(run.model, config)
    print(describe(run, trainer))
    result = find_lr(
        trainer.model,
        run.train_loader,
        trainer.optimizer,
        start_lr=start_lr,
        end_lr=end_lr,
        num_iter=num_iter,
        accumulation_steps=config.training.gradient_accumulation_steps,
        max_grad_norm=config.training.max_grad_norm,
        precision=trainer.precision,
        progress=True,
    )
    print(lr_report(result, config.optimizer.type, num_iter))
    result.plot().savefig(png, format="png", dpi=110, bbox_inches="tight")
    print(f"the curve is drawn in {png}")
    return 0


def lr_report(result: LRFinderResult, optimizer: str, num_iter: int) -> str:
    """A table of the range test, what it says, and the option that makes a run use the suggestion."""
    nothing = "-"
    low_high = "{:.1e} to {:.1e}".format(*result.range) if result.range else nothing
    losses = f"{result.losses[0]:.3f}, {min(result.losses):.3f}" if result.losses else nothing
    rows = [
        ("optimizer", optimizer),
        ("suggested learning rate", f"{result.suggestion:.1e}" if result.suggestion else nothing),
        ("range in which the loss falls", low_high),
        ("steps taken", f"{len(result.lrs)} of {num_iter}"),
        ("loss at first, and lowest", losses),
    ]
    ending = f"\nto train with it: --optimizer.learning_rate {result.suggestion:.1e}" if result.suggestion else ""
    return f"{table(rows)}\n\n{result.message}{ending}"


def describe(run: TextRun, trainer: Trainer) -> str:
    """One line: the text, the size of the model, and how it computes; and one more about a curriculum."""
    line = (
        f"{trainer.config.data.corpus}: {len(run.train.documents):,} documents to train on, "
        f"{len(run.validation.documents):,} held out; {count_parameters(run.model):,} parameters, "
        f"{trainer.precision.name} on {trainer.device}"
    )
    if not isinstance(run.train_loader, CurriculumLoader):
        return line
    settings, first = trainer.config.curriculum, run.train_loader.describe_epoch()
    return (
        f"{line}\ncurriculum: {settings.strategy} difficulty, {settings.schedule} schedule; the first epoch admits "
        f"{first['examples']:,} documents, up to {settings.threshold_on} {first['threshold']:.2f}"
    )


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Names on the left, values on the right, one row a line."""
    width, value_width = max(len(name) for name, _ in rows), max(10, *(len(value) for _, value in rows))
    return "\n".join(f"{name:<{width}}  {value:>{value_width}}" for name, value in rows)


def report(run: TextRun, trainer: Trainer, seconds: float) -> str:
    """A table of the finished run's best weights, with `xz -9e` on the same held-out text beside it."""
    measured = trainer.history.best or trainer.history.validation[-1]
    speeds = sorted(record["tokens_per_second"] for record in trainer.history.train)
    alone, primed = xz_bits_per_byte(run.train.documents, run.validation.documents)
    rows = [
        ("optimizer steps", f"{trainer.step:,}"),
        ("lowest validation loss after step", f"{measured['step']:,}"),
        ("validation loss, nats per token", f"{measured['val_loss']:.4f}"),
        ("accuracy", f"{measured['accuracy']:.1%}"),
        ("tokens per second, median", f"{speeds[len(speeds) // 2]:,.0f}" if speeds else "-"),
        ("seconds", f"{seconds:.0f}"),
        ("bits per byte", f"{measured['bits_per_byte']:.3f}"),
        ("bits per byte, xz -9e alone", f"{alone:.3f}"),
        ("bits per byte, xz -9e after the training text", f"{primed:.3f}"),
    ]
    return table(rows)


def xz_bits_per_byte(train: Sequence[str], validation: Sequence[str]) -> tuple[float, float]:
    """Bits that `xz -9e` needs for each byte of the validation text: alone, and after it has read the training text."""
    known, held_out = ("\n\n".join(documents).encode() for documents in (train, validation))
    alone = _xz_size(held_out)
    primed = _xz_size(known + b"\n\n" + held_out) - _xz_size(known)
    return 8 * alone / len(held_out), 8 * primed / len(held_out)


def _xz_size(text: bytes) -> int:
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def sample(run: TextRun, seed: int) -> str:
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
