"""Operations on tables that are larger than memory."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stagescope.model import large_tables
from stagescope.model.large_tables import kept_if_few, reduced, united_rows
from stagescope.model.lazy import TableParts

PARTS = [pl.DataFrame({"rank": [0, 1, first % 3], "ns": [first, 1, 2]}) for first in range(7)]


@pytest.fixture(params=[1, 4, 1_000_000], ids=["always", "often", "once"])
def rows_at_once(request, monkeypatch):
    monkeypatch.setattr(large_tables, "ROWS_AT_ONCE", request.param)


@pytest.mark.usefixtures("rows_at_once")
def test_parts_that_are_reduced_one_after_the_other_give_what_all_rows_do():
    def sums(rows):
        return rows.group_by("rank").agg(pl.sum("ns"))

    assert_frame_equal(reduced(iter(PARTS), sums).sort("rank"), sums(pl.concat(PARTS)).sort("rank"))


@pytest.mark.usefixtures("rows_at_once")
def test_different_rows_of_all_parts():
    assert united_rows(iter(PARTS), ["rank"])["rank"].sort().to_list() == [0, 1, 2]


def test_parts_are_not_kept(monkeypatch):
    monkeypatch.setattr(large_tables, "ROWS_AT_ONCE", 10)
    most = 0

    def unique(rows):
        nonlocal most
        most = max(most, rows.height)
        return rows.unique()

    reduced((pl.DataFrame({"rank": [0, 1]}) for _ in range(100)), unique)
    assert most <= 12


@pytest.mark.parametrize(("most", "loads"), [(21, 1), (20, 3)])
def test_parts_are_loaded_once_if_they_have_few_rows_together(monkeypatch, most, loads):
    monkeypatch.setattr(large_tables, "KEPT_ROWS", most)
    loaded = []
    parts = kept_if_few(TableParts(PARTS, lambda rows: loaded.append(rows) or rows))
    for _ in range(2):
        assert_frame_equal(pl.concat(parts), pl.concat(PARTS))
    assert len(loaded) == loads * len(PARTS)
