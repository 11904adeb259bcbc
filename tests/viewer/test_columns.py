import json
import zlib

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from column_blobs import read_blob
from places import WEB
from stagescope.viewer.columns import encode_columns

SAMPLES = WEB / "tests" / "data"
INT64 = st.integers(-(2**63), 2**63 - 1)
NOW = 1_763_600_000_123_456_789


@given(st.lists(st.none() | st.integers(-(2**62), 2**62), max_size=40))
def test_whole_numbers_come_back_with_their_nulls(values):
    columns, _ = read_blob(encode_columns(pl.DataFrame({"a": pl.Series(values, dtype=pl.Int64)})))
    assert columns["a"] == values


@given(st.lists(INT64, max_size=40))
def test_every_64_bit_number_comes_back(values):
    columns, _ = read_blob(encode_columns(pl.DataFrame({"a": pl.Series(values, dtype=pl.Int64)})))
    assert columns["a"] == values


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**61)), max_size=40))
def test_chained_times_come_back_in_any_order(rows):
    frame = pl.DataFrame(rows, schema={"start": pl.Int64, "duration": pl.Int64}, orient="row")
    columns, _ = read_blob(encode_columns(frame, chained={"start": "duration"}))
    assert columns == frame.to_dict(as_series=False)
    columns, _ = read_blob(encode_columns(frame, chained={"start": None}))
    assert columns == frame.to_dict(as_series=False)


@given(st.lists(st.none() | st.text(max_size=20), max_size=20))
def test_text_comes_back(values):
    columns, _ = read_blob(encode_columns(pl.DataFrame({"name": pl.Series(values, dtype=pl.String)})))
    assert columns["name"] == values


@given(st.lists(st.none() | st.floats(allow_nan=False), max_size=20))
def test_doubles_come_back(values):
    columns, _ = read_blob(encode_columns(pl.DataFrame({"share": pl.Series(values, dtype=pl.Float64)})))
    assert columns["share"] == values


def test_a_few_wide_codes_are_set_aside_so_that_the_column_stays_narrow():
    values = [*range(1000)]
    values[10], values[999] = 2**40, 2**33 + 1
    blob = encode_columns(pl.DataFrame({"wide": values}))
    (head,) = _head(blob)["columns"]
    assert (head["type"], head["escapes"]) == ("u4", 2)
    assert read_blob(blob)[0]["wide"] == values


def test_numbers_take_no_more_bytes_than_they_need():
    frame = pl.DataFrame({"one": [NOW, NOW + 255], "two": [0, 256], "eight": [0, 2**40]})
    assert [column["type"] for column in _head(encode_columns(frame))["columns"]] == ["u1", "u2", "u8"]


def test_enumerations_and_booleans_are_known():
    frame = pl.DataFrame(
        {"kind": pl.Series(["b", "a", None], dtype=pl.Enum(["a", "b"])), "is": [True, False, True]}
    )
    columns, facts = read_blob(encode_columns(frame, facts={"origin": 7}))
    assert (columns, facts) == ({"kind": ["b", "a", None], "is": [1, 0, 1]}, {"origin": 7})


def test_a_table_without_rows_has_its_columns():
    frame = pl.DataFrame(schema={"a": pl.Int64, "b": pl.String, "c": pl.Float64})
    assert read_blob(encode_columns(frame))[0] == {"a": [], "b": [], "c": []}


def test_a_type_that_has_no_place_in_a_blob_is_refused_by_name():
    with pytest.raises(TypeError, match="column 'when' of type Date"):
        encode_columns(pl.DataFrame({"when": pl.Series([0]).cast(pl.Date)}))


def test_the_samples_that_the_viewer_is_tested_with_are_what_the_encoder_writes():
    sample = pl.DataFrame(
        {
            "start": [NOW, NOW + 1, NOW + 2**45, NOW + 6],
            "duration": [1, 2, 3, 4],
            "stage": [0, None, 700, 70000],
            "bytes": [1, None, 2**40, 3],
            "name": ["</script>", None, "ünïcode \0", "</script>"],
            "share": [0.5, None, -1e300, 0.0],
            "kind": pl.Series([5, 6, 7, 5], dtype=pl.UInt8),
        }
    )
    blob = encode_columns(sample, chained={"start": "duration"}, facts={"origin": 3})
    assert zlib.decompress((SAMPLES / "columns.bin").read_bytes()) == zlib.decompress(blob)
    wide = [*range(1000)]
    wide[10], wide[999] = 2**40, 2**33 + 1
    blob = encode_columns(pl.DataFrame({"wide": wide}))
    assert zlib.decompress((SAMPLES / "escapes.bin").read_bytes()) == zlib.decompress(blob)


def _head(blob: bytes) -> dict:
    data = zlib.decompress(blob)
    return json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])
