"""Read stagescope's own Perfetto exports back into spans.

The layout is that of exporters/tracks.py: a track `run`, below it one group per rank, and below that the tracks of
actions, transfers, waits and host activity. A slice's title is the word of its kind and its micro-batch; `step`,
`stage` and the rest are arguments. What an export leaves out is restored from its neighbors: the peer and the size of a
receive from the send at the other end of its arrow, the step of a transfer from its action, unless they are stated
(exporters/perfetto/restored.py). Chunks are the stages of a rank in model order. Names of collectives, machines' clocks
and what `diagnostics` had are not in an export.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.ingest.annotations.steps import in_steps_of_actions
from stagescope.ingest.trace_proto.tracks import ancestors
from stagescope.model import COUNTERS, RANKS, SPANS, STEPS
from stagescope.model.validate import conform
from stagescope.vocabulary.kinds import (
    ACTION_KINDS,
    ALL_RECEIVES,
    ALL_SENDS,
    COMM,
    COMM_KINDS,
    COMPUTE,
    HOST,
    TRANSFERS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.ingest.trace_proto.pairing import Slice
    from stagescope.ingest.trace_proto.trace import TraceFile
    from stagescope.ingest.trace_proto.tracks import Track

RUN = re.compile(r"run(?: \(partial: .*\))?")
GROUP = re.compile(r"rank (\d{1,9})(?: \((.*)\))?")
STAGES = re.compile(r"(?:, )?stages? \d+(?:, \d+)*$")
FAMILY = re.compile(
    r"(Step|compute|receive wait|send wait|send|receive|collective|host)(?: \d+)?(?: \(lane \d+\))?"
)
TITLE = re.compile(r"(.*?)(?: (\d{1,9}))?")
LANES = {"compute": COMPUTE, "send": COMM, "receive": COMM, "collective": COMM, "host": HOST}
WAITS = {"receive wait": ALL_RECEIVES, "send wait": ALL_SENDS}
KIND_OF_WORD = {
    "forward": "forward", "backward": "backward", "dgrad": "backward_input", "wgrad": "backward_weight",
    "optim": "optimizer", "send forward": "send_forward", "recv forward": "recv_forward",
    "send backward": "send_backward", "recv backward": "recv_backward", "reduce grads": "grad_reduce", "loss": "loss",
    "other": "other", "collective comm": "collective", "send": "send", "recv": "recv",
}  # fmt: skip
"""The kinds by the words of exporters/names.py; tests compare the two."""
COMPUTED = "micro-batches in flight"
"""A counter that an export computes from the spans, as any other part of stagescope would again."""
NUMBERS = ("step", "stage", "microbatch", "pair", "peer", "bytes", "posted_before_ns", "transfer")
MOST_NUMBER = 2**31
SCHEMA = {
    "rank": pl.Int32, "family": pl.String, "kind": pl.String, "name": pl.String, "start_ns": pl.Int64,
    "end_ns": pl.Int64, "flow": pl.UInt64, **dict.fromkeys(NUMBERS, pl.Int64),
}  # fmt: skip


class OwnExport(NamedTuple):
    """The tables of an export: spans, ranks, steps and counters."""

    spans: pl.DataFrame
    ranks: pl.DataFrame
    steps: pl.DataFrame
    counters: pl.DataFrame


class Place(NamedTuple):
    """Where a track is: its rank (None: the run), the machine that the group names, and the track's own name."""

    rank: int | None
    machine: str | None
    family: str


def is_run(track: Track) -> bool:
    """Return whether a track is like the one of an export above all others, which begins its trace."""
    return track.parent == 0 and track.process is None and RUN.fullmatch(track.name) is not None


def runs_of(tracks: Mapping[int, Track]) -> list[int]:
    """Return the tracks `run` of the exports in a trace, which may have tracks of other tools beside them."""
    runs = [uuid for uuid, track in tracks.items() if is_run(track)]
    roots = sum(track.parent == 0 for track in tracks.values())
    if len(runs) == roots:
        return runs
    groups = {track.parent for track in tracks.values() if GROUP.fullmatch(track.name)}
    return [uuid for uuid in runs if uuid in groups]


def own_tables(trace: TraceFile, run: int) -> OwnExport:
    """Return the tables of the export below a track `run`."""
    places = {
        uuid: place for uuid, track in trace.tracks.items() if (place := _place(track, trace.tracks, run))
    }
    rows = [row for one in trace.slices if one.track in places for row in _row(one, places[one.track])]
    drawn = pl.DataFrame(rows, SCHEMA, orient="row", strict=False)
    spans = _spans(drawn)
    steps = (
        spans.filter(pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null())
        .group_by("step", "rank")
        .agg(pl.min("start_ns"), pl.max("end_ns"))
    )
    ranks = {(place.rank, place.machine) for place in places.values() if place.rank is not None}
    clock = {"clock": "time of the export", "source": str(trace.path)}
    rank_rows = [{"rank": rank, "machine": machine, **clock} for rank, machine in sorted(ranks, key=str)]
    counters = [
        {
            "rank": place.rank,
            "name": place.family,
            "time_ns": one.time_ns,
            "value": one.value,
            "unit": trace.tracks[one.track].unit or None,
        }
        for one in trace.counters
        if (place := places.get(one.track)) is not None
        and place.rank is not None
        and place.family != COMPUTED
    ]
    return OwnExport(
        conform(spans, SPANS),
        conform(pl.DataFrame(rank_rows), RANKS) if rank_rows else RANKS.empty(),
        conform(steps, STEPS),
        _counters(counters),
    )


