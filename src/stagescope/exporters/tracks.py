"""The layout of traces: groups, tracks, slices, flows and counters, computed once for all trace writers.

    Step                                     one slice per training step, first start to last end
    rank 3 (node-b, stages 3, 7)             one group per rank
      compute                                actions; "compute 1", "compute 2" where actions overlap
      receive wait, send wait                when the host was blocked on a transfer
      send, receive                          one slice per transfer, concurrent ones on separate lanes
      collective, host                       other transfers; host activity
      micro-batches in flight                a counter
      allocated memory, tokens ...           the counters of the timeline

A receive is drawn from the time its data were sent, if that is later than when it was posted: no transfer begins
before its send, so every flow points forward in time. The time of posting is kept as `issue_ns`. No flow is drawn
between machines whose clocks are not aligned, because the order of events on them is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.exporters.counter_tracks import find_counters
from stagescope.exporters.lanes import assign_lanes
from stagescope.exporters.names import label, title
from stagescope.model.clock_groups import ClockGroup, clock_groups, clock_notes
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.messages import match_messages
from stagescope.vocabulary.kinds import ALL_RECEIVES, ALL_SENDS

if TYPE_CHECKING:
    from stagescope.model import Timeline

FAMILIES = (
    "Step",
    "compute",
    "receive wait",
    "send wait",
    "send",
    "receive",
    "collective",
    "host",
)
"""The tracks of one rank from top to bottom, followed by its counters; `Step` belongs to the run."""

ARGS = ("step", "stage", "chunk", "microbatch", "pair", "peer", "bytes", "issue_ns")
"""The whole-number arguments of a slice, in display order."""

_TRACK = ["rank", "family", "lane"]
_FAMILY_LIMIT = 2**16


class Group(NamedTuple):
    """The heading of one rank; `clock` states how well its clock is aligned, if there are several."""

    rank: int
    name: str
    clock: str = ""


class Track(NamedTuple):
    """One row of slices or one counter, with its unit; `rank` is None for tracks of the whole run."""

    rank: int | None
    name: str
    is_counter: bool
    unit: str = ""


@dataclass(frozen=True)
class Layout:
    """Everything that a trace writer draws.

    `slices`, sorted by track and start and without overlaps on a track: track (index of `tracks`), rank, kind (null:
    a step), is_wait, is_receive, title, label, name, start_ns, end_ns, span (row of the timeline's spans; a wait has
    that of its transfer, a step none), and the columns of ARGS (null: not applicable). `flows`: send and recv, row
    numbers of `slices`. `counters`: track, rank, time_ns, value.
    """

    groups: tuple[Group, ...]
    tracks: tuple[Track, ...]
    slices: pl.DataFrame
    flows: pl.DataFrame
    counters: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]
    origin_ns: int | None = None

    @property
    def start_ns(self) -> int:
        """The earliest time in the trace, 0 if it is empty; `origin_ns` where more is drawn in the same file."""
        if self.origin_ns is not None:
            return self.origin_ns
        moments = (self.slices["start_ns"].min(), self.counters["time_ns"].min())
        return min((int(moment) for moment in moments if isinstance(moment, int)), default=0)

    @property
    def track_names(self) -> tuple[str, ...]:
        """Every track as ``group / track``, in order; tracks of the run without a group."""
        names = {group.rank: group.name for group in self.groups}
        return tuple(
            track.name if track.rank is None else f"{names[track.rank]} / {track.name}"
            for track in self.tracks
        )


def lay_out(timeline: Timeline) -> Layout:
    """Return the layout of a timeline. Never raises: whatever cannot be drawn as recorded becomes a diagnostic.

    A span that ends before it starts is drawn with zero length at its start, a message that arrives before it was
    sent gets no flow, and overlaps within rounding are trimmed (exporters/lanes.py). Each is counted.
    """
    spans, diagnostics = _repair_ends(timeline.spans)
    groups = clock_groups(timeline)
    messages, across = _within_clocks(match_messages(spans), groups)
    diagnostics += across
    impossible = messages.filter(pl.col("recv_end_ns") < pl.col("send_start_ns"))
    messages = messages.filter(pl.col("recv_end_ns") >= pl.col("send_start_ns"))
    diagnostics += _count_by_rank(
        impossible.rename({"target": "rank"}),
        "messages that arrive before they were sent are drawn without arrows; the clocks of the ranks disagree",
        "messages.reversed",
    )
    waits = _wait_slices(spans)
    diagnostics += _count_by_rank(
        spans.filter(pl.col("wait_start_ns").is_null() != pl.col("wait_end_ns").is_null()),
        "waits without a start or an end are not drawn",
        "waits.incomplete",
    )
    common = pl.col("rank").is_in(groups[0].ranks if groups else ())
    steps = _step_slices(timeline.steps.filter(common), spans.filter(common))
    drawn = pl.concat([steps, _action_slices(spans, messages), waits], how="diagonal")
    lanes = assign_lanes(drawn.with_columns(_track_group().alias("group")), "group")
    if lanes.trimmed_count:
        diagnostics.append(
            Diagnostic(
                "info",
                "slices overlap the next one by a rounding error; they are drawn up to its start",
                count=lanes.trimmed_count,
                code="slices.trimmed",
            )
        )
    known = find_counters(timeline, spans)
    families = (*FAMILIES, *known.names)
    number = {name: len(FAMILIES) + index for index, name in enumerate(known.names)}
    counters = known.values.with_columns(
        family=pl.col("name").replace_strict(number, return_dtype=pl.Int32), lane=pl.lit(0, pl.Int64)
    )
    tracks = pl.concat([lanes.slices.select(_TRACK), counters.select(_TRACK)]).unique().sort(_TRACK)
    slices = _on_tracks(lanes.slices, tracks)
    return Layout(
        _groups(timeline, spans),
        _named_tracks(tracks, families, known.units),
        slices.rename({"row": "span"}),
        _flows(slices, messages),
        counters.select("rank", "time_ns", "value", track=_places(counters, tracks)),
        tuple(diagnostics),
    )


def _within_clocks(
    messages: pl.DataFrame, groups: tuple[ClockGroup, ...]
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the messages between ranks on one clock, and the number of others as a diagnostic."""
    if len(groups) <= 1:
        return messages, []
    number = {rank: index for index, group in enumerate(groups) for rank in group.ranks}
    source, target = (
        pl.col(end).replace_strict(number, return_dtype=pl.Int64) for end in ("source", "target")
    )
    is_within = messages.select(source == target).to_series()
    across = int((~is_within).sum())
    text = "messages between machines with unaligned clocks are drawn without arrows"
    return messages.filter(is_within), [
        Diagnostic("warning", text, count=across, code="messages.unaligned")
    ] if across else []


