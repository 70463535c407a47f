"""Whatever model and optimizer somebody brings: `Trainer` leaves the weights of a plain loop, or refuses in one line.

The loop beside it, `by_hand`, is what a careful person would write in torch alone: the summed loss of a window over its
target tokens, one clipping, a rate from the schedule (for several groups in the ratio of their rates), one step.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lm.batching import labels_of, make_loader
from course_lm.config import LoopConfig, TrainingConfig
from course_lm.model import GPT, ModelConfig, positions_of
from course_lm.reproducibility import seed_generators, seed_of
from course_lm.tokenizer import train_tokenizer
from course_lm.trainer import Trainer
from tests.foreign_models import CONFIGS, LONGEST, VOCABULARY, hugging_face
from tests.sets import examples

SEED = 11
Batch = dict[str, Tensor]


@pytest.fixture(autouse=True, scope="module")
def softmax_in_the_dtype_of_its_input():
    """transformers' eager attention normalises in float32, also where the weights are float64.

    An attention key's bias has no gradient. With that softmax it gets up to 9e-9 of pure rounding (200 batches of OPT),
    and Adam, whose epsilon is 1e-8, makes almost a step of it; with a softmax in float64 it gets at most 2e-17.
    """
    softmax = F.softmax

    def as_its_input(x: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "softmax", as_its_input)
        yield


# Models


class Own(nn.Module):
    """A model of running means over the tokens so far; the classes below differ in what they take and return."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(VOCABULARY, width), nn.Linear(width, width)
        self.head = nn.Linear(width, VOCABULARY)

    def logits(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embedding(ids)
        weight = torch.ones_like(ids) if mask is None else mask
        means = (x * weight[..., None]).cumsum(1) / weight.cumsum(1).clamp(min=1)[..., None]
        return self.head(self.between(torch.tanh(self.mix(x + means))))

    def between(self, x: Tensor) -> Tensor:
        return x

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return self.logits(input_ids, attention_mask)


class WithoutMask(Own):
    def forward(self, input_ids: Tensor) -> Any:  # pyrefly: ignore[bad-override]
        return self.logits(input_ids)


class WithKeywords(Own):
    def forward(self, input_ids: Tensor, **kwargs: Any) -> Any:  # pyrefly: ignore[bad-override]
        return self.logits(input_ids, kwargs["attention_mask"])


class ReturnsTuple(Own):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return self.logits(input_ids, attention_mask), None


class ReturnsDict(Own):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        return {"hidden": None, "logits": self.logits(input_ids, attention_mask)}


class WithTiedWeights(Own):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight


class WithBuffer(Own):
    """Counts its calls in training, and scores with a constant that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("scale", torch.tensor(1.5))

    def between(self, x: Tensor) -> Tensor:
        self.calls += int(self.training)
        return x * self.scale


class WithBatchNorm(Own):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def between(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class WithDropout(Own):
    def between(self, x: Tensor) -> Tensor:
        return F.dropout(x, 0.4, self.training)


class WithUnusedWeights(Own):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(3, 3)


def own_gpt() -> nn.Module:
    return GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=0.0), VOCABULARY, LONGEST)


OWN: Mapping[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (Own, WithoutMask, WithKeywords, ReturnsTuple, ReturnsDict, WithTiedWeights, WithBuffer, WithBatchNorm)
} | {"WithDropout": WithDropout, "WithUnusedWeights": WithUnusedWeights, "GPT": own_gpt}
MODELS = [*OWN, *CONFIGS]
WINDOWED = {"mistral", "gpt_oss", "gemma2", "gemma3"}  # in float64 their eager attention gives NaN to PAD
DRAWS = {"WithDropout", "WithBatchNorm"}  # what one token gives depends on the rest of its batch


def make_model(name: str) -> nn.Module:
    if name in CONFIGS:
        return hugging_face(name, torch.float32 if name in WINDOWED else torch.float64)
    torch.manual_seed(0)
    return OWN[name]().double()


# Optimizers, with the share of the way travelled by which two orders of summation may differ


class Kind(NamedTuple):
    build: Callable[[Any], Optimizer]
    tolerance: float = 1e-6


OPTIMIZERS = {
    "sgd": Kind(lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9)),
    "nesterov": Kind(lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.8, nesterov=True, weight_decay=0.1)),
    "adam": Kind(lambda groups: torch.optim.Adam(groups, lr=0.1, amsgrad=True)),
    "adamw": Kind(lambda groups: torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1)),
    "fused adamw": Kind(lambda groups: torch.optim.AdamW(groups, lr=0.1, fused=True)),
    "adagrad": Kind(lambda groups: torch.optim.Adagrad(groups, lr=0.1)),
    "rmsprop": Kind(lambda groups: torch.optim.RMSprop(groups, lr=0.1, momentum=0.5, centered=True, eps=1e-6)),
    "nadam": Kind(lambda groups: torch.optim.NAdam(groups, lr=0.1)),
    # A gradient that is rounding alone (an attention key's bias) moves its weight by Adafactor's full step,
    "adafactor": Kind(lambda groups: torch.optim.Adafactor(groups, lr=0.1), 0.05),
    # and Muon orthogonalises in bfloat16.
    "muon": Kind(lambda groups: torch.optim.Muon(groups, lr=0.1), 0.05),
}


class Job(NamedTuple):
    """One training, as hypothesis draws it."""

    model: str
    optimizer: str
    rates: tuple[float, ...]  # one group for each, the parameters dealt out in turn
    frozen: bool  # the first trainable parameter
    accumulation: int
    max_grad_norm: float | None
    lengths: list[list[int]]  # of the rows of each micro-batch
    packed: bool


def prepared(job: Job) -> tuple[nn.Module, Optimizer]:
    model = make_model(job.model)
    if job.frozen:
        next(model.parameters()).requires_grad_(False)
    if job.optimizer == "muon":  # takes matrices only
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.requires_grad and parameter.ndim == 2)
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": chosen[at :: len(job.rates)], "lr": rate} for at, rate in enumerate(job.rates)]
    return model, OPTIMIZERS[job.optimizer].build([group for group in groups if group["params"]])


def batches_of(job: Job) -> list[Batch]:
    return [packed_row(lengths, k) if job.packed else rows(lengths, k) for k, lengths in enumerate(job.lengths)]


def rows(lengths: list[int], seed: int) -> Batch:
    """Rows of one document each, padded at the right; one target in five is ignored."""
    draw = torch.Generator().manual_seed(seed)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(VOCABULARY, mask.shape, generator=draw)
    labels = labels_of(ids, mask).masked_fill(torch.rand(ids.shape, generator=draw) < 0.2, -100)
    labels[:, 1] = ids[:, 1]  # at least one target
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def packed_row(lengths: list[int], seed: int) -> Batch:
    documents = torch.repeat_interleave(torch.tensor(lengths))[None]
    ids = torch.randint(VOCABULARY, documents.shape, generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels_of(ids, mask, documents)}
    return batch | {"document_ids": documents, "position_ids": positions_of(ids, None, documents)}


def schedule(step: int) -> float:
    return 0.02 / (1 + step)


# The loop beside it


def by_hand(model: nn.Module, optimizer: Optimizer, batches: list[Batch], job: Job) -> nn.Module:
    model.train()
    rates = [group["lr"] for group in optimizer.param_groups]
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for step, first in enumerate(range(0, len(batches), job.accumulation)):
        window = batches[first : first + job.accumulation]
        targets = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in window)
        optimizer.zero_grad()
        for place, batch in enumerate(window, first):
            seed_generators(seed_of(SEED, 0, place))
            for part in documents_of(batch):
                (summed_loss(model, part, job.model) / targets).backward()
        if job.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(weights, job.max_grad_norm)
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = schedule(step) * rate / max(rates)
        optimizer.step()
    return model


def documents_of(batch: Batch) -> list[Batch]:
    """A packed row's documents, each a batch of its own; another batch as it is."""
    if "document_ids" not in batch:
        return [batch]
    numbers = batch["document_ids"][0]
    names = ("input_ids", "attention_mask", "labels")
    return [{name: batch[name][:, numbers == number] for name in names} for number in numbers.unique()]


def summed_loss(model: nn.Module, batch: Batch, name: str) -> Tensor:
    inputs = {} if name == "WithoutMask" else {"attention_mask": batch["attention_mask"]}
    if name in CONFIGS:
        inputs["use_cache"] = False  # type: ignore[assignment]
    output = model(batch["input_ids"], **inputs)
    logits = output["logits"] if isinstance(output, dict) else output[0] if isinstance(output, tuple) else output
    scores, targets = logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    return F.cross_entropy(scores, targets, ignore_index=-100, reduction="sum")


# The promise


def by_trainer(model: nn.Module, optimizer: Optimizer, batches: list[Batch], job: Job) -> nn.Module:
    loop = LoopConfig(
        num_epochs=1,
        gradient_accumulation_steps=job.accumulation,
        max_grad_norm=job.max_grad_norm,
        precision="fp32",
        device="cpu",
        deterministic=False,
        seed=SEED,
        output_dir=None,
    )
    Trainer(model, TrainingConfig(training=loop), optimizer=optimizer, schedule=schedule).train(batches)
    return model


def distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    squares = [(part.double() - right[name].double()).square().sum() for name, part in left.items()]
    return float(torch.stack(squares).sum().sqrt())


def check_lands_or_refuses(job: Job, *, may_refuse: bool) -> None:
    batches = batches_of(job)
    model, optimizer = prepared(job)
    start = copy.deepcopy(model.state_dict())
    try:
        by_trainer(model, optimizer, batches, job)
    except (ValueError, TypeError) as error:
        assert may_refuse and "\n" not in str(error), f"{job}: {error}"
        assert distance(model.state_dict(), start) == 0, "refused after a change to the weights"
        return
    expected = by_hand(*prepared(job), batches_of(job), job).state_dict()
    travelled, apart = distance(expected, start), distance(model.state_dict(), expected)
    assert travelled > 0
    tolerance = max(OPTIMIZERS[job.optimizer].tolerance, 1e-2 if job.model in WINDOWED else 0.0)
    assert apart <= tolerance * travelled, f"{apart / travelled:.2g} of the way: {job}"
    for before, after in zip(batches_of(job), batches):
        assert all(torch.equal(part, after[name]) for name, part in before.items()), "the batches were changed"


def jobs(models: list[str], optimizers: list[str], packed: bool = False) -> st.SearchStrategy[Job]:
    return st.builds(
        Job,
        model=st.sampled_from(models),
        optimizer=st.sampled_from(optimizers),
        rates=st.sampled_from([(0.1,), (0.1, 0.02), (0.01, 0.1, 0.05)]),
        frozen=st.booleans(),
        accumulation=st.integers(1, 3),
        max_grad_norm=st.sampled_from([None, 0.05, 1.0, 100.0]),
        lengths=st.lists(st.lists(st.integers(2, 7), min_size=1, max_size=3), min_size=1, max_size=5),
        packed=st.just(packed),
    )


PLAIN = Job("Own", "adamw", (0.1,), False, 2, 1.0, [[5, 3], [4], [6, 2, 2]], packed=False)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_any_optimizer_lands_on_the_weights_of_a_plain_loop(optimizer):
    for model in ("Own", "GPT", "gpt2"):
        job = PLAIN._replace(model=model, optimizer=optimizer, rates=(0.1, 0.02))
        check_lands_or_refuses(job, may_refuse=False)


@pytest.mark.parametrize("model", MODELS)
def test_any_model_lands_on_the_weights_of_a_plain_loop(model):
    check_lands_or_refuses(PLAIN._replace(model=model), may_refuse=False)


@pytest.mark.parametrize("model", sorted(set(MODELS) - DRAWS))
def test_any_model_trains_on_packed_rows_as_on_their_documents_or_refuses_them(model):
    check_lands_or_refuses(PLAIN._replace(model=model, packed=True), may_refuse=True)


@given(jobs(MODELS, list(OPTIMIZERS)))
@examples(40, 300)
def test_any_model_with_any_optimizer_lands_on_the_weights_of_a_plain_loop(job):
    check_lands_or_refuses(job, may_refuse=False)


@given(jobs(sorted(set(MODELS) - DRAWS), list(OPTIMIZERS), packed=True))
@examples(20, 150)
def test_any_model_with_any_optimizer_trains_packed_rows_right_or_refuses(job):
    check_lands_or_refuses(job, may_refuse=True)


def test_a_model_that_mixes_documents_of_wide_rows_is_refused_before_the_first_step():
    lengths = [[2, 2], [4], [2, 2], [6], [5, 2]]
    check_lands_or_refuses(Job("gpt_oss", "adafactor", (0.1, 0.02), False, 3, 0.05, lengths, True), may_refuse=True)


def test_packed_rows_of_this_packages_loader_are_tried_before_one_is_read(tmp_path):
    texts = [f"the cat number {number} sat on the mat" for number in range(30)]
    loader = make_loader(texts, train_tokenizer(texts, 270), mode="packed", batch_size=2, max_length=16)
    model = WithKeywords()
    model.embedding = nn.Embedding(270, 6)
    loop = LoopConfig(max_steps=2, device="cpu", output_dir=str(tmp_path))
    with pytest.raises(ValueError, match="does not keep the documents of a packed row apart"):
        Trainer(model, TrainingConfig(training=loop)).train(loader)
    assert loader.state_dict() == {"epoch": 0, "batch": 0}
    assert not list(tmp_path.rglob("config.yaml")), "a run was begun"
