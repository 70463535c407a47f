"""Any causal language model is called right on a batch, or the batch is refused in one line."""

import contextlib
import copy
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from course_lm.batching import labels_of
from course_lm.forward import check_causal, device_of, forward_logits, move_batch, packed_inputs
from course_lm.guard import check_batch, check_labels, check_with_data
from course_lm.loss import next_token_loss
from course_lm.lr_finder import find_lr
from course_lm.model import GPT, ModelConfig, allowed_attention, embedded_tokens
from course_lm.monitoring import evaluate
from course_lm.step import train_step
from tests.foreign_models import CONFIGS, LONGEST, VOCABULARY, hugging_face
from tests.refusals import refusal, refused
from tests.tiny import packed_batch, plain_batch

EXACT = {"gpt2", "llama", "mistral", "qwen2", "gpt_neox", "opt", "gemma2", "gemma3"}
REFUSED = {"bloom", "mamba", "rwkv"}


def worst_gap(model: nn.Module, batch: dict[str, Tensor]) -> float:
    """Largest difference between packed documents and the same alone, in standard deviations of the logits."""
    model.eval()
    packed, worst = forward_logits(model, batch), 0.0
    for row, documents in enumerate(batch["document_ids"]):
        for number in range(int(documents.max()) + 1):
            ids = batch["input_ids"][row : row + 1, documents == number]
            alone = forward_logits(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})[0]
            gap = (packed[row, documents == number] - alone).abs().max() / alone.std()
            worst = max(worst, float(gap.detach()))
    return worst


# What attention is told of a batch

KINDS = {  # of a batch, and whether a mask hides something in it that comes before a token
    "full": (lambda: plain_batch([5, 5]), False),
    "padded right": (lambda: plain_batch([5, 1, 3]), False),
    "padded left": (lambda: plain_batch([5, 1, 3], side="left"), True),
    "one document a row": (lambda: packed_batch([[6], [4], [6]], pads=0), False),
    "one document a row, and PAD": (lambda: packed_batch([[6], [4]]), False),
    "packed": (lambda: packed_batch([[2, 4], [6]], pads=0), True),
    "a row of PAD": (lambda: plain_batch([3, 0]), False),
}


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_that_hides_nothing_is_left_out_and_changes_no_gradient(kind, dtype, positions, monkeypatch):
    made, hides = KINDS[kind]
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=2, n_head=2, d_model=8, dropout=0.0, positions=positions), VOCABULARY, 16).double()
    batch, masks = made(), []
    monkeypatch.setattr(
        "course_lm.model.allowed_attention", lambda *given: masks.append(allowed_attention(*given)) or masks[-1]
    )

    def gradient(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float64):
            loss = next_token_loss(forward_logits(model, batch), batch["labels"], reduction="sum")
        loss.backward()
        return loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    moved = gradient(move_batch(batch, torch.device("cpu"), model))
    assert (masks[-1] is not None) == hides  # before it may come a trial of packed rows
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    for one, other in zip(moved, gradient(batch), strict=True):
        assert (one - other).norm() <= tolerance * other.norm()


@given(st.lists(st.lists(st.integers(-1, 2), min_size=4, max_size=4), min_size=1, max_size=3))
def test_documents_are_left_out_only_where_no_token_comes_after_another_document_or_pad(rows):
    documents = torch.tensor(rows)
    batch = {"input_ids": documents, "labels": documents, "document_ids": documents}
    moved = move_batch(batch, torch.device("cpu"), GPT(ModelConfig(), VOCABULARY, 4))
    hidden = any(row[t] >= 0 and row[t - 1] != row[t] for row in rows for t in range(1, 4))
    assert ("document_ids" in moved) == hidden


def test_a_batch_on_an_accelerator_and_a_model_of_somebody_else_keep_their_masks():
    batch = plain_batch([5, 3])
    assert "attention_mask" in move_batch(batch, torch.device("cpu"), hugging_face("gpt2"))
    gpt, meta = GPT(ModelConfig(), VOCABULARY, 16), {name: part.to("meta") for name, part in batch.items()}
    assert "attention_mask" in move_batch(meta, torch.device("meta"), gpt)
    assert "attention_mask" not in move_batch(batch, torch.device("cpu"), torch.compile(gpt))  # type: ignore[arg-type]


