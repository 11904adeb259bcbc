"""A forward that begins with the loading of data starts when the data is there."""

import polars as pl
import pytest

from stagescope.ingest.recording.leading_loads import without_leading_loads
from stagescope.model import SPANS
from stagescope.model.validate import conform

MS = 1_000_000


def spans(*rows):
    places = {"forward": "compute", "backward": "compute", "other": "host"}
    return conform(
        pl.DataFrame(
            [
                {"kind": kind, "lane": places[kind], "start_ns": int(start * MS), "end_ns": int(end * MS), "rank": 0}
                | ({"name": "data loading"} if kind == "other" else {"stage": 0, "microbatch": 0, "step": 0})
                | dict(more)
                for kind, start, end, *more in rows
            ],
            infer_schema_length=None,
        ),
        SPANS,
    )  # fmt: skip


def starts(table):
    actions = without_leading_loads(table).filter(pl.col("lane") == "compute")
    return [start_ns / MS for start_ns in actions["start_ns"]]


def test_forwards_start_when_their_data_is_there():
    table = spans(
        ("forward", 0, 30), ("other", 0.05, 20), ("backward", 30, 40), ("forward", 40, 55), ("other", 40.01, 45)
    )  # fmt: skip
    assert starts(table) == [20, 30, 45]
    assert without_leading_loads(table).filter(pl.col("kind") == "other").height == 2


@pytest.mark.parametrize(
    "rows",
    [
        [("forward", 0, 30), ("other", 5, 20)],  # it computes before
        [("forward", 20, 30), ("other", 5, 20)],  # loaded before
        [("forward", 0, 30), ("other", 0.01, 30)],  # the end of a span that is not its own
        [("backward", 0, 30), ("other", 0.01, 20)],
        [("forward", 0, 30, ("pair", 1)), ("other", 0.01, 20)],
        [("forward", 0, 30), ("other", 0.01, 20, ("name", "checkpoint"))],
    ],
)
def test_other_forwards_are_left_as_they_are(rows):
    table = spans(*rows)
    assert without_leading_loads(table).equals(table)


def test_forward_of_a_device_that_lags_behind_its_host_starts_after_the_loading_as_well():
    assert starts(spans(("other", 0, 20), ("forward", 8, 30))) == [20]
