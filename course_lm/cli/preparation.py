"""From a configuration to what a run needs: text, tokenizer, loaders and a model."""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

from tokenizers import Tokenizer

from course_lm.batching import Loader, make_loader
from course_lm.batching.token_store import Recipe, StoredCorpus, TokenStore, open_token_store
from course_lm.config import DataConfig, LoopConfig, TrainingConfig
from course_lm.corpus import Corpus, load_corpus
from course_lm.corpus.files import describe_division
from course_lm.corpus.large import LARGE_BYTES, find_large_text
from course_lm.corpus.load import files_of
from course_lm.curriculum import CurriculumLoader, CurriculumTrainingManager
from course_lm.display import readable_bytes
from course_lm.model import GPT, count_parameters
from course_lm.reproducibility import seed_everything
from course_lm.run_records import CONFIG, TOKENIZER
from course_lm.tokenizer import changed_by, load_tokenizer, train_tokenizer
from course_lm.trainer import Trainer
from course_lm.trainer.init_from import tokenizer_from
from course_lm.trainer.resume import WHAT_TO_DO, holds_checkpoints
from course_lm.trainer.run import explain_out_of_memory, run_folder
from course_lm.validation import ensure, expanded, one_line

LOOKED_AT = 10_000  # documents of a text that is too large to be held
Text = Corpus | StoredCorpus  # the documents of a split, held, or in a store on the disk


@dataclass(frozen=True)
class PreparedRun:
    """What a configuration makes before the first step: both splits, the tokenizer, loaders and the model."""

    train: Text
    validation: Text
    tokenizer: Tokenizer
    train_loader: Loader | CurriculumLoader
    val_loader: Loader
    model: GPT
    store: TokenStore | None = None  # of a text that is too large to be held


def prepare(config: TrainingConfig) -> PreparedRun:
    """Read the text and build everything from it; ValueError or OSError for bad input."""
    data, settings = config.data, config.training
    seed_everything(settings.seed, settings.deterministic)  # before weights are drawn
    named = own_tokenizer(config)
    given = named if settings.init_from is None else tokenizer_from(settings.init_from, data.vocab_size)
    part, store = open_text(config, given)
    train, validation = part("train"), part("validation")
    if data.validation is not None:
        _look_for_leaks(data, train, validation)
    if named is not None:
        _warn_of_changed_text(data, named, train, validation)
    if store is not None:
        tokenizer = store.tokenizer
    else:
        tokenizer = given or train_tokenizer(train.documents, data.vocab_size)  # the held-out text stays unseen
    with explain_out_of_memory(config):
        model = GPT(config.model, data.vocab_size, data.max_length)
    train_loader = with_curriculum(config, loader_of(train, tokenizer, config, shuffle=True), train)
    val_loader = loader_of(validation, tokenizer, config, shuffle=False)
    return PreparedRun(train, validation, tokenizer, train_loader, val_loader, model, store)


def open_text(config: TrainingConfig, tokenizer: Tokenizer | None) -> tuple[Callable[[str], Text], TokenStore | None]:
    """What gives each split of the configured text, and the store of one that is too large to be held.

    Such a text is tokenised here, unless its store is there: by `tokenizer`, or where that is None, by one that is
    trained on it. With `data.validation` that is the validation part, and all of the text the training part.
    """
    data, seed = config.data, config.training.seed
    large = find_large_text(data.corpus)
    held_out = None if data.validation is None else held_text(data.validation, "data.validation")
    if large is None:
        corpus = load_corpus(data.corpus)
        if held_out is not None:
            return {"train": corpus, "validation": held_out}.__getitem__, None
        return lambda split: corpus.part(split, data.val_fraction, data.test_fraction, seed=seed), None
    if config.curriculum.enabled:
        raise ValueError(
            f"curriculum.enabled must be false for a text of more than {readable_bytes(LARGE_BYTES)}, such as "
            f"{data.corpus}: its documents are not held, and a curriculum reads them all"
        )
    store = open_token_store(large, Recipe(data.vocab_size, seed, *data.fractions, tokenizer), data.cache)
    return lambda split: held_out if held_out and split == "validation" else store.corpus(split), store


def held_text(name: str, key: str) -> Corpus:
    """All documents of another text than that which is trained on; ValueError for one too large to be held."""
    held = f"more than {readable_bytes(LARGE_BYTES)}: only the text of a run may be so large; give a part of it"
    ensure(find_large_text(name) is None, f"{key} {name} has {held}")
    return load_corpus(name)


def known_documents(other: Corpus, train: Text) -> list[str] | None:
    """The documents of another text that stand in the training text; None where that is too large to compare."""
    documents = dict.fromkeys(other.documents)
    held = None if isinstance(train, StoredCorpus) else train.documents
    return None if held is None else [document for document in held if document in documents]


def warn_of_known(known: list[str] | None, other: Corpus, corpus: str, trained: str = "is trained on") -> None:
    """Warn of what `known_documents` has found, or could not look for; `corpus` names the training text."""
    if known == []:
        return
    whose = f"documents of {other.name} stand in the text that the run {trained}"
    if known is None:
        text = f"whether {whose} is not known: that text, {corpus}, is too large to compare"
    else:
        text = f"{len(known):,} of {len(other.documents):,} {whose}, so that the numbers flatter it; the first of them "
        text += f"begins {one_line(known[0])[:60]!r}"
    warnings.warn(text, stacklevel=3)


