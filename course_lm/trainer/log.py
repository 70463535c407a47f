"""The books of a run: its records, the steps that no record covers yet, and the observers that are told."""

import math
import time
from collections.abc import Iterable
from typing import Any, TypedDict

import torch
from torch import Tensor

from course_lm.loss import perplexity
from course_lm.monitoring import History, Observer, Observers, Throughput, peak_memory, summarise
from course_lm.monitoring.records import column_of
from course_lm.step import NonFiniteGradientError, StepResult
from course_lm.validation import ensure

MAX_SKIPPED_IN_A_ROW = 25  # fp16 may need 16: its scale starts at 2**16 and halves each time, down to 1
MAX_EMPTY_IN_A_ROW = 1_000


class Books(TypedDict):
    """The part of a run's state that `RunLog` keeps."""

    tokens: int
    skipped: int
    skipped_in_a_row: int
    empty_in_a_row: int
    epoch_step: int  # after which the running epoch began
    epoch_tokens: int  # of all steps before it
    epoch_nats: float  # its loss times its tokens as far as recorded, less that of earlier steps in its first record
    pending: dict[str, Tensor]  # the results that no record covers yet, each of their parts as one tensor (steps,)
    history: Tensor  # the bytes of a line of JSON for each record


class RunLog:
    """Counts tokens and skipped steps, and makes the records of a run.

    Attributes:
        history: takes every record. pending: results of the steps since the last record.
        device: whose peak memory is recorded. plain_loss: whether exp(loss) is a perplexity.
        flops: of the steps since the last record, this rank's; where `peak_flops` is known, the records have "mfu".
        tokens: target tokens of all recorded steps. skipped: skipped steps of the whole run, also empty ones.
        skipped_in_a_row: steps with a bad gradient since the last completed one.
        empty_in_a_row: steps without a target token since the last one that had some.
        epoch_step: the step after which the running epoch began.
    """

    def __init__(
        self,
        history: History,
        observers: Iterable[Observer],
        device: torch.device,
        *,
        plain_loss: bool,
        peak_flops: float | None = None,
    ) -> None:
        self.history, self.observers = history, Observers(observers)
        self.device, self.plain_loss = device, plain_loss
        self.throughput, self.flops, self.peak_flops = Throughput(), 0, peak_flops
        self.pending: list[StepResult] = []
        self.tokens = self.skipped = self.skipped_in_a_row = self.empty_in_a_row = 0
        self.begin_epoch(0)

    def start(self, step: int, total_steps: int | None) -> None:
        """Tell the observers that a run starts, or goes on, after `step` completed steps."""
        self.observers.start(step, total_steps)
        self._timed_from, self._began = step, time.perf_counter()
        # tokens of an earlier train() do not count for the speed of this one
        self.throughput.restart(self.tokens + int(summarise(self.pending)["tokens"]))
        self.flops = 0

    def add(self, result: StepResult, skipped: bool, step: int) -> None:
        """Take the result of one step; `step`: the number of completed steps, for the message.

        Raises:
            NonFiniteGradientError: `MAX_SKIPPED_IN_A_ROW` steps in a row had a gradient that was not finite.
            ValueError: `MAX_EMPTY_IN_A_ROW` in a row held no target token, as in a stream that will never hold one.
        """
        self.pending.append(result)
        self.skipped += skipped
        if skipped and not result.tokens:  # nothing to learn from: no fault of the gradient
            self.empty_in_a_row += 1
            if self.empty_in_a_row >= MAX_EMPTY_IN_A_ROW:
                raise ValueError(
                    f"{self.empty_in_a_row:,} steps in a row after step {step} held no target token: "
                    "look at the labels that the training loader gives"
                )
            return
        self.empty_in_a_row = 0
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise NonFiniteGradientError(
                f"{self.skipped_in_a_row} steps in a row were skipped after step {step}: every gradient was "
                f"NaN or infinite (last loss {float(result.loss):g})"
            )

    @property
    def has_new(self) -> bool:
        """Whether a step since the last record had a target token: the last window of a run may have none."""
        return any(bool(result.tokens) for result in self.pending)

    def take_pending(self, lr: float) -> dict[str, Any]:
        """Metrics of the steps since the last record, which count as recorded from now on."""
        metrics = self.pending_metrics(lr)
        if new := metrics["tokens"] - self.tokens:
            self.epoch_nats += metrics["loss"] * new
        self.pending, self.tokens, self.flops = [], metrics["tokens"], 0
        return metrics

    def pending_metrics(self, lr: float) -> dict[str, Any]:
        """Metrics of the steps since the last record; their perplexity is nan where they trained another loss."""
        metrics = summarise(self.pending)
        tokens = self.tokens + int(metrics["tokens"])
        speed = {"tokens_per_second": self.throughput.update(tokens)}
        if self.peak_flops is not None and self.throughput.seconds > 0:
            speed["mfu"] = self.flops / self.throughput.seconds / self.peak_flops
        return metrics | {
            "perplexity": perplexity(metrics["loss"]) if self.plain_loss else math.nan,
            "lr": lr,
            "tokens": tokens,
            "skipped": self.skipped,
            **speed,
            "peak_memory_bytes": peak_memory(self.device),
        }

    def record(self, event: str, step: int, epoch: int, **metrics: Any) -> None:
        """Add one record to the history and tell the observers."""
        record = {"event": event, "step": step, "epoch": epoch, **metrics}
        self.history.append(record)
        self.observers.log(record)

    def begin_epoch(self, step: int) -> None:
        """Count for a new epoch from `step` completed steps on."""
        nats, tokens = self._pending_nats()
        self.epoch_step, self.epoch_tokens, self.epoch_nats = step, self.tokens + tokens, -nats
        self._timed_from, self._began = step, time.perf_counter()

    def epoch_loss(self) -> float:
        """Mean loss over all target tokens of the running epoch, whichever session took them; nan for none."""
        nats, tokens = self._pending_nats()
        tokens += self.tokens - self.epoch_tokens
        return (self.epoch_nats + nats) / tokens if tokens else math.nan

    def end_epoch(self, step: int, epoch: int) -> None:
        """Say in one line what came of an epoch that ends; where this session has taken no step of it there is none."""
        if self.observers.active and step > self._timed_from:
            self.observers.say(self._describe_epoch(step, epoch))

    def _pending_nats(self) -> tuple[float, int]:
        pending = summarise(self.pending)
        return pending["loss"] * pending["tokens"] if pending["tokens"] else 0.0, int(pending["tokens"])

    def _describe_epoch(self, step: int, epoch: int) -> str:
        loss = self.epoch_loss()
        parts = [] if math.isnan(loss) else [f"train loss {loss:.4f}"]
        validation = next((one for one in reversed(self.history.records) if one["event"] == "validation"), None)
        if validation is not None and validation["step"] > self.epoch_step:
            at = "" if validation["step"] == step else f" after step {validation['step']:,}"
            parts.append(f"validation loss {validation['val_loss']:.4f}{at}")
            if not math.isnan(validation.get("bits_per_byte", math.nan)):
                parts.append(f"{validation['bits_per_byte']:.4f} bits per byte")
        since = "" if self._timed_from == self.epoch_step else f" since step {self._timed_from:,}"
        parts.append(f"{time.perf_counter() - self._began:.1f} s{since}")
        return f"epoch {epoch:,}, steps {self.epoch_step + 1:,} to {step:,}: {', '.join(parts)}"

    def state_dict(self) -> Books:
        """Counts, records, and the results that no record covers yet."""
        return {
            "tokens": self.tokens,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "empty_in_a_row": self.empty_in_a_row,
            "epoch_step": self.epoch_step,
            "epoch_tokens": self.epoch_tokens,
            "epoch_nats": self.epoch_nats,
            # this waits for an accelerator, as any saving does
            "pending": StepResult(*map(column_of, zip(*self.pending)))._asdict() if self.pending else {},
            "history": self.history.state_dict(),
        }

    def load_state_dict(self, state: Books) -> None:
        """Go on from what `state_dict` returned; an error where it is something else, and then nothing is changed."""
        columns = [column.flatten().clone() for column in StepResult(**state["pending"])] if state["pending"] else []
        lengths = [len(column) for column in columns]
        ensure(len(set(lengths)) < 2, f"the state's pending must be columns of one length, got {lengths}")
        ensure(not any(column.is_complex() for column in columns), "the state's pending must be real numbers")
        pending = [StepResult(*parts) for parts in zip(*columns)]
        summarise(pending)
        self.history.load_state_dict(state["history"])
        self.tokens, self.skipped, self.pending = state["tokens"], state["skipped"], pending
        self.skipped_in_a_row, self.empty_in_a_row = state["skipped_in_a_row"], state["empty_in_a_row"]
        self.epoch_step, self.epoch_tokens = state["epoch_step"], state["epoch_tokens"]
        self.epoch_nats = state["epoch_nats"]
