"""Explanations of runs."""

import pytest

from drawing import timeline_from_text
from explained_runs import explained, schedule_run
from stagescope.analysis import build_explained_report
from stagescope.model import SPANS, empty_timeline
from stagescope.model.validate import conform
from stagescope.vocabulary.causes import CAUSE_COLUMNS


def test_ideal_run_has_a_schedule_bubble_only():
    lost = explained().explanation.lost_time
    assert lost.basis == "iteration"
    assert lost.lost_fraction == pytest.approx(3 / 11, abs=1e-5)
    assert lost.fraction("schedule_bubble_ns") == pytest.approx(3 / 11, abs=1e-5)
    assert not any(lost.causes_ns[name] for name in CAUSE_COLUMNS[1:-1])


def test_causes_sum_to_the_idle_time_of_every_rank_and_the_run():
    report = explained(slower={1: 1.2}, hop_ns=500_000, launch_delay_ns=30_000)
    idle = report.explanation.idle
    assert (idle.select(CAUSE_COLUMNS).sum_horizontal() == idle["idle_ns"]).all()
    by_rank = idle.drop_nulls("rank")
    assert by_rank["idle_ns"].to_list() == report.ranks["idle_ns"].to_list()
    assert idle["idle_ns"][-1] == by_rank["idle_ns"].sum()


def test_step_not_in_totals_is_missing_from_every_table():
    steps = [
        timeline_from_text("F0 - - - - - - - B0", step=0),
        *(
            timeline_from_text("F0 F1 B0 B1\n. F0 B0 F1 B1", step=step, origin_ns=20_000 * step)
            for step in (1, 2)
        ),
    ]
    spans = steps[1].spans.clear()
    for step in steps:
        spans = spans.vstack(step.spans)
    explanation = build_explained_report(steps[1].with_spans(spans)).explanation
    tables = (
        explanation.ledger.steps,
        explanation.ledger.ranks,
        explanation.phases,
        explanation.overlap,
        explanation.critical_path,
    )
    assert [set(table["step"]) for table in tables] == [{1, 2}] * len(tables)


def test_order_of_rows_changes_nothing():
    timeline = schedule_run(slower={2: 1.1}, hop_ns=100_000)
    spans = timeline.spans.sample(fraction=1.0, shuffle=True, seed=1)
    shuffled = timeline.with_spans(conform(spans, SPANS))
    first, second = (build_explained_report(each).explanation for each in (timeline, shuffled))
    assert first.idle.equals(second.idle)
    assert first.improvements.equals(second.improvements)


def test_timeline_without_actions_has_an_empty_explanation():
    report = build_explained_report(empty_timeline())
    assert report.explanation.lost_time is None
    assert report.explanation.improvements.is_empty()
