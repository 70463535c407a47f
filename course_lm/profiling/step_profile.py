"""Where the time of an optimizer step goes, and what this machine could do at best."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.checkpoints import atomic_file
from course_lm.clipping import clip_gradients
from course_lm.display import BLUE, table
from course_lm.forward import AnyBatch, device_of
from course_lm.loss import next_token_loss
from course_lm.precision import Precision
from course_lm.profiling.display import draw_bars
from course_lm.profiling.events import TracedMarks, operations, read_events, recorded
from course_lm.profiling.machine import Clock, Machine, measure_machine, name_of
from course_lm.profiling.marks import OTHER, Marks
from course_lm.profiling.subject import Subject, subject_of
from course_lm.profiling.work import WorkCounter
from course_lm.validation import require_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOLERANCE = 0.05  # between steps with hooks and without
WARM_UP = 2  # steps before the first that is measured: memory is asked for, moments are made


@dataclass(frozen=True)
class Part:
    """One part of a step.

    Attributes:
        seconds: median over the measured steps.
        flops: of matrix products and attention, as `torch.utils.flop_counter` counts them.
        bytes: moved, by the estimate of `work.WorkCounter`.
        dtype: number format of most of its products, such as "bf16"; None where it has none.
        limit_seconds: the least that this work can take at the machine's measured rates; see `Machine.seconds`.
    """

    name: str
    seconds: float
    flops: int
    bytes: int
    dtype: str | None
    limit_seconds: float

    @property
    def share_of_limit(self) -> float | None:
        """How near the part comes to the machine's rates: 1 is as fast as they allow; None where it has no work.

        Above 1 its tensors are still in a cache when the next operation reads them, so that less is moved.
        """
        return self.limit_seconds / self.seconds if self.limit_seconds and self.seconds else None


@dataclass(frozen=True)
class StepProfile:
    """One optimizer step by its parts; `str()` is a table of them.

    Attributes:
        parts: the slowest first, and last "other": the undisturbed step less all other parts, not below 0. It is
            Python's own work outside the model, and what no part is charged with.
        step_seconds: median of steps without any hook, which took turns with the measured ones.
        marked_seconds: median of the measured steps, whose hooks take some time themselves.
        outside_seconds: of the step, all parts together, in which no operation of torch ran: Python between kernels. At
            least so many: from one step under torch's profiler, whose own time counts as that of operations.
        tokens: target tokens of a step, mean.
    """

    parts: tuple[Part, ...]
    step_seconds: float
    marked_seconds: float
    outside_seconds: float
    tokens: float
    machine: Machine
    events: bytes = field(repr=False, compare=False)

    @property
    def tokens_per_second(self) -> float:
        """Target tokens of a step by its seconds."""
        return self.tokens / self.step_seconds

    @property
    def disturbed(self) -> bool:
        """Whether steps with and without hooks differ by more than `TOLERANCE`, as under other load."""
        return abs(self.marked_seconds / self.step_seconds - 1) > TOLERANCE

    def __str__(self) -> str:
        """A table: milliseconds and share of the step, work, and how near the machine's rates each part comes."""
        head = ("part", "ms", "of step", "GFLOP", "MB moved", "least ms", "of limit")
        rows = [_row(part, self.step_seconds) for part in self.parts]
        found = sum(part.seconds for part in self.parts)
        total = ("all parts", f"{1e3 * found:.1f}", f"{found / self.step_seconds:.1%}", "", "", "", "")
        rates = [f"{name} products {rate / 1e9:,.0f} GFLOP/s" for name, rate in self.machine.flops_per_second.items()]
        rates.append(f"copies of the step's tensors {self.machine.bytes_per_second / 1e9:.1f} GB/s")
        step = f"a step takes {1e3 * self.step_seconds:.1f} ms: {self.tokens_per_second:,.0f} target tokens per second"
        lines = [
            table([head, *rows, total]),
            "",
            step,
            f"in at least {1e3 * self.outside_seconds:.1f} ms of it, over all parts, no operation of torch runs",
            f"this machine, threads {self.machine.threads}: {', '.join(rates)}",
        ]
        if self.disturbed:
            marked = f"{1e3 * self.marked_seconds:.1f} ms"
            lines.append(f"disturbed: steps with hooks take {marked}; quieten the machine, or raise repeats")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data."""
        numbers = asdict(self)
        del numbers["events"]
        parts = [{**asdict(part), "share_of_limit": part.share_of_limit} for part in self.parts]
        return {**numbers, "parts": parts, "disturbed": self.disturbed, "tokens_per_second": self.tokens_per_second}

    def draw(self, axes: "Axes") -> None:
        """Draw a bar for each part, and in it the least time that its work can take."""
        names = [part.name for part in self.parts]
        shares = [f"{part.seconds / self.step_seconds:.0%}" for part in self.parts]
        draw_bars(axes, names, [1e3 * part.seconds for part in self.parts], shares)
        least = [1e3 * min(part.limit_seconds, part.seconds) for part in self.parts]
        axes.barh(names, least, color=BLUE, height=0.4, label="the least, at this machine's rates")
        axes.legend(loc="lower right", frameon=False)
        axes.set(xlabel="milliseconds", title=f"a step of {1e3 * self.step_seconds:.1f} ms")

    def trace(self, path: str | Path) -> None:
        """Write the events of one step as a file that Perfetto (https://ui.perfetto.dev) and Chrome open."""
        with atomic_file(path) as file:
            file.write(self.events)


def profile_step(
    model: nn.Module,
    micro_batches: Iterable[AnyBatch],
    optimizer: Optimizer,
    *,
    accumulation_steps: int | None = None,
    precision: Precision | None = None,
    max_grad_norm: float | None = 1.0,
    clip: Callable[..., object] = clip_gradients,
    loss_fn: Callable[..., Tensor] = next_token_loss,
    repeats: int = 5,
) -> StepProfile:
    """Measure where the time of one optimizer step goes; afterwards nothing has changed.

    Steps with and without hooks take turns, so that what else the machine does falls on both. Two more steps count the
    work and write the trace. All have the learning rate 0, and weights, gradients, the optimizer, the random generators
    and the loader are put back as they were, to the bit.

    On CUDA the seconds are those of events in the stream. That is written and was never measured.

    Args:
        model, optimizer, precision, max_grad_norm, clip, loss_fn: as for `train_step`.
        micro_batches: a list of all micro-batches of a step, as `train_step` takes it; or a loader that can be read
            again, and then making the batches is a part, "data".
        accumulation_steps: of a loader: micro-batches of a step, 1 by default. Where its batches differ in size, the
            seconds are medians over unlike steps, and the work is that of one more.
        repeats: steps of each kind that are measured.

    Raises:
        TypeError, ValueError: an argument that `train_step` would refuse; a compiled model, whose parts cannot be told
            apart; a device other than a CPU or CUDA; a loader without a target.
        NonFiniteGradientError: the loss or the gradient is not finite.
    """
    require_whole("repeats", repeats, least=1)
    given = (model, micro_batches, optimizer, accumulation_steps, precision, max_grad_norm, loss_fn, clip)
    with subject_of(*given) as subject:
        clock = Clock(device_of(model))
        subject.warm_up(WARM_UP)
        plain, marked, parts, tokens = _take_turns(subject, clock, repeats)
        work = _count(subject)
        events = _trace(subject, clock.cuda)
    busy = sum(end - begin for begin, end in operations(read_events(events))) / 1e6
    machine = measure_machine(sum(work.products.values(), Counter()), work.sizes, device_of(model))
    step = median(plain)
    return StepProfile(
        _parts(parts, step, work, machine),
        step_seconds=step,
        marked_seconds=median(marked),
        outside_seconds=max(0.0, step - busy),
        tokens=fmean(tokens),
        machine=machine,
        events=events,
    )


def _take_turns(
    subject: Subject, clock: Clock, repeats: int
) -> tuple[list[float], list[float], dict[str, float], list[int]]:
    """Seconds of steps without hooks, of steps with hooks, the median of each part, and the tokens of a step."""
    plain, marked, parts, tokens = [], [], [], []
    for number in range(repeats):
        for hooked in (number % 2 == 0, number % 2 == 1):  # A B, B A, …
            marks = Marks(clock.read)
            begin = clock.read()
            if hooked:
                subject.marked_step(marks)
            else:
                subject.step()
            end = clock.read()
            clock.settle()
            assert subject.result is not None
            tokens.append(int(subject.result.tokens))
            (marked if hooked else plain).append(clock.seconds(begin, end))
            if hooked:
                parts.append(marks.totals(clock.seconds))
    names = dict.fromkeys(name for one in parts for name in one)
    return plain, marked, {name: median(one.get(name, 0.0) for one in parts) for name in names}, tokens


def _count(subject: Subject) -> WorkCounter:
    """FLOPs of each part, and the bytes it moves."""
    with WorkCounter(Marks()) as work:
        subject.marked_step(work.marks)
    return work


def _trace(subject: Subject, cuda: bool) -> bytes:
    """The events of one step, its parts among them."""
    marks = TracedMarks()

    def step() -> None:
        subject.marked_step(marks)
        marks.close()

    return recorded(step, cuda=cuda)


def _parts(seconds: dict[str, float], step: float, work: WorkCounter, machine: Machine) -> tuple[Part, ...]:
    """All parts, the slowest first, and what is left of the step."""
    found = []
    for name in (name for name in seconds if name != OTHER):
        formats, flops, moved = Counter[str](), work.flops[name], work.bytes[name]
        for (dtype, _), count in work.products[name].items():
            formats[name_of(dtype)] += count
        if flops and not formats:  # all inside a fused operation, whose products are not seen: the slowest format
            formats.update(sorted(machine.flops_per_second, key=machine.flops_per_second.__getitem__)[:1])
        dtype = max(formats, key=formats.__getitem__, default=None)
        found.append(Part(name, seconds[name], flops, moved, dtype, machine.seconds(flops, moved, dtype)))
    found.sort(key=lambda part: -part.seconds)
    rest = max(0.0, step - sum(part.seconds for part in found))
    return (*found, Part(OTHER, rest, 0, work.bytes[OTHER], None, 0.0))


def _row(part: Part, step: float) -> tuple[str, ...]:
    share = part.share_of_limit
    return (
        part.name,
        f"{1e3 * part.seconds:.1f}",
        f"{part.seconds / step:.1%}",
        f"{part.flops / 1e9:.2f}" if part.flops else "-",
        f"{part.bytes / 1e6:,.1f}" if part.bytes else "-",
        f"{1e3 * part.limit_seconds:.1f}" if part.limit_seconds else "-",
        f"{share:.0%}" if share is not None else "-",
    )
