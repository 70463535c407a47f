"""Claims about every kind of data loader: a run that stops and goes on, fails, or validates never loses its place."""

import multiprocessing
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import repeat
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
)

from course_lm.batching import Loader, make_loader, padding_share
from course_lm.batching.data import Data
from course_lm.checkpoints import load_checkpoint
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.curriculum import CurriculumTrainingManager
from course_lm.curriculum.loader import CurriculumLoader
from course_lm.lr_finder import find_lr
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig
from course_lm.trainer import Trainer
from course_lm.trainer.log import MAX_EMPTY_IN_A_ROW
from tests.records import Recorder
from tests.training_run import DOCUMENTS, TOKENIZER, assert_same, counting, interrupt_at, quiet, without_measures

VOCABULARY, LENGTH, BATCHES = 17, 6, 5


def batch_of(start: int) -> dict[str, Tensor]:
    ids = (torch.tensor([[start], [start + 3]]) + torch.arange(LENGTH)) % VOCABULARY
    return {"input_ids": ids, "labels": ids.clone()}


def empty_batch() -> dict[str, Tensor]:
    batch = batch_of(0)
    return batch | {"labels": torch.full_like(batch["labels"], -100)}


class Batches(Dataset):
    """Item k is the batch that begins with k."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return batch_of(index)


class Drawn(Batches):
    """Items that are drawn anew each time, from each of the global generators."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return batch_of(int(torch.randint(9, ())) + random.randrange(9) + int(np.random.randint(9)))


def draw() -> None:
    for generator in (torch.rand, np.random.rand, lambda count: random.random()):
        generator(1)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (batch_of(random.randrange(9)) for _ in range(BATCHES))


class Plain:
    """An iterable without a length."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (batch_of(start) for start in range(BATCHES))


class Backwards(Sampler[int]):
    """A sampler of somebody's own, with a generator."""

    def __init__(self) -> None:
        self.draws = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(BATCHES, generator=self.draws).tolist()

    def __len__(self) -> int:
        return BATCHES


class Foreign:
    """Keeps its position as torchdata's StatefulDataLoader does: a state of a shape of its own, and seeds drawn."""

    def __init__(self) -> None:
        self.iterator: ForeignIterator | None = None
        self.loaded: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        if self.iterator is None or self.iterator.yielded or self.loaded is not None:
            self.iterator, self.loaded = ForeignIterator(self.loaded), None
        return self.iterator

    def __len__(self) -> int:
        return BATCHES

    def state_dict(self) -> dict[str, Any]:
        if self.iterator is None:
            self.iterator, self.loaded = ForeignIterator(self.loaded), None
        return self.iterator.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state.keys() == {"_snapshot", "order", "_finished"}, "not a state that this loader made"
        self.iterator, self.loaded = None, state


class ForeignIterator:
    def __init__(self, state: dict[str, Any] | None) -> None:
        self.yielded = False
        if state is None or state["_finished"]:
            state = {"_snapshot": {"_num_yielded": 0}, "order": torch.randperm(BATCHES), "_finished": False}
        self.state = state

    def __iter__(self) -> "ForeignIterator":
        return self

    def __next__(self) -> dict[str, Tensor]:
        number = self.state["_snapshot"]["_num_yielded"]
        self.yielded = True
        if number == BATCHES:
            self.state["_finished"] = True
            raise StopIteration
        self.state["_snapshot"]["_num_yielded"] = number + 1
        return batch_of(int(self.state["order"][number]) + random.randrange(5))


class Refilled(Plain):
    """The batches of `Plain`, each in the memory of the one before."""

    def __init__(self, shared: str) -> None:
        self.shared = shared

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        rows, given = np.zeros((2, LENGTH), dtype=np.int64), {}
        ids = torch.from_numpy(rows)
        for batch in super().__iter__():
            rows[:] = batch["input_ids"].numpy()
            other = {"a dict": ids.clone(), "an array": torch.from_numpy(rows)}
            given.update(dict.fromkeys(["input_ids", "labels"], other.get(self.shared, ids)))
            yield dict(given) if self.shared == "an array" else given


class RefilledAtAPlace(Refilled):
    """The same, and keeps its place."""

    place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for number, batch in enumerate(super().__iter__()):
            if number >= self.place:
                self.place = number + 1
                yield batch
        self.place = 0


