"""Ranks at the edges: what they accept from outside, what they refuse, and what does not depend on their number."""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lm.batching import Loader, Share
from course_lm.config import TrainingConfig
from course_lm.distributed import DistributedConfig, Group, RankError, connect, leave, share
from course_lm.loss import next_token_loss
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring import evaluate
from course_lm.optim import OptimizerConfig
from course_lm.shards import gathered, is_sharded
from course_lm.trainer import Trainer
from tests.distributed.pool import JOINED, Ranks, free_port
from tests.training_run import LENGTH, VOCABULARY, configure, loaders

Made = tuple[nn.Module, dict[str, Any]]

DDP, FSDP = DistributedConfig(strategy="ddp"), DistributedConfig(strategy="fsdp")
HYBRID = DistributedConfig(strategy="hybrid", shard_size=2)


def gpt(dtype: torch.dtype = torch.float64, dropout: float = 0.2, checkpointing: bool = False) -> GPT:
    torch.manual_seed(0)
    config = ModelConfig(n_layer=2, n_head=2, d_model=8, dropout=dropout, gradient_checkpointing=checkpointing)
    return GPT(config, VOCABULARY, LENGTH).to(dtype)


def plain(**settings: Any) -> Made:
    return gpt(**settings), {}


def config_of(distributed: DistributedConfig, **training: Any) -> TrainingConfig:
    """Six steps of three micro-batches, and two validations; nothing is written."""
    settings: dict[str, Any] = {"max_steps": 6, "eval_steps": 3, "logging_steps": 1, "max_grad_norm": 0.5, **training}
    return replace(configure("", **(settings | {"output_dir": None})), distributed=distributed)


def train(make: Callable[[], Made], config: TrainingConfig) -> dict[str, Any]:
    """On a rank: what a run leaves. `make` gives the model, and what else a trainer is to be given."""
    model, given = make()
    trainer = Trainer(model, config, **given)
    trainer.train(*loaders("bucketed"))
    numbers = ("loss", "grad_norm", "tokens", "val_loss", "val_loss_se", "accuracy", "skipped")
    return {
        "weights": gathered(dict(trainer.model.named_parameters())),
        "records": [[record.get(name, 0.0) for name in numbers] for record in trainer.history.records],
        "scale": trainer.precision.state_dict().get("scale"),
        "sharded": any(is_sharded(parameter) for parameter in trainer.model.parameters()),
        "kind": type(trainer.runner).__name__,
    }


