"""Claims about the stored runs of lessons and pages: they are whole, their arms were tuned, and a run repeats."""

import platform
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise, product
from typing import Any

import batch_sizes
import bits_per_byte
import compile_costs
import curriculum_experiment
import gpu
import longer_curricula
import loss_scales
import lr_test_lengths
import lying_loops
import numpy as np
import packed_rows
import pytest
import scaling
import schedule_race
import schedule_runs
import torch
import trainer_tables
import training_lengths
import wrong_losses
from harness import ROOT, SEEDS, best_rate, is_stored, load, loop_of, losses_by_rate

from course_lm.curriculum import CurriculumLoader
from course_lm.lr_finder import suggest
from course_lm.model import GPT, ModelConfig
from course_lm.monitoring.utilization import PEAKS, Work

SCRIPTS: tuple[Any, ...] = (
    *(batch_sizes, bits_per_byte, compile_costs, curriculum_experiment, longer_curricula, lr_test_lengths, lying_loops),
    *(loss_scales, packed_rows, scaling, schedule_race, schedule_runs, trainer_tables, training_lengths, wrong_losses),
)
RESULTS: dict[str, Any] = {script.__name__: load(script.FILE) for script in SCRIPTS}
WANTED = {
    **{
        script.__name__: list(islice(script.settings_of_runs(RESULTS[script.__name__]), 10_000))  # some search on
        for script in (batch_sizes, longer_curricula, packed_rows, scaling, schedule_race, schedule_runs)
    },
    "bits_per_byte": [
        (part, settings)
        for part in ("sweep", "runs")
        for settings in bits_per_byte.settings_of(RESULTS["bits_per_byte"], bits_per_byte.ARMS, part)
    ],
    "compile_costs": list(compile_costs.settings_of_runs()),
    "loss_scales": list(loss_scales.settings_of_runs()),
    "lr_test_lengths": list(lr_test_lengths.settings_of_all()),
    "lying_loops": list(lying_loops.settings_of_runs()),
    "trainer_tables": list(trainer_tables.settings_of_runs()),
    "training_lengths": list(training_lengths.settings_of_runs(RESULTS["training_lengths"])),
    "wrong_losses": list(wrong_losses.settings_of_runs()),
}


@pytest.mark.parametrize("name", WANTED)
def test_every_run_is_there_and_no_other(name):
    results = RESULTS[name]
    assert [run for run in WANTED[name] if not is_stored(results, *run)] == []
    for part, number in Counter(part for part, _ in WANTED[name]).items():
        searched = (name, part) == ("longer_curricula", "sweep")  # of which no more is wanted, and which holds more
        assert len(results[part]) == number or searched, part


# Of grids that were searched: what tells their arms apart.
SEARCHED: dict[str, list[dict[str, Any]]] = {
    "longer_curricula": [
        {"corpus": corpus, "arm": arm, "warm_up": longer_curricula.WARM_UP, "seed": longer_curricula.SWEEP_SEED}
        for corpus, arms in longer_curricula.CORPORA.items()
        for arm in arms
    ],
    "scaling": [{"d_model": width, "budget": budget} for width, budget in product(scaling.WIDTHS, scaling.BUDGETS)],
    "schedule_race": [
        {"schedule": arm, "steps": steps} for arm, steps in product(schedule_race.ARMS, schedule_race.STEPS)
    ],
    "training_lengths": [
        {"rows": rows, "passes": passes} for rows, passes in product(training_lengths.ROWS, training_lengths.PASSES)
    ],
}
TRIED = {
    **{
        f"{name} {number}": (
            list(losses_by_rate(RESULTS[name]["sweep"], **arm)),
            best_rate(RESULTS[name]["sweep"], **arm),
        )
        for name, arms in SEARCHED.items()
        for number, arm in enumerate(arms)
    },
    **{
        f"batches of {size}": (batch_sizes.rates_tried(sweep, size), batch_sizes.best_rate(sweep, size))
        for sweep in [RESULTS["batch_sizes"]["sweep"]]
        for size in batch_sizes.BATCH_SIZES
    },
}


@pytest.mark.parametrize(("tried", "best"), TRIED.values(), ids=TRIED)
def test_half_and_double_the_best_rate_were_tried_and_ended_higher(tried, best):
    assert tried[0] < best < tried[-1]
    assert all(later == 2 * earlier for earlier, later in pairwise(tried))


