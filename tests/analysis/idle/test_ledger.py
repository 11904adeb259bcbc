import polars as pl
import pytest
from hypothesis import given, settings

from delayed_runs import EXAMPLE, UNIT_NS, example_timeline, run
from drawing import timeline_from_text
from random_pipelines import arbitrary_timelines, one_f_one_b, simulated_timelines
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.idle.ledger import IDLE_LEDGER, LEDGER, build_ledger
from stagescope.model import empty_timeline
from stagescope.vocabulary.causes import CAUSE_COLUMNS

PARTS = ["ideal_work_ns", *CAUSE_COLUMNS]
NAMES_IN_EXAMPLE = {"comm_exposed": "exposed_communication", "unexplained": "unattributed"}


def ledger_of(timeline):
    return build_ledger(find_actions(timeline))


def test_worked_example_matches_the_published_digits():
    row = ledger_of(example_timeline()).steps.row(0, named=True)
    # The example's step starts one launch delay before its first action; the window starts with the action. What the
    # example leaves unattributed are equal delays of all actions.
    gap = EXAMPLE["host_gap_per_op"]
    wall = {NAMES_IN_EXAMPLE.get(name, name): value for name, value in EXAMPLE["wall_ledger"].items()}
    idle = EXAMPLE["idle_ledger"]
    wall["launch_overhead"] = wall.pop("unattributed") - gap
    printed = {name: round(row[f"{name}_ns"] / UNIT_NS, 6) for name in wall}
    assert printed == pytest.approx(wall, abs=1.1e-6)
    assert row["unattributed_ns"] == 0
    assert row["window_ns"] == round((EXAMPLE["T_measured"] - gap) * UNIT_NS)
    assert row["busy_ns"] == round(EXAMPLE["mean_work"] * UNIT_NS)
    assert round(row["straggler_idle_ns"] / UNIT_NS, 6) == pytest.approx(idle["straggler_idle"], abs=1.1e-6)
    assert row["peers"] == 3


def test_busy_time_of_the_worked_example_matches_per_rank():
    ranks = ledger_of(example_timeline()).ranks.filter(pl.col("pipeline") == 0)
    busy = {str(rank): busy_ns / UNIT_NS for rank, busy_ns in ranks.select("rank", "busy_ns").iter_rows()}
    assert busy == pytest.approx(EXAMPLE["busy"])


@settings(deadline=None, max_examples=20)
@given(simulated_timelines() | arbitrary_timelines())
def test_parts_sum_to_the_window_and_to_the_idle_time_to_the_nanosecond(timeline):
    ledger = ledger_of(timeline)
    steps, ranks = ledger.steps, ledger.ranks
    assert steps.columns == LEDGER.names
    assert ranks.columns == IDLE_LEDGER.names
    assert steps.schema == LEDGER.schema
    assert ranks.schema == IDLE_LEDGER.schema
    assert steps.select(pl.sum_horizontal(PARTS) == pl.col("window_ns")).to_series().all()
    assert ranks.select(pl.sum_horizontal(CAUSE_COLUMNS) == pl.col("idle_ns")).to_series().all()
    assert ranks.select(pl.col("busy_ns") + pl.col("idle_ns") == pl.col("window_ns")).to_series().all()
    idle = [name for name in CAUSE_COLUMNS if name != "straggler_ns"]
    mean_idle = pl.sum_horizontal(*idle, "straggler_idle_ns")
    assert steps.select(mean_idle == pl.col("window_ns") - pl.col("busy_ns")).to_series().all()
    assert (steps["exposed_communication_ns"] >= 0).all()


@settings(deadline=None, max_examples=20)
@given(simulated_timelines())
def test_mean_over_ranks_is_the_idle_ledger_of_the_step(timeline):
    ledger = ledger_of(timeline)
    means = ledger.ranks.group_by("pipeline", "step").agg(pl.mean(CAUSE_COLUMNS)).row(0, named=True)
    step = ledger.steps.row(0, named=True) | {"straggler_ns": ledger.steps["straggler_idle_ns"][0]}
    # What stages cost on average is rounded once per rank, and the mean of the work once per step.
    assert {name: means[name] for name in CAUSE_COLUMNS} == pytest.approx(
        {name: step[name] for name in CAUSE_COLUMNS}, abs=2
    )


@settings(deadline=None, max_examples=20)
@given(simulated_timelines())
def test_run_that_follows_the_rules_has_no_unattributed_time(timeline):
    assert ledger_of(timeline).steps["unattributed_ns"].to_list() == [0]


def test_equal_stages_without_transfers_have_a_schedule_bubble_only():
    timeline = run(one_f_one_b(4, 8), lambda action, rank: 10 if action.kind == "F" else 20)
    row = ledger_of(timeline).steps.row(0, named=True)
    assert {name: row[name] for name in PARTS if row[name]} == {
        "ideal_work_ns": 240,
        "schedule_bubble_ns": 90,
    }