def assert_near(mine: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    """The same records and weights, to a part of `tolerance`."""
    assert torch.tensor(mine["records"]).allclose(torch.tensor(other["records"]), tolerance, tolerance)
    assert mine["weights"].keys() == other["weights"].keys()
    for name, value in other["weights"].items():
        gap = (mine["weights"][name].double() - value.double()).norm() / value.double().norm().clamp(min=1e-300)
        assert gap <= tolerance, f"{name} differs by {gap:.1e}"
    assert mine["scale"] == other["scale"]


def refusals(ranks: Ranks, make: Any, config: TrainingConfig) -> str:
    """What two ranks say when they refuse, both the same and each in one line."""
    errors = [outcome.error for outcome in ranks(2).outcomes(train, make, config)]
    own = [error for error in errors if not isinstance(error, RankError)]
    assert own, errors
    for error in own:
        assert isinstance(error, ValueError), repr(error)
        assert "\n" not in str(error)
    for error in errors:
        assert error is not None
        assert str(own[0]) in str(error)
    return str(own[0])


# Joining.


def test_without_torchrun_the_group_is_this_process_alone():
    group = connect()
    assert (group.rank, group.world, group.joined, group.process_group) == (0, 1, False, None)
    assert not dist.is_initialized()


def one_rank() -> dict[str, Any]:
    group = connect()
    return {"world": group.world, "joined": group.joined, "initialised": dist.is_initialized()}


def test_one_rank_alone_is_joined_and_makes_no_process_group(ranks):
    assert ranks(1).run(one_rank) == [{"world": 1, "joined": True, "initialised": False}]


COMPLETE = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict.fromkeys(["RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]), "but RANK and MASTER_ADDR and MASTER_PO"),
        ({"MASTER_PORT": None}, "but MASTER_PORT of the environment is missing: start the ranks with torchrun"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE of the environment must be a whole number, got 'two'"),
        ({"WORLD_SIZE": "0"}, "RANK must be less than WORLD_SIZE 0, got 0"),
        ({"RANK": "-1"}, "RANK of the environment must be a whole number, got '-1'"),
        ({"RANK": "2"}, "RANK must be less than WORLD_SIZE 2, got 2"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK of the environment must be a whole number, got 'x'"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT of the environment must be a whole number of at most 65535, got"),
        ({"WORLD_SIZE": None, "TORCHELASTIC_RUN_ID": "x"}, "WORLD_SIZE"),
    ],
)
def test_an_environment_that_names_no_ranks_is_refused_in_one_line(monkeypatch, changed, message):
    for name, value in {**COMPLETE, **changed}.items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as refused:
        connect(timeout_seconds=1.0)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def with_a_group_of_its_own(port: int, make: Callable[[], Made], config: TrainingConfig) -> dict[str, Any]:
    """On a rank: leave the group, make one as any program does, and train."""
    rank, world = connect().rank, connect().world
    leave()
    for name in JOINED:
        del os.environ[name]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    group = connect()
    assert (group.rank, group.world, group.process_group) == (rank, world, dist.group.WORLD)
    assert connect() is group
    return train(make, config)


def test_a_process_group_of_the_programs_own_is_taken(ranks):
    # torch now and then aborts a process that leaves one group and makes another
    config = config_of(DDP)
    (alone,) = ranks(1).run(train, plain, config)
    try:
        for of_rank in ranks(2).run(with_a_group_of_its_own, free_port(), plain, config):
            assert_near(of_rank, alone, 1e-9)
    finally:
        ranks(2).part()


def overflowing_in_low_rows() -> Made:
    """fp16 overflows in the third and the fourth micro-batch, and only in rows of the embedding that rank 0 holds."""
    model, seen = gpt(torch.float32), []
    start = connect().rank

    def spoil(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if not output.requires_grad:
            return
        number = start + len(seen) * connect().world  # in a window of as many micro-batches as it has ranks, or alone
        seen.append(number)
        if number in (2, 3):
            output.register_hook(lambda gradient: gradient.masked_fill((inputs[0] < 66)[..., None], math.inf))

    model.token_embedding.register_forward_hook(spoil)
    return model, {}


@pytest.mark.parametrize(("world", "distributed"), [(2, DDP), (2, FSDP), (4, FSDP), (4, HYBRID)])
def test_an_overflow_in_one_ranks_parts_lowers_the_loss_scale_on_all(ranks, world, distributed):
    config = config_of(distributed, precision="fp16", gradient_accumulation_steps=4)
    (alone,) = ranks(1).run(train, overflowing_in_low_rows, config)
    assert alone["scale"] == 2.0**15
    for of_rank in ranks(world).run(train, overflowing_in_low_rows, config):
        assert_near(of_rank, alone, 2e-2)


def in_ddp() -> Made:
    return (DistributedDataParallel(gpt()) if connect().world > 1 else gpt()), {}


def after_fully_shard() -> Made:
    from torch.distributed.fsdp import fully_shard

    model = gpt()
    if connect().world > 1:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model, {}


def wholly_sharded_with_an_optimizer() -> Made:
    """One unit alone, which keeps its weights whole after a forward pass; and an optimizer of the caller's."""
    from torch.distributed.fsdp import fully_shard

    model = gpt()
    if connect().world > 1:
        fully_shard(model)
    return model, {"optimizer": torch.optim.AdamW(model.parameters(), lr=3e-3)}


class SometimesUsed(nn.Module):
    """A bigram with a second table for rows of some sums alone, as experts have it; and some weights for none."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.second = nn.Embedding(VOCABULARY, VOCABULARY), nn.Linear(VOCABULARY, VOCABULARY)
        self.never = nn.Parameter(torch.ones(5))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        logits = self.table(input_ids)
        (rows,) = (input_ids.sum(1) % 5 == 0).nonzero(as_tuple=True)
        return logits.index_add(0, rows, self.second(logits[rows])) if len(rows) else logits


class OneOfTwo(nn.Module):
    """A bigram that uses one of two tables of one size, by the sum of a micro-batch's tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.even, self.odd = nn.Embedding(VOCABULARY, VOCABULARY), nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.odd(input_ids) if int(input_ids.sum()) % 2 else self.even(input_ids)


class NeverUsed(OneOfTwo):
    """One that uses the same table for every micro-batch."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.even(input_ids)


def made_of(kind: type[nn.Module]) -> Made:
    torch.manual_seed(0)
    return kind().double(), {}


class Case(NamedTuple):
    """What some ranks train as one does."""

    distributed: DistributedConfig = DDP
    world: int = 2
    make: Callable[[], Made] = plain
    settings: dict[str, Any] | None = None
    optimizer: tuple[str, float] = ("adamw", 3e-3)
    tolerance: float = 1e-9


def in_floats(world: int, distributed: DistributedConfig, precision: str) -> Case:
    make, tolerance = partial(plain, dtype=torch.float32), 1e-4 if precision == "fp32" else 2e-2
    return Case(distributed, world, make, settings={"precision": precision}, tolerance=tolerance)


AVERAGED = {"average_weights": 0.8, "restore_best": True, "eval_steps": 2}
CASES = {
    **{f"dropout, {world} {way.strategy}": Case(way, world) for world in (2, 4) for way in (DDP, FSDP)},
    "dropout, 4 hybrid": Case(HYBRID, 4),
    **{
        f"{precision}, {way.strategy}": in_floats(world, way, precision)
        for world, way in ((2, DDP), (2, FSDP), (4, HYBRID))
        for precision in ("fp32", "bf16", "fp16")
    },
    "in DistributedDataParallel already": Case(make=in_ddp),
    "sharded already": Case(make=after_fully_shard),
    "sharded already, as one unit": Case(make=wholly_sharded_with_an_optimizer),
    **{
        f"weights that some of {world} ranks use, {kind}": Case(
            DDP, world, partial(made_of, SometimesUsed), optimizer=(kind, 0.1)
        )
        for world in (2, 3)
        for kind in ("adamw", "adam")
    },
    "muon": Case(optimizer=("muon", 1e-2)),
    # it divides the gradient of a key's bias by its own size: rounding
    "adafactor": Case(optimizer=("adafactor", 1e-2), tolerance=1e-5),
    "sgd of parts": Case(FSDP, optimizer=("sgd", 0.1)),
}
for _way in (DDP, FSDP):
    CASES |= {
        f"gradient checkpointing, {_way.strategy}": Case(_way, make=partial(plain, checkpointing=True)),
        f"weights that no rank uses, {_way.strategy}": Case(_way, make=partial(made_of, NeverUsed)),
        f"an average of the weights, {_way.strategy}": Case(_way, settings=AVERAGED),
        f"a validation of a sample, {_way.strategy}": Case(_way, world=3, settings={"eval_tokens": 90}),
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_run_of_many_ranks_is_that_of_one(ranks, case):
    kind, rate = case.optimizer
    config = config_of(case.distributed, **(case.settings or {}))
    config = replace(config, optimizer=OptimizerConfig(type=kind, learning_rate=rate))  # type: ignore[arg-type]
    (alone,) = ranks(1).run(train, case.make, config)
    for of_rank in ranks(case.world).run(train, case.make, config):
        assert_near(of_rank, alone, case.tolerance)


# Refusals.


def in_old_fsdp() -> Made:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(gpt(), device_id=torch.device("cpu")), {}


def optimizer_built_before_sharding() -> Made:
    model = gpt()
    return model, {"optimizer": torch.optim.AdamW(model.parameters())}


class Halving(torch.optim.SGD):
    """An optimizer of one's own."""


def sharded_with(kind: Callable[..., torch.optim.Optimizer], **settings: Any) -> Made:
    model, _ = after_fully_shard()
    parameters = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    return model, {"optimizer": kind(parameters, lr=0.1, **settings)}


class WithWeights(nn.Module):
    """A loss that learns a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, logits: Tensor, labels: Tensor, reduction: Any = "mean") -> Tensor:
        return next_token_loss(logits * self.scale, labels, reduction=reduction)


def loss_with_weights() -> Made:
    model, loss = gpt(), WithWeights()
    return model, {"loss_fn": loss, "optimizer": torch.optim.AdamW([*model.parameters(), *loss.parameters()])}


class Running(nn.Module):
    """A model with a running mean, as a BatchNorm has."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = gpt()
        self.register_buffer("mean", torch.zeros(VOCABULARY, dtype=torch.float64))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        logits = self.inside(input_ids, attention_mask)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * logits.detach().mean((0, 1))
        return logits - self.mean


def with_running_mean() -> Made:
    return Running(), {}


class SeesAll(nn.Module):
    """Attention that sees the whole row."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        return self.head(x + nn.functional.scaled_dot_product_attention(x, x, x))


@pytest.mark.parametrize(
    ("distributed", "make", "message"),
    [
        (
            FSDP,
            in_old_fsdp,
            "FullyShardedDataParallel cannot be trained here: give the model itself, or use fully_shard",
        ),
        (FSDP, optimizer_built_before_sharding, "optimizer must hold parameters of the model"),
        (FSDP, partial(sharded_with, Halving), "got Halving: take one of Adagrad"),
        (FSDP, partial(sharded_with, torch.optim.SGD, fused=True), "optimizer must be SGD with fused=False"),
        (DDP, loss_with_weights, "put weights of the loss into the model"),
        (FSDP, with_running_mean, "the model must not change its buffers with several ranks"),
        (FSDP, partial(made_of, SeesAll), "SeesAll sees the future: in a trial on"),
    ],
)
def test_what_several_ranks_cannot_train_is_refused_in_one_line(ranks, distributed, make, message):
    assert message in refusals(ranks, make, config_of(distributed))


def test_ranks_that_use_other_weights_of_a_sharded_model_are_refused_before_the_update(ranks):
    """torch would add up the gradient of one table on one rank and that of the other table on the other."""
    config = config_of(FSDP, gradient_accumulation_steps=2)
    said = refusals(ranks, partial(made_of, OneOfTwo), config)
    assert "the ranks of a sharded model must all use the same of its weights in a step" in said


@pytest.mark.parametrize(("kind", "told"), [("adafactor", "got Adafactor"), ("muon", "got MuonWithAdamW")])
def test_what_looks_at_whole_matrices_is_refused_by_its_name_where_weights_are_sharded(ranks, kind, told):
    config = replace(config_of(FSDP), optimizer=OptimizerConfig(type=kind))  # type: ignore[arg-type]
    assert told in refusals(ranks, plain, config)


# Validation.


def measured(max_tokens: int | None) -> dict[str, float]:
    """On a rank: six batches of a list, or the first of them."""
    return evaluate(gpt(), list(loaders("bucketed")[0]), group=connect(), max_tokens=max_tokens)


@pytest.mark.parametrize("max_tokens", [None, 1, 150])
def test_the_first_batches_of_a_list_are_the_same_for_every_number_of_ranks(ranks, max_tokens):
    (alone,) = ranks(1).run(measured, max_tokens)
    for of_rank in ranks(3).run(measured, max_tokens):
        assert of_rank == pytest.approx(alone, rel=1e-9, nan_ok=True)


def shards_after_a_broken_validation() -> dict[str, Any]:
    """On a rank: where a validation was broken off, and whether the model holds its parts alone again."""
    trainer, done = Trainer(gpt(), config_of(FSDP)), []

    def stop(number: int) -> None:
        done.append(number)
        if trainer.group.largest(trainer.group.rank == 1):  # one rank has got a signal
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        evaluate(trainer.runner, loaders("bucketed")[0], group=trainer.group, on_batch=stop)
    return {"done": done, "sharded": all(is_sharded(parameter) for parameter in trainer.model.parameters())}


def test_a_validation_that_is_broken_off_on_all_ranks_leaves_each_its_part_of_the_weights(ranks):
    assert ranks(2).run(shards_after_a_broken_validation) == [{"done": [2], "sharded": True}] * 2


# Shares.

window_sizes = st.integers(1, 9)


@given(length=st.integers(1, 9), world=st.integers(1, 6))
def test_every_micro_batch_of_a_window_is_computed_once_and_all_ranks_compute_equally_many(length, world):
    row = torch.ones(2, 3, dtype=torch.long)
    window = [{"input_ids": row * index, "attention_mask": row, "labels": row * index} for index in range(length)]
    parts = [share(window, Group(rank, world)) for rank in range(world)]
    assert len({len(part) for part in parts}) == 1
    real = [batch for part in parts for batch in part if (batch["labels"] != -100).any()]
    assert sorted(int(batch["input_ids"][0, 0]) for batch in real) == list(range(length))
    for rank, part in enumerate(parts):
        mine = [int(batch["input_ids"][0, 0]) for batch in part if (batch["labels"] != -100).any()]
        assert mine == list(range(rank, length, world))


@given(length=st.integers(1, 30), start=st.integers(0, 5), window=window_sizes, world=st.integers(1, 6), data=st.data())
def test_a_rank_reads_the_batches_that_its_shares_look_at_and_no_others(length, start, window, world, data):
    rank = data.draw(st.integers(0, world - 1))
    start = min(start * window, length)  # a run goes on at the start of a window
    looked_at = set()
    for first in range(start, length, window):
        size = min(window, length - first)
        mine = list(range(rank, size, world))
        looked_at |= {first + place for place in mine or [0]}
    read = Share(rank, world, window).of_epoch(list(range(length)), start)
    assert [index for index in read if index is not None] == sorted(looked_at)
    for first in range(0, length - start, window):
        share_of_none = read[first : first + window]
        mine = share_of_none[rank::world]
        assert all(batch is not None for batch in mine or share_of_none[:1])


def count_made(steps: int) -> tuple[int, int]:
    """On a rank: how many batches its training loader makes in so many steps, and its validation loader in a pass."""
    made = [0, 0]
    train_loader, val_loader = loaders("bucketed")

    def counted(loader: Loader, place: int) -> None:
        collate = loader.collate

        def count(rows: Tensor) -> Any:
            made[place] += 1
            return collate(rows)

        loader.collate = count  # type: ignore[method-assign]

    counted(train_loader, 0)
    counted(val_loader, 1)
    trainer = Trainer(gpt(), config_of(DDP, max_steps=steps, eval_steps=steps))
    trainer.train(train_loader, val_loader)
    return made[0], made[1]


def test_a_rank_makes_its_own_micro_batches_alone(ranks):
    (alone,) = ranks(1).run(count_made, 2)
    assert alone[0] >= 6
    # of three micro-batches in each of two windows: one each, and one that is looked at before the first step;
    # DataLoader makes none ahead without workers
    assert [made for made, _ in ranks(3).run(count_made, 2)] == [3, 3, 3]
    assert [made for made, _ in ranks(2).run(count_made, 2)] == [5, 3]
    # a fourth rank has none of its own, and makes the first of each window for its form
    assert [made for made, _ in ranks(4).run(count_made, 2)] == [3, 3, 3, 3]