def seeded(seed: int = 4) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain(data: Dataset, **options: Any) -> DataLoader:
    return DataLoader(data, batch_size=None, **options)


def batched(sampler: Sampler[int]) -> DataLoader:
    pairs = BatchSampler(sampler, 1, drop_last=False)
    return DataLoader(Batches(), batch_sampler=pairs, collate_fn=lambda items: items[0])


def curriculum_loader() -> CurriculumLoader:
    manager = CurriculumTrainingManager("length", "performance", {"adaptation_rate": 0.5})
    return CurriculumLoader(course_loader(), DOCUMENTS, manager)


def course_loader(**options: Any) -> Any:
    return make_loader(DOCUMENTS, TOKENIZER, mode="dynamic", batch_size=26, max_length=LENGTH, seed=3, **options)


LOADERS: dict[str, Callable[[], Any]] = {
    "a list": lambda: [batch_of(start) for start in range(BATCHES)],
    "our loader": course_loader,
    "our curriculum": curriculum_loader,
    "in order": lambda: plain(Batches()),
    "shuffled": lambda: plain(Batches(), shuffle=True),
    "shuffled by a generator": lambda: plain(Batches(), shuffle=True, generator=seeded()),
    "a sampler": lambda: plain(Batches(), sampler=RandomSampler(Batches(), generator=seeded())),
    "a sampler of one's own": lambda: plain(Batches(), sampler=Backwards()),
    "a batch sampler": lambda: batched(RandomSampler(Batches(), generator=seeded())),
    "a distributed sampler": lambda: plain(Batches(), sampler=DistributedSampler(Batches(), num_replicas=1, rank=0)),
    "items drawn at random": lambda: plain(Drawn(), shuffle=True),
    "a stream": lambda: plain(Stream()),
    "an iterable": Plain,
    "a foreign position": Foreign,
}
WITH_WORKERS: dict[str, Callable[[], Any]] = {
    "workers": lambda: course_loader(num_workers=2),
    "workers, items drawn at random": lambda: plain(Drawn(), shuffle=True, num_workers=2),
    "workers, by a generator": lambda: plain(Drawn(), shuffle=True, generator=seeded(), num_workers=2),
    "persistent workers": lambda: plain(Drawn(), shuffle=True, num_workers=2, persistent_workers=True),
}
EVERY = LOADERS | WITH_WORKERS
UNPROVEN = ("a sampler of one's own", "a stream", "an iterable")  # warn where an epoch begins


def model() -> GPT:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=0.3), 262, LENGTH)


def configure(folder: Path | None = None, **training: Any) -> TrainingConfig:
    """Three steps an epoch: of two batches, of two, of one."""
    values: dict[str, Any] = {"gradient_accumulation_steps": 2, "num_epochs": 2, "max_steps": 6, "logging_steps": 1}
    values |= {"precision": "fp32", "device": "cpu", "output_dir": None if folder is None else str(folder)}
    return TrainingConfig(
        experiment_name="toy",
        optimizer=OptimizerConfig(learning_rate=1e-2),
        training=LoopConfig(**{**values, **training}),
    )


def run(folder: Path | None, loader: Any, val: Any = None, act: Callable[[int], None] = quiet, **training: Any):
    trainer = Trainer(model(), configure(folder, **training), loss_fn=counting(act))
    trainer.train(loader, val)
    return trainer


def end_of(folder: Path) -> Any:
    return without_measures(load_checkpoint(folder / "toy" / "checkpoint_last.safetensors"))


@cache
def straight(kind: str) -> Any:
    folder = Path(mkdtemp())
    run(folder, EVERY[kind](), LOADERS["shuffled by a generator"]())
    return end_of(folder)


def fail_at(micro_batch: int) -> Callable[[int], None]:
    def act(count: int) -> None:
        if count == micro_batch:
            raise OSError("the node is gone")

    return act


@pytest.mark.parametrize("stop", [2, BATCHES, BATCHES + 1, BATCHES + 3])
@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.filterwarnings("ignore:it cannot be checked")
def test_every_loader_goes_on_to_the_bit(kind, stop, tmp_path):
    """Stopped at a micro-batch, after an epoch by a crash, and gone on with everything built anew."""
    validation = LOADERS["shuffled by a generator"]
    crash = stop == BATCHES + 1
    try:
        run(tmp_path, EVERY[kind](), validation(), fail_at(stop) if crash else interrupt_at(stop))
    except OSError:
        assert crash
    torch.manual_seed(99)
    random.seed(99)
    run(tmp_path, EVERY[kind](), validation())
    assert_same(end_of(tmp_path), straight(kind))


