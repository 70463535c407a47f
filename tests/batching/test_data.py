"""Any loader is read from any place; reading it a second time leaves its place, its epoch and what it draws alone."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from course_lm.batching import make_loader
from course_lm.batching.data import (
    Data,
    digest_of,
    kept,
    length_of,
    length_of_epoch,
    read_from_start,
    second_reader,
    set_epoch,
    set_next_epoch,
)
from course_lm.curriculum import CurriculumTrainingManager
from course_lm.curriculum.loader import CurriculumLoader
from course_lm.reproducibility import generators_kept
from tests.training_run import DOCUMENTS, TOKENIZER


def test_an_iterator_has_one_pass_and_is_its_own_reader():
    once = iter([1, 2])
    assert second_reader(once) is once


class Shelf:
    """A loader whose position lives in an object that copies of it share."""

    def __init__(self) -> None:
        self.place = {"next": torch.tensor([0, 0])}

    def __iter__(self) -> Iterator[int]:
        while True:
            self.place["next"][0] += 1
            yield int(self.place["next"][0])

    def state_dict(self) -> dict[str, Tensor]:
        return self.place

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.place = state


class Numbers(Dataset[int]):
    """0, 1, … up to a count."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("where", ["nowhere", "loader", "sampler", "batch sampler"])
def test_a_plain_loader_shuffles_afterwards_as_it_would_have(where):
    def shuffled() -> DataLoader:
        torch.manual_seed(1)
        data, generator = Numbers(20), torch.Generator().manual_seed(2)
        sampler = RandomSampler(data, generator=generator)
        match where:
            case "nowhere":
                return DataLoader(data, shuffle=True)
            case "loader":
                return DataLoader(data, shuffle=True, generator=generator)
            case "sampler":
                return DataLoader(data, sampler=sampler)
        return DataLoader(data, batch_sampler=BatchSampler(sampler, 2, drop_last=False))

    expected = [batch.tolist() for batch in shuffled()]
    loader = shuffled()
    with generators_kept(), kept(loader):
        reader = second_reader(loader)
        assert [batch.tolist() for batch in reader] == expected
        assert [batch.tolist() for batch in reader] != expected
    assert [batch.tolist() for batch in loader] == expected


def test_workers_that_persist_go_on_with_their_own_pass():
    loader = DataLoader(Numbers(6), num_workers=1, persistent_workers=True)
    running = iter(loader)
    first = next(running)
    with generators_kept(), kept(loader):
        assert [int(batch) for batch in second_reader(loader)] == list(range(6))
    assert [int(first), *(int(batch) for batch in running)] == list(range(6))


class Told:
    """Numbers from the epoch that it was told; counts what it was told last."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch, self.epoch + 1])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_reading_from_the_start_is_that_of_epoch_0_and_ends_in_the_epoch_of_before():
    loader = Told()
    loader.set_epoch(3)
    with read_from_start(loader) as batches:
        assert list(batches) == [0, 1]
    assert list(loader) == [3, 4]


def test_the_next_epoch_is_told_to_a_loader_that_counts_and_to_no_other():
    loader = Told()
    set_next_epoch(loader)
    assert loader.epoch == 1
    set_next_epoch([1, 2])


def test_an_epoch_is_told_to_a_loader_and_to_what_it_reads():
    sampler = RandomSampler(Numbers(4))
    sampler.set_epoch = lambda epoch: told.append(epoch)  # type: ignore[attr-defined]
    told: list[int] = []
    set_epoch(DataLoader(Numbers(4), sampler=sampler), 5)
    assert told == [5]


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


class Drawing:
    def __iter__(self) -> Iterator[Any]:
        return (draw() for _ in range(3))


@pytest.mark.parametrize("start", [0, 1, 2])
def test_what_a_batch_draws_depends_on_its_place_alone_whatever_is_drawn_outside(start):
    def drawn(data: Data, epoch: int, batch: int) -> list[Any]:
        seen, batches = [], data.read_from(epoch, batch)
        for _ in range(batch, 3):
            draw()
            before = random.getstate(), torch.get_rng_state()
            seen.append(next(batches))
            assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
        return seen

    data = Data(Drawing(), 1)
    whole = drawn(data, 2, 0)
    data.take(whole[:start] or whole)
    assert drawn(data, 2, start) == whole[start:]
    assert len({*whole, *drawn(data, 3, 0), *drawn(Data(Drawing(), 2), 2, 0)}) == 9


def test_the_generators_of_a_loader_follow_from_the_place_and_the_seed_that_they_came_with():
    def orders(loader: Any, seed: int = 0) -> list[Any]:
        data: Any = Data(loader, seed)
        return [[int(one) for one in data.read_from(epoch, 0)] for epoch in (0, 1, 0)]

    def loader_of(seed: int) -> DataLoader:
        return DataLoader(Numbers(20), shuffle=True, generator=torch.Generator().manual_seed(seed))

    loader = loader_of(1)
    first, second, again = orders(loader)
    assert first == again != second
    assert orders(loader) == orders(loader_of(1)) == [first, second, first]  # it was seeded here since
    assert first not in orders(loader_of(2)) and first not in orders(loader_of(1), seed=1)
    assert loader.generator is not None
    loader.generator.manual_seed(2)  # by its owner
    assert orders(loader) == orders(loader_of(2))


def curriculum_loader() -> CurriculumLoader:
    manager = CurriculumTrainingManager("length", "performance", {"adaptation_rate": 0.5})
    return CurriculumLoader(make_loader(DOCUMENTS, TOKENIZER, batch_size=4, max_length=16), DOCUMENTS, manager)


class Wrapper:
    """Gives every other batch, and passes everything else on to the loader inside."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __iter__(self) -> Iterator[Any]:
        return islice(self.inside, 0, None, 2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


def test_what_a_wrapper_passes_on_counts_as_its_own_but_never_what_passes_it_by():
    inside = curriculum_loader()
    data = Data(Wrapper(inside))
    assert data.fingerprint == inside.fingerprint and data.length(0) == len(inside)
    assert len(list(data.read_from(0, 0))) < len(inside)
    assert data.describe_epoch() == inside.describe_epoch()
    data.report_performance(1.0)
    assert inside.manager.state_dict() != curriculum_loader().manager.state_dict()


def test_a_loader_that_can_only_be_iterated_is_asked_without_an_error():
    data = Data(Drawing())
    data.report_performance(1.0)
    assert (data.fingerprint, data.length(0), data.describe_epoch()) == (None, None, None)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


def test_a_length_that_raises_is_no_length():
    assert length_of(DataLoader(Stream())) is length_of_epoch(DataLoader(Stream()), 1) is None
    assert length_of_epoch([1, 2, 3], 7) == 3


def test_an_iterator_that_has_raised_is_not_taken_for_one_that_has_ended():
    def breaks() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    data = Data(breaks())
    with pytest.raises(OSError, match="the disk"):
        list(data.read_from(0, 0))
    with pytest.raises(ValueError, match="an iterator that has raised an error"):
        data.read_from(0, 0)


@pytest.mark.parametrize(
    "other",
    [{"a": torch.tensor([1, 3])}, {"b": torch.tensor([1, 2])}, {"a": torch.tensor([1.0, 2.0])}, {"a": [1, 2]}],
    ids=["a value", "a name", "a dtype", "a kind"],
)
def test_a_digest_changes_with(other):
    batch = {"a": torch.tensor([1, 2])}
    assert digest_of(batch) == digest_of({"a": torch.tensor([1, 2])}) != digest_of(other)
