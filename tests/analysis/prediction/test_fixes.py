"""Fixes: each cause and each claimed subject is normalized in turn, and the gain is that of the iteration."""

from functools import cache

import numpy as np
import polars as pl
import pytest

import stagescope
from places import DATA
from stagescope.analysis.prediction.unknown_devices import CONDITION_OF_ONE
from truth.cases import PLANTED, Case, Truth
from truth.causes import Place, global_rank, loading, slow_rank
from truth.confusion import timeline_of
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan

CASES = {case.name: case for case in (build(1) for build in PLANTED)}

FIRST = {
    "micro-batches of unequal length, 1 replica": "micro-batches of equal length",
    "micro-batches of unequal length, 4 replicas": "micro-batches of equal length",
    "one action 1 s longer": "F2.4 of rank 2 in step 3 as long as usual",
    "garbage collection once per rank": "8 outlier actions as long as usual",
    "one rank 20 % slower, 2 replicas": "rank 5 as fast as its replicas",
    "one rank 20 % slower, 4 replicas": "rank 13 as fast as its replicas",
    "one rank 20 % slower, 2 replicas, interleaved": "rank 5 as fast as its replicas",
    "one rank 20 % slower in 3 of 10 steps": "rank 6 as fast as its replicas",
    "a replica 20 % slower, 2 replicas": "all ranks of the pipeline of rank 4 as fast as their replicas",
    "one rank drifts from 0 to 9 %": "rank 6 as fast as its replicas",
    "15 ms of data loading before each forward of stage 0": "data of rank 0 loaded ahead of time",
    "15 ms of data loading before each step": "data of rank 0 loaded ahead of time",
    "all-reduce 60 ms, optimizer 20 ms": "gradient reduction hidden behind backward passes",
    "one link 4 ms slower": "the link from rank 1 to rank 2 as fast as other links",
    "1 ms to launch every action": "no launch overhead",
}


def report_on(plan):
    return stagescope.analyze(timeline_of(simulate(plan)))


@cache
def report_of(name):
    """The report of a planted case, which several tests look at."""
    return report_on(CASES[name].plan)


def fixes_of(report):
    return report.improvements.filter(kind="fix")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive) if place % 2 else name
        for place, name in enumerate(FIRST)
    ],
)
def test_first_fix_takes_away_what_is_planted_and_gains_what_it_costs(name):
    case = CASES[name]
    report = report_of(name)
    first = fixes_of(report).row(0, named=True)
    assert first["change"] == FIRST[name]
    # Micro-batches of the simulated run have the mean length of all steps, those of a fix that of their step.
    error = 0.15 if "length" in name else 0.1
    assert first["gain_ns"] == pytest.approx(
        case.lost_ns(case.truths[0]), rel=error, abs=0.005 * case.run.iteration_ns
    )
    assert report.verdict.improvement.startswith(f"Fix first: {FIRST[name]}")


def test_predicted_time_is_that_of_the_iteration():
    case = CASES["all-reduce 60 ms, optimizer 20 ms"]
    report = report_on(case.plan)
    iteration_ns = report.iterations["iteration_ns"].mean()
    assert report.improvements["measured_step_ns"].to_list() == pytest.approx(
        [iteration_ns] * report.improvements.height
    )
    assert (report.improvements["gain_fraction"] * iteration_ns).to_list() == pytest.approx(
        report.improvements["gain_ns"].to_list()
    )


@pytest.mark.parametrize(
    "name", ["the last stage 30 % longer, 1 replica", "the last stage 30 % longer, 2 replicas"]
)
def test_longer_stage_is_no_fix(name):
    fixes = fixes_of(report_of(name))
    about_stages = fixes.filter(pl.col("change").str.contains("stage"))
    if name.endswith("2 replicas"):
        assert about_stages.is_empty()
        return
    # Without replicas, the device may be slow instead: a bound after all others, on that condition.
    assert about_stages["change"].to_list() == ["rank 3 as fast as the ranks of other stages"]
    assert about_stages["condition"].to_list() == [CONDITION_OF_ONE]
    assert (about_stages["high_step_ns"] == about_stages["measured_step_ns"]).all()
    assert fixes["change"][-1] == about_stages["change"][0]


