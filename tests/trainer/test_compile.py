"""What `training.compile` compiles, when "auto" does, and that a compiled run is the same run."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from course_lm.batching import labels_of
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.loss import next_token_loss
from course_lm.model import GPT, ModelConfig
from course_lm.optim import OptimizerConfig
from course_lm.trainer import Trainer
from course_lm.trainer.run import compiling_pays
from tests.records import Recorder

VOCABULARY, WIDEST = 50, 64
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


def model(dropout: float = 0.0) -> GPT:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=1, n_head=2, d_model=16, dropout=dropout), VOCABULARY, WIDEST)


def batches(count: int, *, ragged: bool) -> list[dict[str, Tensor]]:
    """Some padded and some not; where they are ragged, of all widths and numbers of rows."""
    drawn = torch.Generator().manual_seed(1)
    made = []
    for index in range(count):
        rows, width = torch.randint(1, 60, (2,), generator=drawn).tolist() if ragged else (4, 32)
        ids = torch.randint(VOCABULARY, (rows % 6 + 1, width + 2), generator=drawn)
        mask = torch.ones_like(ids)
        mask[:, width + index % 2 + 1 :] = 0
        made.append({"input_ids": ids, "attention_mask": mask, "labels": labels_of(ids, mask)})
    return made


def trainer(output_dir: Any = None, *, dropout: float = 0.0, loss_fn: Any = None, **training: Any) -> Trainer:
    settings: dict[str, Any] = {
        "gradient_accumulation_steps": 2,
        "max_steps": 30,
        "precision": "fp32",
        "logging_steps": 1,
    } | training
    config = TrainingConfig(
        optimizer=OptimizerConfig(learning_rate=1e-2),
        training=LoopConfig(output_dir=output_dir and str(output_dir), **settings),
    )
    return Trainer(model(dropout), config, loss_fn=loss_fn)


def losses_of(one: Trainer) -> list[float]:
    return [record["loss"] for record in one.history.records if record["event"] == "train"]


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are compiled, which run as they are."""
    found: list[Any] = []
    compile = torch.compile

    def backend(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", lambda what: compile(what, backend=backend))
    return found


def test_batches_of_all_shapes_are_compiled_a_few_times_and_train_the_same(graphs):
    data = batches(60, ragged=True)
    plain, compiled = trainer(compile=False), trainer(compile=True)
    for one in (plain, compiled):
        one.train(data)
    assert losses_of(compiled) == pytest.approx(losses_of(plain), rel=1e-6)
    assert len(graphs) <= 8  # a model and a loss: for the first shape, for any, for one row, and for a row's PAD


def test_the_model_is_one_graph_and_its_loss_another(graphs):
    trainer(compile=True).train(batches(60, ragged=False))
    assert len(graphs) == 2


@pytest.mark.parametrize(
    "loss_fn, alone",
    [(partial(next_token_loss, z_loss=1e-4), False), (lambda *given, **how: next_token_loss(*given, **how), True)],
)
def test_a_loss_of_ones_own_is_not_compiled(loss_fn, alone, graphs):
    trainer(compile=True, loss_fn=loss_fn, max_steps=2).train(batches(4, ragged=False))
    assert len(graphs) == (1 if alone else 2)


def test_a_compiled_run_that_stops_goes_on_to_the_same_bits(tmp_path):
    def run(folder: str, *ends: int) -> Trainer:
        for end in ends:
            one = trainer(tmp_path / folder, dropout=0.1, compile=True, max_steps=6, save_steps=1)
            one.log.observers.active.append(Stop(one, end))
            one.train(data)
        return one

    class Stop(Recorder):
        def __init__(self, stopped: Trainer, end: int) -> None:
            super().__init__()
            self.stopped, self.end = stopped, end

        def log(self, record: dict[str, Any]) -> None:
            if record["step"] == self.end:
                self.stopped.stop()

    data = batches(12, ragged=False)
    straight, stopped = run("straight", 6), run("stopped", 4, 6)
    assert straight.step == stopped.step == 6
    assert losses_of(straight) == losses_of(stopped)
    for one, other in zip(straight.model.parameters(), stopped.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "asked, device, steps, minutes, pays",
    [
        ("auto", CUDA, 10**9, None, True),
        ("auto", CUDA, 100, None, False),
        ("auto", CUDA, None, None, False),
        ("auto", CUDA, None, 30.0, True),
        ("auto", CUDA, 10**9, 1.0, False),
        ("auto", CPU, 10**9, 30.0, False),
        (False, CUDA, 10**9, 30.0, False),
    ],
)
def test_a_long_run_on_cuda_compiles_by_itself(asked, device, steps, minutes, pays, monkeypatch):
    monkeypatch.setattr("course_lm.trainer.run.has_triton", lambda: True)
    config = TrainingConfig(training=LoopConfig(compile=asked, time_budget=minutes))
    assert compiling_pays(config, model(), device, steps) == pays
    monkeypatch.setattr("course_lm.trainer.run.has_triton", lambda: False)
    assert not compiling_pays(config, model(), device, steps)


def test_a_run_that_chooses_to_compile_says_so_once(graphs, monkeypatch, capsys):
    monkeypatch.setattr("course_lm.trainer.run.compiling_pays", lambda *given: True)
    one = trainer(max_steps=2)
    one.train(batches(4, ragged=False))
    assert capsys.readouterr().out.count("the model is compiled") == 1 and len(graphs) == 2
