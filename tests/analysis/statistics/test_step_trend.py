"""Planted trends and outlier steps are recovered with their cause, and nothing else is claimed."""

import numpy as np
import pytest

from delayed_runs import run_rows
from planted_runs import Shape, random_times, run
from random_pipelines import one_f_one_b, timeline_of
from stagescope.analysis import build_explained_report
from stagescope.analysis.statistics.step_trend import OUTLIER_STEPS, TRENDS, find_step_trends
from stagescope.model import empty_timeline


def causes(times):
    outliers = find_step_trends(run(times)).outliers
    return outliers.select("pipeline", "step", "location", "rank", "stage", "kind", "peer").rows()


def test_planted_trend_is_recovered_with_its_size():
    times = random_times(Shape(pipelines=2))
    times.action_ns[:, 1] *= 1 + 0.01 * np.arange(20).reshape(1, -1, 1, 1)
    trends = find_step_trends(run(times)).trends
    assert trends["is_claimed"].to_list() == [False, True]
    assert trends["pipeline"].to_list() == [0, 4]
    # A hundredth of the first window per step, over 19 steps, of the median, which is 9.5 steps later.
    assert trends["change_fraction"][1] == pytest.approx(0.19 / 1.095, abs=0.02)
    assert trends["low_ns_per_step"][1] < trends["slope_ns_per_step"][1] < trends["high_ns_per_step"][1]


def test_long_action_is_named():
    times = random_times(Shape(pipelines=2))
    times.action_ns[1, 1, 7, 2, 3] += 60e6
    assert causes(times) == [(4, 7, "compute", 6, 2, "backward", None)]


def test_late_message_is_named_even_if_its_receiver_was_busy():
    times = random_times(Shape(pipelines=2))
    times.message_ns[0, 0, 11, 2, 4] += 55e6
    assert causes(times) == [(0, 11, "link", 1, None, "forward", 2)]


def test_step_with_all_ranks_slow_names_none():
    times = random_times(Shape(pipelines=1))
    times.action_ns[:, :, 5] *= 1.2
    assert causes(times) == [(0, 5, "all ranks", None, None, None, None)]


def test_excess_outside_actions_and_messages_is_elsewhere():
    timeline = run(random_times(Shape(pipelines=1)))
    late = timeline.spans["microbatch"].is_in([6, 7]) & (timeline.spans["step"] == 9)
    later = (
        timeline.spans["start_ns"] + 80_000_000 * late.cast(int),
        timeline.spans["end_ns"] + 80_000_000 * late.cast(int),
    )
    moved = timeline.with_spans(timeline.spans.with_columns(start_ns=later[0], end_ns=later[1]))
    (row,) = find_step_trends(moved).outliers.to_dicts()
    assert (row["step"], row["location"], row["rank"]) == (9, "elsewhere", None)


def test_step_on_a_trend_is_compared_with_the_line():
    times = random_times(Shape(pipelines=1, steps=30))
    times.action_ns[:, 0] *= 1 + 0.05 * np.arange(30).reshape(1, -1, 1, 1)
    times.action_ns[1, 0, 4, 2, 3] += 200e6
    (row,) = find_step_trends(run(times)).outliers.to_dicts()
    assert (row["step"], row["rank"]) == (4, 2)
    assert row["usual_ns"] == pytest.approx(1.2 * 335e6, rel=0.05)


@pytest.mark.parametrize(
    "counts",
    [[4 + step // 2 for step in range(16)], [8] * 9 + [16] + [8] * 6, [8, 8, 8, 0] * 4, [0, 0, 0, 8] * 4],
    ids=["growing", "one twice as large", "evaluations", "mostly evaluations"],
)
def test_steps_of_other_sizes_are_neither_a_trend_nor_outliers(counts):
    """A count of 0 is an evaluation of 8 micro-batches, which are forwards only."""
    rng, rows = np.random.default_rng(0), []
    for step, count in enumerate(counts):
        order = one_f_one_b(4, count or 8)
        if not count:
            order = {rank: [each for each in row if each[0] == "F"] for rank, row in order.items()}
        start_ns = max((row["end_ns"] for row in rows), default=0) + 1_000_000
        usual_ns = {"F": 10e6, "B": 20e6}
        rows += run_rows(
            order,
            lambda part, _, usual_ns=usual_ns: round(usual_ns[part.kind] * rng.normal(1, 0.01)),
            step=step,
            start_ns=start_ns,
        )
    report = build_explained_report(timeline_of(rows, 4))
    assert report.findings.is_empty()
    assert report.step_lengths["excess_ns"].null_count() == report.step_lengths.height


def test_tables_always_have_the_declared_columns():
    for timeline in (empty_timeline(), run(random_times(Shape())), run(random_times(Shape(1, 1, 1, 1)))):
        found = find_step_trends(timeline)
        assert dict(found.trends.schema) == dict(TRENDS.schema)
        assert dict(found.outliers.schema) == dict(OUTLIER_STEPS.schema)


def test_slope_is_null_below_four_steps():
    trends = find_step_trends(run(random_times(Shape(1, 2, 4, 3)))).trends
    assert trends.select("steps", "slope_ns_per_step", "change_fraction", "is_claimed").rows() == [
        (3, None, None, False)
    ]


@pytest.mark.exhaustive
def test_claims_without_planted_effect_are_rare():
    """A trend in at most 5 % of runs, an outlier in about 5 %."""
    shape = Shape(pipelines=1, stages=2, steps=10, microbatches=4, step_noise=0.03)
    found = [find_step_trends(run(random_times(shape, seed))) for seed in range(200)]
    assert sum(bool(one.trends["is_claimed"].any()) for one in found) <= 20
    assert sum(one.outliers.height > 0 for one in found) <= 20
