"""What every action needed from other actions, and when the results were transferred.

The dependency rule itself is declared in `schedules.dependencies`; here it is applied to whole columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.action_cells import DOUBLED, NONE, ActionIndex, find_cells
from stagescope.model.diagnostics import StepDiagnostic
from stagescope.schedules.dependencies import RULES
from stagescope.vocabulary.kinds import ACTION_KINDS, BY_NAME, RECEIVES, SENDS, label

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.action_cells import Cells
    from stagescope.model.diagnostics import Diagnostic

    Integers = NDArray[np.int64]

DIRECTIONS = ("forward", "backward", "own")
FORWARD, BACKWARD, OWN = range(3)
DirectionType = pl.Enum(list(DIRECTIONS))
FORWARDS, BACKWARDS, WEIGHTS = ("forward",), ("backward", "backward_input"), ("backward_weight",)
LETTERS = {kind: BY_NAME[kind].letter for kind in ACTION_KINDS}
NEVER = np.iinfo(np.int64).min
"""Marks a transfer that was not recorded; no real time is that small."""


class Moment(NamedTuple):
    """One moment of a message: its column, the column of a recorded end, and which of several ends counts."""

    column: str
    source: str
    of_send: bool
    choose: np.ufunc


MOMENTS = (
    Moment("sent_ns", "start_ns", of_send=True, choose=np.minimum),
    Moment("arrived_ns", "end_ns", of_send=False, choose=np.maximum),
    Moment("posted_ns", "start_ns", of_send=False, choose=np.minimum),
    Moment("awaited_ns", "wait_start_ns", of_send=True, choose=np.minimum),
    Moment("released_ns", "wait_end_ns", of_send=True, choose=np.maximum),
)


class Dependencies(NamedTuple):
    """One row per action and need, and diagnostics.

    Columns: action, needs, direction, is_remote, sent_ns, arrived_ns, and the rest of MOMENTS.
    """

    rows: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


class _Actions(NamedTuple):
    """Actions with their cells, and an index per group of kinds."""

    frame: pl.DataFrame
    cells: Cells
    cell: Integers
    forwards: ActionIndex
    backwards: ActionIndex
    weights: ActionIndex

    def of_kind(self, letter: str) -> ActionIndex:
        """Return the index that contains actions of a kind; whole and split backwards share one."""
        return {"F": self.forwards, "B": self.backwards, "I": self.backwards, "W": self.weights}[letter]


def find_dependencies(actions: pl.DataFrame, transfers: pl.DataFrame) -> Dependencies:
    """Return what every action of `actions` needs, sorted by action; an action is its row number.

    `actions` has pipeline, step, rank, kind, stage and microbatch. `transfers` has the same columns, start_ns, end_ns,
    wait_start_ns and wait_end_ns, one row per recorded end of a message. `sent_ns` is when the first send of the
    message was issued, `arrived_ns` when its last receive ended, `posted_ns` when its first receive was posted,
    `awaited_ns` and `released_ns` when the sender began to wait for the send and when it went on; all are null if not
    recorded, and between actions of one rank. An action that ran twice in one step is ambiguous: it needs nothing, is
    needed by nothing, and a diagnostic counts it. Another diagnostic counts needs without a recorded producer.
    """
    indexed = _index(actions)
    doubled = _doubled(indexed)
    producers, expected = _producers(indexed)
    producers[doubled] = NONE
    expected[doubled] = False
    diagnostics = [
        *_duplicate_diagnostics(actions, doubled),
        *_missing_diagnostics(actions, (expected & (producers == NONE)).any(axis=1)),
    ]
    # Two columns per action: the input from another stage, then from its own. Flattened, they are sorted by action.
    flat = producers.ravel()
    slots = np.flatnonzero(flat >= 0)
    consumer, producer = slots // 2, flat[slots]
    is_forward = actions["kind"].is_in(FORWARDS).to_numpy()
    direction = np.where(slots % 2 == 1, OWN, np.where(is_forward[consumer], FORWARD, BACKWARD))
    rank = actions["rank"].to_numpy()
    is_remote = rank[consumer] != rank[producer]
    sent = np.flatnonzero(is_remote & (direction != OWN))
    times = _transfer_times(indexed, transfers)
    rows = pl.DataFrame(
        {
            "action": consumer.astype(np.uint32),
            "needs": producer.astype(np.uint32),
            "direction": pl.Series(DIRECTIONS, dtype=DirectionType).gather(direction),
            "is_remote": is_remote,
            **{
                moment.column: _at(
                    sent, (producer if moment.of_send else consumer)[sent], known_ns, len(slots)
                )
                for moment, known_ns in zip(MOMENTS, times, strict=True)
            },
        }
    )
    return Dependencies(rows, tuple(diagnostics))


def _at(rows: Integers, action: Integers, known_ns: Integers | None, count: int) -> pl.Series:
    """Return a column of `count` rows with the known moments of these actions in some rows, otherwise null."""
    if known_ns is None:
        return pl.repeat(None, count, dtype=pl.Int64, eager=True)
    moments = np.full(count, NEVER)
    moments[rows] = known_ns[action]
    column = pl.Series(moments)
    return column.set(column == NEVER, None)


def _index(actions: pl.DataFrame) -> _Actions:
    cells = find_cells(actions)
    cell = cells.numbers(actions)

    def found(kinds: tuple[str, ...]) -> ActionIndex:
        of_kinds = np.flatnonzero(actions["kind"].is_in(kinds).to_numpy())
        return ActionIndex(cell[of_kinds], of_kinds, cells.count)

    return _Actions(actions, cells, cell, found(FORWARDS), found(BACKWARDS), found(WEIGHTS))


def _doubled(actions: _Actions) -> NDArray[np.bool_]:
    """Return which actions share their cell with another one of the same kind."""
    doubled = np.zeros(actions.frame.height, dtype=np.bool_)
    for kinds, index in (
        (FORWARDS, actions.forwards),
        (BACKWARDS, actions.backwards),
        (WEIGHTS, actions.weights),
    ):
        of_kinds = np.flatnonzero(actions.frame["kind"].is_in(kinds).to_numpy())
        doubled[of_kinds] = index.find(actions.cell[of_kinds]) == DOUBLED
    return doubled


def _producers(actions: _Actions) -> tuple[Integers, NDArray[np.bool_]]:
    """Return two producers per action, from a neighboring stage and from its own, and whether each must exist."""
    kind = actions.frame["kind"]
    producers = np.full((actions.frame.height, 2), NONE, dtype=np.int64)
    expected = np.zeros((actions.frame.height, 2), dtype=np.bool_)
    stage = actions.frame["stage"].to_numpy()
    last = int(actions.cells.stages[-1]) if len(actions.cells.stages) else NONE
    for rule in RULES:
        kinds = [name for name, letter in LETTERS.items() if letter in rule.consumers]
        consumer = np.flatnonzero(kind.is_in(kinds).to_numpy())
        cell = actions.cell[consumer]
        if rule.crosses_stages:
            cell = actions.cells.neighbors(cell, rule.stage_offset)
        needed = stage[consumer] + rule.stage_offset
        column = 0 if rule.crosses_stages else 1
        producers[consumer, column] = actions.of_kind(rule.producers[0]).find(cell)
        expected[consumer, column] = (needed >= 0) & (needed <= last)
    return producers, expected


def _transfer_times(actions: _Actions, transfers: pl.DataFrame) -> list[Integers | None]:
    """Return the MOMENTS of every action: of the message with its result, or with its input; NEVER: unknown.

    None for a moment that no transfer has.
    """
    kinds, cells = transfers["kind"], actions.cells.numbers(transfers)
    rank, ranks = actions.frame["rank"].to_numpy(), transfers["rank"].to_numpy()
    ends: dict[bool, list[tuple[Integers, Integers]]] = {True: [], False: []}
    for index, *pair in zip((actions.forwards, actions.backwards), SENDS, RECEIVES, strict=True):
        for is_send, kind in zip((True, False), pair, strict=True):
            rows = np.flatnonzero((kinds == kind).to_numpy())
            action = index.find(cells[rows])
            found = np.flatnonzero(action >= 0)  # there may be no action at all
            known = found[rank[action[found]] == ranks[rows[found]]]
            ends[is_send].append((action[known], rows[known]))
    return [_moments(moment, ends[moment.of_send], transfers[moment.source], len(rank)) for moment in MOMENTS]


def _moments(
    moment: Moment, ends: list[tuple[Integers, Integers]], source: pl.Series, actions: int
) -> Integers | None:
    """Return one moment of every action; `ends` are actions with the rows of their transfers in `source`."""
    if source.null_count() == len(source):
        return None
    times = np.full(actions, NEVER)
    values = source.fill_null(NEVER).to_numpy()
    for action, rows in ends:
        known_ns = values[rows]
        is_known = known_ns != NEVER if source.null_count() else slice(None)
        which, known_ns = action[is_known], known_ns[is_known]
        times[which] = known_ns
        # Most actions have one transfer of a kind. Reducing several takes much longer than this look at all.
        if (times[which] != known_ns).any():
            moment.choose.at(times, which, known_ns)
    return times


def _duplicate_diagnostics(actions: pl.DataFrame, doubled: NDArray[np.bool_]) -> list[Diagnostic]:
    message = "actions were recorded more than once in a step (first: {}); their dependencies are left out"
    return _warn(actions, doubled, message, "actions.duplicate")


def _missing_diagnostics(actions: pl.DataFrame, missing: NDArray[np.bool_]) -> list[Diagnostic]:
    message = "actions need the result of an action that was not recorded (first: {})"
    return _warn(actions, missing, message, "actions.missing_producer")


def _warn(actions: pl.DataFrame, marked: NDArray[np.bool_], message: str, code: str) -> list[Diagnostic]:
    """Return one warning that counts the marked actions and names one of the first step; empty if none is marked."""
    count = int(marked.sum())
    if not count:
        return []
    rows = np.flatnonzero(marked)
    first = actions.row(int(rows[actions["step"].to_numpy()[rows].argmin()]), named=True)
    action = label(first["kind"], first["stage"], first["microbatch"])
    return [
        StepDiagnostic(
            "warning",
            message.format(f"{action} of step {first['step']}, rank {first['rank']}"),
            count=count,
            code=code,
            step=first["step"],
        )
    ]
