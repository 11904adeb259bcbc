"""Which action needs which, for one micro-batch: the same as in a page (web/src/model/links.ts).

The rule is `schedules.dependencies`; only direct predecessors are linked. Actions belong together within one step and
one pipeline. Where several ranks run the same action, the one on the own rank counts, else those with the same
tensor- and context-parallel place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stagescope.schedules.dependencies import needs
from stagescope.viewer.tiles.levels import Part, Placed, TooManyError
from stagescope.viewer.tiles.records import LANE_COUNT, SPAN, none_of
from stagescope.viewer.tiles.tiles import span_frame
from stagescope.vocabulary.kinds import ACTION_KINDS, BY_CODE, BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.viewer.tiles.levels import Levels

MOST_PAIRS = 4_000_000
"""So many pairs of actions are compared in two seconds; with more, the layout is not known and every rank a replica."""

ACTION_CODES = tuple(BY_NAME[name].code for name in ACTION_KINDS)
PHASES = {"forward": "F", "backward_weight": "W"}
PHASES_BY_LETTER = {"F": "F", "B": "B", "I": "B", "W": "W"}
"""Whole backwards and input-gradient backwards are one phase: each provides the gradient of its stage."""


class _Action(NamedTuple):
    place: int
    row: int
    phase: str
    stage: int


def find_links(levels: Levels, meta: Mapping[str, Any], span_id: int, *, whole: bool) -> dict[str, Any]:
    """Return `Links` (web/src/model/source.ts): the neighbors of a action, or the whole way of its micro-batch.

    Raises TooManyError where the step of the micro-batch is too large to be searched, or its actions cannot be told
    apart.
    """
    own = _at(levels, np.array([span_id]))
    actions = _actions_like(levels, meta, own)
    by_phase: dict[tuple[str, int], list[_Action]] = {}
    for action in actions:
        by_phase.setdefault((action.phase, action.stage), []).append(action)
    if (
        sum(len(action_list) * _most_needed(key, by_phase) for key, action_list in by_phase.items())
        > MOST_PAIRS
    ):
        raise TooManyError
    links = [
        (need.place, action.place) for action in actions for need in _needs(action, by_phase, meta["ranks"])
    ]
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


def _actions_like(levels: Levels, meta: Mapping[str, Any], own: Placed) -> list[_Action]:
    """Return the actions of the same micro-batch, step and pipeline."""
    record = own.records[0]
    nulls = [record[name] == none_of(SPAN, name) for name in ("microbatch", "stage")]
    if record["kind"] not in ACTION_CODES or any(nulls):
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
    alike &= np.isin(records["kind"], ACTION_CODES) & (records["stage"] != none_of(SPAN, "stage"))
    found = found.take(alike)
    return [
        _Action(place, track // LANE_COUNT, PHASES.get(BY_CODE[kind].name, "B"), stage)
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


def _direct_needs(phase: str, stage: int) -> list[tuple[str, int]]:
    """Return the phases and stages of possible direct predecessors, the preferred one first.

    The last stage is not known here: where no action of a later stage was recorded, the own forward comes next.
    """
    return [
        (PHASES_BY_LETTER[need.kinds[0]], need.stage) for need in needs(phase, stage, last_stage=stage + 1)
    ]


def _needs(
    action: _Action, actions: Mapping[tuple[str, int], list[_Action]], ranks: Mapping[str, Any]
) -> list[_Action]:
    found = (actions[key] for key in _direct_needs(action.phase, action.stage) if actions.get(key))
    return _nearest(action, next(found, []), ranks)


def _most_needed(key: tuple[str, int], actions: Mapping[tuple[str, int], list[_Action]]) -> int:
    """Return how many actions have to be looked at for one of a phase and stage."""
    return sum(len(actions.get(other, ())) for other in _direct_needs(*key))


def _nearest(action: _Action, others: list[_Action], ranks: Mapping[str, Any]) -> list[_Action]:
    if len(others) <= 1:
        return others
    same = [other for other in others if other.row == action.row]
    place = [(ranks["tp"][other.row], ranks["cp"][other.row]) for other in (action, *others)]
    alike = [other for other, own in zip(others, place[1:], strict=True) if own == place[0]]
    return same or alike or others
