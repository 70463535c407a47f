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
from course_lm.model import GPT, ModelConfig
from course_lm.trainer import Trainer, resume
from course_lm.trainer.code import digest_of, digests_of_modules
from tests.training_run import LENGTH, VOCABULARY, configure, loaders, model_of

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


def digests(source: str, *changes: tuple[str, str]) -> object:
    part = made(source, *changes)
    return digests_of_modules(part) if isinstance(part, nn.Module) else digest_of(part)


@pytest.mark.parametrize(
    ("source", "change"),
    [
        (LOSS, ("* scale", "/ scale")),
        (LOSS, ("make(2.0", "make(3.0")),
        (LOSS, ("torch.ones(2)", "torch.zeros(2)")),
        (LOSS, ("Settings(0.0)", "Settings(1.0)")),
        (LOSS, ("power = 1", "power = 2")),
        (LOSS, ("FACTOR = 0.5", "FACTOR = 0.25")),
        (LOSS, ("value * FACTOR", "value / FACTOR")),
        (LOSS, ("offset=0.0", "offset=1.0")),
        (LOSS, ('"gain": 1.0', '"gain": 2.0')),
        (MODEL, ("x * self.scale", "x / self.scale")),
        (MODEL, ("self.scale, self.calls, self.act = 1.0", "self.scale, self.calls, self.act = 2.0")),
        (MODEL, ("x.relu()", "x.tanh()")),
        (MODEL, ("self.act(self.mix(", "self.mix(self.act(")),
    ],
)
def test_what_computes_something_else_has_another_digest(source, change):
    assert digests(source, change) != digests(source)


@pytest.mark.parametrize(
    ("source", "change"),
    [
        (LOSS, ("'''A loss.'''", "'''Another text.'''")),
        (LOSS, ("nonlocal count", "nonlocal count  # why")),
        (LOSS, ("count = 0", "count = 7")),
        (MODEL, ("# a comment", "\n")),
        (MODEL, ("self.calls, self.act = 1.0, 0", "self.calls, self.act = 1.0, 9")),
        (MODEL, ("return 1", "return 2")),
        (MODEL, ("self.seen = {}", "self.seen = {1: 2}")),
    ],
)
def test_words_counts_and_what_no_forward_pass_reads_are_no_part_of_the_digest(source, change):
    assert digests(source, change) == digests(source)


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


def test_a_function_that_reads_a_name_without_a_value_yet_has_a_digest():
    def loss(x):
        return later(x)

    if loss is None:
        later = abs
    assert digest_of(loss) is not None


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


def trained(folder: Path, model: nn.Module | None = None, **parts: Any) -> Trainer:
    trainer = Trainer(model or model_of(), configure(folder, num_epochs=1), **parts)
    trainer.train(*loaders("fixed", 6))
    return trainer


def dropping(share: float) -> nn.Module:
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=share), VOCABULARY, LENGTH)


HALF, HALVED = (lambda p, n: clip_grad_norm_(p, n)), (lambda p, n: clip_grad_norm_(p, n / 2))
CHANGES: dict[str, tuple[Any, Any, str]] = {
    "loss": ({"loss_fn": made(LOSS)}, {"loss_fn": made(LOSS, ("value * F", "value / F"))}, "the loss_fn is not "),
    "loss of one's own": ({}, {"loss_fn": made(LOSS)}, "the loss_fn is not .* had next_token_loss for make.*loss"),
    "loss with a number": (
        {},
        {"loss_fn": build_loss(LossConfig(z_loss=1e-4))},
        r"the loss_fn is not .* for next_token_loss\(label_smoothing=0.0, z_loss=0.0001\)",
    ),
    "clip": ({"clip": HALF}, {"clip": HALVED}, "the clip is not .*lambda> has changed since"),
    "clip of a library": (
        {},
        {"clip": functools.partial(clip_grad_norm_, norm_type=1.0)},
        r"the clip is not .* had clip_gradients for clip_grad_norm_\(norm_type=1.0\)",
    ),
    "schedule": (
        {"schedule": lambda k: 1e-2 / (k + 1)},
        {"schedule": lambda k: 1e-2 / (k + 1.0)},
        "the schedule is not ",
    ),
    "schedule of one's own": ({}, {"schedule": lambda k: 0.0}, "learning rate|the schedule is not "),
    "model": (
        {"model": made(MODEL)},
        {"model": made(MODEL, ("x * self.scale", "x / self.scale"))},
        "the model's Model is not .*Model has changed since",
    ),
    "dropout": ({"model": dropping(0.2)}, {"model": dropping(0.4)}, "the model is not .*p=0.2.* for .*p=0.4"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_run_with_another_part_is_refused_in_one_line_and_the_same_part_goes_on(tmp_path, what, capsys):
    first, second, said = CHANGES[what]
    trained(tmp_path, **first)
    trained(tmp_path, **first)
    assert "resumed" in capsys.readouterr().out
    with pytest.raises(ValueError, match=said) as caught:
        trained(tmp_path, **second)
    assert resume.WHAT_TO_DO in str(caught.value) and "\n" not in str(caught.value)


IN_PLACE: dict[str, Any] = {
    "method": lambda held: held.mul_(0.9),
    "item": lambda held: held.__setitem__(0, 3.0),
    "function": lambda held: torch.mul(held, 0.9, out=held),
    "array": lambda held: held.numpy().fill(3.0),
}


@pytest.mark.parametrize("how", IN_PLACE)
def test_a_tensor_that_a_run_changes_is_no_other_code_and_one_that_somebody_changes_is(tmp_path, how, capsys):
    def made(held: torch.Tensor, change: Any = IN_PLACE[how]) -> Any:
        def loss(logits: Any, labels: Any, reduction: Any) -> Any:
            change(held)
            return next_token_loss(logits, labels, reduction=reduction) * held.mean()

        return loss

    held = torch.ones(2)
    loss = made(held)
    for _ in range(3):
        trained(tmp_path, loss_fn=loss)
    assert capsys.readouterr().out.count("resumed") == 2
    held += 1
    with pytest.raises(ValueError, match=r"the loss_fn is not .*loss has changed since"):
        trained(tmp_path, loss_fn=loss)
    with pytest.warns(UserWarning, match="the loss_fn begins anew: .* that no checkpoint holds"):
        trained(tmp_path, loss_fn=made(torch.ones(2)))


def test_after_an_upgrade_a_module_that_prints_otherwise_is_warned_of(tmp_path, monkeypatch):
    trained(tmp_path)
    monkeypatch.setattr(resume, "__version__", "99")
    monkeypatch.setattr(nn.Linear, "extra_repr", lambda self: "new words")
    with pytest.warns(UserWarning, match="the model is not the one of the checkpoint.* for .*new words"):
        trained(tmp_path)


def test_code_of_another_python_is_not_compared():
    old = {"libraries": "x", "loss_fn": "own, digest cpython-310 00"}
    new = {**old, "loss_fn": "own, digest cpython-311 11"}
    assert resume.compare_parts(new, old) == new
    with pytest.raises(ValueError, match="own has changed since"):
        resume.compare_parts({**old, "loss_fn": "own, digest cpython-310 11"}, old)
