"""Numbers of rows by the values of several columns."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.model import row_numbers
from stagescope.model.row_numbers import number_rows, order_rows

NAMES = ("far", "near", "letter", "is_pair")
LetterType = pl.Enum(["c", "a", "b"])
SCHEMA = {"far": pl.Int64, "near": pl.Int32, "letter": LetterType, "is_pair": pl.Boolean}

far = st.sampled_from([-(2**61), -1, 0, 7, 2**61, None])
near = st.one_of(st.none(), st.integers(-3, 3))
letter = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
rows = st.lists(st.tuples(far, near, letter, st.booleans()), max_size=30)


def frame_of(some: list[tuple[object, ...]]) -> pl.DataFrame:
    return pl.DataFrame(some, schema=SCHEMA, orient="row")


@settings(deadline=None, max_examples=60)
@given(rows)
def test_groups_are_those_of_a_sorted_table_of_distinct_rows(some):
    frame = frame_of(some)
    number, first = number_rows(frame)
    distinct = frame.unique(maintain_order=True).sort(NAMES)
    assert frame[first].equals(distinct)
    assert distinct[number].equals(frame)
    for group, row in enumerate(first):
        assert row == min(index for index, each in enumerate(number) if each == group)


@settings(deadline=None, max_examples=60)
@given(rows)
def test_order_is_that_of_a_stable_sort(some):
    frame = frame_of(some).with_row_index()
    assert frame[order_rows(frame.select(NAMES))].equals(frame.sort(NAMES, maintain_order=True))


@pytest.mark.parametrize("table", [1, 4])
def test_small_tables_give_the_same_numbers(monkeypatch, table):
    frame = pl.DataFrame({"a": [5, 1, 5, 3, 1] * 4, "b": [2, 2, 2, 9, 1] * 4})
    number, first = number_rows(frame)
    monkeypatch.setattr(row_numbers, "WIDEST_TABLE", table)
    monkeypatch.setattr(row_numbers, "CODES_PER_VALUE", 1)
    again = number_rows(frame)
    assert (again.number.tolist(), again.first.tolist()) == (number.tolist(), first.tolist())
    assert first.tolist() == [4, 1, 3, 0]
