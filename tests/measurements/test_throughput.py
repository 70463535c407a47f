"""The benchmark measures what it says: both models compute the same, and every table comes out."""

import throughput
import torch
import workloads
from harness import in_child, take_turns
from textbook_gpt import TextbookGPT
from throughput import Plan

from course_lm.batching import IGNORE_INDEX
from course_lm.model import GPT, ModelConfig

TINY = Plan(
    sizes={"tiny": {"steps": 3, "warmup": 1}},
    rounds=1,
    documents=40,
    lengths=(32,),
    same_module_size="tiny",
    threads=1,
)


def both_models(**switches) -> tuple[GPT, TextbookGPT]:
    """The shipped and the textbook model with the same weights."""
    torch.manual_seed(0)
    shipped = GPT(ModelConfig(n_layer=2, n_head=2, d_model=16, dropout=0.0), vocab_size=50, max_length=12)
    textbook = TextbookGPT(n_layer=2, n_head=2, d_model=16, vocab_size=50, max_length=12, **switches)
    textbook.load_state_dict(shipped.state_dict())
    return shipped, textbook


def test_textbook_and_shipped_model_give_the_same_logits():
    ids = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(1))
    for attention in ("sdpa", "matmul"):
        shipped, textbook = both_models(attention=attention, gelu="none")
        with torch.no_grad():
            expected, logits = shipped.double()(ids, torch.ones_like(ids)), textbook.double()(ids)
        torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)


def test_tanh_gelu_is_the_only_difference_between_the_models():
    shipped, textbook = both_models()
    ids = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        difference = (shipped.double()(ids) - textbook.double()(ids)).abs().max()
    assert 0 < difference < 1e-3


def test_random_rows_are_full_and_packed_rows_almost():
    size = workloads.SIZES["1M"]
    full = next(iter(workloads.random_loader(size, 2, packed=False)))
    assert bool(full["attention_mask"].all())
    assert bool((full["labels"][:, 1:] != IGNORE_INDEX).all())
    packed = next(iter(workloads.random_loader(size, 2, packed=True)))
    assert packed["attention_mask"].float().mean() > 0.95
    assert "document_ids" in packed and packed["document_ids"].max() > 0


def test_bare_loop_and_trainer_take_the_same_steps():
    size = workloads.SIZES["tiny"]
    batches = list(workloads.random_loader(size, 3, packed=False))
    config = workloads.run_config("fp32", size.batch_size)
    weights = []
    for bare in (False, True):
        torch.manual_seed(0)
        model = size.model(0.0)
        optimizer = workloads.build_optimizer(model, config.optimizer)
        if bare:
            precision = workloads.Precision("fp32", "cpu")
            workloads.BareLoop(model, optimizer, precision).run(batches)
        else:
            schedule = lambda step: workloads.LEARNING_RATE  # noqa: E731
            workloads.Trainer(model, config, optimizer=optimizer, schedule=schedule).train(batches)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-7)


def test_every_table_is_printed(capsys):
    results = throughput.run(TINY, workloads.measure)
    printed = capsys.readouterr().out
    for rows in results.values():
        for name in rows:
            assert f"\n{name}" in printed
    speeds = [row for name in ("tiny", "same module", "real text, T 32") for row in results[name].values()]
    assert all(result["tokens_per_second"] > 0 for rows in speeds for result in rows)


def test_child_process_reports_speed_and_memory():
    result = in_child("workloads.py", {"job": "textbook", "size": "tiny", "steps": 2, "warmup": 1, "threads": 1})
    assert result["tokens_per_second"] > 0
    assert result["peak_mib"] > 50


def test_rounds_go_forth_and_back():
    seen = []
    take_turns({"a": {"job": "a"}, "b": {"job": "b"}}, 2, lambda spec: seen.append(spec["job"]) or {})
    assert seen == ["a", "b", "b", "a"]
