"""The ranks of a run, how they share a window out, and what they say to each other besides gradients.

All ranks take every decision together: on a sum or a maximum over all of them, or by rank 0, which tells the others. A
group of one decides at once, and makes no collective call.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from course_lm.batching import IGNORE_INDEX, AnyBatch, Share
from course_lm.batching.data import digest_of
from course_lm.reproducibility import resolve_device
from course_lm.validation import one_line

_T = TypeVar("_T")
_BAD_INPUT = (ValueError, OSError, ImportError)
_COPIED = (BlockingIOError, FileNotFoundError, PermissionError, OSError, ValueError, FloatingPointError, MemoryError)
_SECONDS_FOR_A_WORD = 10.0  # the error of a rank that died arrives at once, its last words a moment later


class RankError(RuntimeError):
    """Another rank has failed, and the run with it.

    Attributes:
        exit_code: what that rank's process ends with.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Group:
    """The processes that train one model together.

    Attributes:
        rank: this process among them, from 0. world: how many there are.
        local_rank: this process among those of its machine.
        process_group: torch's group of all ranks; None for a group of one.
        joined: whether torchrun has started them, be it one alone.
        failed: whether an error has parted them for good.
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        *,
        local_rank: int = 0,
        process_group: dist.ProcessGroup | None = None,
        store: Store | None = None,
        timeout_seconds: float = 600.0,
        joined: bool = False,
    ) -> None:
        self.rank, self.world, self.local_rank, self.joined = rank, world, local_rank, joined
        self.process_group, self.timeout_seconds = process_group, timeout_seconds
        self._store = store
        self.failed = False
        self._first: bool | None = None  # whether this rank is the first to speak, once it has asked

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which alone writes and prints."""
        return self.rank == 0

    def device_for(self, name: str) -> torch.device:
        """The device on which this rank computes, of the kind that `training.device` names.

        Raises:
            ValueError: this machine has none of that kind, or fewer than ranks, or ranks cannot talk on it.
        """
        device = resolve_device(name)
        if self.world == 1 or device.type == "cpu":
            return device
        if device.type != "cuda":
            raise ValueError(f"training.device {device.type!r} takes one process, got {self.world}: use cpu or cuda")
        count = torch.cuda.device_count()
        if self.local_rank >= count:
            raise ValueError(f"this machine has {count} CUDA devices, got rank {self.local_rank} of it: start fewer")
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def share_of(self, window: int) -> Share:
        """Which batches this rank reads where `window` of them are shared out at a time."""
        return Share(self.rank, self.world, window)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, on each of them."""
        if self.world == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total, group=self.process_group)
        return total

    def largest(self, number: int) -> int:
        """The largest of all ranks' numbers, on each of them."""
        if self.world == 1:
            return number
        value = torch.tensor(number)  # on the CPU, where asking for it waits for no accelerator
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.process_group)
        return int(value)

    def tell(self, value: _T) -> _T:
        """Rank 0's value, on each rank; what the others give is not looked at."""
        if self.world == 1:
            return value
        box = [value if self.leads else None]
        dist.broadcast_object_list(box, group=self.process_group, device=torch.device("cpu"))
        return box[0]  # type: ignore[return-value]

    def gather(self, value: _T) -> list[_T]:
        """The values of all ranks, in their order, on each of them."""
        values = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value, group=self.process_group)
        return values

    def leader_does(self, function: Callable[[], _T]) -> _T:
        """Let rank 0 alone call the function; each rank gets what it returns, or raises what it raises."""
        if self.world == 1:
            return function()
        outcome: tuple[Any, Exception | None] = None, None
        if self.leads:
            try:
                outcome = function(), None
            except Exception as error:
                with suppress(Exception):  # where the others cannot be told, this rank's own error ends the run
                    self.tell((None, _plain_copy(error)))
                raise
        value, error = self.tell(outcome)
        if error is not None:
            raise error
        return value

    @contextmanager
    def one_fate(self) -> Iterator[None]:
        """Let an error of this rank end all ranks, and one of theirs end this rank.

        After an error the ranks have parted: each wait for this rank ends at once, and none can be taken up again.

        Raises:
            RankError: another rank has failed; its message, or that it died without one.
            TimeoutError: a rank did not answer within the time that `connect` was given.
        """
        if self.world == 1:
            yield
            return
        if self.failed:
            raise RuntimeError("the ranks have parted after an error: start the run again")
        try:
            yield
        except BaseException as error:
            if self.failed:
                raise  # an inner block has seen to it
            self.failed = True
            why = self._why_lost(error) if _is_lost_connection(error) else None
            if not isinstance(error, RankError):
                self._leave_word(why or error)
            with suppress(Exception):  # no other rank is to wait for this one
                dist.destroy_process_group()
            if why is not None:
                vars(why)["__notes__"] = vars(error).pop("__notes__", [])  # what it says of the saving stands last
                raise why from error
            raise

    def speaks_first(self) -> bool:
        """Whether this rank is the first to ask: of an error that several ranks have, one line is printed."""
        if self._first is None:
            try:
                self._first = self.leads if self._store is None else self._store.add("said", 1) == 1
            except RuntimeError:  # rank 0 keeps the store, and has ended
                self._first = False
        return self._first

    def _why_lost(self, error: BaseException) -> Exception:
        """What ended the connection to another rank, as an error in one line."""
        late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
        deadline = time.monotonic() + (1.0 if late else _SECONDS_FOR_A_WORD)
        while time.monotonic() < deadline:
            with suppress(RuntimeError):
                if self._store is not None and self._store.check(["error"]):
                    told = json.loads(self._store.get("error"))
                    return RankError(f"rank {told['rank']}: {told['message']}", told["exit_code"])
            time.sleep(0.05)
        if late:
            return TimeoutError(
                f"rank {self.rank} has waited for another rank for {self.timeout_seconds:g} s "
                "(distributed.timeout_seconds): one of them hangs, or does another thing than the others"
            )
        return RankError(
            f"rank {self.rank} has lost its connection to another rank, which died without a word ({one_line(error)})"
        )

    def _leave_word(self, error: BaseException) -> None:
        """Write down, for the others, why this rank ends; the first word counts."""
        self.speaks_first()  # asks now: who reads the word has only this rank's message to print
        message = " ".join(str(error).split()) or type(error).__name__
        told = {"rank": self.rank, "message": message, "exit_code": exit_code_of(error)}
        with suppress(RuntimeError):
            if self._store is not None:
                self._store.compare_set("error", "", json.dumps(told))