# Packed rows of models of other people


@pytest.mark.parametrize(
    "name, attention",
    [
        *((name, "eager") for name in sorted(EXACT)),
        *((name, "sdpa") for name in ("gpt2", "llama", "mistral", "gemma3")),
    ],
)
def test_a_packed_row_gives_the_logits_of_its_documents_alone(name, attention):
    assert worst_gap(hugging_face(name, attention=attention), packed_batch([[3, 9, 1], [12]])) < 1e-4


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_model_that_mixes_packed_documents_is_refused(name):
    with refused(ValueError, r"does not keep the documents of a packed row apart: .* bucketed"):
        forward_logits(hugging_face(name), packed_batch([[3, 9]]))


def test_every_family_is_exact_or_refused():
    for name in sorted(set(CONFIGS) - EXACT - REFUSED):  # what it is depends on the version of transformers
        with contextlib.suppress(ValueError):
            assert worst_gap(hugging_face(name), packed_batch([[3, 9, 1], [12]])) < 1e-4, name


class OwnAttention(nn.Module):
    """One layer of attention that starts at zero, over documents where it heeds what it is told of them."""

    def __init__(self, heeds: bool = True, window: int = LONGEST) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)
        self.out = nn.Linear(8, 8)
        nn.init.zeros_(self.out.weight)
        self.heeds, self.window = heeds, window
        self.register_buffer("calls", torch.tensor(0))

    def attend(self, ids: Tensor, allowed: Tensor) -> Tensor:
        self.calls += 1
        x = self.embedding(ids)
        far = torch.ones(ids.size(1), ids.size(1), dtype=torch.bool).tril(-self.window)
        mixed = F.scaled_dot_product_attention(x, x, x, attn_mask=allowed & ~far)
        return self.head(F.dropout(x + self.out(mixed), 0.5, self.training))


class OwnWithDocuments(OwnAttention):
    def forward(self, input_ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
        allowed = allowed_attention(torch.ones_like(input_ids), document_ids if self.heeds else None)
        assert allowed is not None
        return self.attend(input_ids, allowed)


class OwnWithMask(OwnAttention):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None) -> Tensor:
        if attention_mask.ndim == 4:  # as the window is the model's own, a mask does not take it away
            return self.attend(input_ids, attention_mask[:, 0] == 0)
        allowed = allowed_attention(attention_mask, None)
        assert allowed is not None
        return self.attend(input_ids, allowed)


@pytest.mark.parametrize("model", [OwnWithDocuments(), OwnWithMask()], ids=lambda model: type(model).__name__)
def test_a_module_of_ones_own_that_keeps_documents_apart_is_exact(model):
    with torch.no_grad():
        model.out.weight.normal_()
    assert worst_gap(model, packed_batch([[3, 9, 1], [12]])) < 1e-4


def test_attention_that_starts_at_zero_does_not_hide_that_documents_mix():
    with pytest.raises(ValueError, match="does not keep the documents"):
        forward_logits(OwnWithDocuments(heeds=False), packed_batch([[3, 9]]))


def test_a_wrapper_hands_document_ids_on():
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = OwnWithDocuments()

        def forward(self, input_ids: Tensor, **kwargs: Tensor) -> Tensor:
            documents = kwargs.get("document_ids")
            return self.inner(input_ids) if documents is None else self.inner(input_ids, document_ids=documents)

    assert worst_gap(Wrapper(), packed_batch([[3, 9]])) < 1e-4


def test_a_model_is_tried_once_and_again_for_wider_rows():
    model, widths = OwnWithDocuments().eval(), []
    model.register_forward_pre_hook(lambda module, args: widths.append(args[0].size(1)))
    for rows, tried in (([3, 4], True), ([2, 5], False), ([3, 1], False), ([6, 6], True)):
        widths.clear()
        forward_logits(model, packed_batch([rows]))
        assert (len(widths) > 1) == tried, f"rows of documents {rows}"


