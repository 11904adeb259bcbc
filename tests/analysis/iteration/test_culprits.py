"""Who makes whom idle, by cause: the parts sum to the idle time, and match what was planted."""

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import stagescope
from stagescope.analysis.iteration import culprits
from stagescope.analysis.iteration.culprit_sums import CausesOfSteps
from stagescope.analysis.iteration.culprits import CULPRITS, find_culprits
from stagescope.model import empty_timeline
from stagescope.vocabulary.causes import CAUSE_COLUMNS
from truth.cases import PLANTED
from truth.causes import Place, slow_rank
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

CASES = {case.name: case for case in (build(1) for build in PLANTED)}
TOLERANCE = 0.01


def report_of(name):
    return stagescope.analyze(timeline_of(CASES[name].run))


@pytest.mark.parametrize(
    "name",
    [
        "micro-batches of unequal length, 4 replicas",
        "one rank 20 % slower, 2 replicas, dualpipev",
        "rank 2 50 % slower, blocking sends, one buffer",
        "15 ms of data loading before each step",
        "all-reduce 60 ms, optimizer 20 ms",
    ],
)
def test_parts_sum_to_the_idle_time_of_every_victim_and_cause(name):
    report = report_of(name)
    found = report.culprits.group_by("victim_rank", "cause").agg(pl.sum("idle_ns"))
    found = {(rank, f"{cause}_ns"): value for rank, cause, value in found.iter_rows()}
    means = report.iterations.group_by("rank").agg(pl.col(CAUSE_COLUMNS).mean())
    for row in means.iter_rows(named=True):
        for column in CAUSE_COLUMNS:
            assert found.get((row["rank"], column), 0) == pytest.approx(row[column] or 0, abs=10)


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("one action 1 s longer", 2),
        ("one rank 20 % slower, 2 replicas", 5),
        ("one rank 20 % slower, 4 replicas", 13),
        ("one rank 20 % slower, 2 replicas, interleaved", 5),
        ("one rank 20 % slower in 3 of 10 steps", 6),
        ("15 ms of data loading before each forward of stage 0", 0),
        ("15 ms of data loading before each forward of stage 0, not recorded", 0),
        ("15 ms of data loading before each step", 0),
        ("15 ms of data loading before each step, not recorded", 0),
        ("one link 4 ms slower", 1),
        ("the last stage 30 % longer, 1 replica", 3),
    ],
)
def test_idle_time_that_a_rank_causes_is_that_of_the_run_without_the_cause(name, rank):
    case, report = CASES[name], report_of(name)
    caused = report.culprits.filter(culprit_rank=rank).group_by("victim_rank").agg(pl.sum("idle_ns"))
    found = dict(caused.iter_rows())
    truth = case.caused_idle_ns(case.truths[0]).T.ravel()
    iteration_ns = report.iterations["iteration_ns"].mean()
    for victim, planted_ns in enumerate(truth):
        assert found.get(victim, 0) == pytest.approx(
            planted_ns, abs=max(TOLERANCE * iteration_ns, 0.1 * abs(planted_ns))
        )


@pytest.mark.parametrize(("recorded", "cause"), [("", "data_loading"), (", not recorded", "unattributed")])
def test_loading_at_the_first_stage_is_not_spread_over_all_ranks(recorded, cause):
    culprits = report_of(f"15 ms of data loading before each forward of stage 0{recorded}").culprits
    by_rank = dict(
        culprits.filter(cause=cause).group_by("culprit_rank").agg(pl.sum("idle_ns") / 4).iter_rows()
    )
    assert by_rank.pop(0) > 70 * MS
    assert not any(rank is not None and abs(idle_ns) > MS for rank, idle_ns in by_rank.items())


def test_victims_of_a_slow_link_wait_for_the_link():
    exposed = report_of("one link 4 ms slower").culprits.filter(cause="exposed_communication")
    largest = exposed.group_by("culprit_rank", "culprit_peer").agg(pl.sum("idle_ns")).sort("idle_ns").row(-1)
    assert largest[:2] == (1, 2)


def test_data_parallel_wait_is_for_the_slow_replica_as_a_whole_if_all_its_ranks_are_slow():
    waits = report_of("a replica 20 % slower, 4 replicas").culprits.filter(cause="data_parallel_wait")
    assert set(waits["culprit_pipeline"]) == {4}
    assert set(waits["culprit_rank"]) == {None}
    assert set(waits["victim_rank"]) == {*range(4), *range(8, 16)}


