import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.viewer.tiles.records import FACTS, SPAN, none_of, pack, unpack


def test_a_field_that_holds_its_lowest_value_is_null():
    frame = pl.DataFrame({"start": [5, 6], "duration": [1, 2], "microbatch": [None, 3], "kind": [1, 2]})
    records = pack(frame, SPAN)
    assert records["microbatch"].tolist() == [none_of(SPAN, "microbatch"), 3]
    assert records["step"].tolist() == [none_of(SPAN, "step")] * 2
    assert records["sublane"].tolist() == [0, 0]
    assert unpack(records)["microbatch"].to_list() == [None, 3]
    assert unpack(records)["step"].to_list() == [None, None]


def test_records_have_no_gaps_that_would_make_files_larger():
    for dtype in (SPAN, FACTS):
        assert dtype.itemsize == sum(dtype[name].itemsize for name in dtype.names)


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.none() | st.integers(-(2**31) + 1, 2**31 - 1)] * 3), max_size=20))
def test_facts_come_back_as_they_went_in(rows):
    schema = {"pair": pl.Int64, "peer": pl.Int64, "name": pl.Int64}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    back = unpack(pack(frame, FACTS)).select(*schema)
    assert back.cast(pl.Int64).equals(frame, null_equal=True)
    assert np.array_equal(pack(back, FACTS), pack(frame, FACTS))
