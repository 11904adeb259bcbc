"""Results of workers whose tables are in files."""

from typing import NamedTuple

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stagescope.api.detached_tables import attach, attach_later, detach, read_object, write_object


class Inner(NamedTuple):
    rows: pl.DataFrame
    column: pl.Series
    count: int


class Outer(NamedTuple):
    tables: dict[str, pl.DataFrame]
    inner: Inner
    nothing: None


ROWS = pl.DataFrame({"step": [1, 2], "kind": pl.Series(["a", "b"], dtype=pl.Enum(["a", "b"]))})
RESULT = Outer({"one": ROWS, "two": ROWS.head(1)}, Inner(ROWS, ROWS["step"], 3), None)


def test_attached_results_are_what_was_detached(tmp_path):
    found = attach(detach(RESULT, tmp_path / "result"))
    assert_frame_equal(found.tables["two"], ROWS.head(1))
    assert_frame_equal(found.inner.rows, ROWS)
    assert found.inner.column.to_list() == [1, 2]
    assert (found.inner.count, found.nothing) == (3, None)


def test_tables_are_read_when_they_are_used(tmp_path):
    later = attach_later(detach(RESULT, tmp_path / "result"), scanned=("tables",))
    assert_frame_equal(later.tables["one"].filter(pl.col("step") == 2).collect(), ROWS.tail(1))
    assert (later.inner.count, later.nothing) == (3, None)
    pl.DataFrame({"step": [7]}).write_ipc(next(tmp_path.rglob("table-inner-rows.arrow")))
    assert later.inner.rows["step"].to_list() == [7]


def test_an_object_is_read_only_as_it_was_written(tmp_path):
    written = write_object({"rows": ROWS, "names": ("a", "b")}, tmp_path / "object")
    found = read_object(written)
    assert_frame_equal(found["rows"], ROWS)
    assert found["names"] == ("a", "b")
    content = written.path.read_bytes()
    written.path.write_bytes(content.replace(b"names", b"nomes"))
    with pytest.raises(OSError, match="changed while the run was analyzed"):
        read_object(written)
