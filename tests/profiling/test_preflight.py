"""Claims about `preflight`: each check finds its own fault, finds none in a run that is well, and leaves no trace."""

from collections import namedtuple
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from course_lm.config import LoopConfig, TrainingConfig
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig
from course_lm.profiling import preflight as module
from course_lm.profiling.preflight import Check, check_memory, preflight
from tests.small_run import LENGTH, VOCABULARY, small_batches

BATCHES = small_batches(6)
CONFIG = TrainingConfig(
    optimizer=OptimizerConfig(learning_rate=1e-2),
    training=LoopConfig(
        device="cpu", precision="fp32", gradient_accumulation_steps=2, output_dir=None, max_steps=1000, batch_size=4
    ),
)


class LookingAhead(nn.Module):
    """Each token's logits come from its own embedding and the next one's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        vectors = self.embedding(input_ids)
        return self.head(vectors + vectors.roll(-1, 1))


class Scaled(LookingAhead):
    """Logits a hundred times as large: no model that knows nothing."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return 100 * self.head(self.embedding(input_ids))


class MixingRows(LookingAhead):
    """The mean over the rows of a batch is taken away, as a batch norm does."""

    def forward(self, input_ids: Tensor) -> Tensor:
        vectors = self.embedding(input_ids)
        return self.head(vectors - vectors.mean(0, keepdim=True))


class NeverTheSame:
    """A loader that goes on where its last reading ended."""

    def __init__(self) -> None:
        self.place = 0

    def __len__(self) -> int:
        return len(BATCHES)

    def __iter__(self) -> Iterator[Any]:
        for _ in BATCHES:
            self.place = (self.place + 1) % 5
            yield BATCHES[self.place]


def own_model() -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=1, n_head=2, d_model=32, dropout=0.1), VOCABULARY, LENGTH)


def looked_at(model: nn.Module, config: TrainingConfig = CONFIG, loader: Any = BATCHES, held_out: Any = None) -> Any:
    return {one.name: one for one in preflight(model, config, loader, held_out)}


def wrong(checks: dict[str, Check]) -> list[str]:
    return [name for name, one in checks.items() if one.verdict == "wrong"]


def other_rows() -> list[Any]:
    """Batches of rows that count downwards."""
    return [
        batch | {"input_ids": batch["input_ids"].flip(1), "labels": batch["input_ids"].flip(1)} for batch in BATCHES
    ]


def test_nothing_is_wrong_with_a_run_that_is_well_and_all_that_can_be_is_tried():
    checks = looked_at(own_model(), held_out=other_rows())
    tried = {"beginning", "first loss", "memory", "causality", "split batch", "one batch by heart", "stop and resume"}
    assert {name for name, one in checks.items() if one.verdict == "ok"} == tried | {"rows in both splits"}
    assert wrong(checks) == []


def test_the_model_the_loader_and_the_random_numbers_are_what_they_were():
    model, state = own_model(), torch.get_rng_state()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    state = torch.get_rng_state()
    looked_at(model)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert model.training


@pytest.mark.parametrize(
    ("kind", "check"), [(LookingAhead, "causality"), (MixingRows, "split batch"), (Scaled, "first loss")]
)
def test_a_model_that_looks_ahead_mixes_rows_or_begins_far_above_a_guess_is_found(kind, check):
    assert check in wrong(looked_at(kind()))


@pytest.mark.parametrize(
    ("given", "check"),
    [
        ({"loader": NeverTheSame()}, "stop and resume"),
        ({"config": replace(CONFIG, optimizer=OptimizerConfig(learning_rate=1e-9))}, "one batch by heart"),
        ({"held_out": [*other_rows(), BATCHES[0]]}, "rows in both splits"),
    ],
)
def test_a_restless_loader_a_rate_that_learns_nothing_and_held_out_rows_in_both_splits_are_found(given, check):
    assert wrong(looked_at(own_model(), **given)) == [check]


def test_a_run_too_large_for_the_memory_is_found_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr(module, "_memory_of", lambda device: 1000)
    monkeypatch.setattr(module, "Trainer", None)  # which would compute
    checks = looked_at(own_model())
    assert wrong(checks) == ["memory"]
    assert checks["all else"].found.startswith("left out")


def test_memory_is_held_against_what_the_device_has(monkeypatch):
    held = {}
    for there in (10**6, 10**12):
        monkeypatch.setattr(module, "_memory_of", lambda device, there=there: there)
        held[there] = check_memory(CONFIG).verdict
    assert held == {10**6: "wrong", 10**12: "ok"}


@pytest.mark.parametrize(("free", "verdict"), [(10**4, "wrong"), (10**9, "ok")])
def test_checkpoints_are_held_against_the_free_disk(monkeypatch, tmp_path: Path, free, verdict):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: usage(0, 0, free))
    config = replace(CONFIG, training=replace(CONFIG.training, output_dir=str(tmp_path / "new")))
    assert looked_at(own_model(), config)["disk"].verdict == verdict
    assert list(tmp_path.iterdir()) == []  # nothing is written there


def test_what_would_take_too_long_is_left_out_with_its_reason(monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 1e-9)
    monkeypatch.setattr(module.statistics, "median", lambda taken: 1.0)
    checks = looked_at(own_model())
    for name in ("one batch by heart", "stop and resume"):
        assert checks[name].verdict == "note"
        assert checks[name].found.startswith("left out:")


def test_an_interrupt_while_it_trains_ends_it_and_is_no_verdict(monkeypatch):
    monkeypatch.setattr(module.Trainer, "train", lambda trainer, loader: setattr(trainer, "interrupted", 2))
    with pytest.raises(KeyboardInterrupt):
        looked_at(own_model())


def test_an_iterator_is_refused_in_one_line():
    with pytest.raises(ValueError, match="got a list_iterator"):
        preflight(own_model(), CONFIG, iter(BATCHES))
