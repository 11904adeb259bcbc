"""Pipeline coordinates from the times of the first actions."""

import polars as pl

from stagescope.ingest.ascend.inferred_coordinates import infer_rank_coordinates
from stagescope.ingest.ascend.pipeline_info import RAW_ACTIONS


def actions(*rows):
    frame = pl.DataFrame(rows, schema=["rank", "step", "marker", "start_ns", "end_ns"], orient="row")
    absent = [pl.lit(None).alias(name) for name in RAW_ACTIONS if name not in frame.columns]
    return frame.with_columns(absent).select(pl.col(name).cast(dtype) for name, dtype in RAW_ACTIONS.items())


def ranks(count, clock="c"):
    return pl.DataFrame({"rank": range(count), "clock": [clock] * count}, schema_overrides={"rank": pl.Int32})


def test_ranks_are_ordered_by_their_first_forwards():
    rows = [(rank, 0, "forward", start, start + 10) for rank, start in ((0, 20), (1, 0), (2, 10))]
    places, (note,) = infer_rank_coordinates(actions(*rows), ranks(3))
    assert dict(places.select("rank", "pp").iter_rows()) == {0: 2, 1: 0, 2: 1}
    assert note.severity == "info"


def test_indistinguishable_ranks_get_no_coordinate():
    rows = [(0, 0, "forward", 0, 10), (1, 0, "forward", 0, 10), (2, 0, "forward", 20, 30)]
    places, (note,) = infer_rank_coordinates(actions(*rows), ranks(3))
    assert places["pp"].null_count() == 3
    assert (note.severity, note.count) == ("warning", 3)


def test_a_single_rank_is_a_pipeline_of_one():
    places, notes = infer_rank_coordinates(actions((0, 0, "forward", 0, 10)), ranks(1))
    assert (places["pp"].to_list(), notes) == ([0], [])
