"""Claims about the code that a run is made of: other code in the same folder is another run, a comment is none."""

import functools
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from course_lm.loss import LossConfig, build_loss, next_token_loss
from course_lm.trainer import Trainer, resume
from course_lm.trainer.code import digest_of, digests_of_modules
from tests.training_run import configure, loaders, model_of

HEAD = "import functools, torch\nfrom torch import nn\nfrom course_lm.loss import next_token_loss\n"
LOSS = """
FACTOR = 0.5
class Settings:
    power = 1
    def __init__(self, shift): self.shift = shift
def helper(value): return value * FACTOR
def make(scale, weights, settings):
    count = 0
    def loss(logits, labels, reduction="mean", offset=0.0):
        '''A loss.'''
        nonlocal count
        count += 1
        value = helper(next_token_loss(logits, labels, reduction=reduction)) * scale + offset + settings.shift
        return (value * weights.sum() * options["gain"]) ** settings.power
    return loss
options = {"gain": 1.0}
part = make(2.0, torch.ones(2), Settings(0.0))
"""
MODEL = """
def act(x): return x.relu()
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.calls, self.act = 1.0, 0, act
        self.seen = {}
        self.table, self.head = nn.Embedding(300, 8), nn.Linear(8, 300)
    def mix(self, x): return x * self.scale
    def forward(self, input_ids, attention_mask=None):
        # a comment
        self.calls += 1
        self.seen["tokens"] = input_ids
        return self.head(self.act(self.mix(self.table(input_ids))))
    def other(self): return 1
class Model(Block):
    def forward(self, input_ids, attention_mask=None): return super().forward(input_ids)
part = Model()
"""


def made(source: str, *changes: tuple[str, str]) -> Any:
    """What a cell of a notebook calls `part`, with these changes in it."""
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    cell = types.ModuleType("__main__")
    exec(HEAD + source, vars(cell))
    return vars(cell)["part"]


@pytest.mark.parametrize(
    "change",
    [
        ("* scale", "/ scale"),
        ("make(2.0", "make(3.0"),
        ("torch.ones(2)", "torch.zeros(2)"),
        ("Settings(0.0)", "Settings(1.0)"),
        ("power = 1", "power = 2"),
        ("FACTOR = 0.5", "FACTOR = 0.25"),
        ("value * FACTOR", "value / FACTOR"),
        ("offset=0.0", "offset=1.0"),
        ('"gain": 1.0', '"gain": 2.0'),
    ],
)
def test_a_loss_that_computes_something_else_has_another_digest(change):
    assert digest_of(made(LOSS, change)) != digest_of(made(LOSS))


@pytest.mark.parametrize(
    "change",
    [("'''A loss.'''", "'''Another text.'''"), ("nonlocal count", "nonlocal count  # why"), ("count = 0", "count = 7")],
)
def test_words_and_counts_are_no_part_of_the_digest(change):
    assert digest_of(made(LOSS, change)) == digest_of(made(LOSS))


@pytest.mark.parametrize(
    "change",
    [
        ("x * self.scale", "x / self.scale"),
        ("self.scale, self.calls, self.act = 1.0", "self.scale, self.calls, self.act = 2.0"),
        ("x.relu()", "x.tanh()"),
        ("self.act(self.mix(", "self.mix(self.act("),
    ],
)
def test_a_model_that_computes_something_else_has_another_digest(change):
    assert digests_of_modules(made(MODEL, change)) != digests_of_modules(made(MODEL))


@pytest.mark.parametrize(
    "change",
    [
        ("# a comment", "\n"),
        ("self.calls, self.act = 1.0, 0", "self.calls, self.act = 1.0, 9"),
        ("return 1", "return 2"),
        ("self.seen = {}", "self.seen = {1: 2}"),
    ],
)
def test_what_no_forward_pass_reads_is_no_part_of_a_model(change):
    assert digests_of_modules(made(MODEL, change)) == digests_of_modules(made(MODEL))


def test_what_libraries_bring_has_no_digest():
    assert digests_of_modules(nn.Sequential(nn.Linear(2, 2), model_of())) == {}
    for part in (
        next_token_loss,
        build_loss(LossConfig(z_loss=0.1)),
        F.cross_entropy,
        len,
        nn.CrossEntropyLoss(),
        None,
    ):
        assert digest_of(part) is None


def test_decorators_partials_methods_and_lambdas_are_seen_through():
    def of(kind: str, factor: float) -> object:
        def own(x: Any, by: float = 1.0) -> Any:
            return x * factor * by

        class Holder:
            def __init__(self) -> None:
                self.factor = factor

            def __call__(self, x: Any) -> Any:
                return self.method(x)

            def method(self, x: Any) -> Any:
                return x * self.factor

        return {
            "decorated": torch.no_grad()(own),
            "partial": functools.partial(own, by=factor),
            "method": Holder().method,
            "object": Holder(),
            "lambda": lambda x: x * factor,
        }[kind]

    for kind in ("decorated", "partial", "method", "object", "lambda"):
        assert digest_of(of(kind, 1.0)) == digest_of(of(kind, 1.0)) != digest_of(of(kind, 2.0)), kind


# Runs


def trained(folder: Path, model: nn.Module | None = None, **parts: Any) -> Trainer:
    trainer = Trainer(model or model_of(), configure(folder, num_epochs=1), **parts)
    trainer.train(*loaders("fixed", 6))
    return trainer


CHANGES: dict[str, tuple[Any, Any]] = {
    "loss": ({"loss_fn": made(LOSS)}, {"loss_fn": made(LOSS, ("value * FACTOR", "value / FACTOR"))}),
    "loss of one's own": ({}, {"loss_fn": made(LOSS)}),
    "clip": ({"clip": lambda p, n: clip_grad_norm_(p, n)}, {"clip": lambda p, n: clip_grad_norm_(p, n / 2)}),
    "schedule": ({"schedule": lambda k: 1e-2 / (k + 1)}, {"schedule": lambda k: 1e-2 / (k + 1.0)}),
    "schedule of one's own": ({}, {"schedule": lambda k: 0.0}),
    "model": ({"model": made(MODEL)}, {"model": made(MODEL, ("x * self.scale", "x / self.scale"))}),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_with_other_code_is_refused_in_one_line_and_the_same_code_goes_on(tmp_path, what, capsys):
    first, second = CHANGES[what]
    trained(tmp_path, **first)
    trained(tmp_path, **first)
    assert "resumed" in capsys.readouterr().out
    with pytest.raises(ValueError) as caught:
        trained(tmp_path, **second)
    assert resume.WHAT_TO_DO in str(caught.value) and "\n" not in str(caught.value)


def test_after_an_upgrade_a_module_that_prints_otherwise_is_warned_of(tmp_path, monkeypatch):
    trained(tmp_path)
    monkeypatch.setattr(resume, "__version__", "99")
    monkeypatch.setattr(nn.Linear, "extra_repr", lambda self: "new words")
    with pytest.warns(UserWarning, match="the model is not the one of the checkpoint.* for .*new words"):
        trained(tmp_path)


def test_code_of_another_python_is_not_compared(tmp_path):
    old = {"libraries": "x", "loss_fn": "own, digest cpython-310 00"}
    resume.compare_parts({**old, "loss_fn": "own, digest cpython-311 11"}, old)
