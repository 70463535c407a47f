"""Between log points a step leaves everything on the accelerator: the host reads no value and waits for nothing.

Where there is CUDA, torch itself raises at the first wait. Everywhere, the step runs on tensors without values (the
meta device), where any read raises; and on the CPU, where reads are counted.

What is allowed, for each step:

- labels on the host: one read, of their count (an int64 that never was on an accelerator), and one upload for each
  tensor of the micro-batches, which pinned memory makes asynchronous;
- labels on the accelerator: nothing;
- an optimizer that cannot skip by itself (anything but a fused Adam): one copy to the host, of one flag.
"""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import course_lm.step
from course_lm.averaging import WeightAverage
from course_lm.clipping import build_clip, clip_gradients
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.model import GPT
from course_lm.muon import MuonWithAdamW
from course_lm.optim import muon_groups
from course_lm.precision import Precision
from course_lm.step import train_step
from course_lm.trainer import Trainer
from tests.tiny import packed_batch, plain_batch, tiny_gpt

PRECISIONS = ("fp32", "bf16")
aten = torch.ops.aten
# Each of these hands a value or a shape that depends on values to Python: an accelerator would be waited for.
READS = {
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
}


class Traffic(TorchDispatchMode):
    """Writes down the type of every tensor that Python reads, and of every copy between host and meta device.

    A copy to the host would raise, so it gives zeros instead, as a flag that says "all is well". Uploads are those
    that wait for their end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[torch.dtype] = []
        self.to_host: list[torch.dtype] = []
        self.uploads: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket
        by_mask = name is aten.index and any(part is not None and part.dtype == torch.bool for part in args[1])
        if name in READS or by_mask:
            self.reads.append(args[0].dtype)
        if name in (aten._to_copy, aten.copy_):
            source = args[0] if name is aten._to_copy else args[1]
            target = torch.device(kwargs.get("device") or source.device) if name is aten._to_copy else args[0].device
            if source.is_meta and target.type != "meta":
                self.to_host.append(source.dtype)
                return torch.zeros(source.shape, dtype=source.dtype)
            if not source.is_meta and target.type == "meta" and not kwargs.get("non_blocking"):
                self.uploads.append(source.dtype)
        return func(*args, **kwargs)


def small_model(device: str = "cpu") -> GPT:
    return tiny_gpt(dtype=torch.float32, dropout=0.1).to(device)


def make_window(device: str = "cpu", *, pinned: bool = False) -> list[dict[str, Any]]:
    """Two micro-batches with padding."""
    window = [plain_batch([7, 4]), plain_batch([5, 9])]
    return [{name: part.pin_memory() if pinned else part.to(device) for name, part in one.items()} for one in window]


def make_packed(device: str) -> list[dict[str, Any]]:
    """One packed row of two documents and padding."""
    return [{name: part.to(device) for name, part in packed_batch([[3, 4]], pads=1).items()}]


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def observed_step(model: nn.Module, optimizer: torch.optim.Optimizer, window: Any, **settings: Any) -> Traffic:
    """What the second step of a run moves to the host; the first one makes the optimizer's state."""
    first, second = Traffic(), Traffic()
    for traffic in (first, second):
        with traffic:
            train_step(model, window, optimizer, lr=1e-3, **settings)
    return second


# On the CPU, in the branch of the update that an accelerator takes


@pytest.fixture
def deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course_lm.step, "_defers", lambda optimizer, precision, device: True)


SETTINGS: dict[str, dict[str, Any]] = {
    "in bf16": {"precision": Precision("bf16", "cpu")},
    "clipped": {"max_grad_norm": 1e-3},
    "not clipped": {"max_grad_norm": 1e3},
    "never clipped": {"max_grad_norm": None},
    "clipped by value": {"max_grad_norm": math.inf, "clip": build_clip(1e-3)},
    "clipped by both": {"max_grad_norm": 1e-3, "clip": build_clip(1e-3)},
}


@pytest.mark.parametrize("micro_batches", [2, 6])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_deferred_step_on_the_cpu_reads_the_count_of_the_labels_and_nothing_else(deferred, settings, micro_batches):
    model = small_model()
    model.register_buffer("seen", torch.zeros(3))  # kept on a skipped step without a look at whether it was one
    window = make_window() * (micro_batches // 2)
    assert observed_step(model, fused_adamw(model), window, **settings).reads == [torch.int64]


def test_a_step_that_is_not_deferred_reads_more_and_that_is_counted():
    model = small_model()
    traffic = observed_step(model, fused_adamw(model), make_window())
    assert traffic.reads[0] == torch.int64 and set(traffic.reads[1:]) == {torch.bool}


@pytest.mark.parametrize(
    "read",
    [Tensor.item, float, bool, Tensor.nonzero, lambda x: x[x > 0], lambda x: x.equal(x + 1)],
    ids=["item", "float", "bool", "nonzero", "index by mask", "equal"],
)
def test_each_kind_of_read_is_counted(read):
    with Traffic() as traffic:
        read(torch.tensor(1.0))
    assert len(traffic.reads) == 1


def test_a_clip_that_reads_the_norm_is_noticed(deferred):
    def reading_clip(parameters: list[Tensor], max_norm: float | None) -> Tensor:
        norm = clip_gradients(parameters, None)
        return clip_gradients(parameters, max_norm) if norm > 1 else norm

    model = small_model()
    traffic = observed_step(model, fused_adamw(model), make_window(), clip=reading_clip)
    assert traffic.reads == [torch.int64, torch.bool]


# On the meta device, where a tensor has no value that could be read


@pytest.fixture
def fused_on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch's fused Adam run on the meta device, which its list of devices leaves out."""
    adam = importlib.import_module("torch.optim.adam")
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda *_, **__: None)


