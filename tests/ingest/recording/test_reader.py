"""Recordings become timelines; of damaged ones, the valid parts are read and the rest is counted."""

from __future__ import annotations

import gzip

import polars as pl
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from places import DATA
from recordings import anchor_record, encode, recording_frames, span_record, step_record, write_recording
from stagescope.ingest.recording.frames import read_contents
from stagescope.ingest.recording.reader import READER, read_recordings
from stagescope.model import SPANS
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import InputError

FIVE = [span_record(start_ns=10 * n, end_ns=10 * n + 5, step=0, stage=1, microbatch=n) for n in range(5)]


def test_reads_every_field_and_converts_to_the_wall_clock(tmp_path):
    path = write_recording(
        tmp_path / "rank00000-1.sscope",
        [
            span_record(
                "recv_forward",
                100,
                180,
                wait_start_ns=120,
                wait_end_ns=180,
                bytes=4096,
                step=3,
                stage=2,
                microbatch=7,
                peer=1,
                pair=5,
                chunk=1,
                name=2,
            )
        ],
    )
    timeline = read_recordings([path])
    assert timeline.spans.schema == pl.Schema(SPANS.schema)
    assert timeline.spans.row(0, named=True) == {
        "rank": 0,
        "lane": "comm",
        "kind": "recv_forward",
        "step": 3,
        "stage": 2,
        "chunk": 1,
        "microbatch": 7,
        "pair": 5,
        "peer": 1,
        "bytes": 4096,
        "start_ns": 1_000_100,
        "end_ns": 1_000_180,
        "wait_start_ns": 1_000_120,
        "wait_end_ns": 1_000_180,
        "name": "second name",
    }
    assert timeline.ranks.row(0, named=True)["schedule"] == "1F1B"
    assert timeline.diagnostics.is_empty()


def test_missing_values_are_null(tmp_path):
    spans = read_recordings([write_recording(tmp_path / "a.sscope", [span_record("optimizer")])]).spans
    nullable = [column.name for column in SPANS.columns if column.nullable]
    assert spans.select(nullable).row(0) == (None,) * len(nullable)


def test_step_markers_become_steps_instead_of_spans(tmp_path):
    path = write_recording(tmp_path / "a.sscope", [step_record(4, 100, 900), *FIVE])
    timeline = read_recordings([path])
    assert timeline.steps.rows() == [(4, 0, 1_000_100, 1_000_900)]
    assert timeline.spans.height == 5


def test_later_headers_extend_earlier_ones():
    frames = recording_frames(FIVE)
    frames.insert(2, (fmt.HEADER, b'{"rank": 3, "device": "cuda:1"}'))
    header = read_contents(encode(frames)).header
    assert (header["rank"], header["device"], header["host"]) == (3, "cuda:1", "node-a")


def test_ranks_of_one_machine_share_the_offset_of_the_tightest_anchor(tmp_path):
    paths = []
    for rank, (realtime_ns, width_ns) in enumerate([(5_000, 900), (5_040, 30)]):
        frames = recording_frames(FIVE, rank=rank, world_size=2)
        frames[2] = (fmt.CLOCK, anchor_record(0, realtime_ns, width_ns))
        paths.append(tmp_path / f"{rank}.sscope")
        paths[-1].write_bytes(encode(frames))
    timeline = read_recordings(paths)
    assert timeline.clocks.select("offset_ns", "error_lo_ns", "method").rows() == [(5_040, 0, "one clock")]
    starts = timeline.spans.group_by("rank").agg(pl.min("start_ns")).sort("rank")["start_ns"]
    assert starts.to_list() == [5_040, 5_040]


def test_machines_are_merged_by_wall_clock_with_an_unknown_error(tmp_path):
    a = write_recording(tmp_path / "0.sscope", FIVE, rank=0, world_size=2)
    b = write_recording(tmp_path / "1.sscope", FIVE, rank=1, world_size=2, boot="boot-b", host="node-b")
    timeline = read_recordings([a, b])
    assert timeline.clocks.select("machine", "error_hi_ns", "method").rows() == [
        ("node-a", None, "wall clock"),
        ("node-b", None, "wall clock"),
    ]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_reads_compressed_recordings(tmp_path, pack):
    plain = write_recording(tmp_path / "rank0.sscope", FIVE, rank=0)
    packed = tmp_path / "rank0.sscope.packed"
    packed.write_bytes(pack(plain.read_bytes()))
    assert READER.recognizes(packed, plain.read_bytes()[:64])
    assert read_recordings([packed]).spans.equals(read_recordings([plain]).spans)


