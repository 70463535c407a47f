"""What a loader can do is asked at one place, and answered for any loader."""

import re
from collections.abc import Callable, Iterator
from inspect import getmro
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

import course_lm
from course_lm.batching import Loader, capabilities, make_loader
from course_lm.batching.capabilities import TrainingLoader
from course_lm.curriculum import CurriculumTrainingManager
from course_lm.curriculum.loader import CurriculumLoader
from tests.training_run import DOCUMENTS, TOKENIZER

OWN_KINDS = [kind for kind in getmro(TrainingLoader) if kind.__module__ == capabilities.__name__]
NAMED = {name for kind in OWN_KINDS for name in {**vars(kind), **kind.__annotations__} if name[0] != "_"}
ASKED: list[Callable[[Any], Any]] = [
    capabilities.takes_epoch,
    capabilities.counts_epochs,
    capabilities.keeps_position,
    capabilities.length_of,
    capabilities.fingerprint_of,
    capabilities.from_start,
    capabilities.describe_epoch,
]


def loader() -> Loader:
    return make_loader(DOCUMENTS, TOKENIZER, batch_size=4, max_length=16)


def curriculum_loader() -> CurriculumLoader:
    manager = CurriculumTrainingManager("length", "performance", {"adaptation_rate": 0.5})
    return CurriculumLoader(loader(), DOCUMENTS, manager)


class Plain:
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


class Wrapper:
    """Passes everything on to the loader inside."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inside)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inside, name)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter([1, 2])


def test_a_curriculum_has_all_that_training_can_make_use_of():
    full: TrainingLoader = curriculum_loader()  # the type checker looks at every signature
    assert [name for name in NAMED if not hasattr(full, name)] == []


def test_an_unchanging_loader_has_all_but_what_tells_of_changing_epochs():
    missing = {name for name in NAMED if not hasattr(loader(), name)}
    assert missing == {"length_of_epoch", "report_performance", "describe_epoch"}


@pytest.mark.parametrize("one", [Plain(), iter([1]), None], ids=["an iterable", "an iterator", "nothing"])
def test_a_loader_that_can_only_be_iterated_is_asked_without_an_error(one):
    assert not any(ask(one) for ask in ASKED)
    capabilities.report_performance(one, 1.0)


@pytest.mark.parametrize("ask", [ask for ask in ASKED if ask is not capabilities.length_of])
def test_what_a_wrapper_passes_on_counts_as_its_own(ask):
    inside = curriculum_loader()
    through, direct = ask(Wrapper(inside)), ask(inside)
    assert through and type(through) is type(direct)


def test_a_length_that_raises_is_no_length():
    assert capabilities.length_of(DataLoader(Stream())) is None


def test_the_length_of_an_epoch_is_that_of_every_epoch_where_they_are_alike():
    assert capabilities.length_of_epoch([1, 2, 3], 7) == 3


def test_no_other_module_asks_what_a_loader_can_do():
    package = Path(course_lm.__file__).parent
    names = "|".join([*NAMED, "sampler", "batch_sampler", "dataset"])
    probe = re.compile(rf'(?:hasattr|getattr)\([^()]*"(?:{names})"')
    asking = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if probe.search(path.read_text())}
    assert asking == {"batching/capabilities.py"}