@pytest.mark.parametrize("kind", UNPROVEN)
def test_what_cannot_be_checked_at_the_start_of_an_epoch_is_said_once(kind, tmp_path):
    make = LOADERS[kind]
    with pytest.raises(OSError, match="the node"):
        run(tmp_path, make(), act=fail_at(BATCHES + 1), num_epochs=3, max_steps=9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(tmp_path, make(), num_epochs=3, max_steps=9)
    assert len([one for one in caught if "it cannot be checked that epoch 1" in str(one.message)]) == 1


@pytest.mark.parametrize("kind", [kind for kind in LOADERS if kind not in UNPROVEN])
def test_a_loader_that_hides_nothing_and_knows_its_length_goes_on_without_a_warning(kind, tmp_path):
    with pytest.raises(OSError, match="the node"):
        run(tmp_path, LOADERS[kind](), LOADERS["a list"](), fail_at(BATCHES + 1), max_steps=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, LOADERS[kind](), LOADERS["a list"](), max_steps=None)


class Restless:
    """Hides what its batches depend on."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (batch_of(self.draws.randrange(9)) for _ in range(BATCHES))


def stop_at(folder: Path, loader: Any, micro_batch: int = 2) -> None:
    assert run(folder, loader, act=interrupt_at(micro_batch)).interrupted == signal.SIGINT


def test_a_loader_that_does_not_repeat_itself_is_refused_before_a_step_and_the_place_is_kept(tmp_path):
    run(tmp_path / "straight", Restless(1))
    stop_at(tmp_path, Restless(1))
    trainer = Trainer(model(), configure(tmp_path), loss_fn=counting(quiet))
    with pytest.raises(ValueError, match="batch 2 of epoch 0 is not what the run had trained on"):
        trainer.train(Restless(3))
    assert trainer.step == 1
    trainer.train(Restless(1))
    assert_same(end_of(tmp_path), end_of(tmp_path / "straight"))


USED = (batch_of(start) for start in range(50))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (LOADERS["a list"], lambda: [batch_of(0)], "ends before batch 2 of epoch 0"),
        (LOADERS["a list"], lambda: iter([batch_of(0)]), "ends before batch 2 of epoch 0"),
        (LOADERS["a list"], lambda: [batch_of(start + 1) for start in range(BATCHES)], "does not repeat itself"),
        (LOADERS["shuffled by a generator"], LOADERS["shuffled"], "does not repeat itself"),
        (lambda: USED, lambda: USED, "does not repeat itself"),
        (LOADERS["shuffled"], Foreign, "the checkpoint holds no state of this Foreign"),
    ],
    ids=["shorter", "iterator", "other batches", "other generators", "used up", "foreign position"],
)
def test_a_loader_that_is_not_what_the_run_had_is_refused(first, second, said, tmp_path):
    stop_at(tmp_path, first())
    with pytest.raises(ValueError, match=said):
        run(tmp_path, second())


def test_a_foreign_state_that_no_checkpoint_can_hold_is_found_before_the_first_step():
    class Odd(Foreign):
        def state_dict(self) -> dict[str, Any]:
            return super().state_dict() | {"lock": object()}

    steps: list[int] = []
    with pytest.raises(ValueError, match=r"\['data'\]\['own'\]\['lock'\] is a builtins.object"):
        run(None, Odd(), act=steps.append)
    assert steps == []


@pytest.mark.parametrize("kind", ["shuffled by a generator", "a sampler", "a batch sampler"])
def test_each_epoch_has_an_order_of_its_own(kind):
    data = Data(LOADERS[kind]())
    orders = [[int(batch["input_ids"].sum()) for batch in data.read_from(epoch, 0)] for epoch in range(8)]
    assert len({tuple(order) for order in orders}) > 1 and len({tuple(sorted(order)) for order in orders}) == 1


# Iterators


def test_an_iterator_goes_on_within_its_one_pass(tmp_path):
    run(tmp_path / "straight", (batch_of(random.randrange(9)) for _ in range(9)), max_steps=4)
    with pytest.raises(OSError, match="the node"):
        stream = (batch_of(random.randrange(9)) for _ in range(9))
        run(tmp_path, stream, act=fail_at(5), max_steps=4, save_steps=1)
    run(tmp_path, (batch_of(random.randrange(9)) for _ in range(9)), max_steps=4)
    mine, other = end_of(tmp_path), end_of(tmp_path / "straight")
    assert_same(mine["model"], other["model"])


def test_a_second_pass_over_an_iterator_is_refused_and_the_first_is_saved(tmp_path):
    trainer = Trainer(model(), configure(tmp_path, max_steps=9))
    with pytest.raises(ValueError, match=r"an iterator \(generator\): it gives one pass"):
        trainer.train(batch_of(start) for start in range(BATCHES))
    assert trainer.step == 3 and (tmp_path / "toy" / "checkpoint_epoch_1.safetensors").exists()


@pytest.mark.parametrize("kind", WITH_WORKERS)
def test_no_worker_outlives_a_run_that_ended_within_an_epoch_and_it_can_be_prolonged(kind):
    loader, config = WITH_WORKERS[kind](), configure(max_steps=4)
    trainer = Trainer(model(), config)
    trainer.train(loader)
    assert trainer.batch == 2 and not multiprocessing.active_children()
    trainer.settings = configure(max_steps=6).training
    trainer.train(loader)
    other = Trainer(model(), configure(), schedule=trainer.schedule)
    other.train(WITH_WORKERS[kind]())
    assert_same(trainer.model.state_dict(), other.model.state_dict())


@pytest.mark.parametrize("max_steps", [None, 6])
@pytest.mark.parametrize(
    ("loader", "got"),
    [(batch_of(0), "a single batch"), (batch_of, "<function batch_of"), (None, "None"), (3, "3")],
)
def test_what_holds_no_batches_is_no_loader(loader, got, max_steps):
    with pytest.raises(ValueError, match=f"the training loader must be an iterable of batches, got {got}"):
        run(None, loader, max_steps=max_steps)


class Adapter:
    """As accelerate's: it has `state_dict` and `load_state_dict`, whether what it wraps has them or not."""

    def __init__(self, loader: Any) -> None:
        self.base_dataloader = loader

    def __iter__(self) -> Any:
        return iter(self.base_dataloader)

    def __len__(self) -> int:
        return len(self.base_dataloader)

    def state_dict(self) -> dict[str, Any]:
        return self.base_dataloader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base_dataloader.load_state_dict(state)


@pytest.mark.parametrize("kind", ["a list", "shuffled", "a foreign position"])
@pytest.mark.filterwarnings("ignore:it cannot be checked")
def test_an_adapter_keeps_its_place_where_its_loader_does(kind, tmp_path):
    for act in (interrupt_at(3), quiet):
        run(tmp_path, Adapter(LOADERS[kind]()), None, act)
    run(tmp_path / "straight", Adapter(LOADERS[kind]()))
    assert_same(end_of(tmp_path), end_of(tmp_path / "straight"))


# One loader for many things

# To read one of these is to draw from a generator that its next epoch draws from too, as its owner has it.
DRAWS_FOR_ALL = ("shuffled by a generator", "a sampler", "a sampler of one's own", "a batch sampler")


def spoil(loader: Any, trainer: Trainer) -> None:
    """Everything that somebody may do with the loader that is being trained on."""
    trainer.evaluate(loader)
    if not isinstance(loader, Foreign):
        list(loader)
        find_lr(trainer.model, loader, trainer.optimizer, num_iter=3)
    next(iter(LOADERS["shuffled"]()))
    with suppress(TypeError):
        len(loader)
    if isinstance(loader, Loader):
        padding_share(loader)


@pytest.mark.parametrize("kind", [kind for kind in LOADERS if kind not in DRAWS_FOR_ALL])
def test_reading_the_training_loader_in_between_changes_nothing_of_the_training(kind, tmp_path):
    def trained(folder: Path, disturb: bool) -> Any:
        loader = LOADERS[kind]()

        class Disturbing(Recorder):
            def log(self, record: dict[str, Any]) -> None:
                if disturb and record["event"] == "train":
                    spoil(loader, trainer)

        trainer = Trainer(model(), configure(folder, save_steps=1), observers=[Disturbing()])
        trainer.train(loader)
        return end_of(folder)

    assert_same(trained(tmp_path / "a", disturb=True), trained(tmp_path / "b", disturb=False))


@pytest.mark.parametrize("kind", LOADERS)
def test_one_loader_serves_training_and_validation(kind, tmp_path):
    def trained(folder: Path, loader: Any, val: Any, act: Callable[[int], None] = quiet) -> Any:
        run(folder, loader, val, act, eval_steps=1, save_steps=1)
        return end_of(folder)

    loader = LOADERS[kind]()
    whole = trained(tmp_path / "one", loader, loader)
    assert_same(whole["model"], trained(tmp_path / "two", LOADERS[kind](), LOADERS[kind]())["model"])
    loader = LOADERS[kind]()
    trained(tmp_path / "stopped", loader, loader, interrupt_at(BATCHES + 3))
    loader = LOADERS[kind]()
    assert_same(trained(tmp_path / "stopped", loader, loader), whole)


# A step that fails


def failing_once(loader: Any, at: int, **training: Any) -> tuple[Trainer, list[list[int]]]:
    """Train; a step fails at a micro-batch; train on. The first tokens of the micro-batches of each call are listed."""
    seen: list[list[int]] = [[], []]
    failed: list[int] = []

    def act(count: int) -> None:
        if count == at and not failed:
            failed.append(count)
            raise OSError("the node is gone")

    trainer = Trainer(model(), configure(**training), loss_fn=counting(act))

    def see(module: torch.nn.Module, args: Any) -> None:
        if module.training:  # else it is tried whether it sees the future
            seen[len(failed)].append(int(args[0][0, 0]))

    trainer.model.register_forward_pre_hook(see)
    with pytest.raises(OSError, match="the node"):
        trainer.train(loader)
    trainer.train(loader)
    return trainer, seen


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("at", [2, 4, 5])
def test_after_a_step_that_failed_training_goes_on_with_its_window(kind, at):
    trainer, (first, second) = failing_once(LOADERS[kind](), at, max_steps=3)
    window = first[2 * ((at - 1) // 2) :]
    assert second[: len(window)] == window
    assert trainer.step == 3


REFILLED = [Refilled("a dict"), Refilled("a tensor"), Refilled("an array"), RefilledAtAPlace("a tensor")]


@pytest.mark.parametrize("loader", REFILLED, ids=lambda loader: f"{type(loader).__name__} {loader.shared}")
def test_batches_that_come_in_the_memory_of_one_another_are_not_mixed_up(loader):
    assert_same(run(None, loader).model.state_dict(), run(None, LOADERS["a list"]()).model.state_dict())
    _, (first, second) = failing_once(loader, 4, max_steps=3)
    assert (first, second) == ([0, 1, 2, 3], [2, 3, 4])
    trained, sweeps = model(), []
    for one in (loader, LOADERS["a list"]()):
        optimizer = torch.optim.SGD(trained.parameters(), lr=1e-3)
        sweeps.append(find_lr(trained, one, optimizer, num_iter=4, accumulation_steps=2, val_loader=one).losses)
    assert sweeps[0] == sweeps[1]


def test_a_window_of_an_iterator_survives_the_step_that_failed():
    trainer, (first, second) = failing_once((batch_of(start) for start in range(9)), at=3, max_steps=4)
    assert (first, second) == ([0, 1, 2], [2, 3, 4, 5, 6, 7])
    assert trainer.batch == 8


@pytest.mark.parametrize("make", [Foreign, lambda: RefilledAtAPlace("a tensor")], ids=["foreign", "refilled"])
def test_a_foreign_loader_that_is_ahead_is_saved_with_its_batches(make, tmp_path):
    trainer = Trainer(model(), configure(), loss_fn=counting(fail_at(4)))
    with pytest.raises(OSError, match="the node"):
        trainer.train(make())
    trainer.save_checkpoint(tmp_path / "by_hand.safetensors")
    other = Trainer(model(), configure())
    other.load_checkpoint(tmp_path / "by_hand.safetensors")
    read: list[list[int]] = []
    for data, batch in ((Data(make(), 42), 0), (other.data.over(make(), 0, 2), 2)):
        read.append([int(batch["input_ids"][0, 0]) for batch in data.read_from(0, batch)])
    assert read[1] == read[0][2:]


def test_batches_that_a_loader_of_another_kind_had_given_are_not_read_beside_those_of_a_list(tmp_path):
    trainer = Trainer(model(), configure(), loss_fn=counting(fail_at(1)))
    with pytest.raises(OSError, match="the node"):
        trainer.train(Foreign())
    other = Trainer(model(), configure(), loss_fn=counting(quiet))
    other.load_state_dict(trainer.state_dict())
    with pytest.raises(ValueError, match="this list keeps none"):
        other.train(LOADERS["a list"]())


def test_a_loader_that_raised_is_opened_again_at_the_place():
    class Flaky(Batches):
        broken = True

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            if index == 3 and Flaky.broken:
                raise OSError("the disk is slow")
            return batch_of(index)

    trainer, loader = Trainer(model(), configure(num_epochs=1, max_steps=None)), plain(Flaky())
    with pytest.raises(OSError, match="the disk"):
        trainer.train(loader)
    assert (trainer.step, trainer.batch) == (1, 2)
    Flaky.broken = False
    trainer.train(loader)
    assert (trainer.step, trainer.epoch) == (3, 1)
    assert [record["tokens"] for record in trainer.history.train] == [20, 40, 50]


# Validation


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        ([], "the validation loader is empty"),
        (plain(Stream()).__iter__(), r"the validation loader is an iterator \(_SingleProcess"),
        ((batch_of(start) for start in range(3)), r"the validation loader is an iterator \(generator\)"),
        (batch_of(0), "got a single batch"),
        (batch_of, "the validation loader must be an iterable of batches, got <function"),
    ],
)
def test_a_validation_loader_that_cannot_serve_is_refused_before_the_first_step(loader, message):
    steps: list[int] = []
    with pytest.raises(ValueError, match=message):
        run(None, LOADERS["a list"](), loader, steps.append)
    assert steps == []


@pytest.mark.parametrize("kind", LOADERS)
def test_every_validation_reads_the_same_and_leaves_every_generator_alone(kind):
    loader, trained = LOADERS[kind](), model()
    read: list[list[int]] = []
    trained.register_forward_pre_hook(lambda module, args: read[-1].append(int(args[0].sum())))

    def state() -> Any:
        held = [part.get_state() for part in (torch.default_generator, getattr(loader, "generator", None)) if part]
        return *held, random.getstate(), str(np.random.get_state())

    for epoch in range(3):
        before = state()
        read.append([])
        metrics = evaluate(trained, loader)
        assert_same(state(), before)
        assert metrics["tokens"] > 0
        draw()
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch + 1)
    assert read[0] == read[1] == read[2]


