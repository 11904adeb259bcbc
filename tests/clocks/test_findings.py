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
    assert second.evidence_count > 0
    assert second.unbounded_ns == 0


def test_rejected_observations_are_listed_worst_first_with_the_ranks_of_the_message():
    planted, report = report_of(Plan(steps=10, corrupt=0.02, seed=22))
    sizes = [one.by_ns for one in report.rejected]
    assert sizes == sorted(sizes, reverse=True)
    assert min(sizes) > 0
    assert sum(machine.rejected_count for machine in report.machines) == 2 * len(sizes)
    spans = planted.timeline.spans.with_columns(
        false=pl.col("name").is_in(planted.corrupted["start_ns"])
        | pl.col("name").is_in(planted.corrupted["end_ns"])
    )
    false = set(spans.filter("false").select("step", "microbatch").iter_rows())
    told = [(one.witness.step, one.witness.microbatch) for one in report.rejected]
    assert sum(one in false for one in told) >= 0.9 * len(told)


def test_a_step_is_told_in_the_clock_s_own_stamps():
    planted, report = report_of(Plan(steps=10, seed=23, clock_steps=(ClockStep(2, 0.5, 900_000),)))
    (step,) = report.steps
    length_ns = planted.truth["end_ns"].max() - planted.truth["start_ns"].min()
    own = planted.timeline.spans.filter(rank=2)
    middle_ns = own["start_ns"].min() + length_ns // 2
    assert step.from_ns < middle_ns + 50_000_000
    assert step.to_ns > middle_ns - 50_000_000
    assert own["start_ns"].min() < step.from_ns < step.to_ns < own["end_ns"].max()
    assert step.suspects == ("node-2/wall",)


def test_machines_of_another_group_name_its_reference():
    _, report = report_of(Plan(steps=3, seed=24, missing_links=((1, 2),)))
    assert [machine.group for machine in report.machines] == ["node-0/wall"] * 2 + ["node-2/wall"] * 2


def test_evidence_that_contradicts_itself_in_a_circle_is_withheld_and_moves_nothing():
    _, report = report_of(Plan(ranks=2, steps=3, seed=25), _sooner)
    assert {machine.state for machine in report.machines} <= {"withheld", "apart", "reference"}
    assert report.worst_error_ns is None
    assert report.left_out


def _sooner(timeline):
    """Return the timeline with every other receive, of either way, a second too early."""
    bad = pl.col("kind").cast(pl.String).str.starts_with("recv") & (pl.col("microbatch") % 2 == 0)
    sooner = [
        pl.when(bad).then(pl.col(name) - 10**9).otherwise(name).alias(name)
        for name in ("end_ns", "wait_end_ns")
    ]
    return replace(timeline, spans=timeline.spans.with_columns(*sooner))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(steps=2), "messages of the run"),
        (Plan(steps=2, actions_only=True), "order of the run's jobs"),
        (Plan(steps=2, ranks=2, replicas=2), "messages of the run and reductions of the run"),
    ],
)
def test_the_clocks_table_names_what_was_observed(plan, said):
    clocks = align_clocks(plant(plan).timeline).timeline.clocks
    assert clocks["method"].unique().sort().to_list() == [f"{said}: aligned", f"{said}: reference"]


def test_a_machine_of_which_something_was_observed_is_told_from_one_of_which_nothing_was():
    _, apart = report_of(Plan(missing_links=((1, 2),), steps=4))
    assert [machine.linked for machine in apart.machines] == [True, True, False, False]
    _, half = report_of(Plan(one_way_links=((1, 2),), steps=4))
    assert all(machine.linked for machine in half.machines)
