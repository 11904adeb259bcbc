"""Which job needs which, for one micro-batch: the same as in a page (web/src/model/links.ts).

F(s,m) needs F(s-1,m); the backward of (s,m), or its input half, needs that of (s+1,m), and the last stage's its F; a
weight half needs its input half. Jobs belong together within one step and one pipeline. Where several ranks run the
same job, the one on the own rank counts, else those with the same tensor- and context-parallel place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stagescope.viewer.tiles.levels import Part, Placed, TooManyError
from stagescope.viewer.tiles.records import LANE_COUNT, SPAN, none_of
from stagescope.viewer.tiles.tiles import span_frame
from stagescope.vocabulary.kinds import BY_CODE, BY_NAME, PIPELINE_JOBS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.viewer.tiles.levels import Levels

MOST_PAIRS = 4_000_000
"""So many pairs of jobs are compared in two seconds; with more, the layout is not known and every rank a replica."""

JOB_CODES = tuple(BY_NAME[name].code for name in PIPELINE_JOBS)
PHASES = {"forward": "F", "backward_weight": "W"}


class _Job(NamedTuple):
    place: int
    row: int
    phase: str
    stage: int


def find_links(levels: Levels, meta: Mapping[str, Any], span_id: int, *, whole: bool) -> dict[str, Any]:
    """Return `Links` (web/src/model/source.ts): the neighbors of a job, or the whole way of its micro-batch.

    Raises TooManyError where the step of the micro-batch is too large to be searched, or its jobs cannot be told apart.
    """
    own = _at(levels, np.array([span_id]))
    jobs = _jobs_like(levels, meta, own)
    by_phase: dict[tuple[str, int], list[_Job]] = {}
    for job in jobs:
        by_phase.setdefault((job.phase, job.stage), []).append(job)
    if sum(len(job_list) * _most_needed(key, by_phase) for key, job_list in by_phase.items()) > MOST_PAIRS:
        raise TooManyError
    links = [(need.place, job.place) for job in jobs for need in _needs(job, by_phase, meta["ranks"])]
    kept = [link for link in links if whole or span_id in link]
    places = np.array(sorted({span_id, *(place for link in kept for place in link)}))
    return {"spans": span_dicts(levels, places), "links": [list(link) for link in kept]}


def span_dicts(levels: Levels, places: np.ndarray[Any, np.dtype[np.int64]]) -> list[dict[str, Any]]:
    """Return spans with all that is known of each; `places` rise."""
    frame = span_frame(levels, _at(levels, places))
    known = ("pair", "peer", "bytes", "wait", "wait_duration", "name")
    absent = dict.fromkeys(name for name in known if name not in frame.columns)
    return [absent | row for row in frame.iter_rows(named=True)]


def _at(levels: Levels, places: np.ndarray[Any, np.dtype[np.int64]]) -> Placed:
    return levels.spans.at(levels.spans.track_of(places), places, places + 1)


def _jobs_like(levels: Levels, meta: Mapping[str, Any], own: Placed) -> list[_Job]:
    """Return the jobs of the same micro-batch, step and pipeline."""
    record = own.records[0]
    nulls = [record[name] == none_of(SPAN, name) for name in ("microbatch", "stage")]
    if record["kind"] not in JOB_CODES or any(nulls):
        return []
    pipeline = meta["ranks"]["pipeline"]
    own_row = int(own.track[0]) // LANE_COUNT
    rows = np.array([row for row, one in enumerate(pipeline) if one == pipeline[own_row]])
    step = int(record["step"])
    try:
        found = levels.spans_in(Part(0, levels.shape.end + 1, rows))
    except TooManyError:
        found = levels.spans_in(Part(*_times_of(meta["steps"], step), rows))
    records = found.records
    alike = (records["microbatch"] == record["microbatch"]) & (records["step"] == step)
    alike &= np.isin(records["kind"], JOB_CODES) & (records["stage"] != none_of(SPAN, "stage"))
    found = found.take(alike)
    return [
        _Job(place, track // LANE_COUNT, PHASES.get(BY_CODE[kind].name, "B"), stage)
        for place, track, kind, stage in zip(
            found.place.tolist(),
            found.track.tolist(),
            found.records["kind"].tolist(),
            found.records["stage"].tolist(),
            strict=True,
        )
    ]


def _times_of(steps: Sequence[Mapping[str, Any]], step: int) -> tuple[int, int]:
    for one in steps:
        if one["step"] == step:
            return int(one["start"]), int(one["end"]) + 1
    raise TooManyError


def _needs(job: _Job, jobs: Mapping[tuple[str, int], list[_Job]], ranks: Mapping[str, Any]) -> list[_Job]:
    if job.phase == "F":
        found = jobs.get(("F", job.stage - 1), [])
    elif job.phase == "W":
        found = jobs.get(("B", job.stage), [])
    else:
        found = jobs.get(("B", job.stage + 1)) or jobs.get(("F", job.stage), [])
    return _nearest(job, found, ranks)


def _most_needed(key: tuple[str, int], jobs: Mapping[tuple[str, int], list[_Job]]) -> int:
    """Return how many jobs have to be looked at for one of a phase and stage."""
    phase, stage = key
    others = {"F": [("F", stage - 1)], "W": [("B", stage)]}.get(phase, [("B", stage + 1), ("F", stage)])
    return sum(len(jobs.get(other, ())) for other in others)


def _nearest(job: _Job, others: list[_Job], ranks: Mapping[str, Any]) -> list[_Job]:
    if len(others) <= 1:
        return others
    same = [other for other in others if other.row == job.row]
    place = [(ranks["tp"][other.row], ranks["cp"][other.row]) for other in (job, *others)]
    alike = [other for other, own in zip(others, place[1:], strict=True) if own == place[0]]
    return same or alike or others
