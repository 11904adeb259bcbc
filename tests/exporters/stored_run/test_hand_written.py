"""Hand-written pipelines, whose transfers and steps are found from other ranks, are stored in parts as well."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from recorded_runs import small_frames, write_recordings
from recordings import encode
from stagescope.api import part_slices, read, settling, store, storing_parts
from stagescope.exporters.stored_run import write_stored_run
from stagescope.ingest import memory_need
from stagescope.ingest.recording import long_spans, survey
from stagescope.ingest.recording.columns import SPAN_DTYPE
from stagescope.ingest.recording.frames import ANCHOR_DTYPE, RAW_ANCHOR_DTYPE
from stagescope.model import SPANS
from stagescope.model.stored_run import FORMAT, VERSION, Manifest
from stagescope.model.validate import conform
from stagescope.record import format as fmt
from stagescope.record.frameworks.host_activities import DATA_LOADING
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import BY_NAME, PLAIN_TRANSFERS, RECEIVES, SENDS
from stored_parts import assert_as_read, stored

SHAPE = Shape(pipelines=2, stages=4, microbatches=4, steps=12)
IS_MESSAGE = pl.col("kind").is_in([*SENDS, *RECEIVES])
IS_SEND = pl.col("kind").is_in(SENDS)


def planted():
    return run(replace(random_times(SHAPE), reduces=True))


def plain(spans):
    """Return spans with transfers as a loop records that calls torch.distributed itself."""
    numbered = spans.sort("rank", "start_ns").with_columns(
        kind=pl.when(IS_SEND).then(pl.lit("send")).when(IS_MESSAGE).then(pl.lit("recv")).otherwise("kind").cast(
            spans.schema["kind"]
        ),
        stage=pl.when(~IS_MESSAGE).then("stage"),
        microbatch=pl.when(~IS_MESSAGE).then("microbatch"),
    )  # fmt: skip
    number = pl.int_range(pl.len(), dtype=pl.Int32).over("rank", "peer", "kind")
    return numbered.with_columns(pair=pl.when(pl.col("kind").is_in(PLAIN_TRANSFERS)).then(number))


def without_steps(spans):
    return spans.with_columns(step=pl.lit(None, pl.Int32))


def numbered_through(spans):
    count = SHAPE.microbatches
    return without_steps(spans.with_columns(pl.col("microbatch") + pl.col("step") * count))


def with_optimizer(spans):
    last = spans.group_by("rank", "step").agg(pl.max("end_ns"))
    steps = last.select("rank", "step", kind=pl.lit("optimizer"), lane=pl.lit("compute"), start_ns="end_ns",
                        end_ns=pl.col("end_ns") + 50_000)  # fmt: skip
    return pl.concat(
        [spans, steps.cast({name: spans.schema[name] for name in steps.columns})], how="diagonal"
    )


def late_sends(spans):
    """Return spans in which all sends of a step are issued after its last action, so that their order counts."""
    last = spans.filter(lane="compute").group_by("rank", "step").agg(last_ns=pl.max("end_ns"))
    is_send = pl.col("kind") == "send"
    later = spans.join(last, on=["rank", "step"], how="left", maintain_order="left").with_columns(
        start_ns=pl.when(is_send).then(pl.col("last_ns") + pl.col("pair")).otherwise("start_ns"),
        end_ns=pl.when(is_send).then(pl.col("last_ns") + pl.col("pair") + 10).otherwise("end_ns"),
    )
    return later.drop("last_ns")


def with_handshake(spans):
    """Return spans with transfers before the first step that belong to no action, and one without its other end."""
    first_ns = spans["start_ns"].min()
    more = (
        spans.filter(pl.col("kind").is_in(PLAIN_TRANSFERS))
        .group_by("rank", "peer", "kind")
        .agg(pl.first("lane"))
    )
    more = more.with_columns(start_ns=first_ns - 9_000_000, end_ns=first_ns - 8_000_000, pair=1_000_000).cast(
        {"pair": pl.Int32}
    )
    lost = more.filter(pl.col("kind") == "send").with_columns(pair=pl.lit(1_000_001, pl.Int32))
    return pl.concat([spans, more, lost], how="diagonal")


def overlapping(spans):
    """Return spans in which one rank runs two actions at the same time once, so that its messages are unknown."""
    is_one = (
        (pl.col("rank") == 5)
        & (pl.col("step") == 7)
        & (pl.col("microbatch") == 1)
        & (pl.col("kind") == "forward")
    )
    return spans.with_columns(end_ns=pl.col("end_ns") + pl.when(is_one).then(40_000_000).otherwise(0))


def with_marks(spans):
    """Return spans with marks around transfers, of which some contain the call and some the wait of a step later."""
    is_marked = IS_MESSAGE & (pl.col("microbatch") % 2 == 0)
    marks = spans.filter(is_marked).with_columns(
        pl.col("start_ns") - 5,
        pl.col("end_ns") + 5,
        bytes=None,
        peer=None,
        wait_start_ns=None,
        wait_end_ns=None,
    )
    calls = plain(spans)
    early = (pl.col("kind") == "recv") & (pl.col("pair") % 5 == 3)
    calls = calls.with_columns(
        start_ns=pl.when(early).then(pl.col("start_ns") - 30_000_000_000).otherwise("start_ns"),
        wait_start_ns=pl.when(early).then("start_ns").otherwise("wait_start_ns"),
        wait_end_ns=pl.when(early).then("end_ns").otherwise("wait_end_ns"),
    )
    return pl.concat(
        [calls, marks.cast({name: calls.schema[name] for name in marks.columns})], how="diagonal_relaxed"
    )


def forwards(spans):
    return without_steps(spans.filter(pl.col("kind") == "forward"))


def unmarked(spans):
    return plain(spans).filter(pl.col("kind").is_in([*PLAIN_TRANSFERS, "grad_reduce"]))


WAYS = {
    "plain": plain,
    "plain, optimizer": lambda spans: without_steps(with_optimizer(plain(spans))),
    "plain, without steps": lambda spans: without_steps(plain(spans)),
    "without steps": without_steps,
    "numbered through": lambda spans: numbered_through(with_optimizer(plain(spans))),
    "late sends": lambda spans: late_sends(plain(spans)),
    "late sends, without steps": lambda spans: without_steps(late_sends(plain(spans))),
    "handshake": lambda spans: with_handshake(plain(spans)),
    "overlapping": lambda spans: overlapping(plain(spans)),
    "marks": with_marks,
    "marks, without steps": lambda spans: without_steps(with_marks(spans)),
    "without the rank of a stage": lambda spans: plain(spans).filter(pl.col("rank") != 2),
    "forwards": forwards,
    "unmarked": unmarked,
}
SLICED = WAYS.keys() - {"forwards"}


def record(way, tmp_path, *, with_coordinates=True):
    timeline = planted()
    spans = conform(WAYS[way](timeline.spans).select(timeline.spans.columns), SPANS)
    recordings = tmp_path / "recordings"
    write_recordings(timeline.with_spans(spans), recordings, SHAPE.stages, ranks_per_machine=2, world_size=8)
    if not with_coordinates:
        for path in recordings.iterdir():
            frames = [(frame.type, bytes(frame.payload)) for frame in fmt.scan_frames(path.read_bytes())]
            header = json.loads(frames[0][1])
            header.pop("parallel")
            path.write_bytes(encode([(fmt.HEADER, json.dumps(header).encode()), *frames[1:]]))
    return recordings


@pytest.mark.parametrize("sizes", [(1, 10**9), (10**9, 100)], ids=["parts", "slices"])
@pytest.mark.parametrize("way", WAYS)
def test_a_hand_written_pipeline_is_stored_in_parts(way, sizes, monkeypatch, tmp_path):
    recordings = record(way, tmp_path)
    parts, found = stored(recordings, tmp_path / "run", monkeypatch, sizes)
    if sizes[0] == 1:
        assert parts >= 1
    else:
        assert (parts >= 6) == (way in SLICED)
    assert_as_read(recordings, found.path)


@pytest.mark.parametrize("way", ["plain, without steps", "forwards", "unmarked", "plain"])
def test_its_files_are_those_of_reading_at_once(way, monkeypatch, tmp_path):
    recordings = record(way, tmp_path, with_coordinates=False)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (1, 10**9))
    tmp_path.joinpath("memory").mkdir()
    empty = Manifest(FORMAT, VERSION, "stagescope", (), {}, aligned=True)
    at_once = write_stored_run(read(recordings), tmp_path / "memory", empty)
    assert found.manifest.parts == at_once.manifest.parts


@pytest.mark.parametrize("way", ["plain, without steps", "numbered through", "marks"])
def test_long_recordings_of_it_stay_in_their_files(way, monkeypatch, tmp_path):
    recordings = record(way, tmp_path)
    for module in (survey, part_slices, settling):
        monkeypatch.setattr(module, "SPANS_IN_MEMORY", 20)
    monkeypatch.setattr(long_spans, "SPANS_OF_BLOCK", 30)
    for path in recordings.glob("*.sscope"):
        path.write_bytes(encode(small_frames(path.read_bytes(), spans=20)))
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 80))
    assert_as_read(recordings, found.path)


def test_workers_that_settle_it_change_nothing(monkeypatch, tmp_path):
    recordings = record("plain, without steps", tmp_path)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 100), workers=2)
    assert_as_read(recordings, found.path)


def test_every_transfer_of_a_planted_loop_gets_its_action_back(monkeypatch, tmp_path):
    recordings = record("plain, without steps", tmp_path)
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (1, 10**9))
    truth, again = planted().spans.filter(IS_MESSAGE), read(found.path).spans.filter(IS_MESSAGE)
    key = ["rank", "step", "kind", "stage", "microbatch", "peer"]
    assert again.select(key).sort(key).equals(truth.select(key).sort(key))


def test_loading_of_data_at_the_begin_of_a_forward_counts_the_same(monkeypatch, tmp_path):
    timeline = planted()
    spans = without_steps(plain(timeline.spans))
    firsts = spans.filter(pl.col("kind") == "forward", pl.col("microbatch") == 1)
    loads = firsts.with_columns(
        kind=pl.lit("other", spans.schema["kind"]), lane=pl.lit("host", spans.schema["lane"]),
        start_ns=pl.col("start_ns") + 1_000, end_ns=pl.col("start_ns") + 3_000_000, stage=None, microbatch=None,
    ).cast({"stage": pl.Int32, "microbatch": pl.Int32})  # fmt: skip
    assert loads.height
    recordings = tmp_path / "recordings"
    write_recordings(
        timeline.with_spans(pl.concat([spans, loads])), recordings, SHAPE.stages, ranks_per_machine=2
    )
    for path in recordings.iterdir():
        frames = [(frame.type, bytes(frame.payload)) for frame in fmt.scan_frames(path.read_bytes())]
        rows = np.frombuffer(
            b"".join(payload for kind, payload in frames if kind == fmt.SPANS), SPAN_DTYPE
        ).copy()
        rows["name"][rows["kind"] == BY_NAME["other"].code] = 1
        others = [frame for frame in frames[1:] if frame[0] != fmt.SPANS]
        names = json.dumps({"first": 1, "names": [DATA_LOADING]}).encode()
        path.write_bytes(encode([frames[0], (fmt.NAMES, names), (fmt.SPANS, rows.tobytes()), *others]))
    monkeypatch.setattr(storing_parts, "SPANS_OF_SLICE", 100)
    found = store(recordings, out=tmp_path / "run")
    assert_as_read(recordings, found.path)
    moved = read(found.path).spans.filter(pl.col("kind") == "forward", pl.col("microbatch") == 1)
    assert (moved["end_ns"] - moved["start_ns"]).max() < (firsts["end_ns"] - firsts["start_ns"]).min()


def test_a_clock_that_was_slewed_is_converted_the_same(monkeypatch, tmp_path):
    recordings = record("plain, without steps", tmp_path)
    for path in sorted(recordings.iterdir())[:2]:
        frames = [(frame.type, bytes(frame.payload)) for frame in fmt.scan_frames(path.read_bytes())]
        anchors = np.frombuffer(
            b"".join(payload for kind, payload in frames if kind == fmt.CLOCK), ANCHOR_DTYPE
        )
        own_ns = anchors["monotonic_ns"]
        middle_ns = (own_ns[0] + own_ns[-1]) // 2
        raw = np.zeros(len(own_ns), RAW_ANCHOR_DTYPE)
        raw["monotonic_ns"], raw["width_ns"] = own_ns, 100
        raw["raw_ns"] = own_ns - np.where(own_ns > middle_ns, (own_ns - middle_ns) // 2_000, 0)
        path.write_bytes(encode([frames[0], (fmt.RAW_CLOCK, raw.tobytes()), *frames[1:]]))
    _, found = stored(recordings, tmp_path / "run", monkeypatch, (10**9, 100))
    assert_as_read(recordings, found.path)
    assert "clock.slewed" in set(found.diagnostics["code"])


def test_a_run_that_cannot_be_divided_is_refused_with_the_reason(monkeypatch, tmp_path):
    recordings = record("forwards", tmp_path)
    monkeypatch.setattr(memory_need, "memory_bytes", lambda: 50 * memory_need.LEAST_SPAN_BYTES)
    with pytest.raises(InputError, match="nothing states the steps, so that they cannot be divided") as found:
        store(recordings, out=tmp_path / "run")
    assert "stagescope.record.step" in str(found.value.hint)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(survey, "_reason_of_files", lambda *_: "files of its recordings were renamed")
    with pytest.raises(InputError, match="in files that were deleted meanwhile, or renamed"):
        store(recordings, out=tmp_path / "run")


def test_some_steps_that_need_more_memory_than_there_is_are_refused(monkeypatch, tmp_path):
    recordings = record("plain", tmp_path)
    monkeypatch.setattr(memory_need, "memory_bytes", lambda: 600 * memory_need.LEAST_SPAN_BYTES)
    with pytest.raises(InputError, match="which need at least"):
        read(recordings, steps="0:10")
    assert read(recordings, steps="0:1").spans.height < 600