def _place(track: Track, tracks: Mapping[int, Track], run: int) -> Place | None:
    """Return the place of a track; None for the track `run`, those of groups, and those that are not below it."""
    above = ancestors(track, tracks)
    if above[-1].uuid != run:
        return None
    if len(above) == 2:  # noqa: PLR2004  # the run's own tracks, and the groups, which have no slices
        found = GROUP.fullmatch(track.name)
        return None if found is not None else Place(None, None, track.name)
    group = GROUP.fullmatch(above[1].name) if len(above) > 2 else None  # noqa: PLR2004
    if group is None or int(group[1]) >= MOST_NUMBER:
        return None
    machine = STAGES.sub("", group[2] or "") or None
    return Place(int(group[1]), machine, track.name)


def _row(one: Slice, place: Place) -> list[tuple[Any, ...]]:
    """Return the row of a slice, none if its track is not one of an export's."""
    family = FAMILY.fullmatch(place.family)
    if place.rank is None or family is None:
        return []
    title = TITLE.fullmatch(one.name)
    word = title[1] if title else one.name
    kind = KIND_OF_WORD.get(word)
    args = one.args
    is_wait = family[1] in WAITS
    if (is_wait or kind in ALL_RECEIVES) and title and title[2]:
        args = {"microbatch": int(title[2]), **args}
    numbers = [_number(args.get(name)) for name in NUMBERS]
    flow = next(iter((*one.flows, *one.ending_flows)), None)
    name = one.name if kind is None and not is_wait else None
    return [(place.rank, family[1], kind or "other", name, one.start_ns, one.end_ns, flow, *numbers)]


def _number(value: Any) -> int | None:
    return value if type(value) is int and -(2**63) <= value < 2**63 else None


def _spans(drawn: pl.DataFrame) -> pl.DataFrame:
    """Return the slices as spans, with what the export leaves out."""
    spans = drawn.filter(pl.col("family").is_in(list(LANES))).with_columns(
        lane=pl.col("family").replace_strict(LANES, return_dtype=pl.String),
        start_ns=pl.col("start_ns") - pl.col("posted_before_ns").fill_null(0),
    )
    spans = _with_peers(spans)
    spans = _with_waits(spans, drawn.filter(pl.col("family").is_in(list(WAITS))))
    spans = _with_steps(spans)
    whole = pl.col("step", "stage", "microbatch", "pair", "peer").cast(pl.Int32, strict=False)
    return spans.with_columns(whole, chunk=pl.col("stage").rank("dense").over("rank").cast(pl.Int32) - 1)


def _with_peers(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans; a receive has the rank and the size of the send at the other end of its flow."""
    sent = (
        spans.filter(pl.col("kind").is_in(ALL_SENDS) & pl.col("flow").is_not_null())
        .unique("flow", keep="first", maintain_order=True)
        .select("flow", sender=pl.col("rank").cast(pl.Int64), sent_bytes="bytes")
    )
    joined = spans.join(sent, on="flow", how="left", maintain_order="left")
    is_receive = pl.col("kind").is_in(ALL_RECEIVES)
    return joined.with_columns(
        peer=pl.when(is_receive).then(pl.coalesce("peer", "sender")).otherwise("peer"),
        bytes=pl.when(is_receive).then(pl.coalesce("bytes", "sent_bytes")).otherwise("bytes"),
    ).drop("sender", "sent_bytes")


def _with_waits(spans: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with their waits.

    The n-th wait of a rank, side, stage and micro-batch belongs to the n-th transfer, both in the order of their ends,
    unless the wait states the number of another one (exporters/perfetto/restored.py).
    """
    key = ["rank", "is_receive", "of_stage", "of_microbatch", "occurrence"]
    numbered = pl.int_range(pl.len()).over("rank", "is_receive", "of_stage", "of_microbatch")
    # Nulls never match in a join, so an unknown stage or micro-batch becomes -1.
    of = {"of_stage": pl.col("stage").fill_null(-1), "of_microbatch": pl.col("microbatch").fill_null(-1)}
    own = (
        waits.with_columns(is_receive=pl.col("family") == "receive wait", **of)
        .sort("end_ns", "start_ns", maintain_order=True)
        .with_columns(occurrence=pl.coalesce("transfer", numbered))
        .unique(key, keep="first", maintain_order=True)
        .select(*key, wait_start_ns="start_ns", wait_end_ns="end_ns")
    )
    transfers = (
        spans.with_row_index("row")
        .filter(pl.col("kind").is_in(COMM_KINDS))
        .with_columns(is_receive=~pl.col("kind").is_in(ALL_SENDS), **of)
        .sort("end_ns", "start_ns", maintain_order=True)
        .with_columns(occurrence=numbered)
        .join(own, on=key)
    )
    found = transfers.select("row", "wait_start_ns", "wait_end_ns")
    return spans.with_row_index("row").join(found, on="row", how="left", maintain_order="left").drop("row")


def _with_steps(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans; transfers without a step have that of their action."""
    is_transfer = pl.col("kind").is_in(TRANSFERS)
    others = spans.filter(~is_transfer)
    found = in_steps_of_actions(spans.filter(is_transfer).with_columns(stated="step"), others)
    return pl.concat([others, found.with_columns(step=pl.coalesce("stated", "step")).drop("stated")])


def _counters(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return conform(pl.DataFrame(rows), COUNTERS) if rows else COUNTERS.empty()