@pytest.mark.parametrize("ids", [[5] * 8, [5, 5, 5, 5, 5, 5, 5, 2]])
def test_a_first_batch_of_equal_tokens_does_not_hide_that_documents_mix(ids):
    class Means(Returning):
        def forward(self, input_ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
            x = self.embedding(input_ids)
            return x.cumsum(1) / torch.arange(1, input_ids.size(1) + 1)[:, None]

    model = Means()
    with pytest.raises(ValueError, match="does not keep the documents"):
        forward_logits(model, packed_batch([[2, 6]], pads=0) | {"input_ids": torch.tensor([ids])})
        forward_logits(model, packed_batch([[2, 6]], pads=0))


@pytest.mark.parametrize("lengths", [[1, 1], [2], [2, 1]])
def test_rows_of_two_or_three_tokens_show_that_documents_mix(lengths):
    with pytest.raises(ValueError, match="does not keep the documents"):
        forward_logits(hugging_face("mamba"), packed_batch([lengths], pads=0))


def test_a_window_wider_than_the_first_rows_is_noticed_when_it_matters():
    class Forgetful(OwnWithMask):  # without a window where it is given a mask, as Mistral is
        def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor | None = None) -> Tensor:
            self.window = LONGEST if attention_mask.ndim == 4 else 8
            return super().forward(input_ids, attention_mask, position_ids)

    model = Forgetful()
    forward_logits(model, packed_batch([[3, 3]]))
    with pytest.raises(ValueError, match="does not keep the documents"):
        forward_logits(model, packed_batch([[9, 9]]))


class Raising(OwnWithDocuments):
    """Raises in a trial, which alone is without gradients."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, input_ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
        if not torch.is_grad_enabled():
            raise self.error
        return super().forward(input_ids, document_ids)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_memory_that_runs_out_in_a_trial_is_no_verdict_on_the_model(error):
    batch = packed_batch([[3, 4]])
    for ask in (lambda: packed_inputs(Raising(error), batch), lambda: check_with_data(Raising(error), [batch])):
        with pytest.raises(type(error)) as raised:
            ask()
        assert raised.value is error


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (AssertionError(), "AssertionError;"),
        (KeyError("x"), "KeyError: 'x';"),
        (RuntimeError("a\nb"), "RuntimeError: a;"),
        (StopIteration(), "StopIteration;"),
    ],
)
def test_an_error_in_a_trial_is_named_in_one_line_and_not_called_a_mixture(error, named):
    with refused(ValueError, f"cannot be seen to keep the documents.*it raised {named}"):
        packed_inputs(Raising(error), packed_batch([[3, 4]]))


@pytest.mark.parametrize("try_on", [packed_inputs, lambda model, batch: check_causal(model, batch["input_ids"])])
def test_a_trial_leaves_weights_buffers_modes_and_random_numbers_as_they_were(try_on):
    model = OwnWithDocuments()
    model.head.eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    torch.manual_seed(3)
    expected = torch.rand(5)
    torch.manual_seed(3)
    try_on(model, packed_batch([[3, 4]]))
    assert torch.equal(torch.rand(5), expected)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(model.state_dict()[name], part) for name, part in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("try_on", [packed_inputs, lambda model, batch: check_causal(model, batch["input_ids"])])
def test_a_model_forgets_what_it_has_noted_in_a_trial(try_on):
    class Noting(OwnWithDocuments):  # as transformers' RWKV notes that it has scaled its weights for eval mode
        scaled = False

        def forward(self, input_ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
            self.scaled, self.weights = not self.training, self.head.weight
            return super().forward(input_ids, document_ids)

    model = Noting()
    try_on(model, packed_batch([[3, 4]]))
    assert not model.scaled and not hasattr(model, "weights")


def test_the_trial_is_not_run_in_autocast_or_with_coarse_products():
    seen = []

    class Watching(OwnWithDocuments):
        def forward(self, input_ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
            seen.append((torch.is_autocast_enabled("cpu"), torch.get_float32_matmul_precision()))
            return super().forward(input_ids, document_ids)

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            forward_logits(Watching(), packed_batch([[3, 4]]))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen[:-1]) == {(False, "highest")} and seen[-1] == (True, "medium")


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_model_in_bfloat16_is_judged_without_its_rounding(name):
    logits = forward_logits(hugging_face(name, torch.bfloat16), packed_batch([[3, 9]]))
    assert logits.dtype == torch.bfloat16


# Models that see the future


IDS = torch.arange(2 * 18).view(2, 18) % VOCABULARY


class Mixing(nn.Module):
    """Embeddings, mixed over the positions by `mix` (B, T, D) -> (B, T, D), and a head."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.embedding, self.mix, self.head = nn.Embedding(VOCABULARY, 6), mix, nn.Linear(6, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(self.mix(self.embedding(input_ids)))


