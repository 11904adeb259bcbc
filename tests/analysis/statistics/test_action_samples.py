"""Samples of action durations."""

import pytest

from drawing import timeline_from_text
from planted_runs import Shape, random_times, run
from stagescope.analysis.statistics.action_samples import sample_actions
from stagescope.model import empty_timeline

TEXT = "F0 F1 - - B0 - B1 -"


def test_sample_is_the_mean_over_micro_batches():
    table = sample_actions(timeline_from_text(TEXT).spans).table
    rows = {row["kind"]: row for row in table.iter_rows(named=True)}
    assert rows["forward"]["usual_ns"] == 2_000  # of 1 and 3 cells
    assert rows["forward"]["spread_ns"] == 1_000
    assert rows["forward"]["total_ns"] == 4_000
    assert (rows["backward"]["usual_ns"], rows["backward"]["action_count"]) == (2_000, 2)


def test_disturbed_action_does_not_count_in_the_mean():
    times = random_times(Shape(1, 2, 8, 4, noise=0.0))
    times.action_ns[0, 0, 2, 1, 3] *= 50
    table = sample_actions(run(times).spans).table
    forward = table.filter(kind="forward", rank=1)
    assert forward["usual_ns"].to_list() == [10_000_000] * 4
    assert forward["total_ns"].to_list() == [80_000_000, 80_000_000, 570_000_000, 80_000_000]


@pytest.mark.parametrize(
    ("steps", "microbatches", "parts"), [(20, 8, 1), (4, 64, 1), (2, 16, 4), (1, 64, 8), (1, 3, 1)]
)
def test_few_steps_are_divided_into_parts_of_four_or_more_actions(steps, microbatches, parts):
    timeline = run(random_times(Shape(1, 2, microbatches, steps)))
    samples = sample_actions(timeline.spans)
    assert samples.sampling.parts == parts
    assert samples.sampling.count == steps * parts
    assert samples.table["sample"].unique().sort().to_list() == list(range(steps * parts))


def test_unplaced_and_zero_length_actions_are_counted():
    timeline = timeline_from_text(TEXT)
    spans = timeline.spans
    stepless = spans.with_columns(step=None)
    lengthless = spans.with_columns(end_ns="start_ns")
    both = sample_actions(spans.vstack(stepless.cast(spans.schema)).vstack(lengthless)).diagnostics
    assert [(one.count, one.code) for one in both] == [(4, "actions.unplaced"), (4, "actions.zero_length")]


def test_actions_of_a_pair_are_a_separate_class():
    spans = timeline_from_text("F0 F1 B0 B1").spans.with_columns(pair=None).cast({"pair": int})
    spans = spans.with_columns(pair=spans["microbatch"].replace({0: None}))
    table = sample_actions(
        timeline_from_text("F0").spans.clear().vstack(spans.cast(timeline_from_text("F0").spans.schema))
    ).table
    assert sorted(table["is_pair"].to_list()) == [False, False, True, True]


def test_empty_input_has_no_samples():
    samples = sample_actions(empty_timeline().spans)
    assert (samples.table.height, samples.sampling.count) == (0, 0)
