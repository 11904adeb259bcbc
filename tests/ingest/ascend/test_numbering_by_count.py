from __future__ import annotations

import polars as pl

from stagescope.ingest.ascend.numbering_by_count import number_by_count
from stagescope.ingest.ascend.pipeline_info import PipelineInfo
from stagescope.ingest.ascend.sizes import count_actions


def actions(*rows, may_repeat=False, recorded=None):
    """Return the actions of ranks written as strings of F, B and W, one group per rank."""
    sorts = {"F": "forward", "B": "backward", "W": "weight", "O": "overlap"}
    flat = [(rank, 0, sorts[letter]) for rank, row in enumerate(rows) for letter in row]
    frame = pl.DataFrame(flat, schema=["group", "step", "sort"], orient="row").with_columns(
        pl.col("step").cast(pl.Int32),
        marker="sort",
        may_repeat=pl.lit(may_repeat),
        recorded_chunk=pl.lit(None, pl.Int32),
    )
    numbers = [None] * frame.height if recorded is None else recorded
    return frame.with_columns(recorded_microbatch=pl.Series(numbers, dtype=pl.Int32))


def counted(frame, microbatches=None):
    named, notes = number_by_count(frame, PipelineInfo(None, microbatches), count_actions(frame))
    return named["microbatch"].to_list(), named["step"].to_list(), notes


def test_the_kth_forward_and_the_kth_backward_are_micro_batch_k():
    numbers, _, notes = counted(actions("FFBB", "FBFB"))
    assert numbers == [0, 1, 0, 1, 0, 0, 1, 1]
    assert [note.severity for note in notes] == ["info"]


def test_does_not_count_if_a_rank_ran_fewer_actions():
    numbers, _, notes = counted(actions("FFBB", "FBF"))
    assert numbers == [None] * 7
    assert [(note.severity, note.count) for note in notes] == [("warning", 7)]


def test_does_not_count_with_marks_other_than_forward_and_backward():
    assert counted(actions("FBW", "FBW"))[0] == [None] * 6


def test_does_not_count_if_no_rank_alternates():
    assert counted(actions("FFFFFFBFBBBB", "FFFFBFBFBBBB"))[0] == [None] * 24


def test_counts_micro_batches_with_all_backwards_at_the_end():
    assert counted(actions("FFBB", "FFBB"))[0] == [0, 1, 0, 1] * 2


def test_recorded_numbers_are_kept_if_counting_is_not_safe():
    numbers, _, notes = counted(actions("FFB", recorded=[1, 0, None]))
    assert numbers == [1, 0, None]
    assert notes[0].count == 1


def test_passes_become_steps_if_none_are_recorded():
    numbers, steps, _ = counted(actions("FBFBFBFB", may_repeat=True), 2)
    assert (numbers, steps) == ([0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1])
