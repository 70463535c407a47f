"""A profile names what a step spends its time, work and memory on, adds up, and leaves no trace."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from course_lm import step
from course_lm.batching import make_loader
from course_lm.loss import next_token_loss
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig, build_optimizer, state_bytes
from course_lm.precision import Precision
from course_lm.profiling import OWNERS, Machine, StepProfile, machine, profile_memory, profile_step, step_profile
from course_lm.profiling.activations import stages
from course_lm.profiling.ledger import Block, Ledger
from course_lm.profiling.marks import Marks
from course_lm.profiling.parts import names_of
from course_lm.profiling.work import WorkCounter
from course_lm.step import train_step
from course_lm.tokenizer import train_tokenizer
from tests.lr_finder.test_trial import assert_same, everything

ROOT = Path(__file__).parents[2]
LAYERS, WIDTH, LENGTH, VOCABULARY, ROWS = 2, 32, 16, 64, 4
TOKENS = ROWS * LENGTH
PAUSE = 0.03  # seconds
DOCUMENTS = ["the cat sat on a mat and then it ran far away", "a dog slept under the bed", "it ran from us"] * 8


@pytest.fixture(autouse=True)
def quick_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs for each rate of the machine, which no test here reads."""
    monkeypatch.setattr(machine, "SECONDS", 0.0)


def make(checkpointing: bool = False, dropout: float = 0.1, optimizer: str = "adamw") -> tuple[GPT, Optimizer]:
    torch.manual_seed(0)
    model = GPT(ModelConfig(LAYERS, 2, WIDTH, dropout, checkpointing), VOCABULARY, LENGTH)
    return model, build_optimizer(model, OptimizerConfig(type=optimizer))  # type: ignore[arg-type]


def batch(rows: int = ROWS, length: int = LENGTH) -> dict[str, Any]:
    ids = torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def profiled(
    model: nn.Module, optimizer: Optimizer, batches: Any = None, repeats: int = 1, **options: Any
) -> StepProfile:
    return profile_step(model, batches or [batch()], optimizer, repeats=repeats, **options)


def flops_of(profile: StepProfile) -> dict[str, int]:
    return {part.name: part.flops for part in profile.parts if part.flops}


# Time


class Ticking(TorchDispatchMode):
    """A clock that each operation of torch moves on by the bytes of its results, and nothing else does."""

    moment = 0.0

    def perf_counter(self) -> float:
        return self.moment

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.moment += 1 + sum(one.nbytes for one in tree_leaves(out) if isinstance(one, Tensor))
        return out


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_operation_of_a_step_is_in_one_part(precision, checkpointing, monkeypatch):
    model, optimizer = make(checkpointing)
    with Ticking() as clock:
        monkeypatch.setattr(machine, "time", clock)
        monkeypatch.setattr(step_profile, "measure_machine", lambda *_: Machine({}, 1.0, 1))
        profile = profile_step(model, [batch()], optimizer, precision=Precision(precision, "cpu"), repeats=3)
    *named, other = profile.parts
    assert sum(part.seconds for part in profile.parts) == profile.step_seconds == profile.marked_seconds
    assert other.seconds < 0.05 * profile.step_seconds < sum(part.seconds for part in named)


class StoppedClock:
    """A clock that shows the same moment until someone waits."""

    moment = 0.0

    def perf_counter(self) -> float:
        return self.moment

    def wait(self) -> None:
        self.moment += 1.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    """What a profile reads in place of the time: nothing but a planted wait takes any."""
    stopped = StoppedClock()
    monkeypatch.setattr(machine, "time", stopped)
    return stopped


def seconds_of(profile: StepProfile) -> dict[str, float]:
    """Of the parts that took any."""
    return {part.name: part.seconds for part in profile.parts if part.seconds}


class Slow(nn.Linear):
    """A layer that waits before it works."""

    wait: Callable[[], None] = partial(time.sleep, PAUSE)

    def forward(self, input: Tensor) -> Tensor:
        type(self).wait()
        return super().forward(input)


def replace_up(model: GPT, kind: type[nn.Linear]) -> Optimizer:
    for block in model.blocks:
        block.up = kind(WIDTH, 4 * WIDTH)  # type: ignore[union-attr]
    return build_optimizer(model, OptimizerConfig())


def test_a_perceptron_that_waits_is_charged_with_it(clock, monkeypatch):
    monkeypatch.setattr(Slow, "wait", clock.wait)
    model, _ = make()
    assert seconds_of(profiled(model, replace_up(model, Slow))) == {"perceptron": LAYERS}


