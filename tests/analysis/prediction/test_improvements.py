"""Possible improvements."""

import polars as pl
import pytest

from explained_runs import explained, schedule_run
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.prediction.improvements import IMPROVEMENTS, find_improvements
from stagescope.schedules import Costs, order, simulate


def improvements(timeline, schedule="1f1b", stragglers=None):
    nothing = pl.DataFrame(schema={"is_claimed": pl.Boolean, "finding": pl.String, "subject": pl.String})
    return find_improvements(
        find_actions(timeline), nothing if stragglers is None else stragglers, schedule, (0, 1, 2)
    )


def assumptions(table):
    return table["change"].to_list()


def test_table_has_the_declared_columns():
    assert improvements(schedule_run()).schema == IMPROVEMENTS.schema


def test_equal_stages_save_the_excess_of_the_slow_one():
    table = improvements(schedule_run(slower={2: 1.4}))
    balanced = table.row(by_predicate=pl.col("change") == "all stages equal", named=True)
    # 11 slots of 30 ms at the mean of 1, 1, 1.4, 1
    assert balanced["predicted_step_ns"] == pytest.approx(11 * 33_000_000)
    assert not balanced["needs_more_memory"]


def test_executed_schedule_and_changes_without_gain_are_not_listed():
    named = assumptions(improvements(schedule_run()))
    assert "schedule 1f1b" not in named
    assert "all stages equal" not in named
    assert "transfers take no time" not in named


def test_other_schedule_saves_what_its_simulation_predicts():
    table = improvements(schedule_run(), "1f1b")
    costs = Costs(forward=10_000_000, backward_input=10_000_000, backward_weight=10_000_000)
    split = simulate(order("zb-h1", ranks=4, microbatches=8), costs).makespan_ns
    row = table.row(by_predicate=pl.col("change") == "schedule zb-h1", named=True)
    assert row["predicted_step_ns"] == pytest.approx(split)
    assert row["condition"].startswith("if ")


def test_schedules_that_need_more_memory_are_marked():
    table = improvements(schedule_run("gpipe", microbatches=8), "gpipe")
    of_gpipe = dict(table.select("change", "needs_more_memory").iter_rows())
    assert of_gpipe["schedule zb-h1"] is False
    of_1f1b = improvements(schedule_run(microbatches=8))
    more = of_1f1b.filter("needs_more_memory")
    assert "schedule zb-h2" in assumptions(more)
    assert (more.filter(change="schedule zb-h2")["activations_to_measured"] > 1.5).all()


def test_bidirectional_schedule_holds_every_stage_twice():
    table = improvements(schedule_run(microbatches=8))
    held = dict(table.select("change", "needs_more_memory").iter_rows())
    assert held["schedule dualpipe"] is held["schedule chimera"] is True


def test_straggler_at_the_speed_of_its_peers_is_tested():
    found = pl.DataFrame(
        {"is_claimed": [True, False], "finding": ["slow", "slow"], "subject": ["rank", "rank"], "rank": [2, 1],
         "stage": [2, 1], "excess_fraction": [0.5, 0.5]}
    )  # fmt: skip
    named = assumptions(improvements(schedule_run(slower={2: 1.5}), stragglers=found))
    assert "rank 2 33.3 % faster" in named
    assert not any(text.startswith("rank 1 ") for text in named)


def test_fixes_come_first_and_of_each_kind_the_largest_gain():
    table = explained(slower={1: 1.5}).explanation.improvements
    assert table["kind"].to_list() == sorted(table["kind"])
    for _, of_kind in table.group_by("kind"):
        assert of_kind["gain_ns"].to_list() == sorted(of_kind["gain_ns"], reverse=True)
    assert table.height > 1


def test_slow_stage_is_no_fix_but_another_division_of_the_model():
    table = explained(slower={1: 1.5}).explanation.improvements
    assert not any(text.startswith("stage ") for text in assumptions(table))
    assert "all stages equal" in assumptions(table.filter(kind="redesign"))


def test_timeline_without_actions_has_no_improvements():
    timeline = schedule_run()
    assert improvements(timeline.with_spans(timeline.spans.clear())).is_empty()
