"""Counters of the page: all of few values, the highest of many."""

import polars as pl
import pytest

from column_blobs import read_blob
from stagescope.model.tables import COUNTERS
from stagescope.model.validate import conform
from stagescope.viewer import counter_data
from stagescope.viewer.counter_data import counter_section


def counters(rows):
    return conform(
        pl.DataFrame(rows, schema=["rank", "name", "time_ns", "value", "unit"], orient="row"), COUNTERS
    )


def test_values_are_sorted_by_name_row_and_time():
    table = counters(
        [
            (4, "custom", 9, 1.0, None),
            (4, "allocated memory", 30, 7.0, "B"),
            (0, "allocated memory", 20, 5.0, "B"),
            (4, "allocated memory", 10, 6.0, "B"),
            (8, "allocated memory", 10, 6.0, "B"),
            (0, "allocated memory", 25, float("nan"), "B"),
        ]
    )
    found, _ = read_blob(counter_section([table], [0, 4], 5))
    assert found["name"] == ["allocated memory"] * 3 + ["custom"]
    assert found["row"] == [0, 1, 1, 1]
    assert found["time"] == [15, 5, 25, 4]
    assert found["value"] == [5.0, 6.0, 7.0, 1.0]
    assert found["unit"] == ["B", "B", "B", None]


def test_without_values_there_is_no_section():
    assert counter_section([COUNTERS.empty()], [0], 0) is None
    assert counter_section([counters([(1, "x", 0, 1.0, None)])], [0], 0) is None


@pytest.mark.parametrize("most", [10, 40])
def test_of_many_values_the_highest_of_each_part_are_sent(most, monkeypatch):
    monkeypatch.setattr(counter_data, "MOST_VALUES", most)
    rows = [(rank, "x", time, float(time % 10 + rank), None) for rank in (0, 1) for time in range(100)]
    table = counters(rows)
    found, _ = read_blob(counter_section([table], [0, 1], 0))
    assert read_blob(counter_section([table[:70], table[70:]], [0, 1], 0))[0] == found
    assert len(found["row"]) <= most
    assert max(found["value"]) == 10.0
    assert set(found["row"]) == {0, 1}


def test_one_moment_of_many_ranks_is_sent(monkeypatch):
    monkeypatch.setattr(counter_data, "MOST_VALUES", 3)
    table = counters([(rank, "x", 7, 1.0, None) for rank in range(5)])
    assert len(read_blob(counter_section([table], range(5), 0))[0]["row"]) == 5
