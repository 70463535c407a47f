"""Claims about what an epoch admits: the easiest documents, whole batches, one order, and a length known beforehand."""

import warnings
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from torch.utils.data import TensorDataset

from course_lm.batching import make_loader
from course_lm.corpus import load_corpus
from course_lm.curriculum import (
    CurriculumLoader,
    CurriculumTrainingManager,
    DynamicCurriculum,
    LengthBasedCurriculum,
    words_of,
)
from course_lm.loss import count_targets
from course_lm.tokenizer import decode, train_tokenizer
from tests.training_run import assert_same

DOCUMENTS = load_corpus("stories").documents[:120]
DOCUMENTS = [" ".join(text.split()[: 3 + number % 40]) for number, text in enumerate(DOCUMENTS)]
TOKENIZER = train_tokenizer(DOCUMENTS, 300)
MODES = ("fixed", "dynamic", "bucketed", "packed")
EPOCHS = 7


def curriculum(mode="fixed", strategy="length", schedule="linear", documents=DOCUMENTS, seed=3, **config):
    loader = make_loader(documents, TOKENIZER, mode=mode, batch_size=4, max_length=32, seed=seed)
    timed = schedule != "performance" and "num_steps" not in config
    times = {"num_epochs": 5, "warmup_epochs": 1} if timed else {}
    manager = CurriculumTrainingManager(strategy, schedule, {**times, **config})
    return CurriculumLoader(loader, documents, manager, accumulation_steps=3)


def texts_of(batches):
    """The documents in the batches, each as the pieces it was cut into."""
    rows = [
        ids[mask.bool()].tolist() for batch in batches for ids, mask in zip(batch["input_ids"], batch["attention_mask"])
    ]
    return sorted(decode(TOKENIZER, ids) for ids in rows)


@pytest.mark.parametrize("threshold_on", ["score", "quantile"])
@pytest.mark.parametrize("mode", MODES)
def test_an_epoch_reads_exactly_the_documents_below_the_threshold(mode, threshold_on):
    loader = curriculum(mode, threshold_on=threshold_on, start_threshold=0.3)
    lengths = [len(words_of(text)) for text in DOCUMENTS]
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        threshold = loader.threshold
        score = [(length - min(lengths)) / (max(lengths) - min(lengths)) for length in lengths]
        rank = [sum(other <= length for other in lengths) / len(lengths) for length in lengths]
        measure = score if threshold_on == "score" else rank
        admitted = [text for text, value in zip(DOCUMENTS, measure) if value <= threshold]
        plain = make_loader(admitted, TOKENIZER, mode=mode, batch_size=4, max_length=32, seed=3)
        assert texts_of(loader) == texts_of(plain)
        assert loader.describe_epoch()["examples"] == len(admitted)


@pytest.mark.parametrize("mode", MODES)
def test_with_everything_admitted_it_is_the_loader_itself(mode):
    loader = curriculum(mode, schedule="none")
    for epoch in range(3):
        loader.set_epoch(epoch)
        loader.whole.set_epoch(epoch)
        assert_same(list(loader), list(loader.whole))


@pytest.mark.parametrize("mode", MODES)
def test_at_least_one_full_batch_is_admitted(mode):
    loader = curriculum(mode, start_threshold=0.0, min_length=2, max_length=3000)
    assert int((loader.difficulty <= loader.threshold).sum()) == 0
    first = next(iter(loader))
    assert len(first["input_ids"]) == 4
    if mode == "packed":  # the last document of the batch may need a row of its own
        assert first["attention_mask"].float().mean() > 0.8
    assert loader.describe_epoch()["examples"] < len(DOCUMENTS) / 4


@pytest.mark.parametrize("schedule", ["linear", "performance"])
def test_fewer_documents_than_a_batch_are_all_admitted(schedule):
    loader = curriculum(schedule=schedule, documents=DOCUMENTS[:2])
    assert len(list(loader)) == len(loader) == loader.describe_epoch()["batches"]
    assert loader.describe_epoch()["examples"] == 2


@pytest.mark.parametrize("schedule", ["linear", "root", "exponential", "step", "performance", "none"])
@pytest.mark.parametrize("mode", MODES)
def test_the_length_of_every_epoch_is_known_beforehand(mode, schedule):
    loader = curriculum(mode, schedule=schedule)
    lengths = [loader.length_of_epoch(epoch) for epoch in range(EPOCHS)]
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        batches = list(loader)
        described = loader.describe_epoch()
        assert len(batches) == len(loader) == lengths[epoch] == described["batches"]
        assert described["tokens"] == sum(int(count_targets(batch["labels"])) for batch in batches)
        loader.report_performance(9.0 - epoch)


def test_an_epoch_that_listens_reads_the_admitted_documents_again_in_another_order():
    loader = curriculum(schedule="performance", threshold_on="quantile")
    batches = list(loader)
    size = len(loader.whole.select(loader.difficulty <= loader.threshold))
    assert 2 * size < len(batches)
    assert texts_of(batches[:size]) == texts_of(batches[size : 2 * size])
    assert not torch.equal(batches[0]["input_ids"], batches[size]["input_ids"])
    assert len(batches) == len(loader.whole)


def test_a_report_counts_from_the_next_epoch_on():
    loader = curriculum(schedule="performance", adaptation_rate=0.25)
    before = loader.threshold
    reading = iter(loader)
    next(reading)
    for loss in (4.0, 3.0):
        loader.report_performance(loss)
    assert loader.threshold == before
    loader.set_epoch(1)
    assert loader.threshold == before + 0.25


