"""Possible improvements."""

from dataclasses import replace

import polars as pl
import pytest

from explained_runs import explained, schedule_run, with_wrong_clock
from places import DATA
from stagescope import api
from stagescope.analysis.collectives.late_ranks import LATE_RANKS
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.idle.ledger import build_ledger
from stagescope.analysis.intermediates import intermediates_of
from stagescope.analysis.prediction.evidence import Evidence
from stagescope.analysis.prediction.improvements import IMPROVEMENTS, find_improvements
from stagescope.analysis.prediction.outside_savings import measure_iterations
from stagescope.analysis.statistics.outlier_actions import OUTLIER_ACTIONS
from stagescope.analysis.statistics.stragglers import STRAGGLERS
from stagescope.schedules import Costs, order, simulate


def improvements(timeline, schedule="1f1b"):
    actions = find_actions(timeline)
    ledger, known = build_ledger(actions), intermediates_of(timeline)
    evidence = Evidence(
        STRAGGLERS.empty(),
        OUTLIER_ACTIONS.empty(),
        LATE_RANKS.empty(),
        ledger,
        measure_iterations([(known.iterations, ledger.ranks, known.late_starts)], pl.lit(True)),
        timeline.spans,
    )
    return find_improvements(actions, evidence, schedule, (0, 1, 2)).table


def assumptions(table):
    return table["change"].to_list()


def test_table_has_the_declared_columns():
    assert improvements(schedule_run()).schema == IMPROVEMENTS.schema


def test_even_layers_save_the_excess_of_the_slow_stage():
    table = improvements(schedule_run(slower={2: 1.4}))
    (layout,) = [row for row in table.to_dicts() if row["change"].startswith("layers")]
    # 11 slots of 30 ms at the mean of 1, 1, 1.4, 1
    assert layout["change"] == "layers moved from stage 2 (-21 %) to stages 0-1, 3 (+10 %)"
    assert layout["low_step_ns"] == pytest.approx(11 * 33_000_000, rel=1e-5)
    assert not layout["needs_more_memory"]


def test_executed_schedule_and_changes_without_gain_are_not_listed():
    named = assumptions(improvements(schedule_run()))
    assert "schedule 1f1b" not in named
    assert not any(change.startswith("layers") for change in named)
    assert "all transfers hidden behind compute" not in named


def test_range_of_another_schedule_covers_every_share_of_the_weight_gradient():
    table = improvements(schedule_run(), "1f1b")
    ends = [
        simulate(
            order("zb-h1", ranks=4, microbatches=8),
            Costs(forward=10_000_000, backward_input=20_000_000 - weight_ns, backward_weight=weight_ns),
        ).makespan_ns
        for weight_ns in (10_000_000, 5_000_000)
    ]
    row = table.row(by_predicate=pl.col("change") == "schedule zb-h1", named=True)
    assert (row["low_step_ns"], row["high_step_ns"]) == pytest.approx((min(ends), max(ends)), rel=1e-5)
    assert row["predicted_step_ns"] == pytest.approx(sum(ends) / 2, rel=1e-5)
    assert row["assumptions"].startswith("1/4 to 1/2 of a full backward is its weight gradient")


def test_schedules_in_which_any_rank_holds_more_need_more_memory():
    table = improvements(schedule_run("gpipe", microbatches=8), "gpipe")
    of_gpipe = dict(table.select("change", "needs_more_memory").iter_rows())
    assert of_gpipe["schedule zb-h1"] is False
    of_1f1b = improvements(schedule_run(microbatches=8))
    more = of_1f1b.filter("needs_more_memory")
    assert {"schedule zb-h1", "schedule zb-h2"} <= set(assumptions(more))
    assert (more.filter(change="schedule zb-h2")["activations_to_measured"] > 1.5).all()
    zb_h1 = more.row(by_predicate=pl.col("change") == "schedule zb-h1", named=True)
    assert zb_h1["activations_to_measured"] == 1
    assert zb_h1["memory"] == (
        "pipeline ranks 1-3 hold more activations, at most 4 instead of 1 micro-batches (rank 3)"
    )


def test_bidirectional_schedule_holds_every_stage_twice():
    table = improvements(schedule_run(microbatches=8))
    held = dict(table.select("change", "needs_more_memory").iter_rows())
    assert held["schedule dualpipe"] is held["schedule chimera"] is True


def test_fixes_come_first_and_of_the_redesigns_the_largest_gain():
    table = explained(slower={1: 1.5}).explanation.improvements
    assert table["kind"].to_list() == sorted(table["kind"])
    redesigns = table.filter(kind="redesign")["gain_ns"]
    assert redesigns.to_list() == sorted(redesigns, reverse=True)
    assert len(redesigns) > 1


def test_slow_stage_is_no_fix_but_another_division_of_the_model():
    table = explained(slower={1: 1.5}).explanation.improvements
    assert not any(text.startswith("stage ") for text in assumptions(table))
    assert any(
        change.startswith("layers moved from stage") for change in assumptions(table.filter(kind="redesign"))
    )


def test_timeline_without_actions_has_no_improvements():
    timeline = schedule_run()
    assert improvements(timeline.with_spans(timeline.spans.clear())).is_empty()


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("shift_s", [-5000, 5000])
def test_contradictory_timestamps_have_no_causes_and_no_improvements(rank, shift_s):
    run = api.read(DATA / "recordings" / "v1")
    report = api.analyze(with_wrong_clock(run, rank, shift_s * 10**9))
    assert report.improvements.is_empty()
    assert report.verdict.improvement == ""
    assert "contradict the order of the actions" in report.verdict.why
    found = [each.severity for each in report.diagnostics if each.code == "timestamps.contradictory"]
    assert found == ["error"]


def test_clocks_that_may_be_wrong_by_more_than_half_of_the_window_have_no_causes():
    run = api.read(DATA / "recordings" / "v1")
    window_ns = api.analyze(run).steps["window_ns"].median()
    for fraction, is_explained in ((0.3, True), (0.7, False)):
        error_ns = pl.lit(int(fraction * window_ns), run.clocks.schema["estimated_error_ns"])
        report = api.analyze(replace(run, clocks=run.clocks.with_columns(estimated_error_ns=error_ns)))
        codes = [each.code for each in report.diagnostics]
        assert (report.explanation.lost_time is not None) == is_explained
        assert bool(report.verdict.improvement) == is_explained
        assert ("clock.uncertain" in codes) != is_explained
        assert ("may be off by more than half" in report.verdict.why) != is_explained


def test_small_contradictions_are_a_warning():
    run = api.read(DATA / "recordings" / "v1")
    report = api.analyze(with_wrong_clock(run, 1, -3 * 10**6))
    assert "clock.causality" in [diagnostic.code for diagnostic in report.diagnostics]
    assert report.losses["ns"].is_not_null().any()


def test_time_before_actions_is_no_launch_to_remove_where_no_transfer_was_recorded():
    without = explained(launch_delay_ns=1_000_000)
    assert "or transfers: none was recorded" in str(without.verdict)
    assert not any("launch" in change for change in without.improvements["change"])
    recorded = explained(launch_delay_ns=1_000_000, hop_ns=100_000)
    assert "transfers: none" not in str(recorded.verdict)
    assert "no launch overhead" in recorded.improvements["change"].to_list()
