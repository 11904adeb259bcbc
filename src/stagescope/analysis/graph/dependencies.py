"""What every job needs from other jobs, and when its transfer came.

F(s, m) needs F(s-1, m). B(s, m) and I(s, m) need B or I(s+1, m) and their own F(s, m). W(s, m) needs I(s, m).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.action_cells import DOUBLED, NONE, JobIndex, find_cells
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import RECEIVES, SENDS, label

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.action_cells import Cells

    Integers = NDArray[np.int64]

DIRECTIONS = ("forward", "backward", "own")
FORWARD, BACKWARD, OWN = range(3)
DirectionType = pl.Enum(list(DIRECTIONS))
FORWARDS, BACKWARDS, WEIGHTS = ("forward",), ("backward", "backward_input"), ("backward_weight",)
NEVER = np.iinfo(np.int64).min
"""Stands for a transfer that was not recorded, as no real time can."""


class Dependencies(NamedTuple):
    """One row per job and need (columns job, needs, direction, sent_ns, arrived_ns), and what could not be told."""

    rows: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


class _Jobs(NamedTuple):
    """Jobs with their cells, and where each sort of them is found."""

    frame: pl.DataFrame
    cells: Cells
    cell: Integers
    forwards: JobIndex
    backwards: JobIndex
    weights: JobIndex


def find_dependencies(jobs: pl.DataFrame, transfers: pl.DataFrame) -> Dependencies:
    """Return what every job of `jobs` needs, a job being its row number; sorted by job.

    `jobs` has pipeline, step, rank, kind, stage and microbatch, `transfers` the same columns, start_ns and
    end_ns, one row per recorded end of a message. `sent_ns` is when the first send of the message was issued,
    `arrived_ns` when its last receive was over; both null where they were not recorded, and between jobs of one
    rank. A job that ran twice in one step produces nothing that could be told apart: nobody needs it, it needs
    nothing, and a diagnostic counts it. So does one for needs whose producer was not recorded.
    """
    indexed = _index(jobs)
    doubled = _doubled(indexed)
    producers, expected = _producers(indexed)
    producers[doubled] = NONE
    expected[doubled] = False
    diagnostics = [
        *_say_doubled(jobs, doubled),
        *_say_missing(jobs, (expected & (producers == NONE)).any(axis=1)),
    ]
    # Two columns per job, what another stage makes for it and what its own stage did: row by row they are sorted.
    flat = producers.ravel()
    slots = np.flatnonzero(flat >= 0)
    consumer, producer = slots // 2, flat[slots]
    is_forward = jobs["kind"].is_in(FORWARDS).to_numpy()
    direction = np.where(slots % 2 == 1, OWN, np.where(is_forward[consumer], FORWARD, BACKWARD))
    sent, arrived = _transfer_times(indexed, transfers)
    rank = jobs["rank"].to_numpy()
    is_remote = rank[consumer] != rank[producer]
    rows = pl.DataFrame(
        {
            "job": consumer.astype(np.uint32),
            "needs": producer.astype(np.uint32),
            "direction": pl.Series(DIRECTIONS, dtype=DirectionType).gather(direction),
            "is_remote": is_remote,
            "sent_ns": np.where(is_remote & (direction != OWN), sent[producer], NEVER),
            "arrived_ns": np.where(is_remote & (direction != OWN), arrived[consumer], NEVER),
        }
    )
    times = pl.col("sent_ns", "arrived_ns")
    return Dependencies(
        rows.with_columns(pl.when(times != NEVER).then(times).name.keep()), tuple(diagnostics)
    )


def _index(jobs: pl.DataFrame) -> _Jobs:
    cells = find_cells(jobs)
    cell = cells.numbers(jobs)

    def found(kinds: tuple[str, ...]) -> JobIndex:
        of_kinds = np.flatnonzero(jobs["kind"].is_in(kinds).to_numpy())
        return JobIndex(cell[of_kinds], of_kinds, cells.count)

    return _Jobs(jobs, cells, cell, found(FORWARDS), found(BACKWARDS), found(WEIGHTS))


def _doubled(jobs: _Jobs) -> NDArray[np.bool_]:
    """Return which jobs another one of the same sort shares a cell with."""
    doubled = np.zeros(jobs.frame.height, dtype=np.bool_)
    for kinds, index in (
        (FORWARDS, jobs.forwards),
        (BACKWARDS, jobs.backwards),
        (WEIGHTS, jobs.weights),
    ):
        of_kinds = np.flatnonzero(jobs.frame["kind"].is_in(kinds).to_numpy())
        doubled[of_kinds] = index.find(jobs.cell[of_kinds]) == DOUBLED
    return doubled


def _producers(jobs: _Jobs) -> tuple[Integers, NDArray[np.bool_]]:
    """Return two producers per job, from a neighboring stage and from its own, and whether each must exist."""
    kind = jobs.frame["kind"]
    producers = np.full((jobs.frame.height, 2), NONE, dtype=np.int64)
    expected = np.zeros((jobs.frame.height, 2), dtype=np.bool_)
    stage = jobs.frame["stage"].to_numpy()
    last = int(jobs.cells.stages[-1]) if len(jobs.cells.stages) else NONE

    forward = np.flatnonzero(kind.is_in(FORWARDS).to_numpy())
    producers[forward, 0] = jobs.forwards.find(jobs.cells.neighbors(jobs.cell[forward], -1))
    expected[forward, 0] = stage[forward] > 0
    backward = np.flatnonzero(kind.is_in(BACKWARDS).to_numpy())
    producers[backward, 0] = jobs.backwards.find(jobs.cells.neighbors(jobs.cell[backward], +1))
    expected[backward, 0] = stage[backward] < last
    producers[backward, 1] = jobs.forwards.find(jobs.cell[backward])
    weight = np.flatnonzero(kind.is_in(WEIGHTS).to_numpy())
    producers[weight, 1] = jobs.backwards.find(jobs.cell[weight])
    expected[backward, 1] = expected[weight, 1] = True
    return producers, expected


def _transfer_times(jobs: _Jobs, transfers: pl.DataFrame) -> tuple[Integers, Integers]:
    """Return per job when its result began to be sent, and when its input had been received; NEVER: unknown."""
    rank = jobs.frame["rank"].to_numpy()
    sent = np.full(jobs.frame.height, np.iinfo(np.int64).max)
    arrived = np.full(jobs.frame.height, NEVER)
    for kinds, index in zip(zip(SENDS, RECEIVES, strict=True), (jobs.forwards, jobs.backwards), strict=True):
        ends = zip(kinds, ("start_ns", "end_ns"), (sent, arrived), (np.minimum, np.maximum), strict=True)
        for kind, moment, times, choose in ends:
            needed = ("pipeline", "step", "stage", "microbatch", "rank", moment)
            ours = transfers.lazy().filter(pl.col("kind") == kind).select(needed).collect()
            job = index.find(jobs.cells.numbers(ours))
            known = job >= 0
            known[known] = rank[job[known]] == ours["rank"].to_numpy()[known]
            choose.at(times, job[known], ours[moment].to_numpy()[known])
    sent[sent == np.iinfo(np.int64).max] = NEVER
    return sent, arrived


def _say_doubled(jobs: pl.DataFrame, doubled: NDArray[np.bool_]) -> list[Diagnostic]:
    message = "jobs stand more than once in a step (first: {}); nothing is said about what waited for them"
    return _say(jobs, doubled, message)


def _say_missing(jobs: pl.DataFrame, missing: NDArray[np.bool_]) -> list[Diagnostic]:
    return _say(jobs, missing, "jobs need the result of a job that was not recorded (first: {})")


def _say(jobs: pl.DataFrame, marked: NDArray[np.bool_], message: str) -> list[Diagnostic]:
    """Return one warning that counts the marked jobs and names the first; none without any."""
    count = int(marked.sum())
    if not count:
        return []
    first = jobs.row(int(marked.argmax()), named=True)
    job = label(first["kind"], first["stage"], first["microbatch"])
    return [
        Diagnostic(
            "warning", message.format(f"{job} of step {first['step']}, rank {first['rank']}"), count=count
        )
    ]