def test_a_curriculum_that_hears_nothing_says_so():
    loader = curriculum(schedule="performance")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)
    loader.set_epoch(1)
    with pytest.warns(UserWarning, match="waits for validation losses, and none was reported"):
        list(loader)
    loader.report_performance(3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


def test_with_a_schedule_and_a_strategy_that_listens_the_smaller_threshold_holds():
    settings = {"base_strategy": "length", "adaptation_rate": 0.5}
    manager = CurriculumTrainingManager("dynamic", "linear", {"num_epochs": 10, "warmup_epochs": 0, **settings})
    assert manager.threshold(5) == 0.2  # the schedule alone would be at 0.6
    for loss in (4.0, 3.0, 2.0):
        manager.report_performance(loss)
    assert manager.threshold(5) == pytest.approx(0.6)
    assert manager.threshold(10) == 1.0


@pytest.mark.parametrize("schedule", ["linear", "performance"])
@pytest.mark.parametrize("mode", MODES)
def test_it_goes_on_at_any_batch_as_if_it_had_not_stopped(mode, schedule):
    def read(loader, epochs):
        """The batches of some epochs, and the position after each of them."""
        seen, positions = [], []
        for epoch in epochs:
            loader.set_epoch(epoch)
            for batch in loader:
                seen.append(batch)
                positions.append(deepcopy(loader.state_dict()))
            loader.report_performance(5.0 - epoch)
        return seen, positions

    straight, positions = read(curriculum(mode, schedule=schedule), range(3))
    for stop in range(1, len(straight), 5):
        state = positions[stop - 1]
        fresh = curriculum(mode, schedule=schedule)
        fresh.set_epoch(state["epoch"])
        fresh.load_state_dict(state)
        rest = list(fresh)
        fresh.report_performance(5.0 - state["epoch"])
        rest += read(fresh, range(state["epoch"] + 1, 3))[0]
        assert_same(rest, straight[stop:], f"stopped at {stop}")


def test_time_in_steps_counts_the_steps_of_the_epochs_before():
    loader = curriculum(num_steps=20, start_threshold=0.2, threshold_on="quantile")
    steps, thresholds = 0, []
    for epoch in range(8):
        loader.set_epoch(epoch)
        thresholds.append(loader.threshold)
        assert loader.threshold == pytest.approx(min(1.0, 0.2 + 0.8 * steps / 20))
        steps += -(-len(loader) // 3)
    assert thresholds[-1] == 1.0
    assert all(a <= b for a, b in pairwise(thresholds))


def test_an_empty_document_is_left_out():
    documents = ["", *DOCUMENTS[:20], ""]
    loader = curriculum(documents=documents, schedule="none")
    assert loader.describe_epoch()["examples"] == 20


def test_documents_and_examples_must_belong_together():
    loader = make_loader(DOCUMENTS, TOKENIZER, batch_size=4, max_length=32)
    with pytest.raises(ValueError, match="document number 119, but there are only 119 examples"):
        CurriculumLoader(loader, DOCUMENTS[:-1], CurriculumTrainingManager())


def test_examples_are_scored_once(monkeypatch):
    manager = CurriculumTrainingManager("length", "linear")
    first = manager.difficulty(DOCUMENTS)
    monkeypatch.setattr(LengthBasedCurriculum, "compute_difficulty", None)
    assert manager.difficulty(list(DOCUMENTS)) is first


def test_prepare_epoch_gives_a_dataloader_over_what_is_admitted():
    numbers = TensorDataset(torch.arange(len(DOCUMENTS)))
    manager = CurriculumTrainingManager("length", "linear", {"num_epochs": 5, "warmup_epochs": 1})

    def items(epoch, shuffle=True):
        loader = manager.prepare_epoch(numbers, 8, epoch, DOCUMENTS, shuffle)
        return torch.cat([batch[0] for batch in loader]).tolist()

    difficulty = manager.difficulty(DOCUMENTS)
    for epoch in range(EPOCHS):
        admitted = (difficulty <= manager.threshold(epoch)).nonzero().flatten().tolist()
        assert items(epoch, shuffle=False) == admitted
        assert sorted(items(epoch)) == admitted
        assert items(epoch) == items(epoch) != admitted
    assert len(items(5)) == len(DOCUMENTS)


def test_prepare_epoch_counts_in_steps_too():
    numbers = TensorDataset(torch.arange(len(DOCUMENTS)))
    manager = CurriculumTrainingManager("length", "linear", {"num_steps": 40, "start_threshold": 0.1})
    steps = 0
    for epoch in range(6):
        loader = manager.prepare_epoch(numbers, 8, epoch, DOCUMENTS)
        admitted = int((manager.difficulty(DOCUMENTS) <= manager.threshold(steps)).sum())
        assert sum(len(batch[0]) for batch in loader) == max(8, admitted)
        steps += len(loader)


def test_prepare_epoch_refuses_a_dataset_of_another_size():
    with pytest.raises(ValueError, match="dataset and examples must be equally many, got 3 and 120"):
        CurriculumTrainingManager().prepare_epoch(TensorDataset(torch.arange(3)), 2, 0, DOCUMENTS)


@pytest.mark.parametrize(
    ("config", "rate"),
    [({}, 0.1), ({"adaptation_rate": 0.3}, 0.3), ({"settings": {"adaptation_rate": 0.4}}, 0.4)],
)
def test_a_key_that_the_strategy_has_too_counts_for_both(config, rate):
    strategy = CurriculumTrainingManager("dynamic", "linear", config).strategy
    assert isinstance(strategy, DynamicCurriculum)
    assert strategy.feedback.rate == rate
