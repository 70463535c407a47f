"""Claims about `course-lm plan`: the plan of the configured run in a readable table."""

import re
from dataclasses import replace
from typing import Any

import pytest

from course_lm.config import TrainingConfig
from course_lm.display import readable_bytes
from course_lm.profiling.plan import Plan, plan
from tests.cli.answers import printed

KIB, MIB, GIB = 2**10, 2**20, 2**30


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    return printed(capsys, ["plan", *arguments])


def columns(text: str) -> dict[str, list[str]]:
    """The cells of each row of the table."""
    rows = text.partition("\n\n")[2].splitlines()
    cells = [re.split(r"\s{2,}", row) for row in rows]
    assert len({len(row) for row in rows}) == 1, text  # aligned at the right
    return {name: values for name, *values in cells}


def gpt2(
    strategy: str,
    ranks: int = 64,
    precision: str = "bf16",
    device: str = "cuda",
    checkpointing: bool = False,
    **changes: Any,
) -> Plan:
    config = TrainingConfig.from_yaml("gpt2")
    return plan(
        replace(config.model, gradient_checkpointing=checkpointing),
        ranks,
        strategy,
        vocab_size=50304,
        max_length=1024,
        batch_size=16,
        micro_batches=32,
        optimizer=config.optimizer,
        precision=precision,
        device=device,
        **changes,
    )


def test_the_table_holds_the_plans_side_by_side(capsys):
    table = columns(shown(capsys, "--config=gpt2", "--ranks=64"))
    plans = [gpt2("ddp"), gpt2("fsdp")]
    assert table.pop("on one rank") == ["ddp", "fsdp"]
    assert table.pop("collectives in a step") == [str(one.collectives) for one in plans]
    rows = {
        "weights": "weights",
        "gradients": "gradients",
        "gradients not yet sharded": "unsharded_gradients",
        "gradients on their way": "exchange",
        "optimizer state": "moments",
        "gathered weights": "gathered",
        "activations": "activations",
        "sum of these": "held",
        "sent in a step: all-gather": "all_gather",
        "sent in a step: reduce-scatter": "reduce_scatter",
        "sent in a step: all-reduce": "all_reduce",
        "sent in a step": "sent",
    }
    others = [gpt2(strategy, checkpointing=True).activations for strategy in ("ddp", "fsdp")]
    assert table.pop("activations with gradient checkpointing") == [readable_bytes(size) for size in others]
    assert table == {name: [readable_bytes(getattr(one, key)) for one in plans] for name, key in rows.items()}


def test_an_average_of_the_weights_has_a_row_and_is_in_the_sum(capsys):
    table = columns(shown(capsys, "--config=gpt2", "--ranks=64", "--training.average_weights=0.9"))
    plans = [gpt2("ddp", averages=True), gpt2("fsdp", averages=True)]
    assert table["average of the weights"] == [readable_bytes(one.average) for one in plans]
    assert table["sum of these"] == [readable_bytes(one.held) for one in plans]
    assert plans[0].held - gpt2("ddp").held == plans[0].average == plans[0].weights


def test_a_named_strategy_stands_alone(capsys):
    named = ("--distributed.strategy=hybrid", "--distributed.shard_size=8")
    table = columns(shown(capsys, "--config=gpt2", "--ranks=64", *named))
    assert table["on one rank"] == ["hybrid"]
    assert table["weights"] == [readable_bytes(gpt2("hybrid", shard_size=8).weights)]


@pytest.mark.parametrize(
    ("arguments", "strategies"),
    [
        (("--optimizer.type=adamw",), ["ddp", "fsdp"]),
        ((), ["ddp"]),  # Muon, which cannot be sharded
    ],
)
def test_without_a_name_all_are_shown_that_can_be_planned(arguments, strategies, capsys):
    assert columns(shown(capsys, "--ranks=4", *arguments))["on one rank"] == strategies


def test_every_key_of_the_configuration_is_an_option(capsys):
    table = columns(shown(capsys, "--ranks=1", "--model.d_model=256", "--data.vocab_size=300", "--model.n_layer=1"))
    weights = 300 * 256 + 12 * 256**2 + 13 * 256 + 2 * 256
    assert table["weights"][0] == readable_bytes(4 * weights)
    checkpointed = shown(capsys, "--config=gpt2", "--ranks=64", "--model.gradient_checkpointing=true")
    other = columns(checkpointed)["activations without gradient checkpointing"]
    assert other == [readable_bytes(gpt2("ddp").activations)] * 2


@pytest.mark.parametrize(
    ("arguments", "precision", "device"),
    [
        ((), "bf16", "cuda"),
        (("--training.precision=fp32",), "fp32", "cuda"),
        (("--training.precision=bf16", "--training.device=cpu"), "bf16", "cpu"),
    ],
)
def test_what_is_auto_is_planned_for_a_gpu(arguments, precision, device, capsys):
    text = shown(capsys, "--config=gpt2", "--ranks=2", *arguments)
    assert f"{precision} on {device}" in text
    assert columns(text)["activations"][0] == readable_bytes(gpt2("ddp", 2, precision, device).activations)


def test_the_head_says_what_a_step_is_and_how_many_micro_batches_are_empty(capsys):
    head = shown(capsys, "--config=gpt2", "--ranks=5").partition("\n\n")[0].splitlines()
    assert head == [
        "124,475,904 parameters, bf16 on cuda",
        "micro-batches of 16 x 1,024 tokens: 32 in a step, 7 on each rank of 5; 3 of these 35 are empty",
    ]
    assert "empty" not in shown(capsys, "--config=gpt2", "--ranks=16")


def test_no_weight_is_made_and_no_text_is_read(capsys, tmp_path):
    text = shown(
        capsys,
        "--ranks=1024",
        "--model.d_model=1048576",
        "--model.n_layer=1",
        f"--data.corpus={tmp_path}/none.txt",
    )
    assert columns(text)["weights"][0].endswith(" GiB")