def test_a_curriculum_is_validated_over_all_documents():
    loader = curriculum_loader()
    assert evaluate(model(), loader)["val_loss"] == evaluate(model(), course_loader())["val_loss"]


# Lengths


@pytest.mark.filterwarnings("ignore:skipped a step")
def test_a_stream_that_never_holds_a_target_ends_in_one_error_unless_a_step_is_completed(monkeypatch):
    assert MAX_EMPTY_IN_A_ROW == 1_000
    monkeypatch.setattr("course_lm.trainer.log.MAX_EMPTY_IN_A_ROW", 3)
    batches = [empty_batch(), empty_batch(), batch_of(0), empty_batch(), empty_batch()]
    trainer = run(None, batches, gradient_accumulation_steps=1, num_epochs=1, max_steps=None)
    assert (trainer.step, trainer.log.skipped) == (1, 4)
    with pytest.raises(ValueError, match="3 steps in a row after step 0 held no target token"):
        run(None, repeat(empty_batch()), gradient_accumulation_steps=1)


@pytest.mark.filterwarnings("ignore:skipped a step")
def test_what_follows_the_last_target_makes_no_record(tmp_path):
    trainer = run(tmp_path, [batch_of(0), empty_batch()], gradient_accumulation_steps=1, num_epochs=1, max_steps=None)
    assert [(record["event"], record["step"]) for record in trainer.history.records] == [("train", 1), ("epoch", 1)]
    assert trainer.history.records[0]["loss"] == trainer.history.records[1]["train_loss"]


class Liar(Plain):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize(
    ("length", "message"), [(3, "gave at least 4 batches .* is 3"), (8, "gave only 5 batches .* is 8")]
)
def test_a_length_that_is_not_that_of_the_data_is_said_once(length, message):
    with pytest.warns(UserWarning, match=message) as caught:
        run(None, Liar(length), max_steps=None)
    assert len([one for one in caught if "len()" in str(one.message)]) == 1
