"""How far apart ranks leave collectives is learned, and contained in the estimated errors of clocks."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from evidence_rows import evidence_from_rows
from skewed_exits import Exits, plant_exits
from stagescope.clocks import align_clocks
from stagescope.clocks.exits import (
    EXIT_NS,
    EXITS_SCHEMA,
    MEMBER_EXITS,
    Calls,
    exit_errors,
    skew_of,
    with_exits,
)

US, MS = 1_000, 1_000_000
STEP_NS = 400 * MS
MESSAGES = Exits(replicas=8, stages=2, messages=6, steps=15)

PLANS = {
    "replicas": Exits(replicas=30, steps=20),
    "two replicas": Exits(replicas=2, steps=20),
    "one always last": Exits(replicas=6, steps=15, straggler_ns=10 * MS),
    "few steps": Exits(replicas=20, steps=3),
    "drift": Exits(replicas=20, drift_ppm=60.0),
    "short reductions": Exits(replicas=20, duration_ns=100 * US),
    "durations that vary": Exits(replicas=8, duration_noise=0.1),
    "one rank of 8": Exits(replicas=8, by="one", duration_ns=4 * MS),
    "one rank of 40": Exits(replicas=40, by="one", duration_ns=4 * MS),
    "messages": MESSAGES,
    "the same in a replica": replace(MESSAGES, by="replica"),
    "one stage skewed": replace(MESSAGES, skewed_stages=(1,)),
    "one always last, messages": replace(MESSAGES, straggler_ns=10 * MS),
}
SHORT = {("messages", 300), ("one always last, messages", 3_000)}


def covered(plan, seeds):
    """Return of how many machines all errors are within the estimated ones, and the number of machines."""
    parts = []
    for seed in seeds:
        planted = plant_exits(replace(plan, seed=seed))
        parts.append(planted.errors_ns(align_clocks(planted.timeline).timeline))
    found = pl.concat(parts)
    assert found["estimated_ns"].null_count() == 0
    return found["is_covered"].sum(), found.height


def cases():
    for name in PLANS:
        for size_us in (0, 30, 100, 300, 1_000, 3_000):
            marks = () if (name, size_us) in SHORT else (pytest.mark.exhaustive,)
            yield pytest.param(name, size_us, marks=marks)


@pytest.mark.parametrize(("name", "size_us"), list(cases()))
@pytest.mark.parametrize("kind", ["random_ns", "constant_ns"])
def test_estimated_errors_cover_the_errors_of_ranks_that_leave_apart(name, size_us, kind):
    plan = replace(PLANS[name], **{kind: size_us * US})
    machines = plan.replicas * plan.stages
    found, every = covered(plan, range(300, 301 + 40 // machines))
    assert found >= 0.95 * every


def test_without_skew_errors_are_no_wider_than_what_ranks_leave_apart_everywhere():
    aligned = align_clocks(plant_exits(Exits(replicas=30, steps=20, seed=5)).timeline)
    assert max(max(each.scatter_ns, each.latest_ns) for each in aligned.clocks.exits) < EXIT_NS
    assert aligned.clocks.estimated_error_ns < 100 * US


@pytest.mark.parametrize("size_us", [100, pytest.param(3_000, marks=pytest.mark.exhaustive)])
def test_the_report_states_how_far_apart_ranks_leave(size_us):
    plan = replace(MESSAGES, replicas=16, skewed_stages=(1,), seed=8)
    of_random = align_clocks(plant_exits(replace(plan, random_ns=size_us * US)).timeline).clocks.exits
    of_constant = align_clocks(plant_exits(replace(plan, constant_ns=size_us * US)).timeline).clocks.exits
    names = [f"gradient reductions of stage {stage}" for stage in range(2)]
    assert [each.group for each in of_random] == names
    assert [(each.clock_count, each.call_count) for each in of_random] == 2 * [(16, 15)]
    # The difference of two uniformly distributed values has 0.41 of their range as its standard deviation.
    assert of_random[1].scatter_ns == pytest.approx(0.41 * size_us * US, rel=0.3)
    assert max(of_random[0].scatter_ns, of_constant[0].scatter_ns, of_constant[1].scatter_ns) < EXIT_NS
    assert max(of_random[0].constant_ns, of_constant[0].constant_ns) < EXIT_NS
    assert of_constant[1].constant_ns == pytest.approx(0.29 * size_us * US, rel=0.9)
    assert not any(each.is_assumed for each in of_constant)


def test_an_estimated_error_is_never_larger_than_the_guaranteed_bound():
    aligned = align_clocks(plant_exits(Exits(replicas=2, steps=5, random_ns=3 * MS)).timeline)
    pieces = aligned.timeline.clocks.drop_nulls("estimated_error_ns")
    widest = pl.max_horizontal(-pl.col("error_lo_ns"), pl.col("error_hi_ns"))
    assert pieces.height
    assert pieces.filter(pl.col("estimated_error_ns") > widest).is_empty()


def calls(skew_ns, lags_ns, *, scatter_ns=0.0, duration_ns=1.0 * MS):
    """Return calls (rows) that clocks leave later by a constant each, and enter earlier than the last by lags."""
    random = np.random.default_rng(1)
    lags_ns = np.array(lags_ns, float)
    away_ns = np.array(skew_ns, float) + random.normal(0, 1, lags_ns.shape) * scatter_ns
    at_ns = np.arange(len(lags_ns))[:, None] * STEP_NS
    drift_ns = at_ns * np.linspace(-2e-5, 2e-5, lags_ns.shape[1])
    clocks = np.arange(lags_ns.shape[1])
    return Calls(at_ns + drift_ns + away_ns, lags_ns + duration_ns + away_ns, clocks)


TAKING_TURNS = [[0, 2 * MS], [3 * MS, 0]] * 10


def test_two_ranks_that_both_enter_last_show_how_much_later_one_of_them_leaves():
    skew = skew_of(calls([0, 400 * US], TAKING_TURNS))
    assert skew.constant_ns == pytest.approx(400 * US / np.sqrt(2))
    assert skew.scatter_ns == pytest.approx(0.0, abs=2.0)
    assert not skew.is_assumed


def test_if_one_rank_always_enters_last_others_may_leave_later_by_the_duration():
    skew = skew_of(calls([0, 400 * US], [[0, 2 * MS]] * 20, duration_ns=0.6 * MS))
    assert skew.is_assumed
    assert skew.constant_ns == pytest.approx(0.6 * MS / np.sqrt(3))


def test_what_differs_from_call_to_call_is_not_drift():
    skew = skew_of(calls([0, 0], TAKING_TURNS * 20, scatter_ns=50.0 * US))
    assert skew.scatter_ns == pytest.approx(50 * US * np.sqrt(2), rel=0.15)


def test_one_rank_of_a_few_that_leaves_at_random_times_is_not_overlooked():
    random = np.random.default_rng(2)
    lags_ns = random.uniform(0, 5 * MS, (200, 6))
    lags_ns -= lags_ns.min(axis=1, keepdims=True)
    plain = calls(np.zeros(6), lags_ns)
    left_ns = plain.left_ns.copy()
    left_ns[:, 3] += random.normal(0, 100 * US, 200)
    assert skew_of(plain._replace(left_ns=left_ns)).scatter_ns > 70 * US


def lags_of(count, clocks):
    """Return by how much earlier than the last clock others enter: up to 5 ms."""
    lags_ns = np.random.default_rng(3).uniform(0, 5 * MS, (count, clocks))
    return lags_ns - lags_ns.min(axis=1, keepdims=True)


@pytest.mark.parametrize("clocks", [6, 60])
def test_one_rank_that_is_always_late_is_less_certain_than_others(clocks):
    skew_ns = np.zeros(clocks)
    skew_ns[4] = 3.0 * MS
    skew = skew_of(calls(skew_ns, lags_of(40, clocks), duration_ns=5.0 * MS))
    others_ns = np.delete(skew.late_ns, 4)
    assert skew.late_ns[4] * 3.6 > 3 * MS
    assert others_ns.max() < EXIT_NS
    early = skew_of(calls(-skew_ns, lags_of(40, clocks), duration_ns=5.0 * MS))
    assert early.late_ns[4] * 3.6 > 3 * MS


def test_a_wrong_timestamp_changes_little():
    plain = calls(np.zeros(30), lags_of(200, 30))
    plain.stay_ns[70, 8] = -1_000.0 * MS
    plain.left_ns[70, 8] -= 1_000.0 * MS
    skew = skew_of(plain)
    assert max(skew.scatter_ns, skew.constant_ns, *np.delete(skew.late_ns, 8)) < EXIT_NS


def test_few_values_are_trusted_less():
    short = skew_of(calls([0, 0], TAKING_TURNS[:3], scatter_ns=50.0 * US))
    one = skew_of(calls([0, 0], TAKING_TURNS[:1], scatter_ns=50.0 * US))
    assert short.scatter_ns > 200 * US
    assert one.scatter_ns == 0.0
    assert one.is_assumed


def members(rows):
    """Return members of calls from rows: slot, call, clock, entered_ns, left_ns."""
    columns = ["slot", "call", "clock", "entered_ns", "left_ns"]
    return pl.DataFrame(rows, schema=columns, orient="row").with_columns(
        name=pl.lit("a group"), group=pl.lit(7)
    )


def test_calls_of_different_sizes_are_not_compared():
    rows = []
    for step in range(20):
        for slot, duration_ns in ((0, 30 * MS), (1, 1 * MS + step)):
            last_ns = step * STEP_NS + slot * 100 * MS
            late = (step + slot) % 2
            over_ns = last_ns + duration_ns
            rows += [(slot, step, clock, last_ns - (clock != late) * 20 * US, over_ns) for clock in range(2)]
    found, groups = with_exits(members(rows), ("group",))
    assert groups.schema == EXITS_SCHEMA
    assert groups.rows() == [("a group", 2, 20, 0, pytest.approx(1, abs=1), pytest.approx(1, abs=1), False)]
    assert set(found["scatter_ns"].to_list()) == {0}
    nothing, none = with_exits(members([]), ("group",))
    assert none.schema == EXITS_SCHEMA
    assert set(MEMBER_EXITS) <= set(nothing.columns)


def test_a_call_counts_once_however_many_clocks_it_is_compared_with():
    rows = [(0, other, 1_000.0 * step, 500.0) for step in range(4) for other in range(1, 6)]
    seen = evidence_from_rows(rows)
    count = len(rows)
    seen = replace(seen, stay_ns=np.full(count, 400.0), scatter_ns=np.full(count, 100.0 * US))
    found_ns = exit_errors(seen, 7)
    each_ns = 100 * US / np.sqrt(2) / np.sqrt(4)
    assert found_ns[:6] == pytest.approx(6 * [np.sqrt(each_ns**2 - EXIT_NS**2)])
    assert found_ns[6] == 0.0
    apart = replace(seen, scatter_ns=np.zeros(count), constant_ns=np.full(count, 40.0 * US))
    apart = replace(apart, target_constant_ns=apart.constant_ns)
    assert exit_errors(apart, 7)[:6] == pytest.approx(6 * [np.sqrt((40 * US) ** 2 - EXIT_NS**2)])
    less_ns = np.full(count, EXIT_NS)
    assert not exit_errors(replace(apart, constant_ns=less_ns, target_constant_ns=less_ns), 7).any()
