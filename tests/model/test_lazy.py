"""Fields that are loaded when they are used; the doctests have the rest."""

from dataclasses import dataclass

import polars as pl
import pytest

from stagescope.model.lazy import InParts, lazily, parts_of, with_known

PARTS = [pl.DataFrame({"step": [0, 1]}), pl.DataFrame({"step": [2]})]


@dataclass(frozen=True)
class Tables:
    rows: pl.DataFrame


def whole():
    pytest.fail("the table was loaded as a whole")


def test_parts_of_a_table_are_loaded_one_after_the_other():
    tables = lazily(Tables, {}, {"rows": InParts(whole, lambda: iter(PARTS))}, is_kept=False)
    assert [rows["step"].to_list() for rows in parts_of(tables, "rows")] == [[0, 1], [2]]


def test_a_table_that_is_used_as_a_whole_is_loaded_as_a_whole():
    tables = lazily(
        Tables, {}, {"rows": InParts(lambda: pl.concat(PARTS), lambda: iter(PARTS))}, is_kept=False
    )
    assert tables.rows["step"].to_list() == [0, 1, 2]


@pytest.mark.parametrize(
    "tables",
    [
        Tables(PARTS[1]),
        lazily(Tables, {}, {"rows": lambda: PARTS[1]}),
        with_known(lazily(Tables, {}, {"rows": InParts(whole, lambda: iter(PARTS))}), rows=PARTS[1]),
    ],
    ids=["known", "loaded", "replaced"],
)
def test_other_tables_are_one_part(tables):
    assert [rows["step"].to_list() for rows in parts_of(tables, "rows")] == [[2]]
