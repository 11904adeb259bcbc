"""What a rank does between two steps, without its waits for late ranks."""

import polars as pl

from stagescope.analysis.collectives.meetings import MEETINGS
from stagescope.analysis.iteration.activities import OPTIMIZER, OTHER, REDUCTION, without_waits
from stagescope.model.validate import conform


def meetings(*rows):
    names = ("rank", "arrived_ns", "last_ns", "done_ns")
    rest = {"step": 0, "group": "0,1", "sequence": 0, "operation": "all_reduce", "is_reduction": False, "since_ns": 0,
            "own_ns": 0, "last_rank": 1, "waited": True}  # fmt: skip
    return conform(pl.DataFrame([{**rest, **dict(zip(names, row, strict=True))} for row in rows]), MEETINGS)


def named(*rows):
    columns = ("rank", "start_ns", "end_ns", "activity")
    made = pl.DataFrame([dict(zip(columns, row, strict=True)) | {"lane": "host"} for row in rows])
    return made.cast({"rank": pl.Int32})


def rows(table):
    return table.select("rank", "start_ns", "end_ns", "activity").sort("rank", "start_ns").rows()


def test_optimizer_is_cut_where_its_rank_waited_for_the_last_one():
    spans = named((0, 100, 200, OPTIMIZER), (1, 180, 210, OPTIMIZER), (0, 300, 320, OPTIMIZER))
    late = meetings((0, 110, 180, 185), (1, 180, 180, 185), (0, 190, 195, 198), (1, 195, 195, 199))
    assert rows(without_waits(spans, late)) == [
        (0, 100, 110, OPTIMIZER), (0, 180, 190, OPTIMIZER), (0, 195, 200, OPTIMIZER), (0, 300, 320, OPTIMIZER),
        (1, 180, 210, OPTIMIZER),
    ]  # fmt: skip


def test_clipping_is_cut_and_a_reduction_is_not():
    spans = named((0, 100, 200, OTHER), (0, 90, 250, REDUCTION))
    assert rows(without_waits(spans, meetings((0, 110, 180, 190), (1, 180, 180, 190)))) == [
        (0, 90, 250, REDUCTION), (0, 100, 110, OTHER), (0, 180, 200, OTHER),
    ]  # fmt: skip


def test_nothing_is_cut_without_meetings_or_outside_of_spans():
    spans = named((0, 100, 200, OPTIMIZER), (1, 300, 310, OTHER))
    for late in (MEETINGS.empty(), meetings((0, 210, 280, 290), (1, 280, 280, 290))):
        assert rows(without_waits(spans, late)) == rows(spans)
