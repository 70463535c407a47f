"""Random training runs, tiny and in float64, and the ones in which a given fault must matter."""

import dataclasses
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor, nn

from course_lm.audit import spec
from course_lm.model import GPT, ModelConfig

PAD, EOS, VOCABULARY, LONGEST, WIDTH = 0, 1, 13, 8, 8

Batch = Mapping[str, Any]


class FixedDropout(nn.Module):
    """Dropout whose mask never changes: training and eval mode differ, and two loops still agree exactly."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = torch.tensor([0.0] + [1.0] * (WIDTH - 1), dtype=x.dtype)
        return x * mask * WIDTH / (WIDTH - 1)


class TinyBlock(nn.Module):
    """Pre-norm causal attention with one head, then a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        h = self.norms[0](x)
        scores = self.query(h) @ self.key(h).transpose(1, 2) / WIDTH**0.5  # (B, T, T)
        x = x + scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1) @ self.value(h)
        return x + self.down(torch.tanh(self.up(self.norms[1](x))))


class TinyTransformer(nn.Module):
    """A transformer that shares nothing with the package's; its answer is logits, or an object that has them."""

    def __init__(self, layers: int, *, tied: bool, wrapped: bool, dropout: bool) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.dropout = FixedDropout() if dropout else nn.Identity()
        self.blocks = nn.ModuleList(TinyBlock() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        if tied:
            self.head.weight = self.tokens.weight
        self.wrapped = wrapped

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask  # (B, T)
        x = self.tokens(input_ids) + self.positions((real.cumsum(1) - 1).clamp(min=0))
        length = input_ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        allowed = (causal & real.bool()[:, None, :]) | torch.eye(length, dtype=torch.bool)  # (B, T, T)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, allowed)
        logits = self.head(self.norm(x))
        return SimpleNamespace(logits=logits) if self.wrapped else logits


@dataclass(frozen=True)
class Decay:
    """A learning rate that shrinks by the same factor at each step."""

    peak: float
    factor: float

    def __call__(self, k: int) -> float:
        return self.peak * self.factor**k


@dataclass(frozen=True)
class Jump:
    """A small learning rate for `steps` steps, then a ruinous one."""

    steps: int

    def __call__(self, k: int) -> float:
        return 0.01 if k < self.steps else 5.0


@dataclass(frozen=True, repr=False)
class Case:
    """One run: what `spec.train` takes."""

    model: nn.Module
    epochs: list[list[Batch]]
    settings: spec.Settings

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def __repr__(self) -> str:
        targets = [[count(batch) for batch in epoch] for epoch in self.epochs]
        run = dataclasses.replace(self.settings, validation=[])
        validation = [count(batch) for batch in self.settings.validation]
        name = type(self.model).__name__
        return f"Case({name}, target tokens: {targets}, in validation: {validation}, {run})"

    def train(self, *faults: str) -> spec.SpecResult:
        return spec.train(self.model, self.epochs, self.settings, frozenset(faults))

    def windows(self) -> list[list[Batch]]:
        size = self.settings.accumulation_steps
        return [epoch[i : i + size] for epoch in self.epochs for i in range(0, len(epoch), size)]


def count(*batches: Batch) -> int:
    """Target tokens, after the shift."""
    return sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)


def make_batch(
    rng: random.Random, *, left: bool = False, pad: int = PAD, shortest: int = 1, ignored: float = 0.0
) -> Batch:
    """Ragged rows `<eos> tokens <eos>`, padded on one side; each label is ignored with probability `ignored`."""
    lengths = [rng.randint(shortest, LONGEST) for _ in range(rng.randint(1, 3))]
    width = max(2, *lengths)
    rows = {"input_ids": [], "attention_mask": [], "labels": []}
    for length in lengths:
        document = [EOS, *(rng.randrange(2, VOCABULARY) for _ in range(length - 2)), EOS][:length]
        labels = [-100 if rng.random() < ignored else token for token in document]
        if left and length < width:
            labels[0] = -100
        blank = width - length
        for name, values, fill in (
            ("input_ids", document, pad),
            ("attention_mask", [1] * length, 0),
            ("labels", labels, -100),
        ):
            rows[name].append([fill] * blank + values if left else values + [fill] * blank)
    return {name: torch.tensor(values) for name, values in rows.items()} | {"num_bytes": sum(lengths)}


