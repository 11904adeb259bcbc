from dataclasses import replace

import polars as pl
import pytest

from planted_clocks import ClockStep, Plan, plant
from stagescope.clocks import align_clocks


def report_of(plan, change=lambda timeline: timeline):
    planted = plant(plan)
    return planted, align_clocks(change(planted.timeline)).clocks


def test_every_machine_has_its_ranks_its_offset_and_its_drift():
    planted, report = report_of(Plan(ranks=4, ranks_per_machine=2, steps=12, drift_ppm=50.0, seed=21))
    assert [(machine.machine, machine.ranks) for machine in report.machines] == [
        ("node-0", (0, 1)),
        ("node-1", (2, 3)),
    ]
    second = report.machines[1]
    raw, true = (
        frame.filter(rank=2).sort("start_ns")["start_ns"].to_numpy()
        for frame in (planted.timeline.spans, planted.truth)
    )
    assert second.offset_ns == pytest.approx(true[0] - raw[0], abs=20_000)
    added = true - raw
    assert second.drift_ppm == pytest.approx(1e6 * (added[-1] - added[0]) / (raw[-1] - raw[0]), abs=2)
    assert second.observation_count > 0
    assert second.unbounded_ns == 0


def test_outliers_are_listed_worst_first_with_the_ranks_of_the_message():
    planted, report = report_of(Plan(steps=10, corrupt=0.02, seed=22))
    sizes = [one.error_ns for one in report.outliers]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 0
    assert sum(machine.outlier_count for machine in report.machines) == 2 * len(sizes)
    spans = planted.timeline.spans.with_columns(
        false=pl.col("name").is_in(planted.corrupted["start_ns"])
        | pl.col("name").is_in(planted.corrupted["end_ns"])
    )
    false = set(spans.filter("false").select("step", "microbatch").iter_rows())
    found = [(one.observation.step, one.observation.microbatch) for one in report.outliers]
    assert sum(one in false for one in found) >= 0.9 * len(found)


def test_an_adjustment_is_reported_in_the_time_of_the_clock_itself():
    planted, report = report_of(Plan(steps=10, seed=23, clock_steps=(ClockStep(2, 0.5, 900_000),)))
    (adjustment,) = report.adjustments
    length_ns = planted.truth["end_ns"].max() - planted.truth["start_ns"].min()
    own = planted.timeline.spans.filter(rank=2)
    middle_ns = own["start_ns"].min() + length_ns // 2
    assert adjustment.from_ns < middle_ns + 50_000_000
    assert adjustment.to_ns > middle_ns - 50_000_000
    assert own["start_ns"].min() < adjustment.from_ns < adjustment.to_ns < own["end_ns"].max()
    assert adjustment.candidates == ("node-2/wall",)


def test_machines_of_another_group_report_its_reference():
    _, report = report_of(Plan(steps=3, seed=24, missing_links=((1, 2),)))
    assert [machine.group for machine in report.machines] == ["node-0/wall"] * 2 + ["node-2/wall"] * 2


def test_clocks_with_inconsistent_observations_are_not_moved():
    _, report = report_of(Plan(ranks=2, steps=3, seed=25), _sooner)
    assert {machine.state for machine in report.machines} <= {"inconsistent", "unaligned", "reference"}
    assert report.worst_error_ns is None
    assert report.unaligned


def _sooner(timeline):
    """Return the timeline with every other receive, of either way, a second too early."""
    bad = pl.col("kind").cast(pl.String).str.starts_with("recv") & (pl.col("microbatch") % 2 == 0)
    sooner = [
        pl.when(bad).then(pl.col(name) - 10**9).otherwise(name).alias(name)
        for name in ("end_ns", "wait_end_ns")
    ]
    return replace(timeline, spans=timeline.spans.with_columns(*sooner))


@pytest.mark.parametrize(
    ("plan", "label"),
    [
        (Plan(steps=2), "messages"),
        (Plan(steps=2, actions_only=True), "order of actions"),
        (Plan(steps=2, ranks=2, replicas=2), "messages and gradient reductions"),
    ],
)
def test_the_clocks_table_names_the_kinds_of_observations(plan, label):
    clocks = align_clocks(plant(plan).timeline).timeline.clocks
    assert clocks["method"].unique().sort().to_list() == [f"{label}: aligned", f"{label}: reference"]


def test_has_link_is_true_where_any_observation_leads_to_the_common_clock():
    _, unaligned = report_of(Plan(missing_links=((1, 2),), steps=4))
    assert [machine.has_link for machine in unaligned.machines] == [True, True, False, False]
    _, half = report_of(Plan(one_way_links=((1, 2),), steps=4))
    assert all(machine.has_link for machine in half.machines)
