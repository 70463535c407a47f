"""Checkpoints of several ranks: any number of ranks reads them, damage is seen, code in them is not run."""

import hashlib
import json
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from course_lm.checkpoints import (
    CheckpointError,
    latest_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from course_lm.checkpoints.parts import SUMS
from course_lm.config import TrainingConfig
from course_lm.distributed import DistributedConfig, connect
from course_lm.loss import next_token_loss
from course_lm.schedules import ScheduleConfig
from course_lm.shards import is_sharded
from course_lm.trainer import Trainer
from tests.checkpoints.by_hand import beginning, sealed, taken_apart
from tests.distributed.pool import Ranks
from tests.full_disk import leaving_free, small_disk
from tests.training_run import NAME, assert_same, configure, loaders, model_of, without_measures

pytestmark = pytest.mark.filterwarnings("ignore:the checkpoint was saved with distributed")

SHARDED = DistributedConfig(strategy="fsdp", checkpoint="sharded")
FULL = DistributedConfig(strategy="fsdp", checkpoint="full")
DDP = DistributedConfig(strategy="ddp", checkpoint="sharded")
CONSTANT = ScheduleConfig(type="constant", warmup_steps=0)  # a run may become longer


def config_of(folder: Path, distributed: DistributedConfig, **training: Any) -> TrainingConfig:
    """Five steps of three micro-batches; a checkpoint after the second, the fourth and the last."""
    return replace(configure(folder, max_steps=5, **training), distributed=distributed)


def run(folder: Path, distributed: DistributedConfig) -> dict[str, Any]:
    """On a rank: train to the end, or go on to it; the whole state."""
    trainer = Trainer(model_of(), config_of(folder, distributed))
    trainer.train(loaders("bucketed")[0])
    return trainer.state_dict()


def run_averaged(folder: Path, distributed: DistributedConfig, steps: int) -> dict[str, Any]:
    """On a rank: train to this step, or go on to it, with an average of the weights; the whole state."""
    config = replace(config_of(folder, distributed, average_weights=0.8, eval_steps=1), lr_scheduler=CONSTANT)
    trainer = Trainer(model_of(), replace(config, training=replace(config.training, max_steps=steps)))
    trainer.train(*loaders("bucketed"))
    return trainer.state_dict()


def states_after_loading(path: Path, distributed: DistributedConfig) -> tuple[dict[str, Any], list[str]]:
    """On a rank: load a state; all of it, and the names of the weights of which this rank holds a part."""
    trainer = Trainer(model_of(), config_of(path.parent.parent, distributed))
    trainer.load_checkpoint(path)
    return trainer.state_dict(), [name for name, value in trainer.model.named_parameters() if is_sharded(value)]


@pytest.fixture(scope="module")
def kept(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run of four ranks that wrote its parts by themselves: its folder, which no test changes, and its end."""
    folder = tmp_path_factory.mktemp("kept")
    return folder / NAME, ranks(4).run(run, folder, SHARDED)[0]


@pytest.fixture
def damaged(kept: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy of that run's folder, to be damaged."""
    return Path(shutil.copytree(kept[0], tmp_path / NAME))


def shards_of(path: Path) -> Path:
    """The folder of this checkpoint's parts."""
    (folder,) = path.parent.glob(f"{path.stem}.*.shards")
    return folder


def first_shard(path: Path) -> Path:
    return min(shards_of(path).glob("*.safetensors"))


def same_values(mine: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal bit for bit, but for the settings of the ranks and what a machine measures."""
    mine, other = without_measures(mine), without_measures(other)
    assert_same({**mine, "config": None}, {**other, "config": None})


def test_four_ranks_write_one_file_of_parts_each_and_a_list_that_sha256sum_reads(kept):
    folder = shards_of(kept[0] / "checkpoint_last.safetensors")
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 5
    assert names[0] == SUMS
    assert os.system(f"cd '{folder}' && sha256sum --quiet --check {SUMS}") == 0


def test_one_process_reads_whole_tensors_equal_to_the_gathered_ones(kept):
    folder, state = kept
    same_values(load_checkpoint(folder / "checkpoint_last.safetensors"), state)


@pytest.mark.parametrize(
    ("world", "distributed"), [(1, FULL), (2, SHARDED), (2, DDP), (4, FULL)], ids=["1", "2-fsdp", "2-ddp", "4-fsdp"]
)
def test_any_number_of_ranks_reads_what_four_have_written(ranks, kept, world, distributed):
    folder, expected = kept
    for state, parts in ranks(world).run(states_after_loading, folder / "checkpoint_last.safetensors", distributed):
        same_values(state, expected)
        assert bool(parts) == (world > 1 and distributed.strategy == "fsdp")


def test_a_full_checkpoint_of_a_sharded_model_is_the_same_state_in_one_file(ranks, kept, tmp_path):
    (state, *_) = ranks(4).run(run, tmp_path, FULL)
    same_values(load_checkpoint(tmp_path / NAME / "checkpoint_last.safetensors"), state)
    same_values(state, kept[1])
    assert not list((tmp_path / NAME).glob("*.shards"))


@pytest.mark.parametrize("distributed", [SHARDED, FULL, DDP], ids=["sharded", "full", "ddp"])
def test_an_average_of_the_weights_goes_on_to_the_bit(ranks, tmp_path, distributed):
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    (expected, *_) = ranks(2).run(run_averaged, straight, distributed, 5)
    ranks(2).run(run_averaged, stopped, distributed, 2)
    (state, *_) = ranks(2).run(run_averaged, stopped, distributed, 5)
    same_values(state, expected)
    same_values(load_checkpoint(stopped / NAME / "checkpoint_last.safetensors"), state)
    assert bool(folders_in(stopped / NAME)) == (distributed is SHARDED)


class Running:
    """A loss that keeps a mean over the micro-batches of its rank, and fails at one of them."""

    def __init__(self, fails: int = 0) -> None:
        self.mean, self.fails, self.calls = 0.0, fails, 0

    def __call__(self, logits: Tensor, labels: Tensor, reduction: Any) -> Tensor:
        loss = next_token_loss(logits, labels, reduction=reduction)
        self.mean, self.calls = 0.9 * self.mean + float(loss.detach()) / 1000, self.calls + 1
        if self.calls == self.fails:
            raise OSError("the disk is gone")
        return loss * (1 + self.mean)


def run_with_means(folder: Path, distributed: DistributedConfig, steps: int, fails: int = 0) -> tuple[Any, list[str]]:
    """On a rank: train to this step, or go on to it; the whole state and what was warned of. Rank 1 alone `fails`."""
    config = replace(config_of(folder, distributed), lr_scheduler=CONSTANT)
    config = replace(config, training=replace(config.training, max_steps=steps))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = Trainer(model_of(), config, loss_fn=Running(fails * connect().rank))
        trainer.train(loaders("bucketed")[0])
    return trainer.state_dict(), [str(one.message) for one in caught if "each rank" in str(one.message)]


OF_RANK_0 = "each rank that saved the checkpoint may have had its own loss_fn.mean, .*: all go on with what rank 0 had"


@pytest.mark.parametrize("distributed", [SHARDED, DDP], ids=["sharded", "ddp"])
def test_what_each_rank_keeps_goes_on_and_another_number_of_ranks_takes_rank_0s_with_a_word(
    ranks, tmp_path, distributed
):
    straight = ranks(2).run(run_with_means, tmp_path / "straight", distributed, 5)
    assert straight[0][0]["own"]["loss_fn.mean"] != straight[1][0]["own"]["loss_fn.mean"]
    ranks(2).run(run_with_means, tmp_path / "stopped", distributed, 2)
    gone_on = ranks(2).run(run_with_means, tmp_path / "stopped", distributed, 5)
    for (state, told), (expected, _) in zip(gone_on, straight):
        same_values(state, expected)
        assert not told
    alone = Trainer(model_of(), replace(config_of(tmp_path, distributed), lr_scheduler=CONSTANT), loss_fn=Running())
    with pytest.warns(UserWarning, match=OF_RANK_0):
        alone.load_checkpoint(tmp_path / "stopped" / NAME / "checkpoint_last.safetensors")
    assert alone.own.state_dict() == straight[0][0]["own"]


def test_what_rank_0_has_saved_alone_is_its_own_and_all_ranks_say_so(ranks, tmp_path):
    ranks(2).outcomes(run_with_means, tmp_path, DDP, 5, 5, ends=True)
    path = tmp_path / NAME / "checkpoint_last.safetensors"
    assert load_checkpoint(path)["step"] == 2
    for state, told in ranks(2).run(run_with_means, tmp_path, DDP, 2):
        assert [bool(re.fullmatch(OF_RANK_0, one)) for one in told] == [True]
        assert state["own"] == load_checkpoint(path)["own"]


# Damage to the newest checkpoint: each is seen, and the one before it is used.


def flip_a_bit(newest: Path) -> None:
    shard = first_shard(newest)
    content = bytearray(shard.read_bytes())
    content[-5] ^= 16
    shard.write_bytes(content)


def remove_a_shard(newest: Path) -> None:
    first_shard(newest).unlink()


def add_a_file(newest: Path) -> None:
    shard = first_shard(newest)
    shutil.copy(shard, shard.with_name("shard-00009-model-00001-of-00001.safetensors"))


def edit_the_sums(newest: Path) -> None:
    flip_a_bit(newest)
    list_again(shards_of(newest))


def remove_the_sums(newest: Path) -> None:
    (shards_of(newest) / SUMS).unlink()


def put_the_older_parts_in_its_place(newest: Path) -> None:
    folder = shards_of(newest)
    shutil.rmtree(folder)
    shutil.copytree(shards_of(newest.with_name("checkpoint_step_4.safetensors")), folder)


DAMAGE: dict[Callable[[Path], None], str] = {
    flip_a_bit: "is damaged: its bytes do not match its checksum",
    remove_a_shard: "is missing",
    add_a_file: "has a file more, shard-00009-model-00001-of-00001.safetensors",
    edit_the_sums: f"{SUMS} is not the one that was written",
    remove_the_sums: f"{SUMS} is missing",
    put_the_older_parts_in_its_place: f"{SUMS} is not the one that was written",
}


def list_again(folder: Path) -> str:
    """Write a list of checksums that fits; its own digest."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    text = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (folder / SUMS).write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


def seal_again(path: Path, change: Callable[[dict[str, Any]], None] = lambda state: None) -> None:
    """Change the state in a checkpoint's one file, as it is written there, and let all checksums fit the parts."""
    header, body = taken_apart(path.read_bytes())
    about = header["__metadata__"]
    state = json.loads(about["state"])
    change(state)
    ordered = {"parts": list_again(shards_of(path)), "state": json.dumps(state)}
    header["__metadata__"] = beginning(format=about["format"], serial=about["serial"], step=about["step"], **ordered)
    path.write_bytes(sealed(header, body))


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_named_in_one_line_and_the_next_older_checkpoint_is_used(kept, damaged, damage):
    newest = damaged / "checkpoint_last.safetensors"
    damage(newest)
    with pytest.raises(CheckpointError, match=re.escape(DAMAGE[damage])) as refused:
        load_checkpoint(newest)
    assert str(newest) in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.warns(UserWarning, match=r"passing over a checkpoint: .*checkpoint_last\.safetensors"):
        found = latest_checkpoint(damaged)
    assert found is not None
    assert found.name == "checkpoint_step_4.safetensors"
    assert_same(load_checkpoint(found), load_checkpoint(kept[0] / "checkpoint_step_4.safetensors"))


def refused_load(path: Path) -> tuple[BaseException | None, dict[str, Any], dict[str, Any]]:
    """On a rank: what a load raises, and the trainer's state before and after."""
    trainer = Trainer(model_of(), config_of(path.parent.parent, SHARDED))
    before = trainer.state_dict()
    try:
        trainer.load_checkpoint(path)
        return None, before, before
    except Exception as error:
        return error, before, trainer.state_dict()


def test_a_damaged_checkpoint_changes_nothing_on_any_rank(ranks, damaged):
    flip_a_bit(damaged / "checkpoint_last.safetensors")
    for error, before, after in ranks(2).run(refused_load, damaged / "checkpoint_last.safetensors"):
        assert isinstance(error, CheckpointError)
        assert_same(after, before)


def test_ranks_go_on_from_the_older_one_and_end_where_they_had_ended(ranks, kept, damaged):
    flip_a_bit(damaged / "checkpoint_last.safetensors")
    for state in ranks(4).run(run, damaged.parent, SHARDED):
        same_values(state, kept[1])
    same_values(load_checkpoint(damaged / "checkpoint_last.safetensors"), kept[1])


# Files with code in them, or with lies, and checksums that fit.


class Payload:
    """Unpickling it creates a folder: harmless code that stands for any other."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def refused_in_one_line(path: Path) -> str:
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(path)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)
    return str(refused.value)


def test_a_shard_with_code_in_it_is_refused_and_not_run(damaged, tmp_path):
    path, target = damaged / "checkpoint_last.safetensors", tmp_path / "was_here"
    first_shard(path).write_bytes(pickle.dumps(Payload(target)))
    seal_again(path)
    refused_in_one_line(path)
    assert not target.exists()


@pytest.mark.parametrize("shape", [[2**40], [3, 5], None], ids=["larger by far", "another", "no list"])
def test_a_shape_that_does_not_fit_the_shards_is_refused_in_one_line(damaged, shape):
    def claim(state: dict[str, Any]) -> None:
        entry = next(value["$sharded"] for value in state["model"].values() if "$sharded" in value)
        entry[2] = shape  # behind the tensor's name there and the keys that lead to it

    seal_again(damaged / "checkpoint_last.safetensors", claim)
    refused_in_one_line(damaged / "checkpoint_last.safetensors")


def huge_offsets(header: dict[str, Any]) -> None:
    next(value for name, value in header.items() if name != "__metadata__")["data_offsets"] = [0, 2**50]


def renamed_tensor(header: dict[str, Any]) -> None:
    name = next(name for name in header if name != "__metadata__")
    header["other"] = header.pop(name)


@pytest.mark.parametrize("change", [huge_offsets, renamed_tensor], ids=lambda one: one.__name__)
def test_a_shard_with_a_header_that_lies_is_refused_in_one_line(damaged, change):
    path = damaged / "checkpoint_last.safetensors"
    shard = max(shards_of(path).glob("*.safetensors"))
    header, body = taken_apart(shard.read_bytes())
    change(header)
    text = json.dumps(header).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + body)
    seal_again(path)
    refused_in_one_line(path)


# Folders that no checkpoint needs.


def folders_in(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.shards")}


def test_each_folder_of_parts_belongs_to_one_checkpoint(kept):
    """Among them were some that the run itself has replaced or pruned."""
    paths = list(kept[0].glob("checkpoint_*.safetensors"))
    assert folders_in(kept[0]) == {shards_of(path).name for path in paths}
    assert len(paths) > 2


def test_what_a_killed_save_has_left_is_never_used_and_removed_at_the_next_save(damaged):
    left = damaged / "checkpoint_last.99.shards"
    shutil.copytree(shards_of(damaged / "checkpoint_last.safetensors"), left)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert latest_checkpoint(damaged) == damaged / "checkpoint_last.safetensors"
    before = folders_in(damaged) - {left.name}
    save_checkpoint(damaged / "checkpoint_step_6.safetensors", {"step": 6})
    assert folders_in(damaged) == before


def test_pruning_removes_the_parts_of_what_it_deletes_and_no_others(damaged):
    deleted = prune_checkpoints(damaged, 0)
    assert {path.name for path in deleted} >= {"checkpoint_step_4.safetensors"}
    remaining = list(damaged.glob("checkpoint_*.safetensors"))
    assert folders_in(damaged) == {shards_of(path).name for path in remaining}
    load_checkpoint(damaged / "checkpoint_last.safetensors")


def test_replacing_a_checkpoint_removes_the_parts_of_the_old_one(damaged):
    old = shards_of(damaged / "checkpoint_last.safetensors")
    save_checkpoint(damaged / "checkpoint_last.safetensors", {"step": 6})
    assert not old.exists()
    assert shards_of(damaged / "checkpoint_step_4.safetensors").exists()


def save_on_a_full_disk(folder: Path, distributed: DistributedConfig, free: int) -> BaseException | None:
    """On a rank: save twice under one name, the second time without room; what that raised."""
    trainer, group = Trainer(model_of(), config_of(folder, distributed)), connect()
    path = folder / "checkpoint_last.safetensors"
    trainer.save_checkpoint(path)
    filled = leaving_free(folder, free)
    group.leader_does(filled.__enter__)
    try:
        trainer.save_checkpoint(path)
    except Exception as error:
        return error
    finally:
        group.leader_does(lambda: filled.__exit__(None, None, None))
    return None


@pytest.mark.parametrize("distributed", [SHARDED, FULL], ids=["sharded", "full"])
@pytest.mark.parametrize("free", [0, 6_000], ids=["no room at all", "room for half a shard"])
def test_a_full_disk_costs_nothing_and_is_an_os_error_on_every_rank(ranks, tmp_path, distributed, free):
    with small_disk(tmp_path / "disk", 4) as folder:
        for error in ranks(2).run(save_on_a_full_disk, folder, distributed, free):
            assert isinstance(error, OSError), error
            assert "\n" not in str(error)
            assert "what was saved before is untouched" in str(error)
        assert load_checkpoint(folder / "checkpoint_last.safetensors")["step"] == 0
        save_checkpoint(folder / "checkpoint_step_1.safetensors", {"step": 1})
        assert len(folders_in(folder)) == (distributed is SHARDED)
