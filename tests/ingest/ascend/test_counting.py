from __future__ import annotations

import polars as pl

from stagescope.ingest.ascend.counting import count_along
from stagescope.ingest.ascend.pipeline_info import PipelineInfo
from stagescope.ingest.ascend.sizes import count_actions


def actions(*rows, may_repeat=False, said=None):
    """Return the actions of ranks drawn as words of F, B and W, one group each."""
    sorts = {"F": "forward", "B": "backward", "W": "weight", "O": "overlap"}
    flat = [(rank, 0, sorts[letter]) for rank, row in enumerate(rows) for letter in row]
    frame = pl.DataFrame(flat, schema=["group", "step", "sort"], orient="row").with_columns(
        pl.col("step").cast(pl.Int32),
        marker="sort",
        may_repeat=pl.lit(may_repeat),
        said_chunk=pl.lit(None, pl.Int32),
    )
    numbers = [None] * frame.height if said is None else said
    return frame.with_columns(said_microbatch=pl.Series(numbers, dtype=pl.Int32))


def counted(frame, microbatches=None):
    named, notes = count_along(frame, PipelineInfo(None, microbatches), count_actions(frame))
    return named["microbatch"].to_list(), named["step"].to_list(), notes


def test_the_kth_forward_and_the_kth_backward_are_micro_batch_k():
    numbers, _, notes = counted(actions("FFBB", "FBFB"))
    assert numbers == [0, 1, 0, 1, 0, 0, 1, 1]
    assert [note.severity for note in notes] == ["info"]


def test_nothing_is_counted_where_a_rank_did_less():
    numbers, _, notes = counted(actions("FFBB", "FBF"))
    assert numbers == [None] * 7
    assert [(note.severity, note.count) for note in notes] == [("warning", 7)]


def test_nothing_is_counted_where_marks_show_more_than_forwards_and_backwards():
    assert counted(actions("FBW", "FBW"))[0] == [None] * 6


def test_nothing_is_counted_where_no_rank_takes_a_micro_batch_back_at_once():
    assert counted(actions("FFFFFFBFBBBB", "FFFFBFBFBBBB"))[0] == [None] * 24


def test_micro_batches_that_all_ranks_take_back_at_the_end_are_counted():
    assert counted(actions("FFBB", "FFBB"))[0] == [0, 1, 0, 1] * 2


def test_what_the_forwards_say_is_kept_where_nothing_can_be_counted():
    numbers, _, notes = counted(actions("FFB", said=[1, 0, None]))
    assert numbers == [1, 0, None]
    assert notes[0].count == 1


def test_passes_become_steps_where_nothing_else_tells_them():
    numbers, steps, _ = counted(actions("FBFBFBFB", may_repeat=True), 2)
    assert (numbers, steps) == ([0, 0, 1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1])