def test_two_boots_with_one_host_name_are_two_machines(tmp_path):
    a = write_recording(tmp_path / "0.sscope", FIVE, rank=0, boot="aaaaaaaa-1")
    b = write_recording(tmp_path / "1.sscope", FIVE, rank=1, boot="bbbbbbbb-2")
    machines = read_recordings([a, b]).ranks["machine"].to_list()
    assert machines == ["node-a (aaaaaaaa)", "node-a (bbbbbbbb)"]


def test_two_recordings_of_one_rank_are_refused(tmp_path):
    a = write_recording(tmp_path / "a.sscope", FIVE)
    b = write_recording(tmp_path / "b.sscope", FIVE[1:])
    with pytest.raises(InputError, match=r"two recordings of rank 0: .*a\.sscope and .*b\.sscope"):
        read_recordings([a, b])


def test_a_newer_format_is_refused(tmp_path):
    path = write_recording(tmp_path / "a.sscope", FIVE, version=fmt.FORMAT_VERSION + 1)
    with pytest.raises(InputError, match="format version 3; this stagescope reads up to 2"):
        read_recordings([path])


def whole_spans(cut):
    """Return how many of FIVE are in complete frames before byte `cut` of their recording."""
    sizes = [fmt.HEAD.size + len(payload) for _, payload in recording_frames(FIVE)]
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return sum(end <= cut for end in ends[3:8])


EVERY_BYTE = pytest.param(1, marks=pytest.mark.exhaustive, id="every byte")


@pytest.fixture(params=[EVERY_BYTE, pytest.param(17, id="every 17th byte")])
def cuts(request):
    """Return a function with the positions of a file to damage; 17 is coprime to the sizes of all fields."""
    return lambda size: range(1, size, request.param)


def test_a_truncated_recording_is_read_up_to_the_cut_with_a_count(tmp_path, cuts):
    data = encode(recording_frames(FIVE))
    header_end = fmt.HEAD.size + len(recording_frames(FIVE)[0][1])
    path = tmp_path / "rank00000-1.sscope"
    for cut in cuts(len(data)):
        path.write_bytes(data[:cut])
        if not READER.recognizes(path, data[:cut][:64]):
            assert cut < header_end
            continue
        timeline = read_recordings([path])
        assert timeline.spans["microbatch"].to_list() == list(range(whole_spans(cut)))
        [where] = timeline.diagnostics.filter(code="recording.no_end")["location"]
        read = whole_spans(cut)
        assert where == (f"last span in step 0, {10 * read - 5} ns after the start" if read else None)
        assert not timeline.is_partial