# Of grids that were given: the rates of each, and the best one.
GRIDS = {
    **{
        f"rows {kind}": (packed_rows.RATES, best_rate(RESULTS["packed_rows"]["runs"], rows=kind))
        for kind in packed_rows.KINDS
    },
    **{
        f"warm-up of {run['warmup_steps']}": (schedule_runs.PEAKS, run["peak_lr"])
        for run in RESULTS["schedule_runs"]["race"]
    },
    **{
        arm: (bits_per_byte.rates_of(arm), bits_per_byte.rate_of(RESULTS["bits_per_byte"], arm))
        for arm in bits_per_byte.ARMS
    },
}


@pytest.mark.parametrize(("rates", "best"), GRIDS.values(), ids=GRIDS)
def test_no_arm_had_its_best_rate_at_the_end_of_its_grid(rates, best):
    assert min(rates) < best < max(rates)


PAGED = (bits_per_byte, curriculum_experiment, longer_curricula, lying_loops)


@pytest.mark.parametrize("script", PAGED, ids=lambda script: script.__name__)
def test_the_page_of_measurements_shows_the_table(script):
    page = (ROOT / "docs" / "measurements.md").read_text(encoding="utf-8")
    assert script.table(RESULTS[script.__name__]) in page


# On other kernels rounding does as much to so short a run.
NEAR: dict[str, dict[str, Any]] = {"val_loss": {"abs": 0.05}}


def in_its_lesson(script: Any) -> Callable[[str, Any], Any]:
    return lambda part, settings: script.measure(loop_of(script.LESSON), part, settings)


# How a run is measured, the part of the results in which it stands, and what it had.
REPEATED = {
    "scaling": (scaling.measure, "runs", {"d_model": 64, "budget": scaling.BUDGETS[0]}),
    "schedule_race": (schedule_race.measure, "runs", {"schedule": "cosine", "steps": schedule_race.STEPS[0]}),
    "training_lengths": (training_lengths.measure, "runs", {"rows": training_lengths.ROWS[0], "passes": 4}),
    "longer_curricula": (longer_curricula.measure, "runs", {"arm": "length"}),
    "schedule_runs": (in_its_lesson(schedule_runs), "count", {}),
    "lr_test_lengths": (in_its_lesson(lr_test_lengths), "runs", {"lr": lr_test_lengths.BASE_RATE}),
    "trainer_tables": (trainer_tables.measure, "warm_up", {"steps": 40}),
}


@pytest.mark.daily(0)
@pytest.mark.parametrize("name", REPEATED)
def test_a_stored_run_repeats(name):
    measure, part, chosen = REPEATED[name]
    read = RESULTS[name].get("settings", {}).get("python", platform.python_version())
    if read != platform.python_version():
        pytest.skip(f"the runs read the documentation of Python {read}")
    run = next(run for run in RESULTS[name][part] if chosen.items() <= run.items())
    settings = next(wanted for at, wanted in WANTED[name] if at == part and wanted.items() <= run.items())
    again = measure(part, settings)
    for key in run.keys() & NEAR.keys():
        assert again[key] == pytest.approx(run[key], **NEAR[key])


# What lessons say of them


def test_lesson_05_says_what_the_race_of_schedules_shows():
    ends = {(run["steps"], run["schedule"], run["seed"]): run["val_loss"] for run in RESULTS["schedule_race"]["runs"]}
    said = {(100, "WSD", "constant"): (0.10, 0.11), (100, "cosine", "constant"): (0.68, 0.70)}
    said |= {(400, "constant", "WSD"): (0.04, 0.06), (1600, "constant", "WSD"): (0.19, 0.22)}
    said |= {(1600, "cosine", "WSD"): (0.06, 0.06)}
    for seed, ((steps, higher, lower), (least, most)) in product(SEEDS, said.items()):
        assert least <= round(ends[steps, higher, seed] - ends[steps, lower, seed], 2) <= most
    for steps, seed in product(schedule_race.STEPS, SEEDS):
        assert ends[steps, "WSD", seed] < ends[steps, "linear", seed] < ends[steps, "cosine", seed]


def test_lesson_06_says_where_the_dot_of_its_play_goes():
    settings = {"text": "stories", "num_iter": 200, "seed": 0}
    losses = next(run["losses"] for run in RESULTS["lr_test_lengths"]["tests"] if settings.items() <= run.items())
    lrs = np.geomspace(1e-6, 1.0, 200)[: len(losses)].tolist()
    for points, dot in ((slice(119), 1.1e-3), (slice(115, None), 1.9e-2), (slice(None), 1.9e-2)):
        assert suggest(lrs[points], losses[points]).lr == pytest.approx(dot, rel=0.05)