def test_a_forward_pass_that_is_repeated_is_charged_to_the_backward_pass(clock, monkeypatch):
    monkeypatch.setattr(Slow, "wait", clock.wait)
    model, _ = make(checkpointing=True)
    seconds = seconds_of(profiled(model, replace_up(model, Slow)))
    assert seconds == {"perceptron": LAYERS, "perceptron, backward": LAYERS}


def test_gelu_is_a_part_of_the_perceptron(clock, monkeypatch):
    gelu = nn.functional.gelu

    def slow_gelu(x: Tensor, approximate: str) -> Tensor:
        clock.wait()
        return gelu(x, approximate=approximate)

    monkeypatch.setattr(nn.functional, "gelu", slow_gelu)
    assert seconds_of(profiled(*make())) == {"perceptron": LAYERS}


def test_a_backward_pass_that_waits_is_charged_with_it(clock):
    model, optimizer = make()

    def waits(module: nn.Module, given: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: clock.wait())

    model.blocks[1].attention.qkv.register_forward_hook(waits)  # type: ignore[union-attr]
    assert seconds_of(profiled(model, optimizer)) == {"attention, backward": 1}


class Tokenising:
    """A loader that works whenever a batch is asked for."""

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self.wait = wait

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(3):
            self.wait()
            yield batch()


def test_a_loader_that_tokenises_in_the_loop_is_charged_as_data(clock):
    model, optimizer = make()
    assert seconds_of(profiled(model, optimizer, Tokenising(clock.wait))) == {"data": 1}


def test_a_loss_that_reads_each_token_is_charged_to_head_and_loss(clock):
    model, optimizer = make()

    def reads(logits: Tensor, labels: Tensor, *, reduction: str) -> Tensor:
        for token in labels.flatten():
            token.item()
            clock.wait()
        return next_token_loss(logits, labels, reduction="sum")

    assert seconds_of(profiled(model, optimizer, loss_fn=reads)) == {"head and loss": TOKENS}


