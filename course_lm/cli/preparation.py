"""From a configuration to what a run needs: text, tokenizer, loaders and a model."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from tokenizers import Tokenizer

from course_lm.batching import Loader, make_loader
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.corpus import Corpus, load_corpus
from course_lm.curriculum import CurriculumLoader, CurriculumTrainingManager
from course_lm.model import GPT, count_parameters
from course_lm.reproducibility import seed_everything
from course_lm.tokenizer import train_tokenizer
from course_lm.trainer import Trainer
from course_lm.trainer.run import explain_out_of_memory


@dataclass(frozen=True)
class PreparedRun:
    """What a configuration makes before the first step: both splits, the tokenizer, loaders and the model."""

    train: Corpus
    validation: Corpus
    tokenizer: Tokenizer
    train_loader: Loader | CurriculumLoader
    val_loader: Loader
    model: GPT


def prepare(config: TrainingConfig) -> PreparedRun:
    """Read the text and build everything from it; ValueError or OSError for bad input."""
    data, settings = config.data, config.training
    seed_everything(settings.seed, settings.deterministic)  # before weights are drawn
    train, validation = load_corpus(data.corpus).split(data.val_fraction, settings.seed)
    tokenizer = train_tokenizer(train.documents, data.vocab_size)  # the held-out text stays unseen

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
    return PreparedRun(train, validation, tokenizer, train_loader, loader(validation, False), model)


def settle_curriculum(config: TrainingConfig) -> TrainingConfig:
    """The configuration with numbers in place of the curriculum's times that follow the length of the run.

    A run saves these numbers, so that one that goes on for longer keeps the curriculum that it began with. Raises
    ValueError where the run is too short for the warm-up. Where a time budget has not been turned into steps, the times
    stay as they are.
    """
    if not config.curriculum.enabled or config.training.must_be_timed:
        return config
    try:
        curriculum = config.curriculum.for_run(config.training.num_epochs, config.training.max_steps)
    except ValueError as error:
        raise ValueError(f"curriculum.{error}") from None
    return replace(config, curriculum=curriculum)


def with_curriculum(config: TrainingConfig, loader: Loader, corpus: Corpus) -> Loader | CurriculumLoader:
    """The loader itself, or, where the configuration enables one, the curriculum over it.

    Where a time budget has not been turned into steps, it is the loader itself: steps are timed over the whole text.
    Warns where the run ends before the curriculum admits all that it ever will. Where the threshold follows the
    validation loss, nobody can know that beforehand, and no warning comes.
    """
    curriculum = settle_curriculum(config).curriculum
    if not curriculum.enabled or config.training.must_be_timed:
        return loader
    manager = CurriculumTrainingManager(curriculum.strategy, curriculum.schedule, asdict(curriculum))
    steps = config.training.gradient_accumulation_steps
    over = CurriculumLoader(loader, corpus.documents, manager, accumulation_steps=steps)
    # A threshold that follows the validation loss cannot be foretold.
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


def fit_to_budget(run: PreparedRun, trainer: Trainer) -> PreparedRun:
    """Turn a time budget into steps; then the curriculum, whose times may follow from these, comes over the loader."""
    if not trainer.settings.must_be_timed:
        return run
    trainer.fit_to_budget(run.train_loader, run.val_loader)
    trainer.config = settle_curriculum(trainer.config)
    assert isinstance(run.train_loader, Loader)
    return replace(run, train_loader=with_curriculum(trainer.config, run.train_loader, run.train))


def describe(run: PreparedRun, trainer: Trainer) -> str:
    """One line: the text, the size of the model, and how it computes."""
    return (
        f"{trainer.config.data.corpus}: {len(run.train.documents):,} documents to train on, "
        f"{len(run.validation.documents):,} held out; {count_parameters(run.model):,} parameters, "
        f"{trainer.precision.name} on {trainer.device}"
    )


def describe_curriculum(run: PreparedRun, trainer: Trainer) -> str | None:
    """One line about the curriculum, where there is one."""
    if not isinstance(run.train_loader, CurriculumLoader):
        return None
    settings, first = trainer.config.curriculum, run.train_loader.describe_epoch()
    return (
        f"curriculum: {settings.strategy} difficulty, {settings.schedule} schedule; the first epoch admits "
        f"{first['examples']:,} documents, up to {settings.threshold_on} {first['threshold']:.2f}"
    )


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Names on the left, values on the right, one row a line."""
    width, value_width = max(len(name) for name, _ in rows), max(10, *(len(value) for _, value in rows))
    return "\n".join(f"{name:<{width}}  {value:>{value_width}}" for name, value in rows)