class SilentAttention(nn.Module):
    """Attention without a mask whose output starts at zero, added to the embeddings."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__()
        self.project, self.width = nn.Linear(6, 6), width
        nn.init.zeros_(self.project.weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.width is not None:
            x = x + torch.linspace(-1, 1, self.width)[:, None]  # raises for other widths
        return x + self.project(F.scaled_dot_product_attention(x, x, x))


def within_blocks(x: Tensor) -> Tensor:
    return x + x.unflatten(1, (-1, 2)).mean(2, keepdim=True).expand(-1, -1, 2, -1).flatten(1, 2)


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.BertLMHeadModel(transformers.BertConfig(vocab_size=VOCABULARY, **sizes))


SEEING: dict[str, Callable[[], nn.Module]] = {
    "attention without a mask": lambda: Mixing(SilentAttention()),
    "of a fixed width": lambda: Mixing(SilentAttention(IDS.size(1))),
    "a mean over the row": lambda: Mixing(lambda x: x + x.mean(1, keepdim=True)),
    "the next token alone": lambda: Mixing(lambda x: x + x.roll(-1, 1)),
    "blocks of two": lambda: Mixing(within_blocks),
    "the last of many layers": lambda: Mixing(nn.Sequential(*(nn.Linear(6, 6) for _ in range(5)), SilentAttention())),
    "transformers": bert,
}


@pytest.mark.parametrize("make", SEEING.values(), ids=list(SEEING))
def test_a_model_that_sees_the_future_is_refused(make):
    model = make()
    for _ in range(2):  # as often as it is given
        with refused(ValueError, r"sees the future: in a trial on (16|18) tokens, .* a causal mask"):
            check_causal(model, IDS)


def over_rows(x: Tensor, causal: bool) -> Tensor:
    """Attention of a module that takes the second dimension for the rows."""
    x = x.transpose(0, 1)
    return F.scaled_dot_product_attention(x, x, x, is_causal=causal).transpose(0, 1)


MIXING_ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "attention over them": partial(over_rows, causal=False),
    "causal attention over them": partial(over_rows, causal=True),
    "the row behind": lambda x: x + x.roll(-1, 0),
    "their mean": lambda x: x - x.mean(0, keepdim=True),
}


@pytest.mark.parametrize("mix", MIXING_ROWS.values(), ids=list(MIXING_ROWS))
def test_a_model_that_mixes_the_rows_of_a_batch_is_refused(mix):
    torch.manual_seed(3)  # of one such model in four or five the logits differ by less than is sure to be no rounding
    with refused(ValueError, r"^Mixing mixes the rows of a batch: in a trial on 16 tokens"):
        check_causal(Mixing(mix), IDS)


@pytest.mark.parametrize("name", sorted(EXACT | REFUSED | {"gpt_oss"}))
@pytest.mark.parametrize("width", [2, 3, 18])
def test_a_causal_model_is_no_suspect(name, width):
    check_causal(hugging_face(name), IDS[:, :width])


def raises(x: Tensor) -> Tensor:
    raise RuntimeError("only rows of its own")


UNTRIED = {
    "random in eval mode": lambda x: x + torch.rand(x.shape),
    "one random number for all rows": lambda x: x + torch.rand(()),
    "one that raises": raises,
}


@pytest.mark.parametrize("mix", UNTRIED.values(), ids=list(UNTRIED))
def test_a_model_that_cannot_be_tried_is_let_through(mix):
    check_causal(Mixing(mix), IDS)


def test_a_row_that_shows_nothing_leaves_the_trial_to_the_next():
    model = Mixing(SilentAttention())
    check_causal(model, torch.ones_like(IDS))
    check_causal(model, IDS[:, :1])
    with pytest.raises(ValueError, match="sees the future"):
        check_causal(model, IDS)


# How models are called, and what they return


class Returning(nn.Module):
    """Returns what a function makes of logits (B, T, V)."""

    def __init__(self, wrap: Callable[[Tensor], Any] = lambda logits: logits) -> None:
        super().__init__()
        self.embedding, self.wrap = nn.Embedding(VOCABULARY, VOCABULARY), wrap

    def forward(self, input_ids: Tensor) -> Any:
        return self.wrap(self.embedding(input_ids))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: (logits, None),
        lambda logits: [logits],
        lambda logits: {"loss": None, "logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
    ],
    ids=["tuple", "list", "dict", "object"],
)
def test_logits_are_found_in_what_a_model_returns(wrap):
    model, batch = Returning(wrap), plain_batch([5, 3])
    assert torch.equal(forward_logits(model, batch), model.embedding(batch["input_ids"]))


@pytest.mark.parametrize(
    "wrap, came",
    [
        (lambda logits: logits[:, -1], "a tensor (2, 23)"),
        (lambda logits: (logits[:, -1:], None), "a tensor (2, 1, 23) in tuple"),  # nanoGPT without targets
        (lambda logits: logits.transpose(0, 1), "a tensor (5, 2, 23)"),
        (lambda logits: (None, logits), "NoneType in tuple"),
        (lambda logits: {"scores": logits}, "NoneType in dict"),
        (lambda logits: None, "NoneType"),
        (lambda logits: (), "tuple of 0"),
    ],
)
def test_anything_but_logits_at_each_position_is_refused(wrap, came):
    said = refusal(ValueError, lambda: forward_logits(Returning(wrap), plain_batch([5, 3])))
    assert said == f"Returning must return logits (B, T, V), here (2, 5, V), got {came}"


def test_a_forward_of_any_keywords_gets_the_mask():
    class Keywords(Returning):
        def forward(self, input_ids: Tensor, **kwargs: Any) -> Tensor:
            self.given = kwargs
            return super().forward(input_ids)

    model, batch = Keywords(), plain_batch([5, 3])
    forward_logits(model, batch)
    assert list(model.given) == ["attention_mask"] and model.given["attention_mask"] is batch["attention_mask"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt"])
def test_a_row_longer_than_a_hugging_face_models_positions_is_refused(name):
    with refused(ValueError, rf"takes at most {LONGEST} positions .*, got {LONGEST + 1}"):
        forward_logits(hugging_face(name), plain_batch([LONGEST + 1]))


def test_a_lookup_beyond_an_embedding_says_which_ids_and_sizes():
    class Positions(Returning):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Embedding(4, VOCABULARY)

        def forward(self, input_ids: Tensor) -> Tensor:
            return super().forward(input_ids) + self.positions(torch.arange(input_ids.size(1)))

    with refused(ValueError, r"ids from \d+ to \d+ at 5 positions, embeddings of 4 and 23 rows"):
        forward_logits(Positions(), plain_batch([5]))


# What a batch must hold


def spoiled(**parts: Any) -> dict[str, Any]:
    """A sound batch (2, 5) with some parts replaced, or left out where they are `...`."""
    batch: dict[str, Any] = plain_batch([5, 3]) | parts
    return {name: part for name, part in batch.items() if part is not ...}


def with_value(name: str, value: int, column: int = 1) -> dict[str, Any]:
    batch = plain_batch([5, 3])
    batch[name][1, column] = value
    return batch


SHAPE = torch.zeros(2, 5, dtype=torch.int64)
BAD_BATCHES = {
    "a tuple": (
        (SHAPE, SHAPE),
        'a batch must be a dict with input_ids and labels, got tuple of 2: give {"input_ids": ids, "labels": ids}',
    ),
    "a tensor": (SHAPE, "must be a dict with input_ids and labels, got a tensor (2, 5)"),
    "no labels": (spoiled(labels=...), "must hold input_ids and labels, got input_ids, attention_mask"),
    "no ids": (spoiled(input_ids=...), "must hold input_ids and labels, got attention_mask, labels"),
    "lists": (spoiled(input_ids=[[1, 2]]), "input_ids must be a tensor (B, T), got list of 1"),
    "float ids": (spoiled(input_ids=SHAPE.float()), "input_ids must be int64 or int32, got float32"),
    "int32 labels": (spoiled(labels=SHAPE.int()), "labels must be int64, got int32"),
    "one row": (spoiled(input_ids=SHAPE[0]), "input_ids must have the shape (B, T), got (5,)"),
    "shifted labels": (spoiled(labels=SHAPE[:, 1:]), "labels must have the shape of input_ids (2, 5), got (2, 4)"),
    "wide mask": (spoiled(attention_mask=torch.ones(2, 6)), "must have the shape of input_ids (2, 5), got (2, 6)"),
    "an id too large": (with_value("input_ids", 23), "input_ids must be from 0 to 22, the model's vocabulary, got 23"),
    "a negative id": (with_value("input_ids", -1), "input_ids must be from 0 to 22, the model's vocabulary, got -1"),
    "a label too large": (with_value("labels", 99), "labels must be from 0 to 22, the model's vocabulary or -100, got"),
    "a label of -1": (with_value("labels", -1), "or -100, got -1"),
    "an additive mask": (
        spoiled(attention_mask=SHAPE - 9.0),
        "attention_mask must be 1 for a token and 0 for PAD, got",
    ),
    "a mask of shares": (
        spoiled(attention_mask=torch.full((2, 5), 0.5)),
        "attention_mask must be 1 for a token and 0 for PAD, got 0.5",
    ),
    "a mask of NaN": (
        spoiled(attention_mask=torch.full((2, 5), math.nan)),
        "attention_mask must be 1 for a token and 0 for PAD, got nan",
    ),
    "left padding": (plain_batch([5, 3], side="left"), "takes no attention_mask, so PAD must stand at the right"),
    "packed by positions alone": (
        spoiled(position_ids=torch.tensor([[0, 1, 0, 1, 2], [0, 1, 2, 3, 4]])),
        "position_ids must count from 0 in each row (rows of several documents need document_ids), got others",
    ),
}


USES: dict[str, Callable[[nn.Module, list[Any], torch.optim.Optimizer], object]] = {
    "train_step": lambda model, batches, optimizer: [train_step(model, [one], optimizer) for one in batches],
    "a window": train_step,
    "evaluate": lambda model, batches, optimizer: evaluate(model, batches),
    "find_lr": lambda model, batches, optimizer: find_lr(model, batches, optimizer, num_iter=9),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("batch, said", BAD_BATCHES.values(), ids=list(BAD_BATCHES))
def test_a_batch_that_cannot_be_trained_on_is_refused(use, batch, said):
    model = Returning()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert said in refusal((TypeError, ValueError), lambda: USES[use](model, [plain_batch([4]), batch], optimizer))


def nano_gpt_way(text: Tensor, masked: bool = True) -> dict[str, Tensor]:
    """What is given to a loss that does not shift; PAD, the id 0, is -100 where it is masked."""
    ids, labels = text[:, :-1], text[:, 1:]
    return {"input_ids": ids, "labels": labels.masked_fill(labels == 0, -100) if masked else labels}


DRAW = torch.Generator().manual_seed(0)
DOCUMENTS = [1 + torch.randperm(VOCABULARY - 1, generator=DRAW)[:length] for length in (16, 9)]
TEXT = pad_sequence(DOCUMENTS, batch_first=True)
PADDED = {"input_ids": TEXT, "labels": TEXT, "attention_mask": (TEXT > 0).long()}
# each document shifted before it was padded, or joined with the other: its last label is no token of the row
EACH = {"input_ids": [one[:-1] for one in DOCUMENTS], "labels": [one[1:] for one in DOCUMENTS]}
APART = {name: pad_sequence(parts, batch_first=True) for name, parts in EACH.items()}
JOINED = {name: torch.cat(parts)[None] for name, parts in EACH.items()}
RUNS = torch.stack([one[:9].repeat_interleave(3) for one in DOCUMENTS])  # most tokens are their own successors
MISPLACED = {
    "shifted": (nano_gpt_way(TEXT), "as the loss shifts them, got the token that follows at each"),
    "shifted, PAD and all": (nano_gpt_way(TEXT, masked=False), "labels must stand at their own tokens"),
    "shifted, in runs": (nano_gpt_way(RUNS), "labels must stand at their own tokens"),
    "shifted, then padded": (
        APART | {"labels": APART["labels"].masked_fill(APART["labels"] == 0, -100)},
        "got the token that follows at each",
    ),
    "shifted, then joined": (JOINED, "got the token that follows at each"),
    "shifted back": ({"input_ids": TEXT[:1, 1:], "labels": TEXT[:1, :-1]}, "got the token that precedes at each"),
    "PAD": (PADDED, "labels must be -100 where attention_mask is 0, got 7 others there"),
    "PAD on the left": (
        {name: part.flip(1) for name, part in PADDED.items()},
        "labels must be -100 where attention_mask is 0, got 7 others there",
    ),
    "PAD of packed rows": (
        {"input_ids": TEXT, "labels": TEXT, "document_ids": (TEXT > 0).long() - 1},
        "labels must be -100 where document_ids is -1, got 7 others there",
    ),
    "a document's first token": (
        {"input_ids": TEXT[:1], "labels": TEXT[:1], "document_ids": torch.tensor([[0] * 8 + [1] * 7 + [2]])},
        "labels must be -100 where a document begins behind another, got 2 others there",
    ),
}


@pytest.mark.parametrize("batch, said", MISPLACED.values(), ids=list(MISPLACED))
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("use", USES)
def test_labels_at_other_tokens_than_their_own_are_refused_in_any_batch(use, before, batch, said):
    model = GPT(ModelConfig(1, 1, 4), VOCABULARY, LONGEST)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert said in refusal(ValueError, lambda: USES[use](model, [*[plain_batch([4])] * before, batch], optimizer))


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**16), st.integers(1, 40), st.integers(2, 9), st.integers(2, 5), st.integers(1, 4))
def test_labels_that_are_other_tokens_by_chance_are_no_suspects(seed, rows, width, kinds, run):
    """Such as classes at a few places of each row; or the text, where a share of the ids was replaced at random."""
    draw = torch.Generator().manual_seed(seed)
    ids, labels = torch.randint(kinds, (2, rows, width), generator=draw)
    few = torch.rand(ids.shape, generator=draw) < torch.rand((), generator=draw)
    check_labels({"input_ids": ids, "labels": labels.where(few, -100)})
    text = ids.repeat_interleave(run, 1)
    noise = torch.rand(text.shape, generator=draw) < 0.3
    check_labels({"input_ids": torch.randint(kinds, text.shape, generator=draw).where(noise, text), "labels": text})


@pytest.mark.parametrize("distance", [-1, 1])
def test_a_class_may_have_to_be_the_token_beside_it(distance):
    ids, last = torch.randint(VOCABULARY, (40, 9), generator=torch.Generator().manual_seed(0)), 7
    labels = torch.full_like(ids, -100)
    labels[:, last] = ids[:, last + distance]
    check_labels({"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)})


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(0, 2),
    st.integers(1, 3),
)
@settings(deadline=None)
def test_honest_labels_are_no_suspects_however_the_text_repeats_itself(rows, pads, kinds):
    for batch in (packed_batch(rows, pads), plain_batch([sum(row) for row in rows])):
        ids = batch["input_ids"] % kinds
        documents = batch.get("document_ids")
        check_labels(batch | {"input_ids": ids, "labels": labels_of(ids, batch["attention_mask"], documents)})


@pytest.mark.parametrize("forward", [
    lambda self, *, input_ids: input_ids, lambda self: None, lambda self, ids, lengths: ids
])  # fmt: skip
def test_a_model_that_cannot_be_called_on_ids_is_refused(forward):
    model = type("Foreign", (nn.Linear,), {"forward": forward})(2, 2)
    batch = {"input_ids": torch.ones(1, 4).long(), "labels": torch.ones(1, 4).long()}
    with pytest.raises(TypeError, match=r"must be callable as model\(input_ids\), got Foreign.forward: "):
        train_step(model, [batch], torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_model_without_a_parameter_is_refused():
    with pytest.raises(ValueError, match=r"the model \(ReLU\) has no parameter"):
        device_of(nn.ReLU())


def repacked(**parts: list[int]) -> dict[str, Tensor]:
    return packed_batch([[2, 3]], pads=1) | {name: torch.tensor([part]) for name, part in parts.items()}


@pytest.mark.parametrize(
    "batch, said",
    [
        (repacked(document_ids=[0, 0, 1, 1, 0, -1]), "a document's tokens must stand together"),
        (repacked(document_ids=[0, 0, 1, 1, 1, 1]), "document_ids must be -1 exactly where attention_mask is 0"),
        (repacked(position_ids=[0, 1, 2, 3, 4, 0]), "position_ids must count from 0 in each document"),
    ],
)
def test_packed_parts_that_contradict_each_other_are_refused(batch, said):
    assert said in refusal(ValueError, lambda: check_batch(GPT(ModelConfig(1, 1, 4), VOCABULARY, 8), batch))


@given(
    st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(0, 3),
    st.sampled_from([torch.int64, torch.int32, torch.bool, torch.float32]),
)
@settings(max_examples=40)
def test_any_sound_batch_passes(rows, pads, dtype):
    model = GPT(ModelConfig(1, 1, 4), VOCABULARY, LONGEST)
    packed = packed_batch(rows, pads)
    check_batch(model, packed | {"attention_mask": packed["attention_mask"].to(dtype)})
    for side in ("left", "right"):
        check_batch(model, plain_batch([sum(row) for row in rows], side=side))


@pytest.mark.parametrize("name", ["gpt2", "opt", "mamba"])
def test_the_vocabulary_is_that_of_the_token_embedding(name):
    assert embedded_tokens(hugging_face(name)) == VOCABULARY


def test_positions_do_not_count_as_vocabulary_in_this_packages_model():
    assert embedded_tokens(GPT(ModelConfig(1, 1, 4), 5, 100)) == 5


@pytest.mark.parametrize(
    "kind", [torch.compile, lambda model, backend: model, lambda model, backend: nn.DataParallel(model)]
)
def test_a_wrapped_model_is_checked_and_called_by_its_own_signature(kind):
    model = kind(Returning(), backend="eager")
    check_batch(model, plain_batch([5, 3]))
    assert forward_logits(model, plain_batch([5, 3])).shape == (2, 5, VOCABULARY)


def test_a_batch_whose_values_are_elsewhere_is_not_read():
    model = GPT(ModelConfig(1, 1, 4), VOCABULARY, LONGEST).to("meta")
    check_batch(model, {name: part.to("meta") for name, part in packed_batch([[3, 4]]).items()})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_id_outside_the_vocabulary_leaves_cuda_usable():
    model = Returning().cuda()
    with pytest.raises(ValueError, match="input_ids must be from 0 to 22"):
        train_step(model, [with_value("input_ids", 23)], torch.optim.SGD(model.parameters(), lr=0.1))
    torch.cuda.synchronize()
    assert torch.ones(1, device="cuda").item() == 1
