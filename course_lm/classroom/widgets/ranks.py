"""Many ranks: the bytes that one of them holds, and those that it sends in a step, against their number."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lm.classroom import plots
from course_lm.classroom.widgets.explorer import Explorer, buttons, explorer, slider, switch
from course_lm.display import CHOSEN
from course_lm.distributed.settings import STRATEGIES
from course_lm.model import ModelConfig
from course_lm.profiling.plan import Plan, plan

GIB = 2**30
LIMITS = (24, 80)  # GiB: a desktop's card, a server's card
RANKS = tuple(2**power for power in range(11))
NODE = 8  # ranks that hybrid shards over: those of one machine
BATCH_SIZE, LENGTH, VOCAB_SIZE = 4, 1024, 50_257  # of a micro-batch; each rank computes one in a step
_LOWEST_TOP = 26.0  # GiB: so that the smallest limit is in the picture of every model
_LETTER = 6.4  # points, of a name above a panel


class Size(NamedTuple):
    """Layers, heads and width of a published model."""

    n_layer: int
    n_head: int
    d_model: int


# Radford et al. 2019, table 2, with 12, 16, 20 and 25 heads as released; Brown et al. 2020, table 2.1.
SIZES = {
    "GPT-2 small": Size(12, 12, 768),
    "GPT-2 medium": Size(24, 16, 1024),
    "GPT-2 large": Size(36, 20, 1280),
    "GPT-2 XL": Size(48, 25, 1600),
    "GPT-3 6.7B": Size(32, 32, 4096),
}
# Of each part the colour of its bars, and a darker one for its name.
_HELD = {
    "weights": (plots.BLUE, plots.BLUE),
    "gradients": (plots.ORANGE, "#8A5A00"),
    "moments": (plots.GREEN, "#00704F"),
    "activations": (plots.PURPLE, "#A0467A"),
    "in transit": (plots.BAND, plots.GREY),
}
_SENT = {
    "all-gather": (plots.BLUE, plots.BLUE),
    "reduce-scatter": (plots.ORANGE, "#8A5A00"),
    "all-reduce": (plots.RED, "#A84800"),
}


def rank_plan(model: str, ranks: int, strategy: str, checkpointing: bool = False) -> Plan:
    """The plan of rank 0: each rank computes one micro-batch of `BATCH_SIZE` rows in bf16, and hybrid shards over 8.

    `model` is one of `SIZES`.
    """
    config = ModelConfig(*SIZES[model], dropout=0.0, gradient_checkpointing=checkpointing)
    return plan(
        config,
        ranks,
        strategy,
        vocab_size=VOCAB_SIZE,
        max_length=LENGTH,
        batch_size=BATCH_SIZE,
        micro_batches=ranks,
        shard_size=min(NODE, ranks) if strategy == "hybrid" else None,
        precision="bf16",
    )


def draw_ranks(
    model: str = "GPT-2 XL", ranks: int = 64, strategy: str = "fsdp", checkpointing: bool = False
) -> tuple[Figure, str]:
    """What a rank holds, by owner, and what it sends in a step, by collective, for 1 to 1,024 ranks.

    "In transit" are weights that are gathered and gradients that are exchanged. Both axes stay where they are while
    strategy and checkpointing change.

    Returns:
        The figure, with `ranks` marked; and in words its bytes, and from how many ranks on a model fits into `LIMITS`.
    """
    plans = [rank_plan(model, each, strategy, checkpointing) for each in RANKS]
    chosen = plans[RANKS.index(ranks)]
    figure = Figure(figsize=(10.4, 3.7))
    left, right = figure.subplots(1, 2, width_ratios=(6, 5), gridspec_kw={"wspace": 0.22})
    _draw_stack(left, [_held(each) for each in plans], _HELD, ranks)
    _draw_stack(right, [_sent(each) for each in plans], _SENT, ranks)
    most_held = rank_plan(model, 2, "ddp").held / GIB  # everything on every rank, and all activations
    left.set(ylabel="one rank holds (GiB)", ylim=(0, max(_LOWEST_TOP, 1.1 * most_held)))
    most_sent = rank_plan(model, RANKS[-1], "fsdp").sent / GIB
    right.set(ylabel="one rank sends in a step (GiB)", ylim=(0, 1.1 * most_sent))
    for limit in LIMITS:
        if limit < left.get_ylim()[1]:
            left.axhline(limit, color=plots.INK, linestyle="--", linewidth=1.2)
            above = {"textcoords": "offset points", "ha": "right", "va": "bottom", "fontsize": 11}
            left.annotate(f"{limit} GiB", (10.4, limit), (0, 4), **above)
    return figure, _words(model, ranks, strategy, checkpointing, chosen, plans)


def _held(one: Plan) -> dict[str, int]:
    passing = one.gathered + one.unsharded_gradients + one.exchange
    parts = (one.weights, one.gradients, one.moments, one.activations, passing)
    return dict(zip(_HELD, parts, strict=True))


def _sent(one: Plan) -> dict[str, int]:
    return dict(zip(_SENT, (one.all_gather, one.reduce_scatter, one.all_reduce), strict=True))


def _draw_stack(
    axes: Axes, parts: Sequence[Mapping[str, int]], colours: Mapping[str, tuple[str, str]], ranks: int
) -> None:
    """A stacked bar for each number of ranks; the chosen one stands on a coloured ground."""
    place = RANKS.index(ranks)
    axes.axvspan(place - 0.5, place + 0.5, color=CHOSEN, zorder=0)
    edges = np.arange(len(RANKS) + 1) - 0.5
    base, left = np.zeros(len(RANKS)), 0.0
    for name, (colour, ink) in colours.items():
        top = base + [each[name] / GIB for each in parts]
        axes.stairs(top, edges, baseline=base, fill=True, color=colour, linewidth=0)
        look = {"color": ink, "weight": "bold", "fontsize": 10}
        axes.annotate(name, (0, 1), (left, 5), xycoords="axes fraction", textcoords="offset points", **look)
        base, left = top, left + (len(name) + 2) * _LETTER
    axes.plot(place, base[place], "v", color=plots.INK, markersize=9, clip_on=False)
    axes.set_xticks(range(0, len(RANKS), 3), [f"{each:,}" for each in RANKS[::3]])
    axes.set(xlabel="ranks", xlim=(-0.5, len(RANKS) - 0.5))
    axes.locator_params(axis="y", nbins=5)
    axes.grid(False)


def _words(model: str, ranks: int, strategy: str, checkpointing: bool, chosen: Plan, plans: Sequence[Plan]) -> str:
    what = {"ddp": "ddp", "fsdp": "fsdp", "hybrid": f"hybrid, sharded over {min(NODE, ranks)}"}[strategy]
    held = ", ".join(f"{name} {size / GIB:.2f}" for name, size in _held(chosen).items())
    sent = ", ".join(f"{name} {size / GIB:.2f}" for name, size in _sent(chosen).items())
    lines = [
        f"{model}, {chosen.parameters / 1e6:,.1f}M parameters, {what}, {ranks:,} {'rank' if ranks == 1 else 'ranks'}, "
        f"{'with' if checkpointing else 'without'} gradient checkpointing",
        f"one rank holds at most {chosen.held / GIB:.2f} GiB: {held}",
        f"one rank sends {chosen.sent / GIB:.2f} GiB in a step: {sent}",
    ]
    for limit in LIMITS:
        enough = [each for each, one in zip(RANKS, plans, strict=True) if one.held <= limit * GIB]
        fits = f"enough with {_listed(enough)}" if enough else "never enough here"
        lines.append(f"{limit} GiB are {fits}")
    return "\n".join(lines)


def _listed(enough: Sequence[int]) -> str:
    """Numbers of ranks in a row as "8 ranks or more"; others one by one."""
    if list(enough) == list(RANKS):
        return "any number of ranks"
    if list(enough) == list(RANKS[-len(enough) :]):
        return f"{enough[0]:,} ranks or more"
    return f"{', '.join(f'{each:,}' for each in enough)} {'rank' if list(enough) == [1] else 'ranks'}"


def ranks_explorer() -> Explorer:
    """Change model, ranks and strategy, and see what a rank holds and sends; every control works by keyboard."""
    controls = {
        "model": slider("model", "GPT-2 XL", list(SIZES)),
        "ranks": slider("ranks", 64, RANKS),
        "strategy": buttons("strategy", list(STRATEGIES), "fsdp"),
        "checkpointing": switch("gradient checkpointing"),
    }
    return explorer(draw_ranks, controls)
