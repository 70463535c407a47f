"""The command `plan`: bytes that each rank would hold and send, without the text and without the weights."""

from argparse import Namespace
from dataclasses import replace

from course_lm.cli.preparation import settle_curriculum
from course_lm.config import TrainingConfig
from course_lm.display import readable_bytes, table
from course_lm.precision import resolve_precision
from course_lm.profiling.plan import NOT_SHARDED, Plan, plan_of

HELD = {
    "weights": "weights",
    "gradients": "gradients",
    "unsharded_gradients": "gradients not yet sharded",
    "exchange": "gradients on their way",
    "moments": "optimizer state",
    "average": "average of the weights",
    "gathered": "gathered weights",
    "activations": "activations",
    "held": "sum of these",
}
SENT = {
    "all_gather": "sent in a step: all-gather",
    "reduce_scatter": "sent in a step: reduce-scatter",
    "all_reduce": "sent in a step: all-reduce",
    "sent": "sent in a step",
}


def plan_run(config: TrainingConfig, options: Namespace) -> int:
    """Print what one of so many `ranks` holds and sends, as configured; return 0.

    Under `distributed.strategy` "auto" both ddp and fsdp, side by side. Where the device or the precision is "auto", it
    is a GPU, and bf16: the run is planned for another machine than this one.
    """
    settle_curriculum(config)  # refuses here what a run would refuse
    device = "cuda" if config.training.device == "auto" else config.training.device
    precision = config.training.precision
    if precision == "auto":
        precision = resolve_precision("auto", device) if device in ("cpu", "mps") else "bf16"

    def planned(config: TrainingConfig) -> list[Plan]:
        return [plan_of(config, options.ranks, name, precision, device) for name in _strategies(config)]

    plans, checkpointing = planned(config), config.model.gradient_checkpointing
    others = planned(replace(config, model=replace(config.model, gradient_checkpointing=not checkpointing)))
    print(describe(config, plans[0], f"{precision} on {device}"))
    print(f"\n{plan_report(plans, others, 'without' if checkpointing else 'with')}")
    return 0


def _strategies(config: TrainingConfig) -> list[str]:
    """What is planned: the strategy that is named, or all that need no more than the number of ranks."""
    if config.distributed.strategy != "auto":
        return [config.distributed.strategy]
    return ["ddp"] if config.optimizer.type in NOT_SHARDED else ["ddp", "fsdp"]


def describe(config: TrainingConfig, first: Plan, computes: str) -> str:
    """Two lines: the model and how it computes; the micro-batches of a step, and how many of a rank's are empty."""
    settings, computed = config.training, first.ranks * first.passes
    empty = computed - settings.gradient_accumulation_steps
    return (
        f"{first.parameters:,} parameters, {computes}\n"
        f"micro-batches of {settings.batch_size:,} x {config.data.max_length:,} tokens: "
        f"{settings.gradient_accumulation_steps:,} in a step, {first.passes:,} on each rank of {first.ranks:,}"
        + (f"; {empty:,} of these {computed:,} are empty" if empty else "")
    )


def plan_report(plans: list[Plan], others: list[Plan], checkpointing: str) -> str:
    """A table with a column for each plan, in binary units; `others` are "with" or "without" gradient checkpointing."""

    def row(name: str, key: str, plans: list[Plan] = plans) -> tuple[str, ...]:
        return name, *(readable_bytes(getattr(one, key)) for one in plans)

    rows = [("on one rank", *(one.strategy for one in plans))]
    rows += [row(name, key) for key, name in HELD.items() if key != "average" or any(one.average for one in plans)]
    rows += [row(f"activations {checkpointing} gradient checkpointing", "activations", others)]
    rows += [row(name, key) for key, name in SENT.items()]
    return table([*rows, ("collectives in a step", *(f"{one.collectives:,}" for one in plans))])