def _repair_ends(spans: pl.DataFrame) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return spans without negative durations, and diagnostics for the repaired ones."""
    backwards = pl.col("end_ns") < pl.col("start_ns")
    waits_backwards = (pl.col("wait_end_ns") < pl.col("wait_start_ns")).fill_null(value=False)
    found = _count_by_rank(
        spans.filter(backwards | waits_backwards),
        "spans that end before they start are drawn with zero length",
        "spans.reversed_drawn",
    )
    repaired = spans.with_columns(
        end_ns=pl.max_horizontal("start_ns", "end_ns"),
        wait_end_ns=pl.when(waits_backwards).then("wait_start_ns").otherwise("wait_end_ns"),
    )
    return repaired, found


def _count_by_rank(rows: pl.DataFrame, message: str, code: str) -> list[Diagnostic]:
    counts = rows.group_by("rank").len().sort("rank").iter_rows()
    return [Diagnostic("warning", message, rank=rank, count=count, code=code) for rank, count in counts]


def _action_slices(spans: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Return one slice per span; receives start when their data were sent."""
    start_ns, end_ns = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
    sent_ns = start_ns.copy()
    sent_ns[messages["recv_row"].to_numpy()] = messages["send_start_ns"].to_numpy()
    drawn_ns = pl.Series(np.minimum(np.maximum(start_ns, sent_ns), end_ns))
    return spans.drop("lane", "wait_start_ns", "wait_end_ns").with_columns(
        start_ns=drawn_ns,
        issue_ns=pl.when(drawn_ns > spans["start_ns"]).then("start_ns"),
        row=pl.int_range(pl.len(), dtype=pl.Int64),
        family=spans.select(_family()).to_series(),
        is_wait=pl.lit(value=False),
    )


def _family() -> pl.Expr:
    """Return the track family of every span, as an index of FAMILIES."""
    families = (
        pl.when(pl.col("kind").is_in(ALL_SENDS))
        .then(FAMILIES.index("send"))
        .when(pl.col("kind").is_in(ALL_RECEIVES))
        .then(FAMILIES.index("receive"))
        .when(pl.col("lane") == "host")
        .then(FAMILIES.index("host"))
        .when(pl.col("lane") == "comm")
        .then(FAMILIES.index("collective"))
        .otherwise(FAMILIES.index("compute"))
    )
    return families.cast(pl.Int32)