def own_tokenizer(config: TrainingConfig) -> Tokenizer | None:
    """The tokenizer of `data.tokenizer`, or of the run's copy if that file is gone; ValueError for a wrong one."""
    if config.data.tokenizer is None:
        return None
    file, copy = expanded(config.data.tokenizer), _tokenizer_of_run(config)
    if not file.exists() and copy is not None:
        # of a file that the run was not trained with, such as one whose name has a slip, it has no copy
        named = TrainingConfig.from_yaml(copy.with_name(CONFIG)).data.tokenizer
        file = copy if named == config.data.tokenizer else file
    problem = "a folder: name the tokenizer.json in it" if file.is_dir() else "no file that is there"
    ensure(file.is_file(), f"data.tokenizer {file} is {problem}")
    try:
        return load_tokenizer(file)
    except ValueError as error:
        raise ValueError(f"data.tokenizer {file}: {error}") from None


def check_same_tokenizer(config: TrainingConfig, mine: Tokenizer) -> None:
    """Refuse to go on with another `data.tokenizer` than the run has, also where no id tells; ValueError."""
    copy = _tokenizer_of_run(config)
    if config.data.tokenizer is not None and copy is not None and holds_checkpoints(copy.parent):
        same = load_tokenizer(copy).to_str() == mine.to_str()
        ensure(same, f"data.tokenizer {config.data.tokenizer} is another one than {copy}: {WHAT_TO_DO}")


def _tokenizer_of_run(config: TrainingConfig) -> Path | None:
    """The copy that the run which goes on has in its folder; None for a new run, or one that has not ended yet."""
    folder = run_folder(config)
    goes_on = folder is not None and config.training.resume == "auto" and (folder / TOKENIZER).is_file()
    return folder / TOKENIZER if goes_on else None


def _look_for_leaks(data: DataConfig, train: Text, held_out: Text) -> None:
    """Refuse a validation text of which all is trained on, by its files or its documents; warn where some is."""
    assert isinstance(held_out, Corpus)
    theirs, ours = ({file.resolve() for file in files_of(name)} for name in (held_out.name, data.corpus))
    known = known_documents(held_out, train)
    whole = bool(theirs & ours) or len(known or ()) == len(held_out.documents)
    ensure(
        not whole, f"data.validation {held_out.name} is a part of the training text, {data.corpus}: hold out another"
    )
    warn_of_known(known, held_out, data.corpus)


def _warn_of_changed_text(data: DataConfig, tokenizer: Tokenizer, train: Text, held_out: Text) -> None:
    """Say so where tokens do not give the text back; of a text that is not held, `LOOKED_AT` documents are tried."""
    large = find_large_text(data.corpus) if isinstance(train, StoredCorpus) else None
    documents = train.documents if large is None else list(islice(large.documents(), LOOKED_AT))
    documents = [*documents, *held_out.documents]
    changed = changed_by(tokenizer, documents)
    if changed:
        at = next(i for i, (a, b) in enumerate(zip_longest(*changed[0])) if a != b)
        text, given = (one[at : at + 20] for one in changed[0])
        warnings.warn(
            f"data.tokenizer {data.tokenizer} changes {len(changed):,} of {len(documents):,} documents, such as "
            f"{text!a} to {given!a}: the model learns the changed text, and bits per byte count its bytes",
            stacklevel=3,
        )


def loader_of(text: Text, tokenizer: Tokenizer, config: TrainingConfig, *, shuffle: bool) -> Loader:
    """The batches of a text as configured."""
    data, settings = config.data, config.training
    return make_loader(
        text.documents,
        tokenizer,
        mode=data.batching,
        batch_size=settings.batch_size,
        max_length=data.max_length,
        seed=settings.seed,
        shuffle=shuffle,
        num_workers=data.num_workers,
        pin_memory=data.pin_memory,
    )


def settle_curriculum(config: TrainingConfig) -> TrainingConfig:
    """The configuration with numbers in place of the curriculum's times that follow the length of the run.

    A run saves these numbers, so that one that goes on for longer keeps the curriculum that it began with, and so does
    one whose time budget decides on another number of steps. Raises ValueError where the run is too short for the
    warm-up. Where a time budget has not been turned into steps, the times stay as they are.
    """
    if not config.curriculum.enabled or config.training.must_be_timed:
        return config
    try:
        curriculum = config.curriculum.for_run(config.training.num_epochs, config.training.first_length)
    except ValueError as error:
        raise ValueError(f"curriculum.{error}") from None
    return replace(config, curriculum=curriculum)


def with_curriculum(config: TrainingConfig, loader: Loader, corpus: Text) -> Loader | CurriculumLoader:
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
    """One line: the text, the size of the model, and how it computes; a second one about the store of a large text."""
    data, held_out = trainer.config.data, run.validation
    text = data.corpus + describe_division(run.train.division)
    where = "" if data.validation is None else f" in {data.validation}{describe_division(held_out.division)}"
    return (
        f"{text}: {len(run.train.documents):,} documents to train on, "
        f"{len(held_out.documents):,} held out{where}; {count_parameters(run.model):,} parameters, "
        f"{trainer.precision.name} on {trainer.device}" + ("" if run.store is None else f"\n{run.store.describe()}")
    )


def describe_curriculum(run: PreparedRun, trainer: Trainer) -> str | None:
    """One line about the curriculum, where there is one."""
    if not isinstance(run.train_loader, CurriculumLoader):
        return None
    settings, first = trainer.config.curriculum, run.train_loader.describe_epoch()
    documents = len(run.train.documents)
    return (
        f"curriculum: {settings.strategy} difficulty, {settings.schedule} schedule; the first epoch admits "
        f"{first['examples']:,} of {documents:,} documents ({first['examples'] / documents:.0%}), up to "
        f"{settings.threshold_on} {first['threshold']:.2f}"
    )
