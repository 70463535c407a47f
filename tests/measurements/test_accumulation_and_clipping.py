"""Claims about the stored runs of lessons 08 and 09: they are whole, and what the lessons say of them holds."""

from itertools import product

from accumulation_and_clipping import BAD_BATCH, COLUMNS, FILE, LOOPS, RATES, SEEDS, TUNING_SEEDS
from harness import load

RESULTS = load(FILE)
ACCUMULATION, CLIPPING = RESULTS["accumulation"]["70"], RESULTS["clipping"]


def test_every_loop_has_a_rate_of_the_sweep_and_a_number_for_each_seed():
    assert list(ACCUMULATION) == list(LOOPS)
    for run in ACCUMULATION.values():
        assert run["rate"] in RATES
        assert all(len(run[column]) == len(SEEDS) for column in COLUMNS)


def test_no_loop_has_its_rate_at_the_edge_of_the_sweep():
    for name, run in ACCUMULATION.items():
        assert min(RATES) < run["rate"] < max(RATES), f"{name}: a rate beyond {run['rate']} may be better"


def test_every_tuned_loop_has_been_tried_at_every_rate():
    tried = {(run["loop"], run["rate"], run["seed"]) for run in RESULTS["sweep"] if run["seed"] in TUNING_SEEDS}
    tuned = [name for name in LOOPS if name != "not divided"]
    assert tried == {*product(tuned, RATES, TUNING_SEEDS)}


def test_the_mean_of_means_reports_less_and_is_worse_on_stories_and_better_on_openings_seed_for_seed():
    once, means = ACCUMULATION["divided once"], ACCUMULATION["mean of means"]
    assert all(mine < right for mine, right in zip(means["reported"], once["reported"], strict=True))
    assert all(mine > right for mine, right in zip(means["stories"], once["stories"], strict=True))
    assert all(mine < right for mine, right in zip(means["openings"], once["openings"], strict=True))


def test_not_dividing_changes_only_the_reported_loss():
    means, undivided = ACCUMULATION["mean of means"], ACCUMULATION["not divided"]
    for kind in ("stories", "openings"):
        assert all(abs(one - other) < 0.05 for one, other in zip(means[kind], undivided[kind], strict=True))
    assert all(other / one > 3.9 for one, other in zip(means["reported"], undivided["reported"], strict=True))


def test_clearing_each_time_is_worse_everywhere_though_its_loss_falls():
    once, cleared = ACCUMULATION["divided once"], ACCUMULATION["cleared each time"]
    for kind in ("stories", "openings"):
        assert all(other > one for one, other in zip(once[kind], cleared[kind], strict=True))
    assert all(last < first - 0.5 for first, last in zip(cleared["first"], cleared["reported"], strict=True))


def losses_of_gain(kind, rate, name):
    """Seed for seed, what share of the clean run's gain the run `name` lacks at its end."""
    ends = CLIPPING["one bad batch"][kind][rate]
    seeds = zip(ends["before"], ends["clean"], ends[name], strict=True)
    return [(other - clean) / (before - clean) for before, clean, other in seeds]


def test_the_bad_batch_met_every_optimizer_rate_and_seed():
    bad = CLIPPING["one bad batch"]
    assert [(kind, float(rate)) for kind, rates in bad.items() for rate in rates] == list(BAD_BATCH)
    for kind, rate in BAD_BATCH:
        ends = bad[kind][f"{rate:g}"]
        assert list(ends) == ["before", "clean", "not clipped", "clipped"]
        assert all(len(losses) == len(SEEDS) for losses in ends.values())


def test_a_bad_batch_costs_sgd_more_than_the_gain_and_adamw_about_half_of_it_or_more_unless_it_is_clipped():
    for rate in ("0.05", "0.1"):
        assert min(losses_of_gain("sgd", rate, "not clipped")) > 1.5
    for rate in ("0.002", "0.004"):
        lost = losses_of_gain("adamw", rate, "not clipped")
        assert 0.35 < min(lost) < max(lost) < 0.7
    assert min(losses_of_gain("adamw", "0.008", "not clipped")) > 0.7
    for kind, rate in BAD_BATCH:
        assert max(losses_of_gain(kind, f"{rate:g}", "clipped")) < 0.2


def test_a_threshold_of_one_ends_lowest_and_the_percentile_close_behind():
    ends = CLIPPING["thresholds"]
    for name, losses in ends.items():
        assert all(one <= other for one, other in zip(ends["1"], losses, strict=True)), name
    assert all(other - one < 0.2 for one, other in zip(ends["1"], ends["90 %"], strict=True))
    for far in ("10", "100"):
        assert all(one < other for one, other in zip(ends["90 %"], ends[far], strict=True)), far
