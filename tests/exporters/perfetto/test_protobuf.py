import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb2

from stagescope.exporters.protobuf import (
    bytes_field,
    constant_cells,
    fixed64_cells,
    join_cells,
    message_cells,
    number_cells,
    number_field,
    spread_cells,
    varint,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (-1, "ff" * 9 + "01")],
)
def test_varints_match_the_specification(value, expected):
    assert varint(value).hex() == expected


@given(st.lists(INT64, min_size=1, max_size=20))
def test_column_of_numbers_equals_the_same_numbers_one_by_one(values):
    cells = number_cells(30, np.array(values, np.int64))
    assert cells.tobytes() == b"".join(number_field(30, value) for value in values)


@given(st.lists(st.one_of(st.none(), INT64), min_size=1, max_size=20))
def test_column_leaves_out_rows_that_are_not_present(values):
    present = np.array([value is not None for value in values])
    numbers = np.array([value or 0 for value in values], np.int64)
    inner = join_cells(
        [constant_cells(number_field(1, 7), len(values), present), number_cells(4, numbers, present)]
    )
    expected = [
        b"" if value is None else bytes_field(4, number_field(1, 7) + number_field(4, value))
        for value in values
    ]
    cells = message_cells(4, inner, present)
    assert cells.tobytes() == b"".join(expected)
    assert cells.lengths.tolist() == [len(row) for row in expected]


def test_rows_are_spread_with_empty_ones_between_them():
    cells = spread_cells(number_cells(1, np.array([5, 300])), np.array([False, True, False, True]))
    assert cells.lengths.tolist() == [0, 2, 0, 3]
    assert cells.tobytes() == number_field(1, 5) + number_field(1, 300)


def test_reference_implementation_reads_what_columns_wrote():
    values = np.array([1, 2**62, 3])
    event = join_cells([number_cells(11, values), fixed64_cells(47, values, values != 2**62)])
    trace = pb2.Trace.FromString(message_cells(1, message_cells(11, event)).tobytes())
    assert [packet.track_event.track_uuid for packet in trace.packet] == [1, 2**62, 3]
    assert [list(packet.track_event.flow_ids) for packet in trace.packet] == [[1], [], [3]]