def test_planted_imbalance_is_stage_imbalance():
    def action_ns(action, rank):
        return (10 if action.kind == "F" else 20) * (2 if rank == 2 else 1)

    ledger = ledger_of(run(one_f_one_b(4, 8), action_ns))
    row = ledger.steps.row(0, named=True)
    assert row["ideal_work_ns"] == 300
    # Four stages of 37.5 instead: (8 + 3) * 37.5. Rank 2 starts after 20, waits 10 for its first B, and 40 follow.
    assert row["schedule_bubble_ns"] == pytest.approx(3 * 37.5, abs=1)
    assert row["stage_imbalance_ns"] == pytest.approx(20 + 10 + 8 * 60 + 40 - 11 * 37.5, abs=1)
    assert row["straggler_ns"] == row["jitter_ns"] == row["unattributed_ns"] == 0
    slow = ledger.ranks.filter(pl.col("rank") == 2)["stage_imbalance_ns"][0]
    others = ledger.ranks.filter(pl.col("rank") != 2)["stage_imbalance_ns"]
    assert slow < 0 < others.min()
    assert any(row.code == "replicas.none" for row in ledger.diagnostics)


def test_slow_device_is_a_straggler_if_there_are_replicas():
    row = ledger_of(example_timeline(({}, {"1": 1.15}, {"1": 1.15}))).steps.row(0, named=True)
    alone = ledger_of(example_timeline(({},))).steps.row(0, named=True)
    assert row["straggler_ns"] > 0 == alone["straggler_ns"]
    assert alone["stage_imbalance_ns"] == pytest.approx(
        row["stage_imbalance_ns"] + row["straggler_ns"], rel=0.3
    )


def test_equal_delays_are_launch_overhead_and_transfers_exposed():
    order = {0: ["F0.0", "B0.0"], 1: ["F1.0", "B1.0"]}
    row = ledger_of(run(order, lambda action, rank: 100, hop_ns=7, launch_delay_ns=3)).steps.row(
        0, named=True
    )
    assert row["window_ns"] == 4 * 100 + 2 * 7 + 3 * 3
    assert row["exposed_communication_ns"] == 14
    assert row["launch_overhead_ns"] == 9
    assert row["unattributed_ns"] == 0


def test_single_long_action_is_jitter():
    def action_ns(action, _rank):
        return 100 if str(action) == "F1.1" else 20 if action.kind == "F" else 40

    row = ledger_of(
        run({0: ["F0.0", "F0.1", "B0.0", "B0.1"], 1: ["F1.0", "B1.0", "F1.1", "B1.1"]}, action_ns)
    )
    row = row.steps.row(0, named=True)
    # Mean F on rank 1 is 60: its four actions still follow each other without a gap, from 20 until B0.1.
    assert row["window_ns"] == 20 + 20 + 40 + 100 + 40 + 40
    assert row["jitter_ns"] == row["window_ns"] - (20 + 60 + 40 + 60 + 40 + 40)


@settings(deadline=None, max_examples=20)
@given(simulated_timelines())
def test_shifting_all_clocks_changes_nothing(timeline):
    moved = timeline.with_spans(
        timeline.spans.with_columns(pl.col("start_ns", "end_ns", "wait_start_ns", "wait_end_ns") + 10**15)
    )
    assert ledger_of(moved).steps.equals(ledger_of(timeline).steps)


@settings(deadline=None, max_examples=20)
@given(simulated_timelines())
def test_doubling_all_times_doubles_every_part(timeline):
    doubled = timeline.with_spans(
        timeline.spans.with_columns(pl.col("start_ns", "end_ns", "wait_start_ns", "wait_end_ns") * 2)
    )
    one, two = (ledger_of(each).steps.select(pl.col(PARTS)).row(0) for each in (timeline, doubled))
    assert [2 * part for part in one] == pytest.approx(list(two), abs=3)


def test_sums_over_steps_and_ranks_preserve_the_total():
    ledger = ledger_of(
        run(one_f_one_b(2, 3), lambda action, rank: 10 + rank + action.microbatch, steps=3, hop_ns=2)
    )
    whole = ledger.steps.sum().row(0, named=True)
    assert sum(whole[name] for name in PARTS) == whole["window_ns"]
    of_ranks = ledger.ranks.group_by("rank").sum().sort("rank")
    assert of_ranks["rank"].to_list() == [0, 1]
    assert of_ranks.select(pl.sum_horizontal(CAUSE_COLUMNS) == pl.col("idle_ns")).to_series().all()


def test_timeline_without_actions_has_empty_ledgers():
    ledger = ledger_of(empty_timeline())
    assert ledger.steps.is_empty()
    assert ledger.ranks.is_empty()
    assert ledger.steps.columns == LEDGER.names


def test_unrecorded_transfers_are_reported_and_unattributed():
    timeline = timeline_from_text("F0 . . . B0 -\n. . F0 B0 - .".replace("B0 - .", "B0"))
    ledger = ledger_of(timeline)
    assert ledger.steps["unattributed_ns"].to_list() == [1000]
    assert [row.count for row in ledger.diagnostics if row.code == "transfers.not_recorded"] == [2]
