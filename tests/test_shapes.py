"""The shapes and dtypes in the signatures are those that the functions take and give."""

from collections.abc import Callable
from functools import partial
from typing import Any, get_type_hints

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from course_lm.accumulation import count_window_targets
from course_lm.batching import MODES, Batch, labels_of, make_loader
from course_lm.loss import count_correct, count_targets, next_token_loss
from course_lm.model import GPT, ModelConfig, allowed_attention, positions_of
from tests.training_run import DOCUMENTS, TOKENIZER

LOGITS, LABELS = torch.randn(2, 5, 7), torch.arange(10).view(2, 5) % 7
MASK, DOCUMENT_IDS = torch.ones(2, 5).long(), torch.tensor([[0, 0, 1, 1, -1], [0, 0, 0, 0, 0]])
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mean loss": (next_token_loss, (LOGITS, LABELS)),
    "loss of each target": (partial(next_token_loss, reduction="none"), (LOGITS, LABELS)),
    "loss in bfloat16": (next_token_loss, (LOGITS.bfloat16(), LABELS)),
    "targets": (count_targets, (LABELS,)),
    "hits": (count_correct, (LOGITS, LABELS)),
    "targets of a window": (count_window_targets, ([{"labels": LABELS}, {"labels": LABELS[:1, :3]}],)),
    "labels": (labels_of, (LABELS, MASK)),
    "labels of packed rows": (labels_of, (LABELS, MASK, DOCUMENT_IDS)),
    "labels under a mask of bool": (labels_of, (LABELS, MASK.bool())),
    "attention to all before": (allowed_attention, (None, None)),
    "attention without PAD": (allowed_attention, (MASK, None)),
    "attention within documents": (allowed_attention, (None, DOCUMENT_IDS)),
    "positions": (positions_of, (LABELS, None, None)),
    "positions after PAD": (positions_of, (LABELS, MASK, None)),
    "positions in documents": (positions_of, (LABELS, MASK, DOCUMENT_IDS)),
}


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its arguments and its answer compared with its signature."""
    if isinstance(function, partial):
        return partial(checked(function.func), **function.keywords)
    return jaxtyped(function, typechecker=beartype)


@pytest.mark.parametrize("call", CALLS)
def test_arguments_and_answer_have_the_shapes_of_the_signature(call):
    function, arguments = CALLS[call]
    checked(function)(*arguments)


@pytest.mark.parametrize("arguments", [(LABELS,), (LABELS, MASK), (LABELS, MASK, DOCUMENT_IDS)])
def test_the_model_takes_and_gives_the_shapes_of_its_signature(arguments):
    model = GPT(ModelConfig(n_layer=1, n_head=1, d_model=4), vocab_size=7, max_length=5)
    checked(GPT.forward)(model, *arguments)


@pytest.mark.parametrize("labels", [LABELS[:, :4], LABELS.int(), LABELS[0]], ids=["width", "dtype", "dimensions"])
def test_another_shape_would_be_noticed(labels):
    with pytest.raises(TypeCheckError):
        checked(next_token_loss)(LOGITS, labels)


@pytest.mark.parametrize("mode", MODES)
def test_batches_of_a_loader_hold_what_their_type_says(mode):
    kinds = get_type_hints(Batch)
    for batch in make_loader(DOCUMENTS, TOKENIZER, mode=mode, batch_size=4, max_length=16):
        assert Batch.__required_keys__ <= batch.keys() <= kinds.keys()
        with jaxtyped("context"):
            assert [name for name, value in batch.items() if not isinstance(value, kinds[name])] == []
