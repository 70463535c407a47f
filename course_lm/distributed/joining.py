"""Joining the ranks that torchrun has started."""

import os
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from course_lm.distributed.ranks import Group
from course_lm.validation import one_line, require

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NAME = "course_lm"  # of what the ranks write into the store
_SECONDS_TO_ASK = 10.0
_one: dict[str, Group] = {}  # the group that this process has joined, under "group"


def connect(timeout_seconds: float = 600.0) -> Group:
    """Join the ranks that torchrun has started; without torchrun, a group of one.

    A process group that the program has made itself is taken as it is. Called again, it returns the same group. Where
    torchrun starts the processes anew after a failure (`--max-restarts`), each start has names of its own in the store
    that torchrun keeps: what the last start left there is not taken for this one's.

    Args:
        timeout_seconds: how long a rank waits for another, here and in every exchange.

    Raises:
        ValueError: the environment names ranks, but not all that is needed to find them; or several machines may be
            started anew over one store.
        TimeoutError: not all ranks came within the time.
        RuntimeError: an error has parted the ranks before; nothing is left to join.
    """
    if "group" in _one and _one["group"].failed:
        raise RuntimeError("the ranks have parted after an error: start the run again")
    if dist.is_available() and dist.is_initialized():
        return _known(timeout_seconds)
    _one.clear()  # a group that was left
    environment = _environment(os.environ)
    if environment is None:
        return Group()
    rank, world, local_rank = environment
    if world == 1:
        return Group(joined=True)
    try:
        store = _store(rank, world, timeout_seconds)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=store,
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout_seconds),
        )
    except RuntimeError as error:
        raise TimeoutError(
            f"rank {rank} could not join the {world} ranks within {timeout_seconds:g} s "
            f"(distributed.timeout_seconds): {one_line(error)}"
        ) from error
    _one["group"] = Group(
        rank,
        world,
        local_rank=local_rank,
        process_group=dist.group.WORLD,
        store=PrefixStore(_NAME, store),
        timeout_seconds=timeout_seconds,
        joined=True,
    )
    return _one["group"]


def joined_group() -> Group | None:
    """The group that this process has joined, also where an error has parted it; None for a group of one."""
    return _one.get("group")


def speaks_first() -> bool:
    """Whether this process prints an error: of the ranks that torchrun has started, the first that has one.

    A rank may have one before it has joined the others, such as a misspelt key. Then it asks torchrun's own store,
    for torchrun ends the other ranks as soon as one has ended, and none of them may have said why.
    """
    if (group := joined_group()) is not None:
        return group.speaks_first()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True  # nobody can be asked: a line too many is better than none
    try:
        environment = _environment(os.environ)
        if environment is None:
            return True
        rank, world, _ = environment
        return PrefixStore(_NAME, _store(rank, world, _SECONDS_TO_ASK)).add("said", 1) == 1
    except ValueError:  # the environment is no good, which all ranks say
        return os.environ.get("RANK", "0") == "0"
    except RuntimeError:
        return True


def leave() -> None:
    """Take leave of the other ranks, at the end of a program; where there are none, nothing happens."""
    if _one.pop("group", None) is not None and dist.is_initialized():
        dist.destroy_process_group()


def _known(timeout_seconds: float) -> Group:
    """The group joined before, or one around a process group of the program's own."""
    if "group" not in _one or _one["group"].process_group is not dist.group.WORLD:
        rank, world = dist.get_rank(), dist.get_world_size()
        _one["group"] = Group(
            rank,
            world,
            local_rank=int(os.environ.get("LOCAL_RANK", rank)),
            process_group=dist.group.WORLD if world > 1 else None,
            timeout_seconds=timeout_seconds,
            joined=True,
        )
    return _one["group"]


def _environment(variables: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Rank, number of ranks, and rank on this machine; None where no ranks are named."""
    if variables.get("WORLD_SIZE", "1") == "1" and "TORCHELASTIC_RUN_ID" not in variables:
        return None
    missing = [name for name in _NEEDED if name not in variables]
    if missing:
        raise ValueError(
            f"WORLD_SIZE is {variables.get('WORLD_SIZE')}, but {' and '.join(missing)} of the environment is missing: "
            "start the ranks with torchrun, or unset WORLD_SIZE"
        )
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        text = variables.get(name, variables["RANK"])
        require(text.isdecimal(), f"{name} of the environment", "a whole number", text)
        numbers[name] = int(text)
    rank, world, local_rank = numbers.values()
    require(rank < world, "RANK", f"less than WORLD_SIZE {world}", rank)
    return rank, world, local_rank


def _store(rank: int, world: int, timeout_seconds: float) -> Store:
    """Where the ranks find each other."""
    # torchrun may keep the store in a process of its own, which outlives the ranks (pytorch/pytorch issue 135712)
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    restarts = int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0))
    machines = os.environ.get("LOCAL_WORLD_SIZE", str(world)) != str(world)
    if kept and restarts and machines:
        # each machine counts its own restarts, so the count names no start of all
        raise ValueError(
            "torchrun would start several machines anew over one store, where they could meet what an earlier start "
            "left: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, or --max-restarts 0"
        )
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    fits = port.isdecimal() and int(port) <= 65535
    require(fits, "MASTER_PORT of the environment", "a whole number of at most 65535", port)
    wait = timedelta(seconds=timeout_seconds)
    store = dist.TCPStore(address, int(port), world, is_master=rank == 0 and not kept, timeout=wait)
    return PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