def test_lesson_07_says_how_the_error_of_a_gradient_depends_on_rows_and_scale():
    errors = {(run["rows"], run["seed"]): run["fp16"] for run in RESULTS["loss_scales"]["errors"]}
    for seed in SEEDS:
        few, many, most = (errors[rows, seed] for rows in loss_scales.ROWS)
        assert few["0"] < 0.0011 and 0.13 <= round(many["0"], 2) <= 0.17 and most["0"] > 0.25
        assert all(0.0003 < error["8"] < 0.0006 for error in (few, many, most))
        assert most["2"] == pytest.approx(many["0"], rel=0.25)


def test_an_error_of_a_gradient_repeats_and_is_that_of_torchs_own_products():
    settings, loop = {"rows": 4, "seed": 0}, loss_scales.loop_of(loss_scales.LESSON)
    stored = next(run for run in RESULTS["loss_scales"]["errors"] if settings.items() <= run.items())["fp16"]
    again = loss_scales.measure(loop, "errors", settings)["fp16"]
    batch = next(iter(loop["loader_of"](loop["train_corpus"].documents, batch_size=4)))
    own = loop["gradient_error"](loop["bases"][0][0], batch, torch.float16)
    assert again["0"] == pytest.approx(stored["0"], rel=0.3) and own == pytest.approx(again["0"], rel=0.3)


def test_every_run_of_a_size_has_spent_its_budget_within_a_step_and_a_half():
    for run in RESULTS["scaling"]["runs"]:
        assert abs(run["flops"] - run["budget"]) < 1.5 * run["flops"] / run["steps"]


def test_lesson_17_says_what_runs_of_several_lengths_show():
    losses: dict[Any, list[float]] = {length: [] for length in product(training_lengths.ROWS, training_lengths.PASSES)}
    for run in RESULTS["training_lengths"]["runs"]:
        losses[run["rows"], run["passes"]].append(run["val_loss"])
    small, large = training_lengths.ROWS
    for seed in SEEDS:
        ends = {passes: losses[small, passes][seed] for passes in training_lengths.PASSES}
        assert min(ends, key=ends.__getitem__) == 16 and 0.06 <= round(ends[32] - ends[16], 2) <= 0.14
        assert losses[small, 16][seed] - losses[large, 4][seed] >= 0.5
    once, twice = losses[large, 16], losses[large, 32]
    assert min(twice) < min(once) and max(once) < max(twice)


def test_a_text_is_read_once_a_pass_in_another_order_each_time():
    batches = training_lengths.batches(rows=24, seed=0)
    text = training_lengths.training_rows()[:24].tolist()
    first, second = ([row for _ in range(3) for row in next(batches)["input_ids"].tolist()] for _ in range(2))
    assert sorted(first) == sorted(second) == sorted(text) and first != second
    assert RESULTS["training_lengths"]["settings"] == training_lengths.begin()["settings"]


def test_the_page_on_speed_has_what_was_measured_on_a_gpu():
    stored, size = load("gpu_speed.json"), gpu.SIZES["124M"]
    assert stored["settings"] == size
    with torch.device("meta"):
        ids = torch.empty(1, size["length"])
        work = Work(GPT(ModelConfig(12, 12, 768), size["vocab"], size["length"])).of({"input_ids": ids})
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8").replace("`", "")
    for run in stored["runs"] + stored["earlier"]:
        share = run["tokens_per_second"] * work / size["length"] / (PEAKS["H100"] * 1e12)
        row = f"| {run['name']} | {run['tokens_per_second']:,} | {100 * share:.0f} % | {run['peak_gib']:.1f} GiB |"
        assert row in page


def test_compiling_takes_as_long_as_many_steps():
    for run in RESULTS["compile_costs"]["runs"]:
        assert run["compile_seconds"] > 10 * run["eager_step_seconds"] and run["other_rows_seconds"] > 0


def test_the_first_epoch_of_the_longer_curricula_admits_a_fifth_of_the_tokens_and_the_pace_is_linear():
    of, pacing = curriculum_experiment.tokens_of("stories"), longer_curricula.PACING
    loader = curriculum_experiment.admitting("stories", longer_curricula.ARMS["frequency"], 0, pacing)
    assert isinstance(loader, CurriculumLoader)
    hard = loader.difficulty.tolist()
    first = sum(tokens for tokens, place in zip(of.values(), hard, strict=True) if place <= 0.2)
    assert first == pytest.approx(0.2 * sum(of.values()), rel=0.005)
    assert loader.manager.threshold(pacing["num_steps"] // 2) == pytest.approx(0.6)