def test_slow_rank_that_no_pipeline_waits_for_gains_nothing():
    base = make_plan(Shape(replicas=4), Costs(), 0)
    slower = slow_rank(base, Place(1, 2), 1.3)
    both = slow_rank(slower, Place(1, 1), 1.1)
    gains = dict(fixes_of(report_on(both)).select("change", "gain_ns").iter_rows())
    worst, other = (f"rank {global_rank(base, Place(1, each))} as fast as its replicas" for each in (2, 1))
    assert other not in gains
    together = gains["ranks 5 and 9 as fast as their replicas"]
    case = Case("two slow ranks", both, (Truth("straggler", "", base),))
    assert together == pytest.approx(case.lost_ns(case.truths[0]), rel=0.1)
    assert gains[worst] < 0.9 * together


@pytest.mark.parametrize(
    ("recorded", "change"),
    [
        (True, "data of rank 0 loaded ahead of time"),
        (False, "no unrecorded time before the first forward of rank 0 in each step"),
    ],
)
def test_pipeline_that_begins_sooner_gains_until_another_one_is_the_last(recorded, change):
    without = slow_rank(make_plan(Shape(replicas=2), Costs(), 0), Place(1, 1), 1.2)
    load_ns = np.zeros_like(without.step_load_ns)
    load_ns[:, 0] = 60 * MS
    case = Case(change, loading(without, per_step_ns=load_ns, recorded=recorded), (Truth("", "", without),))
    gained_ns = case.lost_ns(case.truths[0])
    assert gained_ns < 30 * MS
    gains = dict(fixes_of(report_on(case.plan)).select("change", "gain_ns").iter_rows())
    assert gains[change] == pytest.approx(gained_ns, abs=MS)


def test_loading_of_all_pipelines_gains_what_all_of_them_load():
    without = make_plan(Shape(replicas=2), Costs(), 0)
    load_ns = np.full_like(without.step_load_ns, 20 * MS)
    load_ns[:, 0] = 60 * MS
    plan = loading(without, per_step_ns=load_ns, recorded=True)
    first = fixes_of(report_on(plan)).row(0, named=True)
    assert first["change"] == "data of ranks 0 and 4 loaded ahead of time"
    assert first["gain_ns"] == pytest.approx(60 * MS, abs=MS)


def test_fixed_iteration_is_never_shorter_than_the_work_of_a_rank():
    unequal = ("slow", "longer", "garbage", "length", "drifts")
    equal = [name for name in CASES if not any(word in name for word in unequal)]
    assert len(equal) >= 5
    for name in equal:
        report = report_of(name)
        # Where steps overlap, a window has compute of the next step as well, so only its actions count.
        actions = report.intermediates.actions.table
        work = actions.group_by("rank", "step").agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        busy_ns = work.group_by("rank").agg(pl.mean("ns"))["ns"].max()
        assert (fixes_of(report)["predicted_step_ns"] > busy_ns).all()


def test_bounds_range_from_no_gain_to_all_of_it():
    report = report_of("all-reduce 60 ms, optimizer 20 ms")
    bound = fixes_of(report).row(0, named=True)
    assert bound["high_step_ns"] == bound["measured_step_ns"]
    assert bound["low_step_ns"] == bound["predicted_step_ns"]
    assert bound["gain_ns"] == pytest.approx(60 * MS, abs=MS)
    assert "at best" in report.verdict.improvement


def test_run_without_a_fault_has_nothing_to_fix():
    report = report_on(make_plan(Shape(replicas=2), Costs(), 5))
    assert fixes_of(report).is_empty()
    assert report.verdict.improvement.startswith("With more memory: ")


@pytest.mark.parametrize(
    ("trace", "change", "step_s", "error"),
    [
        # Published: the step without the slowest 3 % of the ranks, and without delays between operations.
        ("AR", "rank 0 as fast as its replicas", 23.42, 0.02),
        # 8 mean micro-batches on the last stage (760 ms each), 1 on the first (506 ms), and 0.15 s outside the window.
        ("SE", "micro-batches of equal length", 6.74, 0.07),
    ],
)
def test_first_fix_of_a_public_run_is_the_published_cause(trace, change, step_s, error):
    report = stagescope.analyze(stagescope.read(DATA / "public_runs" / f"bytedance-{trace}.parquet"))
    first = fixes_of(report).row(0, named=True)
    assert first["change"] == change
    assert first["predicted_step_ns"] / 1e9 == pytest.approx(step_s, rel=error)
    assert report.verdict.improvement.startswith(f"Fix first: {change}")
