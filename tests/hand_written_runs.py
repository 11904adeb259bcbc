"""Recordings of hand-written pipelines: a planted run of which a loop hides steps, transfers or both."""

from __future__ import annotations

import json
from dataclasses import replace

import polars as pl

from planted_runs import Shape, random_times, run
from recorded_runs import write_recordings
from recordings import encode
from stagescope.model import SPANS
from stagescope.model.validate import conform
from stagescope.record import format as fmt
from stagescope.vocabulary.kinds import PLAIN_TRANSFERS, RECEIVES, SENDS

SHAPE = Shape(pipelines=2, stages=4, microbatches=4, steps=12)
IS_MESSAGE = pl.col("kind").is_in([*SENDS, *RECEIVES])
IS_SEND = pl.col("kind").is_in(SENDS)


def planted():
    """Return the run that all ways are of."""
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


def prefetched(spans):
    """Return spans in which every third receive is posted a step and a half earlier than it is awaited."""
    early = (pl.col("kind") == "recv") & (pl.col("pair") % 3 == 1)
    return spans.with_columns(
        wait_start_ns=pl.when(early).then("start_ns").otherwise("wait_start_ns"),
        wait_end_ns=pl.when(early).then("end_ns").otherwise("wait_end_ns"),
        start_ns=pl.when(early).then(pl.col("start_ns") - 150_000_000).otherwise("start_ns"),
    )


def sent_in_the_next_step(spans):
    """Return spans in which the last send of a step to each rank is issued after the next step has begun."""
    is_send = pl.col("kind") == "send"
    is_last = is_send & (pl.col("start_ns") == pl.col("start_ns").max().over("rank", "peer", "kind", "step"))
    return spans.with_columns(pl.col("start_ns", "end_ns") + pl.when(is_last).then(60_000_000).otherwise(0))


def in_overlapping_steps(spans):
    """Return spans in which the last backward of a step and the first forward of the next one have changed places."""
    actions = spans.filter(lane="compute")
    backward = actions.filter(pl.col("kind") == "backward").group_by("rank", "step").agg(
        pl.max("start_ns"), pl.max("end_ns")
    )  # fmt: skip
    forward = actions.filter(pl.col("kind") == "forward").group_by("rank", "step").agg(
        pl.min("start_ns"), pl.min("end_ns")
    )  # fmt: skip
    pairs = backward.join(forward.with_columns(pl.col("step") - 1), on=["rank", "step"], suffix="_next")
    swapped = pl.concat(
        pairs.select(
            "rank", start_ns=f"start_ns{here}", moved_ns=f"start_ns{there}", until_ns=f"end_ns{there}"
        )
        for here, there in (("", "_next"), ("_next", ""))
    )
    moved = spans.join(swapped, on=["rank", "start_ns"], how="left", maintain_order="left")
    is_moved = pl.col("moved_ns").is_not_null() & (pl.col("lane") == "compute")
    return moved.with_columns(
        start_ns=pl.when(is_moved).then("moved_ns").otherwise("start_ns"),
        end_ns=pl.when(is_moved).then("until_ns").otherwise("end_ns"),
    ).drop("moved_ns", "until_ns")


WAYS = {
    "plain": plain,
    "plain, optimizer": lambda spans: without_steps(with_optimizer(plain(spans))),
    "plain, without steps": lambda spans: without_steps(plain(spans)),
    "without steps": without_steps,
    "numbered through": lambda spans: numbered_through(with_optimizer(plain(spans))),
    "late sends": lambda spans: late_sends(plain(spans)),
    "late sends, without steps": lambda spans: without_steps(late_sends(plain(spans))),
    "prefetched": lambda spans: prefetched(plain(spans)),
    "sent in the next step": lambda spans: sent_in_the_next_step(plain(spans)),
    "prefetched, without steps": lambda spans: without_steps(prefetched(plain(spans))),
    "overlapping steps": lambda spans: without_steps(in_overlapping_steps(plain(spans))),
    "overlapping steps, marked": lambda spans: without_steps(in_overlapping_steps(spans)),
    "handshake": lambda spans: with_handshake(plain(spans)),
    "overlapping": lambda spans: overlapping(plain(spans)),
    "marks": with_marks,
    "marks, without steps": lambda spans: without_steps(with_marks(spans)),
    "without the rank of a stage": lambda spans: plain(spans).filter(pl.col("rank") != 2),
    "forwards": forwards,
    "unmarked": unmarked,
}


def record(way, tmp_path, *, with_coordinates=True):
    """Write the recordings of a planted run as one of WAYS shows it, and return their directory."""
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
