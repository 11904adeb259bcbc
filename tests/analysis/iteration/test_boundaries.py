"""When iterations begin and end."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from delayed_runs import run_rows
from random_pipelines import timeline_of
from stagescope.analysis import build_explained_report
from stagescope.analysis.iteration.boundaries import find_recorded, join_recorded

MS = 1_000_000
FORWARD_NS = 10 * MS


def forwards_only(ranks=4, microbatches=8, steps=6):
    """Return a pipeline without backwards, whose first rank begins each step when it has ended the one before."""
    words = {rank: [f"F{rank}.{number}" for number in range(microbatches * steps)] for rank in range(ranks)}
    rows = run_rows(words, lambda _part, _rank: FORWARD_NS)
    for row in rows:
        row["step"], row["microbatch"] = divmod(row["microbatch"], microbatches)
    return timeline_of(rows, ranks)


def shifted(timeline, rank, shift_ns):
    late_ns = pl.when(pl.col("rank") == rank).then(shift_ns).otherwise(0)
    return timeline.with_spans(
        timeline.spans.with_columns(pl.col("start_ns") + late_ns, pl.col("end_ns") + late_ns)
    )


@pytest.mark.parametrize("sizes", [(4, 8), (2, 4), (8, 2)], ids=str)
def test_iterations_without_backwards_last_until_the_next_step_although_steps_overlap(sizes):
    ranks, microbatches = sizes
    report = build_explained_report(forwards_only(ranks, microbatches))
    whole = report.iterations.filter("is_whole")
    assert whole["step"].unique().sort().to_list() == [0, 1, 2, 3, 4]
    assert set(whole["iteration_ns"]) == {microbatches * FORWARD_NS}
    # Only the last step, which no other one follows, lasts until the last rank has ended it.
    lost = dict(report.losses.filter(pl.col("ns") != 0).select("part", "ns").iter_rows())
    drain_ns = (ranks - 1) * FORWARD_NS
    expected = {"ideal_work": microbatches * FORWARD_NS, "schedule_bubble": drain_ns / 6}
    assert lost == pytest.approx(expected)


def test_ranks_whose_clocks_are_far_apart_have_no_overlapping_steps():
    report = build_explained_report(shifted(forwards_only(), 3, 1_000 * MS))
    assert not report.iterations["is_whole"].any()


def test_steps_with_backwards_do_not_overlap_by_as_much():
    timeline = forwards_only()
    is_last = (pl.col("rank") == 3) & (pl.col("microbatch") == 7)
    kinds = timeline.spans.schema["kind"]
    kind = pl.when(is_last).then(pl.lit("backward", kinds)).otherwise("kind").cast(kinds).alias("kind")
    report = build_explained_report(timeline.with_spans(timeline.spans.with_columns(kind)))
    assert not report.iterations["is_whole"].any()


def test_what_parts_of_a_run_recorded_is_joined():
    spans = forwards_only().spans
    parts = [spans.filter(pl.col("rank") < 2), spans.filter(pl.col("rank") >= 2)]
    assert_frame_equal(join_recorded(map(find_recorded, parts)), find_recorded(spans))