def reductions_beside_a_slow_replica(reduce_ns, *, numbered):
    """A run in which rank 6, of the second of two replicas, is 60 % slower."""
    plan = make_plan(Shape(replicas=2, steps=6), Costs(), 0).with_end(reduce_ns=reduce_ns)
    timeline = timeline_of(simulate(slow_rank(plan, Place(2, 1), 1.6)))
    if not numbered:
        return stagescope.analyze(timeline)
    reduces, of_stage = pl.col("kind") == "grad_reduce", (pl.col("rank") % 4).cast(pl.String)
    name = pl.when(reduces).then(pl.format("all_reduce in replicas of stage {}", of_stage)).otherwise("name")
    spans = timeline.spans.with_columns(name=name, pair=pl.when(reduces).then("step").otherwise("pair"))
    return stagescope.analyze(timeline.with_spans(spans))


@pytest.mark.parametrize("numbered", [True, False])
def test_replica_that_ends_earlier_is_no_culprit_of_the_reduction(numbered):
    report = reductions_beside_a_slow_replica(20 * MS, numbered=numbered)
    reduction = report.culprits.filter(cause="gradient_reduction")
    assert reduction["culprit_rank"].to_list() == [None] * 8
    assert reduction["idle_ns"].to_list() == pytest.approx([20 * MS] * 8, rel=0.01)
    assert "gradient reduction (20.00 ms)" in str(report.verdict)


@pytest.mark.parametrize("numbered", [True, False])
def test_ranks_that_reduce_longest_are_the_culprits_beside_a_slow_replica(numbered):
    reduce_ns = np.array([[5], [100], [5], [5]]) * MS
    reduction = reductions_beside_a_slow_replica(reduce_ns, numbered=numbered).culprits.filter(
        cause="gradient_reduction"
    )
    assert set(reduction["culprit_rank"]) == {1, 5}
    assert set(reduction.filter(culprit_rank=1)["victim_rank"]) == {0, 1, 2, 3}


def test_no_rank_is_named_for_time_between_steps_of_which_nothing_was_recorded():
    timeline = timeline_of(CASES["15 ms of data loading before each step, not recorded"].run)
    spans = timeline.spans.filter(~pl.col("kind").is_in(["optimizer", "grad_reduce"]))
    culprits = stagescope.analyze(timeline.with_spans(spans)).culprits
    unknown = culprits.filter(cause="unattributed").sort("idle_ns")
    assert unknown["culprit_rank"][-1] is None
    assert unknown["idle_ns"][-1] > 15 * MS


def test_a_run_without_actions_has_no_culprits():
    report = stagescope.analyze(empty_timeline())
    assert dict(report.culprits.schema) == dict(CULPRITS.schema)
    assert report.culprits.is_empty()


def causes_of(report, steps=()):
    """Return what find_culprits needs of some steps, or all."""
    found, ledger = report.explanation, report.intermediates.ledger
    of_steps = pl.col("step").is_in(list(steps)) if steps else pl.lit(value=True)
    tables = (found.iterations, ledger.steps, ledger.ranks, ledger.origins)
    return CausesOfSteps(*(rows.filter(of_steps) for rows in tables))


def culprits_of(report, parts):
    found = report.explanation
    members = found.iterations.select("pipeline", "rank").unique()
    return find_culprits(parts, members, found.outside_culprits, found.steps_per_iteration)


def test_culprits_of_steps_in_parts_are_those_of_all_steps():
    report = report_of("one rank 20 % slower in 3 of 10 steps")
    steps = report.explanation.iterations["step"].unique().sort().to_list()
    divided = culprits_of(report, [causes_of(report, part) for part in (steps[:1], steps[1:4], steps[4:])])
    assert divided.height > 0
    assert_frame_equal(divided, report.culprits, check_exact=True)


def test_culprits_of_some_victims_at_a_time_are_those_of_all(monkeypatch):
    at_once = report_of("15 ms of data loading before each step").culprits
    monkeypatch.setattr(culprits, "ROWS_AT_ONCE", 3)
    assert at_once["victim_rank"].n_unique() > 3
    assert_frame_equal(report_of("15 ms of data loading before each step").culprits, at_once)


def test_culprits_do_not_depend_on_the_order_in_which_numbers_are_added():
    report = report_of("one rank 20 % slower in 3 of 10 steps")
    causes = causes_of(report)
    # Tenths are no sums of powers of two. With the others, their sums are a little above or below half a picosecond.
    rows = causes.origins.height
    tenths = pl.Series(np.random.default_rng(2).permutation(np.resize([0.1, 0.2, 0.3, -0.6], rows)))
    added_ns = tenths + pl.when(pl.int_range(rows) % 7 == 0).then(1e6 + 0.0045).otherwise(0.0)
    causes = causes._replace(origins=causes.origins.with_columns(added_ns=added_ns))
    expected = culprits_of(report, [causes])
    for seed in range(10):
        origins = causes.origins.sample(fraction=1.0, shuffle=True, seed=seed)
        assert_frame_equal(
            culprits_of(report, [causes._replace(origins=origins)]), expected, check_exact=True
        )