@pytest.mark.parametrize("make", [make_window, make_packed])
def test_a_whole_step_on_tensors_without_values_moves_nothing(fused_on_meta, make):
    model = small_model("meta")
    traffic = observed_step(model, fused_adamw(model), make("meta"))
    assert (traffic.reads, traffic.to_host, traffic.uploads) == ([], [], [])
    assert all(part.is_meta for part in train_step(model, make("meta"), fused_adamw(model)))


def test_batches_on_the_host_cost_one_count_and_their_upload(fused_on_meta):
    model, window = small_model("meta"), make_window()
    traffic = observed_step(model, fused_adamw(model), window)
    assert (traffic.reads, traffic.to_host) == ([torch.int64], [])
    assert len(traffic.uploads) == 2 * len(window)  # ids and labels: a mask that hides nothing stays


CANNOT_SKIP: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, foreach=False, momentum=0.9),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=0.1, foreach=False),
    "muon": lambda model: MuonWithAdamW(muon_groups(model, 0.1), fused=False),
}


@pytest.mark.parametrize("build", CANNOT_SKIP.values(), ids=CANNOT_SKIP)
def test_an_optimizer_that_cannot_skip_by_itself_copies_one_flag(build):
    model = small_model("meta")
    traffic = observed_step(model, build(model), make_window("meta"))
    assert (traffic.to_host, traffic.uploads) == ([torch.bool], [])


def test_an_average_of_the_weights_moves_nothing():
    average, traffic = WeightAverage(small_model("meta"), 0.9), Traffic()
    with traffic, average.in_place():
        average.update(3)
    assert (traffic.reads, traffic.to_host, traffic.uploads) == ([], [], [])


# On CUDA, where torch raises at any wait

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def no_waiting() -> Iterator[Any]:
    """A context in which a wait for CUDA raises."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    yield context
    torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_the_debug_mode_notices_a_wait(no_waiting):
    value = torch.ones((), device="cuda")
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        value.item()


@needs_cuda
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("window", [{"device": "cuda"}, {"pinned": True}], ids=["on the device", "pinned"])
def test_a_step_never_waits_for_cuda(no_waiting, precision, window):
    model = small_model("cuda")
    optimizer, batches = fused_adamw(model), make_window(**window)
    settings = {"lr": 1e-3, "precision": Precision(precision, "cuda")}
    train_step(model, batches, optimizer, **settings)
    with no_waiting():
        results = [train_step(model, batches, optimizer, **settings) for _ in range(3)]
    assert all(torch.isfinite(result.loss) and not result.skipped for result in results)


@contextlib.contextmanager
def no_reading() -> Iterator[None]:
    """A context in which to read the results of steps raises, on any device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("course_lm.monitoring.records.column_of", None)
        yield


def trainer_on(device: str, precision: str) -> Trainer:
    chosen: dict[str, Any] = {"device": device, "precision": precision}
    loop = LoopConfig(**chosen, logging_steps=50, max_steps=9, output_dir=None)
    return Trainer(small_model(), TrainingConfig(training=loop))


def train_without_waiting(trainer: Trainer, batches: list[dict[str, Any]], context: Any) -> None:
    trainer.train_epoch(batches)  # the first epoch makes the optimizer's state
    end_epoch = trainer._end_epoch
    with contextlib.ExitStack() as watched:
        watched.enter_context(context())

        def end(*arguments: Any) -> None:
            assert trainer.step == 2  # it was taken inside the context; the line of an epoch is a log point
            watched.close()
            end_epoch(*arguments)

        trainer._end_epoch = end  # type: ignore[method-assign]
        trainer.train_epoch(batches)


@pytest.mark.parametrize(
    "device, precision", [("cpu", "fp32"), *(pytest.param("cuda", name, marks=needs_cuda) for name in PRECISIONS)]
)
def test_the_trainer_never_waits_between_log_points(device, precision, request):
    context = request.getfixturevalue("no_waiting") if device == "cuda" else no_reading
    trainer = trainer_on(device, precision)
    train_without_waiting(trainer, make_window(device) * 2, context)
    assert trainer.step == 2 and trainer.history.train == []