def test_a_flipped_bit_yields_no_wrong_span_and_is_counted(tmp_path, cuts):
    frames = recording_frames(FIVE)
    data = encode(frames)
    whole = read_contents(data).spans["microbatch"].tolist()
    path = tmp_path / "rank00000-1.sscope"
    for position in cuts(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            contents = read_contents(bytes(flipped))
            assert contents.frames == len(frames) - 1
            assert len(contents.gaps) == 1
            found = contents.spans["microbatch"].tolist()
            assert found == [one for one in whole if one in found]
            assert len(found) >= len(whole) - 1
        path.write_bytes(flipped)
        assert READER.recognizes(path, bytes(flipped[:64]))
        assert not read_recordings([path]).diagnostics.is_empty()


@given(st.lists(st.integers(0, 8), unique=True))
def test_missing_frames_are_counted_by_their_sequence_numbers(missing):
    frames = [fmt.encode_frame(n, *frame) for n, frame in enumerate(recording_frames(FIVE))]
    left = [frame for n, frame in enumerate(frames) if n not in missing]
    last = max((n for n in range(9) if n not in missing), default=-1)
    contents = read_contents(b"".join(left))
    assert contents.lost_frames == sum(n < last for n in missing)
    assert contents.gaps == []


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_exception(data):
    contents = read_contents(data)
    assert len(contents.spans) == 0


def test_dropped_and_lost_spans_make_the_result_partial(tmp_path):
    frames = recording_frames(FIVE)
    frames[-1] = (fmt.END, b'{"spans": 7, "dropped_spans": 11, "reason": "exit"}')
    path = tmp_path / "a.sscope"
    path.write_bytes(encode(frames))
    timeline = read_recordings([path])
    assert timeline.is_partial
    assert dict(timeline.diagnostics.select("count", "severity").rows()) == {11: "error", 2: "error"}


def test_a_missing_header_is_replaced_by_the_name_or_the_file_is_omitted(tmp_path):
    headless = encode(recording_frames(FIVE)[1:])
    named, nameless = tmp_path / "rank00002-9.sscope", tmp_path / "x.sscope"
    named.write_bytes(headless)
    nameless.write_bytes(headless)
    timeline = read_recordings([named, nameless])
    assert timeline.spans["rank"].unique().to_list() == [2]
    omitted = timeline.diagnostics.filter(pl.col("source") == str(nameless)).row(0, named=True)
    assert (omitted["severity"], omitted["count"]) == ("error", 5)
    with pytest.raises(InputError, match="the header is missing"):
        read_recordings([nameless])


def recording_of_device(path, anchors, **header):
    frames = recording_frames(FIVE, device="cuda:0", device_model="H200", **header)
    frames.insert(3, (fmt.DEVICE_CLOCK, b"".join(fmt.DEVICE_ANCHOR.pack(*anchor) for anchor in anchors)))
    path.write_bytes(encode(frames))
    return path


def test_the_error_of_device_times_is_stated(tmp_path):
    anchors = [(0, 500, 9_000, 0), (10**9, 10**9 + 500, 8_000, 4_600), (2 * 10**9, 2 * 10**9, 8_000, 5_200)]
    a = recording_of_device(tmp_path / "0.sscope", anchors, rank=0, world_size=2)
    b = recording_of_device(tmp_path / "1.sscope", anchors[:2], rank=1, world_size=2)
    timeline = read_recordings([a, b])
    assert timeline.clocks.select("error_lo_ns", "error_hi_ns").rows() == [(-5_200, 5_200)]
    (note,) = timeline.diagnostics.rows(named=True)
    assert (note["severity"], note["count"]) == ("info", 2)
    assert note["message"] == (
        "actions were timed on H200 and converted to the host's clock with an error of at most 5.2 us (median 4.6 us)"
    )


def test_device_actions_timed_on_the_host_are_reported_as_launches(tmp_path):
    path = write_recording(tmp_path / "a.sscope", FIVE, device="cuda:0")
    (note,) = read_recordings([path]).diagnostics.rows(named=True)
    assert (note["severity"], note["count"]) == ("warning", 5)
    assert note["code"] == "device.host_times"


def test_dropped_device_spans_report_possible_causes(tmp_path):
    frames = recording_frames(FIVE, device="cuda:0")
    frames[-1] = (fmt.END, b'{"spans": 5, "dropped_spans": 3, "reason": "exit"}')
    frames.insert(3, (fmt.DEVICE_CLOCK, fmt.DEVICE_ANCHOR.pack(0, 0, 1, 0)))
    path = tmp_path / "a.sscope"
    path.write_bytes(encode(frames))
    (note,) = read_recordings([path]).diagnostics.rows(named=True)
    assert (note["severity"], note["count"]) == ("error", 3)
    assert note["message"].endswith("or the device had not finished the action or did not return its times")


def test_unknown_kinds_and_frames_are_kept_or_counted(tmp_path):
    frames = recording_frames([*FIVE, span_record(99)])
    frames[3:3] = [(77, b"from the future"), (fmt.DROPS, b"[]")]
    path = tmp_path / "a.sscope"
    path.write_bytes(encode(frames))
    timeline = read_recordings([path])
    assert timeline.spans["kind"].to_list().count("other") == 1
    assert {"frames.unknown", "spans.unknown_kind"} <= set(timeline.diagnostics["code"])
    messages = " ".join(timeline.diagnostics["message"])
    assert "frames of type 77" in messages
    assert "DROPS frames have invalid content" in messages


@given(
    st.integers(0, 8),
    st.binary(max_size=200) | st.sampled_from([b"[]", b"{}", b"7", b'{"names": 1, "first": []}']),
)
def test_a_wrong_payload_with_a_valid_crc_is_counted_and_never_raises(frame_type, payload):
    frames = [*recording_frames(FIVE), (frame_type, payload)]
    contents = read_contents(encode(frames))
    assert contents.frames == len(frames)
    assert len(contents.spans) >= 5


def test_a_file_with_only_the_suffix_is_not_recognized(tmp_path):
    path = tmp_path / "a.sscope"
    path.write_bytes(b"<html>")
    assert not READER.recognizes(path, b"<html>")


def test_reads_recordings_of_format_version_1():
    """A real DualPipeV training of four ranks, one step, recorded by the first release."""
    timeline = read_recordings(sorted((DATA / "recordings" / "v1").iterdir()))
    assert timeline.diagnostics.is_empty()
    assert timeline.ranks.select("rank", "pp", "schedule", "device", "world_size").rows() == [
        (rank, rank, "DualPipeV", "cpu", 4) for rank in range(4)
    ]
    counts = dict(timeline.spans["kind"].cast(pl.String).value_counts().iter_rows())
    assert counts == {
        "forward": 64,
        "backward": 42,
        "backward_input": 22,
        "backward_weight": 22,
        "loss": 8,
        "optimizer": 4,
        "grad_reduce": 8,
        "send_forward": 48,
        "recv_forward": 48,
        "send_backward": 48,
        "recv_backward": 48,
        "other": 16,
    }
    assert timeline.spans["pair"].drop_nulls().value_counts().height > 0
