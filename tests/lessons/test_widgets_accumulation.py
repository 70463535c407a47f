"""The accumulation explorer: its added-up gradients are those of real steps, and its words and picture say so."""

import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

from course_lm.classroom import widgets
from course_lm.classroom.widgets.accumulation import draw_accumulation, row_gradients
from course_lm.loss import count_targets
from course_lm.model import GPT, ModelConfig
from course_lm.step import train_step

pytestmark = pytest.mark.usefixtures("course_figures")

LENGTHS = (3, 9, 12, 2, 7, 11, 4, 5)


def make_model(dropout=0.0):
    torch.manual_seed(0)
    return GPT(ModelConfig(n_layer=1, n_head=2, d_model=8, dropout=dropout), vocab_size=13, max_length=16).double()


def make_batch(lengths=LENGTHS):
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(0, 13, mask.shape, generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100), "num_bytes": 9}


def rows_of(batch, start, end):
    return {name: part[start:end] for name, part in batch.items() if name != "num_bytes"}


def gradient_of(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def drawn(gradients, counts, cuts):
    words = draw_accumulation(gradients, counts, cuts)[1]
    once, means = re.findall(r"(?:divided once|mean of means) (\S+?)(?:,|$)", words)
    return words, float(once), float(means)


def test_the_gradients_of_the_rows_add_up_to_that_of_a_real_step():
    model, batch = make_model(), make_batch()
    gradients, counts = row_gradients(model, batch)
    assert counts.tolist() == [length - 1 for length in LENGTHS]
    train_step(model, [rows_of(batch, 0, 8)], torch.optim.SGD(model.parameters(), lr=0.0), max_grad_norm=None)
    torch.testing.assert_close(gradients.sum(0) / counts.sum(), gradient_of(model), rtol=1e-10, atol=1e-13)


def test_row_gradients_leave_the_model_as_it_was_and_draw_no_dropout():
    model, batch = make_model(dropout=0.5), make_batch()
    state = torch.get_rng_state()
    torch.testing.assert_close(row_gradients(model, batch), row_gradients(model, batch), rtol=0, atol=0)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("cuts", [(2, 4, 6), (1, 7), (3,)])
def test_the_drawn_error_of_the_mean_of_means_is_that_of_real_backward_passes(cuts):
    model, batch = make_model(), make_batch()
    at_once = row_gradients(model, batch)[0].sum(0) / int(count_targets(batch["labels"]))
    model.zero_grad()
    parts = [rows_of(batch, *bounds) for bounds in pairwise([0, *cuts, len(LENGTHS)])]
    for part in parts:
        logits = model(part["input_ids"], part["attention_mask"])
        targets = part["labels"][:, 1:]
        (torch.nn.functional.cross_entropy(logits[:, :-1].mT, targets) / len(parts)).backward()
    error = float((gradient_of(model) - at_once).norm() / at_once.norm())
    _, once, means = drawn(*row_gradients(model, batch), cuts)
    assert means == pytest.approx(error, rel=0.06) and error > 0.05  # two digits are shown
    assert once < 1e-14


@pytest.mark.parametrize(("cuts", "same"), [((0, 8), ()), ((9, -1), ()), ((6, 2, 6), (2, 6))])
def test_cuts_at_the_ends_outside_and_repeated_cut_nothing_and_their_order_is_free(cuts, same):
    rows = row_gradients(make_model(), make_batch())
    assert drawn(*rows, cuts) == drawn(*rows, same)


def test_a_batch_that_is_not_cut_has_no_error():
    words, once, means = drawn(*row_gradients(make_model(), make_batch()), ())
    assert words.startswith(f"micro-batches of 8 rows with {sum(LENGTHS) - 8} targets")
    assert "weighs 1.00 times" in words and once == means == 0


def test_a_micro_batch_without_targets_is_drawn_too():
    batch = make_batch()
    batch["labels"][:2] = -100
    _, once, means = drawn(*row_gradients(make_model(), batch), (2,))
    assert once < 1e-14 and 0 < means < 1


def test_a_micro_batch_has_a_colour_and_a_weight_and_a_line_divides_it_from_the_next():
    rows = row_gradients(make_model(), make_batch())
    left = draw_accumulation(*rows, (3, 5))[0].axes[0]
    assert len({bar.get_facecolor() for bar in left.patches}) == 3
    assert [bar.get_width() for bar in left.patches if isinstance(bar, Rectangle)] == [length - 1 for length in LENGTHS]
    assert [float(np.asarray(line.get_ydata())[0]) for line in left.lines] == [2.5, 4.5]
    assert [text.get_text()[:2] for text in left.texts] == ["× "] * 3


def test_the_explorer_sorts_the_rows_by_their_targets():
    box = widgets.accumulation_explorer(make_model(), make_batch())
    assert "rows as they came: micro-batches of 2, 2, 2, 2 rows with 10, 12, 16, 7 targets" in box.view()["words"]
    box.values["order"] = "by length"
    assert "rows by length: micro-batches of 2, 2, 2, 2 rows with 3, 7, 14, 21 targets" in box.view()["words"]
