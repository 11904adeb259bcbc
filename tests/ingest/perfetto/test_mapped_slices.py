"""Track events of other writers, written with Perfetto's own library."""

import zlib

import polars as pl
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb2

import stagescope
from drawing import timeline_from_text
from perfetto_traces import trace_of
from stagescope.vocabulary.errors import InputError

DRAWING = """
F0 F1 .  B0 .  B1
.  F0 B0 F1 B1 .
"""


def actions(timeline):
    rows = timeline.spans.select("rank", pl.col("kind").cast(pl.String), "microbatch", "start_ns", "end_ns")
    return sorted(rows.rows())


@pytest.fixture
def write(tmp_path):
    def write(trace):
        path = tmp_path / "other.pftrace"
        path.write_bytes(trace.SerializeToString())
        return path

    return write


@pytest.mark.parametrize("processes", [True, False])
def test_slices_of_any_writer_are_read_by_their_names(write, processes):
    drawn = timeline_from_text(DRAWING)
    path = write(trace_of(drawn, "{kind}_{microbatch}", processes=processes))
    assert actions(stagescope.read(path)) == actions(drawn)


def test_slices_are_read_by_their_arguments(write):
    drawn = timeline_from_text(DRAWING)
    path = write(trace_of(drawn, "{kind}", arguments=("microbatch", "step")))
    read = stagescope.read(path, map={"microbatch": "args.microbatch", "step": "args.step"})
    assert actions(read) == actions(drawn)


@pytest.mark.parametrize("level", [9, 0], ids=["short", "longer than the searched head"])
def test_compressed_packets_are_read(write, level):
    drawn = timeline_from_text(DRAWING)
    inner = trace_of(drawn, "{kind}_{microbatch}")
    for number in range(200):
        inner.packet.add().track_descriptor.uuid = 2**60 + number * 2**40
    packed = pb2.Trace()
    packed.packet.add().compressed_packets = zlib.compress(inner.SerializeToString(), level)
    assert actions(stagescope.read(write(packed))) == actions(drawn)


def test_names_that_are_no_actions_are_refused_with_what_to_do(write):
    path = write(trace_of(timeline_from_text(DRAWING), "work"))
    with pytest.raises(InputError, match="'work'") as caught:
        stagescope.read(path)
    assert "--pattern" in caught.value.hint
