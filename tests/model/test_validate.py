"""Tables in the order that they declare."""

import numpy as np
import polars as pl
import pytest

from stagescope.model.tables import SPANS, STEPS
from stagescope.model.validate import conform, in_order, in_order_together


def parts_of(seed, count, *, are_sorted):
    """Return parts of spans, some of them without columns of which they have no value."""
    rng = np.random.default_rng(seed)
    parts = []
    for number in range(count):
        rows = int(rng.integers(0, 40))
        start_ns = rng.integers(0, 9, rows)
        frame = pl.DataFrame(
            {
                "rank": pl.Series(rng.integers(0, 3, rows), dtype=pl.Int32)
                + (9 * number if are_sorted else 0),
                "lane": ["compute"] * rows,
                "kind": ["forward"] * rows,
                "start_ns": start_ns,
                "end_ns": start_ns + rng.integers(0, 3, rows),
                "bytes": rng.integers(0, 1000, rows),
            }
        )
        parts.append(conform(frame, SPANS).drop("name", "bytes" if number % 2 else "peer"))
    return parts


@pytest.mark.parametrize("are_sorted", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_parts_in_order_together_are_their_concatenation_in_order(count, are_sorted):
    parts = parts_of(count, count, are_sorted=are_sorted)
    expected = in_order(pl.concat([SPANS.empty(), *parts], how="diagonal"), SPANS)
    kept = [part.clone() for part in parts]
    found = in_order_together(parts, SPANS)
    assert found.equals(expected)
    assert found.schema == expected.schema
    assert parts == []
    assert all(part.width == SPANS.empty().width - 2 for part in kept)


def test_rows_that_are_alike_stay_in_the_order_of_the_parts():
    rows = [
        STEPS.empty().clear(1).with_columns(rank=pl.lit(0, pl.Int32), step=pl.lit(0, pl.Int32)) for _ in "ab"
    ]
    parts = [
        each.with_columns(end_ns=pl.lit(end_ns, pl.Int64)) for each, end_ns in zip(rows, (2, 1), strict=True)
    ]
    assert in_order_together(parts, STEPS)["end_ns"].to_list() == [2, 1]