def test_an_optimizer_that_waits_is_charged_with_it(clock):
    class Waits(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            clock.wait()
            return super().step(closure)

    model, _ = make()
    assert seconds_of(profiled(model, Waits(model.parameters(), lr=0.1))) == {"optimizer": 1}


def test_what_no_part_does_is_other(clock, monkeypatch):
    model, optimizer = make()
    monkeypatch.setattr(model, "zero_grad", lambda set_to_none: clock.wait())
    assert seconds_of(profiled(model, optimizer)) == {"other": 1}


def test_what_follows_the_backward_pass_does_not_belong_to_it(clock, monkeypatch):
    monkeypatch.setattr(step, "check_gradients", lambda *_: clock.wait())
    assert seconds_of(profiled(*make())) == {"other": 1}


def test_time_in_which_no_operation_runs_is_told():
    model, _ = make()
    assert profiled(model, replace_up(model, Slow)).outside_seconds > PAUSE  # of a pause in each layer


def test_the_parts_stand_in_the_order_of_their_time_and_the_rest_comes_last():
    profile = profiled(*make())
    seconds = [part.seconds for part in profile.parts[:-1]]
    assert all(before >= after for before, after in pairwise(seconds))
    assert profile.parts[-1].name == "other"


# Work


def expected_flops() -> dict[str, int]:
    """Of the forward pass, two for each multiplication: L layers, N tokens, width D, vocabulary V."""
    linear = 2 * TOKENS * LAYERS * WIDTH * WIDTH
    return {
        "attention": 4 * linear + 4 * TOKENS * LENGTH * LAYERS * WIDTH,  # query, key, value, out; scores, and mixing
        "perceptron": 8 * linear,
        "head and loss": 2 * TOKENS * WIDTH * VOCABULARY,
    }


def test_the_flops_of_each_part_are_those_of_its_matrices():
    expected = expected_flops()
    backward = {f"{name}, backward": 2 * flops for name, flops in expected.items()}
    assert flops_of(profiled(*make(), precision=Precision("bf16", "cpu"))) == expected | backward


def test_fused_attention_is_counted_too():
    expected = expected_flops()
    scores = 4 * TOKENS * LENGTH * LAYERS * WIDTH  # which the fused kernel computes once more
    flops = flops_of(profiled(*make(), precision=Precision("fp32", "cpu")))
    assert flops["attention"] == expected["attention"]
    assert flops["attention, backward"] == 2 * expected["attention"] + scores // 2


def test_a_forward_pass_that_checkpointing_repeats_belongs_to_the_backward_pass():
    bf16 = Precision("bf16", "cpu")
    plain, again = (flops_of(profiled(*make(repeated), precision=bf16)) for repeated in (False, True))
    assert again == plain | {
        f"{name}, backward": plain[f"{name}, backward"] + plain[name] for name in ("attention", "perceptron")
    }


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixing, self.shaping = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.shaping(self.mixing(x))


class Foreign(nn.Module):
    """Any model: no attention, names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"words": nn.Embedding(VOCABULARY, 8), "layers": nn.ModuleList([Layer(), Layer()])})
        self.readout = nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.body["words"](input_ids)
        for layer in self.body["layers"]:  # type: ignore[union-attr]
            x = layer(x)
        return self.readout(x)


def test_the_parts_of_another_model_have_the_names_of_its_modules():
    names = set(names_of(Foreign()).inside.values())
    layers = {"body.layers", "body.layers.mixing", "body.layers.shaping"}
    assert names == {"Foreign", "body.words", "readout"} | layers


def test_the_flops_of_another_model_are_those_that_torch_counts_in_a_plain_step():
    model = Foreign()
    optimizer = torch.optim.AdamW(model.parameters())
    with FlopCounterMode(display=False) as counter:
        train_step(model, [batch()], optimizer, lr=0.0)
    profile = profiled(model, optimizer)
    assert sum(part.flops for part in profile.parts) == counter.get_total_flops()
    assert flops_of(profile)["body.layers.mixing, backward"] == 2 * 2 * 2 * TOKENS * 8 * 8


def bytes_of(work: Callable[[], object]) -> int:
    with WorkCounter(Marks()) as counter:
        work()
    return counter.bytes[counter.marks.part]


def test_an_operation_moves_what_it_reads_and_what_it_writes():
    x, y, table, ids = torch.ones(10, 4), torch.ones(10, 4), torch.ones(1000, 4), torch.arange(10)
    assert bytes_of(lambda: x + y) == 3 * 160
    assert bytes_of(lambda: x.add_(y)) == 3 * 160
    assert bytes_of(lambda: x.copy_(y)) == 2 * 160  # x is not read
    assert bytes_of(lambda: x.view(4, 10).t()) == bytes_of(lambda: torch.empty(100)) == 0
    assert bytes_of(lambda: x[:1].expand(10, 4) + y) == 16 + 2 * 160
    assert bytes_of(lambda: nn.functional.embedding(ids, table)) == 80 + 2 * 160  # the rows that are taken


def test_the_bytes_of_adamw_are_read_and_written_once():
    model, optimizer = make()
    (found,) = (part for part in profiled(model, optimizer).parts if part.name == "optimizer")
    weights = sum(parameter.nbytes for parameter in model.parameters())
    counters = 4 * len(list(model.parameters()))
    # weights, gradients and both moments are read; torch's schema says that the kernel may write all four
    assert found.bytes == pytest.approx(8 * weights, abs=8 * counters)


def test_the_least_time_is_that_of_the_products_or_of_the_traffic():
    rates = Machine({"fp32": 100.0}, bytes_per_second=10.0, threads=1)
    assert rates.seconds(flops=500, moved=20, dtype="fp32") == 5.0
    assert rates.seconds(flops=500, moved=70, dtype="fp32") == 7.0
    assert rates.seconds(flops=0, moved=20, dtype=None) == 2.0


# Memory


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "adafactor"])
def test_weights_gradients_and_moments_have_the_bytes_that_they_have(optimizer):
    model, made = make(optimizer=optimizer)
    totals = profile_memory(model, [batch()], made).totals
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    train_step(model, [batch()], made)
    assert totals == {"weights": weights, "gradients": weights, "moments": state_bytes(made)}


@pytest.mark.parametrize("mode", ["packed", "dynamic"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_owners_add_up_with_batches_of_a_loader(precision, mode):
    model = GPT(ModelConfig(LAYERS, 2, WIDTH, gradient_checkpointing=True), 270, LENGTH)
    optimizer = build_optimizer(model, OptimizerConfig())
    memory = profile_memory(model, loader(mode), optimizer, accumulation_steps=2, precision=Precision(precision, "cpu"))
    assert memory.found_bytes == pytest.approx(memory.peak_bytes, rel=0.01)


FIRST = """
import torch
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig, build_optimizer
from course_lm.precision import Precision
from course_lm.profiling import profile_memory

model = GPT(ModelConfig(2, 2, 32, 0.1, True), 64, 16)
ids = torch.ones(16, 16, dtype=torch.long)
one = {"input_ids": ids, "attention_mask": ids, "labels": ids}
memory = profile_memory(model, [one], build_optimizer(model, OptimizerConfig()), precision=Precision("bf16", "cpu"))
print(memory.found_bytes, memory.peak_bytes)
"""


def test_the_owners_add_up_when_nothing_else_has_run_in_the_process():
    # with two threads, for each of which a matrix product asks for buffers
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    ran = subprocess.run(
        [sys.executable, "-c", FIRST], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    found, peak = map(int, ran.stdout.split())
    assert found == pytest.approx(peak, rel=0.01)


def test_what_an_operation_needs_inside_itself_is_a_workspace():
    size = 2**21

    def greedy(x: Tensor) -> Tensor:
        torch.zeros(size, dtype=torch.uint8)
        return x.clone()

    def greedy_loss(logits: Tensor, labels: Tensor, *, reduction: str) -> Tensor:
        torch.ops.profiling_tests.greedy(logits.detach())
        return next_token_loss(logits, labels, reduction="sum")

    library = torch.library.Library("profiling_tests", "DEF")
    try:
        library.define("greedy(Tensor x) -> Tensor")
        library.impl("greedy", greedy, "CPU")
        memory = profile_memory(*make_step(), loss_fn=greedy_loss)
    finally:
        library._destroy()
    assert memory.owners["workspaces"] == size
    assert memory.moment == "head and loss"


def given_and_freed(*changes: tuple[float, int, int]) -> list[dict[str, Any]]:
    """Events of an allocator: moment, address, bytes; one operation runs from 10 to 20, a part of it from 12 to 14."""
    operations = [("aten::mm", 10, 10), ("aten::empty", 12, 2)]
    return [{"name": name, "cat": "cpu_op", "ts": begin, "dur": time} for name, begin, time in operations] + [
        {"name": "[memory]", "ts": moment, "args": {"Addr": address, "Bytes": count, "Device Type": 0}}
        for moment, address, count in changes
    ]


def owners_of(*changes: tuple[float, int, int]) -> list[tuple[int, str | None]]:
    ledger = Ledger({1: Block(100, "weights")})
    ledger.replay(given_and_freed(*changes), torch.device("cpu"))
    assert ledger.peak == sum(block.bytes for block in ledger.at_peak)
    return [(block.bytes, block.owner) for block in ledger.at_peak]


@pytest.mark.parametrize(
    ("changes", "block"),
    [
        ([(13, 2, 5), (19, 2, -5)], (5, "workspaces")),
        ([(13, 2, 5), (21, 2, -5)], (5, None)),  # it outlives its operation
        ([(3, 2, 5), (4, 2, -5)], (5, None)),  # in no operation
        ([(11, 7, -50), (12, 2, 5)], (5, None)),  # somebody else's is freed
        ([(3, 2, 5), (4, 2, 6)], (6, None)),  # another thread has freed it, and its address is given again
    ],
)
def test_a_workspace_is_freed_in_the_operation_that_asked_for_it(changes, block):
    assert owners_of(*changes) == [(100, "weights"), block]


@pytest.mark.parametrize("dropout", [0.0, 0.1])  # without it a repeated forward pass is broken off before its end
def test_activations_that_checkpointing_makes_anew_are_activations(dropout):
    torch.manual_seed(0)
    model = GPT(ModelConfig(LAYERS, 2, 64, dropout, gradient_checkpointing=True), 8, LENGTH)  # with next to no logits
    ids = batch(64)["input_ids"] % 8
    memory = profile_memory(
        model, [{**batch(64), "input_ids": ids, "labels": ids}], build_optimizer(model, OptimizerConfig())
    )
    planned = max(stage.activations for stage in stages(model.config, 8, LENGTH, 64, "fp32", "cpu"))
    assert memory.moment == "perceptron, backward"
    assert memory.owners["activations"] == pytest.approx(planned, rel=0.2)


def make_step() -> tuple[GPT, list[dict[str, Any]], Optimizer]:
    model, optimizer = make()
    return model, [batch()], optimizer


# No trace


def loader(mode: str = "packed") -> Any:
    return make_loader(DOCUMENTS, train_tokenizer(DOCUMENTS, 270), mode=mode, batch_size=2, max_length=LENGTH)


@pytest.mark.parametrize("steps", [0, 2], ids=["fresh", "used"])
@pytest.mark.parametrize("profile", [profiled, profile_memory], ids=["time", "memory"])
def test_a_profile_leaves_no_trace(profile, steps):
    torch.manual_seed(0)
    model = GPT(ModelConfig(1, 2, WIDTH), 270, LENGTH)
    optimizer = build_optimizer(model, OptimizerConfig())
    data = loader()
    running = iter(data)
    for _ in range(steps):
        train_step(model, [next(running)], optimizer)
    before, place = everything(model, optimizer), data.state_dict()
    if profile is profiled:
        profiled(model, optimizer, data, accumulation_steps=2)
    else:
        profile_memory(model, data, optimizer, accumulation_steps=2)
    assert_same(everything(model, optimizer), before)
    assert data.state_dict() == place
    hooks = [one._forward_hooks or one._forward_pre_hooks for one in model.modules()]
    assert not any(hooks) and not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_a_step_that_fails_leaves_no_trace_either():
    model, optimizer = make()
    before = everything(model, optimizer)

    def failing(logits: Tensor, labels: Tensor, *, reduction: str) -> Tensor:
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        profiled(model, optimizer, loss_fn=failing)
    assert_same(everything(model, optimizer), before)
    assert not any(one._forward_hooks for one in model.modules())


def test_the_given_precision_keeps_its_scale():
    model, optimizer = make()
    precision = Precision("fp16", "cpu")
    before = precision.state_dict()
    profiled(model, optimizer, precision=precision)
    assert precision.state_dict() == before


def test_a_loader_gives_windows_of_the_accumulation_steps():
    torch.manual_seed(0)
    model = GPT(ModelConfig(1, 2, WIDTH), 270, LENGTH)
    optimizer = build_optimizer(model, OptimizerConfig())
    one, three = (profiled(model, optimizer, loader(), accumulation_steps=count, repeats=2) for count in (1, 3))
    assert flops_of(three) == {name: 3 * flops for name, flops in flops_of(one).items()}


# What is shown


@pytest.fixture(scope="module")
def shown() -> StepProfile:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "SECONDS", 0.0)
        return profiled(*make())


def test_the_table_has_a_row_for_each_part_and_the_machines_rates(shown):
    lines = str(shown).splitlines()
    assert [line[: len(part.name)] for line, part in zip(lines[1:], shown.parts)] == [p.name for p in shown.parts]
    assert "fp32 products" in str(shown) and max(map(len, lines)) <= 120


def test_the_trace_holds_the_parts_as_ranges(shown, tmp_path):
    shown.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ranges = {event["name"] for event in events if event.get("cat") == "user_annotation"}
    assert {part.name for part in shown.parts} <= ranges


def test_the_pictures_have_a_bar_for_each_part_and_each_owner(shown):
    for profile, names in ((shown, [part.name for part in shown.parts]), (profile_memory(*make_step()), list(OWNERS))):
        profile.draw(axes := Figure().subplots())
        assert [label.get_text() for label in axes.get_yticklabels()] == names


def test_steps_that_other_load_has_slowed_are_named(shown):
    calm = replace(shown, marked_seconds=1.04 * shown.step_seconds)
    assert "disturbed" not in str(calm)
    assert "disturbed" in str(replace(shown, marked_seconds=1.06 * shown.step_seconds))


# Refusals


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        (batch(), {}, "micro_batches must be a list of batches or a loader, got dict"),
        (iter([batch()]), {}, "micro_batches must be a list of batches or a loader, got list_iterator"),
        (7, {}, "micro_batches must be a list of batches or a loader, got int"),
        ([], {}, "micro_batches must be at least one batch, got"),
        ([{**batch(), "labels": torch.full((ROWS, LENGTH), -100)}], {}, "must hold a target token"),
        ([batch()], {"accumulation_steps": 2}, "accumulation_steps is for a loader, got 2"),
        (Tokenising(), {"accumulation_steps": 0}, "accumulation_steps must be a whole number of at least 1, got 0"),
        (Tokenising(), {"accumulation_steps": 9}, "holds no 9 batches in a row"),
        ([batch()], {"precision": "bf16"}, "precision must be a Precision"),
        ([batch()], {"max_grad_norm": -1.0}, "max_grad_norm must be a positive number"),
    ],
)
@pytest.mark.parametrize("profile", [profile_step, profile_memory], ids=["time", "memory"])
def test_what_cannot_be_profiled_is_refused_in_one_line(profile, batches, options, message):
    model, optimizer = make()
    with pytest.raises((TypeError, ValueError), match=message) as refused:
        profile(model, batches, optimizer, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("repeats", [0, 1.5, True])
def test_repeats_are_counted_in_whole_numbers(repeats):
    with pytest.raises(ValueError, match="repeats must be a whole number of at least 1"):
        profiled(*make(), repeats=repeats)


def test_a_compiled_model_is_refused():
    model, optimizer = make()
    compiled = nn.Sequential()
    compiled._orig_mod = model  # as torch.compile does, whose import takes seconds
    with pytest.raises(ValueError, match="must not be compiled"):
        profiled(compiled, optimizer)