def make_packed_batch(rng: random.Random) -> Batch:
    """Rows that hold several documents, with their document and position ids."""
    rows = {name: [] for name in ("input_ids", "attention_mask", "labels", "document_ids", "position_ids")}
    for _ in range(rng.randint(1, 3)):
        row = {name: [] for name in rows}
        document = 0
        while (room := LONGEST - len(row["input_ids"])) >= 2 and rng.random() < 0.9:
            length = rng.randint(2, room)
            tokens = [EOS, *(rng.randrange(2, VOCABULARY) for _ in range(length - 2)), EOS]
            row["input_ids"] += tokens
            row["attention_mask"] += [1] * length
            row["labels"] += [-100, *tokens[1:]]
            row["document_ids"] += [document] * length
            row["position_ids"] += range(length)
            document += 1
        fills = {"input_ids": PAD, "attention_mask": 0, "labels": -100, "document_ids": -1, "position_ids": 0}
        for name in rows:
            rows[name].append(row[name] + [fills[name]] * (LONGEST - len(row[name])))
    return {name: torch.tensor(values) for name, values in rows.items()} | {"num_bytes": 1}


def concatenated(batches: list[Batch]) -> Batch:
    """All rows in one batch, with PAD on the right."""
    width = max(batch["labels"].shape[1] for batch in batches)
    fills = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        name: torch.cat(
            [nn.functional.pad(batch[name], (0, width - batch[name].shape[1]), value=fill) for batch in batches]
        )
        for name, fill in fills.items()
    }


def without_targets(batch: Batch) -> Batch:
    return {**batch, "labels": torch.full_like(batch["labels"], -100)}


def _emptied(epochs: list[list[Batch]], window: list[Batch]) -> list[list[Batch]]:
    """The epochs with no target left in the micro-batches of one window."""
    return [[without_targets(b) if any(b is e for e in window) else b for b in epoch] for epoch in epochs]