def share(window: Sequence[AnyBatch], group: Group) -> list[AnyBatch]:
    """The micro-batches of a window that this rank computes: of W ranks, rank r takes r, r + W, r + 2W, …

    Every rank gets equally many, for the ranks of a sharded model meet in each pass: where there is none left for a
    rank, it gets one without a target. So with more ranks than micro-batches the surplus ranks work for nothing. Only a
    rank's own micro-batches are looked at, or the first one where it has none: the others may be None.
    """
    mine = list(window[group.rank :: group.world])
    missing = math.ceil(len(window) / group.world) - len(mine)
    if missing:
        mine += [without_targets(mine[0] if mine else window[0])] * missing
    return mine


def check_same_batches(window: Sequence[AnyBatch], group: Group) -> None:
    """Raise ValueError, on every rank, where the batches of a rank are not those of rank 0.

    Each rank takes its share of the same window: a loader must not share its data out a second time. Batches of our own
    loaders are not all there, and need no look.
    """
    if group.world == 1 or group.largest(any(batch is None for batch in window)):
        return
    mine = [digest_of(batch) for batch in window]
    if group.largest(group.tell(mine) != mine):
        raise ValueError(
            "the ranks must read the same batches, of which each takes its share, got others on some than on rank 0: "
            "give every rank the same loader with the same seed, and no DistributedSampler"
        )


def without_targets(batch: AnyBatch) -> AnyBatch:
    """The first row of a batch, with no target."""
    row: dict[str, Any] = {name: value[:1] if isinstance(value, Tensor) else value for name, value in batch.items()}
    return {**row, "labels": torch.full_like(row["labels"], IGNORE_INDEX), "num_bytes": 0}


def exit_code_of(error: BaseException) -> int:
    """What a command ends with: 2 for bad input, 1 for a run that failed, 130 for Ctrl-C; or what it says itself."""
    if (code := getattr(error, "exit_code", None)) is not None:
        return code
    if isinstance(error, KeyboardInterrupt):
        return 130
    if isinstance(error, TimeoutError):  # an OSError too
        return 1
    return 2 if isinstance(error, _BAD_INPUT) else 1


def _is_lost_connection(error: BaseException) -> bool:
    """Whether a collective call failed because another rank did not take part in it."""
    if isinstance(error, RankError) or not isinstance(error, RuntimeError):
        return False
    signs = ("gloo", "nccl", "connection closed", "connection reset", "timed out", "timeout", "broken pipe")
    return isinstance(error, dist.DistError) or any(sign in str(error).lower() for sign in signs)


def _plain_copy(error: Exception) -> Exception:
    """The error as one that every process can build, without what hangs on it."""
    for kind in _COPIED:
        if isinstance(error, kind):
            if isinstance(error, OSError) and error.errno is not None:
                return kind(error.errno, error.strerror, error.filename)
            return kind(str(error))
    return RankError(f"rank 0: {type(error).__name__}: {one_line(error)}")
