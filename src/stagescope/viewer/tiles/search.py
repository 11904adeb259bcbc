"""Search through all spans of a run, a million spans at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stagescope.viewer.tiles.levels import Placed
from stagescope.viewer.tiles.query import Seen, compile_query
from stagescope.viewer.tiles.records import LANE_COUNT
from stagescope.vocabulary.kinds import COMPUTE, HOST, LANE_CODES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from stagescope.viewer.tiles.levels import Levels

    Ints = npt.NDArray[np.int64]

SPANS_AT_ONCE = 1_000_000
KIND_COUNT = 256


def search_spans(levels: Levels, meta: Mapping[str, Any], text: str, most: int) -> dict[str, Any]:
    """Return `Found` (web/src/model/source.ts): how many spans match, and the first `most` in order of start.

    `groups` counts all matches by the layer of the picture that draws them (0 actions, 1 transfers, 2 host) and by
    kind. Raises QueryError.
    """
    query = compile_query(text, meta, levels.shape.names)
    counts, kept = np.zeros((LANE_COUNT, KIND_COUNT), np.int64), _nothing(levels)
    for begin in range(0, levels.spans.count if query else 0, SPANS_AT_ONCE):
        stop = min(begin + SPANS_AT_ONCE, levels.spans.count)
        place = np.arange(begin, stop)
        found = Placed(levels.spans.read(begin, stop), levels.spans.track_of(place), place)
        facts = levels.facts_at(begin, stop) if query and query.uses_facts else None
        if query:
            hits = found.take(query.mask(Seen(found, facts)))
            np.add.at(counts, (_layers(levels, hits), hits.records["kind"]), 1)
            kept = _earliest(kept, hits, most)
    return {
        "count": int(counts.sum()),
        "groups": [
            {"layer": int(layer), "kind": int(kind), "count": int(counts[layer, kind])}
            for layer, kind in np.argwhere(counts)
        ],
        "ids": kept.place.tolist(),
        "rows": (kept.track // LANE_COUNT).tolist(),
        "starts": kept.records["start"].tolist(),
        "durations": kept.records["duration"].tolist(),
        "layers": _layers(levels, kept).tolist(),
        "kinds": kept.records["kind"].tolist(),
    }


def _layers(levels: Levels, found: Placed) -> Ints:
    """Return the lane as which each span is drawn: host spans replace the actions of a rank without any."""
    first = levels.spans.index.first
    lane = found.track % LANE_COUNT
    compute = found.track - lane
    is_alone = first[compute] == first[compute + 1]
    return np.where((lane == LANE_CODES[HOST]) & is_alone, LANE_CODES[COMPUTE], lane)


def _nothing(levels: Levels) -> Placed:
    none = np.zeros(0, np.int64)
    return Placed(levels.spans.read(0, 0), none, none)


def _earliest(some: Placed, more: Placed, most: int) -> Placed:
    """Return the first `most` of two sets of spans, in order of start and then id."""
    every = Placed(*(np.concatenate(pair) for pair in zip(some, more, strict=True)))
    order = np.argsort(every.records["start"], kind="stable")[:most]
    return Placed(every.records[order], every.track[order], every.place[order])