def _wait_slices(spans: pl.DataFrame) -> pl.DataFrame:
    """Return one slice per time that the host was blocked on a transfer."""
    waited = spans.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64)).filter(
        pl.col("wait_start_ns").is_not_null() & pl.col("wait_end_ns").is_not_null()
    )
    is_send = pl.col("kind").is_in(ALL_SENDS)
    return waited.with_columns(
        start_ns="wait_start_ns",
        end_ns="wait_end_ns",
        family=pl.when(is_send)
        .then(FAMILIES.index("send wait"))
        .otherwise(FAMILIES.index("receive wait"))
        .cast(pl.Int32),
        is_wait=pl.lit(value=True),
    ).drop("lane", "wait_start_ns", "wait_end_ns")


def _step_slices(steps: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return one slice per step, from the first start to the last end of the ranks on one clock."""
    source = steps if steps.height else spans.filter(pl.col("step").is_not_null())
    steps = source.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return steps.with_columns(
        end_ns=pl.max_horizontal("start_ns", "end_ns"),
        rank=pl.lit(None, pl.Int32),
        family=pl.lit(FAMILIES.index("Step"), pl.Int32),
        is_wait=pl.lit(value=False),
    )


def _track_group() -> pl.Expr:
    """Return one number per rank and family, in the order of the tracks; the run comes before the ranks."""
    rank = pl.col("rank").cast(pl.Int64).fill_null(-1) + 1
    return rank * _FAMILY_LIMIT + pl.col("family")


def _places(rows: pl.DataFrame, tracks: pl.DataFrame) -> pl.Series:
    """Return for every row the index of its rank, family and lane in the sorted table `tracks`."""
    lane_limit = 1 + max(tracks["lane"].to_list(), default=0)
    code = _track_group() * lane_limit + pl.col("lane")
    known, wanted = (frame.select(code).to_series().to_numpy() for frame in (tracks, rows))
    return pl.Series("track", np.searchsorted(known, wanted), dtype=pl.Int64)


def _named_tracks(
    tracks: pl.DataFrame, families: tuple[str, ...], units: dict[str, str]
) -> tuple[Track, ...]:
    counted = tracks.select("rank", "family", "lane", lane_count=pl.len().over("rank", "family"))
    return tuple(
        Track(
            rank,
            _track_name(families[family], lane, lane_count),
            family >= len(FAMILIES),
            units.get(families[family], "") if family >= len(FAMILIES) else "",
        )
        for rank, family, lane, lane_count in counted.iter_rows()
    )


def _track_name(family: str, lane: int, lane_count: int) -> str:
    """Return ``compute``, or ``compute 1`` if there are several; "Step 2" would be mistaken for step 2."""
    if family == "Step":
        return family if lane == 0 else f"{family} (lane {lane + 1})"
    return family if lane_count == 1 else f"{family} {lane + 1}"


def _on_tracks(slices: pl.DataFrame, tracks: pl.DataFrame) -> pl.DataFrame:
    """Return the slices in the order of their tracks, and by start within each."""
    placed = slices.with_columns(_places(slices, tracks)).sort("track", maintain_order=True)
    is_receive = pl.col("family") == FAMILIES.index("receive")
    return placed.select(
        "row", "track", "rank", "kind", "is_wait", "name", "start_ns", "end_ns", *ARGS,
        is_receive.alias("is_receive"), title().alias("title"), label().alias("label"),
    )  # fmt: skip


def _flows(slices: pl.DataFrame, messages: pl.DataFrame) -> pl.DataFrame:
    """Return the slices that each message connects, in order of sending."""
    actions = slices.select("row", slice=pl.int_range(pl.len())).filter(
        pl.col("row").is_not_null() & ~slices["is_wait"]
    )
    slice_of_row = np.empty(len(actions), np.int64)
    slice_of_row[actions["row"].to_numpy()] = actions["slice"].to_numpy()
    return pl.DataFrame({end: slice_of_row[messages[f"{end}_row"].to_numpy()] for end in ("send", "recv")})


def _groups(timeline: Timeline, spans: pl.DataFrame) -> tuple[Group, ...]:
    """Return every rank, including ranks without spans, so that a missing rank is visible."""
    stages = spans.group_by("rank").agg(stages=pl.col("stage").drop_nulls().unique().sort())
    machines = timeline.ranks.select("rank", "machine").unique("rank", keep="first")
    table = machines.join(stages, on="rank", how="full", coalesce=True).sort("rank")
    notes = clock_notes(timeline)
    return tuple(
        Group(rank, _group_name(rank, machine, stages or []), notes.get(rank, ""))
        for rank, machine, stages in table.iter_rows()
    )


def _group_name(rank: int, machine: str | None, stages: list[int]) -> str:
    """Return a rank's heading, such as ``rank 3 (node-b, stages 3, 7)``."""
    listed = f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}" if stages else None
    notes = ", ".join(note for note in (machine, listed) if note)
    return f"rank {rank} ({notes})" if notes else f"rank {rank}"