def make_model(rng: random.Random, kind: str, *, dropout: bool) -> nn.Module:
    """A float64 model; now and then with a frozen weight."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.randrange(2**31))
        if kind == "gpt":
            config = ModelConfig(n_layer=rng.randint(1, 2), n_head=2, d_model=WIDTH, dropout=0.0)
            model: nn.Module = GPT(config, VOCABULARY, LONGEST)
        else:
            tied, wrapped = rng.random() < 0.5, rng.random() < 0.5
            model = TinyTransformer(rng.randint(1, 2), tied=tied, wrapped=wrapped, dropout=dropout)
            model.positions.weight.requires_grad_(rng.random() < 0.8)
    return model.double()


@st.composite
def cases(
    draw: Callable,
    *,
    models: tuple[str, ...] = ("tiny", "gpt"),
    optimizers: tuple[str, ...] = ("sgd", "adam", "adamw"),
    accumulation: tuple[int, int] = (1, 5),
    windows: tuple[int, int] = (1, 4),
    tail: bool = False,
    epochs: tuple[int, int] = (1, 2),
    peaks: tuple[float, ...] = (0.01, 0.1),
    factors: tuple[float, ...] = (1.0, 0.7),
    decays: tuple[float, ...] = (0.0, 0.3),
    max_grad_norms: tuple[float | None, ...] = (None, 0.05, 1.0),
    loss_scales: tuple[float, ...] = (1.0, 1024.0),
    validation: tuple[int, int] = (0, 3),
    first_overflows: bool | None = False,
    ragged: bool = False,
    dropout: bool | None = None,
) -> Case:
    """Runs within the given bounds. `first_overflows` None lets any window overflow; `ragged` leaves any label
    out and empties batches and whole windows."""
    rng = random.Random(draw(st.integers(0, 2**32 - 1)))
    steps = draw(st.integers(*accumulation))
    per_epoch = steps * draw(st.integers(*windows)) + draw(st.integers(int(tail), steps - 1))
    packed = "gpt" in models and draw(st.integers(0, 9)) == 0
    kind = "gpt" if packed else draw(st.sampled_from(models))
    dropout = draw(st.booleans()) if dropout is None else dropout
    ignored = draw(st.sampled_from((0.0, 0.4))) if ragged else 0.0
    shape = {"left": draw(st.booleans()), "pad": draw(st.sampled_from((PAD, EOS)))}
    shape |= {"shortest": 1 if ragged else 3, "ignored": ignored}

    def batch() -> Batch:
        made = make_packed_batch(rng) if packed else make_batch(rng, **shape)
        return without_targets(made) if ragged and rng.random() < 0.1 else made

    data = [[batch() for _ in range(per_epoch)] for _ in range(draw(st.integers(*epochs)))]
    case = Case(make_model(rng, kind, dropout=dropout), data, spec.Settings(accumulation_steps=steps))
    groups = case.windows()
    if ragged and len(groups) > 1 and draw(st.integers(0, 4)) == 0:
        data = _emptied(data, rng.choice(groups))
    overflows = {0} if first_overflows else set()
    if first_overflows is None:
        overflows = {index for index in range(len(groups)) if rng.random() < 0.2}
    held = [{str(batch["input_ids"].tolist()) for batch in window} for window in groups]  # by which they are known
    overflows = {one for one in overflows if not any(held[one] & held[n] for n in range(len(held)) if n != one)}
    run = spec.Settings(
        optimizer=draw(st.sampled_from(optimizers)),
        schedule=Decay(draw(st.sampled_from(peaks)), draw(st.sampled_from(factors))),
        beta1=draw(st.sampled_from((0.9, 0.5))),
        beta2=draw(st.sampled_from((0.999, 0.9))),
        epsilon=draw(st.sampled_from((1e-8, 1e-4))),
        weight_decay=draw(st.sampled_from(decays)),
        momentum=draw(st.sampled_from((0.0, 0.9))),
        accumulation_steps=steps,
        max_grad_norm=draw(st.sampled_from(max_grad_norms)),
        loss_scale=draw(st.sampled_from(loss_scales)),
        overflow_steps=frozenset(overflows),
        on_nonfinite="skip",
        validation=[batch() for _ in range(draw(st.integers(*validation)))],
        eos_id=EOS,
    )
    return Case(case.model, data, run)


def _has_counted_pad(case: Case) -> bool:
    return any((batch["attention_mask"][:, 1:] == 0).any() for epoch in case.epochs for batch in epoch)


def _has_first_label(case: Case) -> bool:
    """Some row has a label at its first token, which is no target."""
    return any((batch["labels"][:, 0] != -100).any() for epoch in case.epochs for batch in epoch)


def _has_uneven_window(case: Case) -> bool:
    return any(len({count(batch) for batch in window}) > 1 for window in case.windows())


def _has_uneven_rows(case: Case) -> bool:
    """Some window has rows that differ in their number of target tokens."""
    return any(
        len({int((row[1:] != -100).sum()) for batch in window for row in batch["labels"]} - {0}) > 1
        for window in case.windows()
    )


def _has_pad_before_a_target(case: Case) -> bool:
    def seen(batch: Batch) -> bool:
        padded = batch["attention_mask"][:, 0] == 0  # (B,); a row of a packed batch may be all PAD
        return bool((padded & (batch["labels"][:, 1:] != -100).any(dim=1)).any())

    return any(seen(batch) for epoch in case.epochs for batch in epoch)


def _has_different_betas(case: Case) -> bool:
    return case.settings.beta1 != case.settings.beta2


def _validates_on_something(case: Case) -> bool:
    return count(*case.settings.validation) > 0


def _has_uneven_validation(case: Case) -> bool:
    counts = {count(batch) for batch in case.settings.validation}
    return len(counts - {0}) > 1  # a batch without targets has no mean


def _has_uneven_validation_rows(case: Case) -> bool:
    """Some validation batches differ in their number of target tokens by row."""
    per_row = {Fraction(count(batch), len(batch["labels"])) for batch in case.settings.validation}
    return len(per_row - {0}) > 1


def _trains_on_everything(case: Case) -> bool:
    return all(count(batch) for epoch in case.epochs for batch in epoch)


@st.composite
def _empty_once(draw: Callable) -> Case:
    """Runs with one window that has no target."""
    case = draw(cases(accumulation=(1, 3), windows=(2, 2)).filter(_trains_on_everything))
    return dataclasses.replace(case, epochs=_emptied(case.epochs, draw(st.sampled_from(case.windows()))))


@st.composite
def _ruined_later(draw: Callable) -> Case:
    """Runs whose last epoch is worse than their first."""
    case = draw(cases(optimizers=("sgd",), epochs=(2, 2), validation=(1, 3), windows=(1, 2), decays=(0.0,)))
    ruinous = spec.Settings(
        schedule=Jump(len(case.windows()) // 2),
        optimizer="sgd",
        accumulation_steps=case.settings.accumulation_steps,
        on_nonfinite="skip",
        validation=case.settings.validation,
    )
    case = Case(case.model, case.epochs, ruinous)
    losses = case.train().validation_losses
    assume(losses[0] < losses[1])
    return case


_plain: dict[str, Any] = {"optimizers": ("sgd",), "max_grad_norms": (None,), "decays": (0.0,)}
_grouped: dict[str, Any] = _plain | {"accumulation": (2, 5), "windows": (1, 2)}
_scaled: dict[str, Any] = _plain | {"max_grad_norms": (0.05, 1.0), "loss_scales": (65536.0,)}
_clipped: dict[str, Any] = _grouped | {"max_grad_norms": (0.001,)}
_adam: dict[str, Any] = {"optimizers": ("adam", "adamw"), "decays": (0.0,)}
_scheduled: dict[str, Any] = {"factors": (0.7,), "windows": (2, 4)}

# Cases in which the fault must change the weights, the moments, k or the validation.
FAULT_CASES: dict[str, st.SearchStrategy[Case]] = {
    "unshifted_labels": cases(**_plain),
    "shifted_twice": cases(**_plain),
    "pads_counted": cases(**_plain).filter(_has_counted_pad),
    "eos_masked": cases(**_plain),
    "mask_forgotten": cases(**_plain).filter(_has_pad_before_a_target),
    "pads_divide": cases(**_plain).filter(_has_counted_pad),
    "counted_before_shift": cases(**_plain).filter(_has_first_label),
    "row_means": cases(**_plain).filter(_has_uneven_rows),
    "mean_of_means": cases(**_grouped).filter(_has_uneven_window),
    "accumulation_not_divided": cases(**_grouped),
    "divided_twice": cases(**_grouped),
    "tail_dropped": cases(**_grouped, tail=True),
    "tail_leaks": cases(**_grouped, tail=True),
    "tail_divided_by_full": cases(**_grouped, tail=True),
    "windows_across_epochs": cases(**_grouped, tail=True, epochs=(2, 2)),
    "steps_on_empty_window": _empty_once(),
    "bf16_gradients": cases(**_plain),
    "clip_before_unscale": cases(**_scaled),
    "clip_per_micro_batch": cases(**_clipped),
    "clip_by_value": cases(**_clipped),
    "clip_per_tensor": cases(**_clipped),
    "missing_zero_grad": cases(**_plain, accumulation=(1, 3), windows=(2, 4)),
    "zero_grad_per_micro_batch": cases(**_grouped),
    "schedule_per_micro_batch": cases(**_scheduled, accumulation=(2, 3)),
    "schedule_per_epoch": cases(**_scheduled),
    "schedule_never_moves": cases(**_scheduled),
    "schedule_off_by_one": cases(**_scheduled),
    "first_rate_is_zero": cases(**_plain),
    "schedule_on_overflow": cases(**_scheduled, accumulation=(1, 3), first_overflows=True),
    "schedule_on_skipped_step": cases(**_scheduled, accumulation=(1, 3), first_overflows=True),
    "steps_on_nonfinite": cases(first_overflows=True),
    "optimizer_per_epoch": cases(**_adam, epochs=(2, 2)),
    "betas_exchanged": cases(**_adam, windows=(2, 4)).filter(_has_different_betas),
    "no_bias_correction": cases(**_adam),
    "coupled_decay": cases(optimizers=("adamw",), decays=(0.3,)),
    "decay_at_peak_rate": cases(**_scheduled, optimizers=("adamw",), decays=(0.3,)),
    "decays_everything": cases(decays=(0.3,)),
    "stays_in_eval_mode": cases(**_plain, models=("tiny",), dropout=True, epochs=(2, 2), validation=(1, 3)),
    "validation_in_train_mode": cases(models=("tiny",), dropout=True, validation=(1, 3)),
    "val_label_smoothing": cases(validation=(1, 3)).filter(_validates_on_something),
    "val_mean_of_means": cases(validation=(2, 3)).filter(_has_uneven_validation),
    "val_weighted_by_rows": cases(validation=(2, 3)).filter(_has_uneven_validation_rows),
    "best_is_a_reference": _ruined_later(),
}


def fault_cases(fault: str) -> st.SearchStrategy[Case]:
    """Cases in which `fault` must matter; only what is about batches without targets has some."""
    cases_of_it = FAULT_CASES[fault]
    return cases_of_it if fault == "steps_on_empty_window" else cases_of_it.filter(_trains_on_everything)
