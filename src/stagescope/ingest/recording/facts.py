"""What decisions about a whole run need of the spans of one recording, so that these need not stay in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stagescope.ingest.recording.values import SMALL_NUMBER
from stagescope.ingest.stages import PLACED
from stagescope.model.collectives import KINDS as COLLECTIVE_KINDS
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import ACTION_KINDS, BY_NAME, PLAIN_TRANSFERS, RECEIVES, SENDS, STEP_CODE

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.ingest.recording.frames import Columns, Contents

    Ints = npt.NDArray[np.int32]

FAR_NS = 2**62


def of_kinds(*kinds: str) -> npt.NDArray[np.bool_]:
    """Return for each code of a kind whether it is one of `kinds`: an array that the codes of records index."""
    codes = np.zeros(256, np.bool_)
    codes[[BY_NAME[kind].code for kind in kinds]] = True
    return codes


IS_ACTION, IS_PLAIN = of_kinds(*ACTION_KINDS), of_kinds(*PLAIN_TRANSFERS)
IS_COLLECTIVE = of_kinds(*COLLECTIVE_KINDS)
IS_PLACED = of_kinds(*PLACED)
IS_TRANSFER = of_kinds(*SENDS, *RECEIVES)


@dataclass(frozen=True)
class Facts:
    """Facts about the spans of one recording.

    `steps` are the numbers of its steps that were completed, of those with spans where nothing marks steps. `labels`
    has for each pipeline that a step names the time of its steps and their numbers, in the order of the first ones.
    `extent_ns` is from the first start to the last end, None without spans, and `peers` are the ranks that it exchanged
    activations or gradients with.
    """

    spans: int
    actions: int
    steps: Ints
    labels: dict[str, tuple[int, Ints]]
    extent_ns: tuple[int, int] | None
    peers: Ints
    has_steps: bool
    has_plain_transfers: bool
    has_open_stages: bool


def facts_of(contents: Contents) -> Facts:
    """Return the facts about the spans of a recording."""
    spans = contents.spans
    kind, step = spans["kind"], spans["step"]
    count_of_kind = np.bincount(kind, minlength=len(IS_ACTION))
    is_marker = kind == STEP_CODE
    numbers = step[is_marker] if is_marker.any() else step[step >= 0]
    extent_ns = (int(spans["start_ns"].min()), int(spans["end_ns"].max())) if len(spans) else None
    is_transfer = IS_TRANSFER[kind] & (spans["peer"] != NONE)
    return Facts(
        spans=len(spans),
        actions=int(count_of_kind[IS_ACTION].sum()),
        steps=np.unique(numbers),
        labels=_labels_of(spans, is_marker, contents.names),
        extent_ns=extent_ns,
        peers=_distinct(spans["peer"][is_transfer]),
        has_steps=bool((~is_marker & (step != NONE)).any()),
        has_plain_transfers=bool(count_of_kind[IS_PLAIN].any()),
        has_open_stages=bool((are_placed(spans) & (spans["stage"] == NONE)).any()),
    )


def _distinct(numbers: Ints) -> Ints:
    """Return the distinct ones of some numbers, sorted: thousands of transfers are with a few other ranks."""
    lowest, highest = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    if not len(numbers) or highest - lowest >= SMALL_NUMBER:
        return np.unique(numbers)
    is_there = np.zeros(highest - lowest + 1, np.bool_)
    is_there[numbers - lowest] = True
    return (np.flatnonzero(is_there) + lowest).astype(np.int32)


def are_placed(spans: Columns) -> npt.NDArray[np.bool_]:
    """Return whether each span is of a kind that belongs to a stage."""
    placed: npt.NDArray[np.bool_] = IS_PLACED[spans["kind"]]
    return placed


def _labels_of(
    spans: Columns, is_marker: npt.NDArray[np.bool_], names: dict[int, str]
) -> dict[str, tuple[int, Ints]]:
    """Return the time and the numbers of the steps of each pipeline that they name."""
    named = np.flatnonzero(is_marker & (spans["name"] > 0))
    numbers, first, label = np.unique(spans["name"][named], return_index=True, return_inverse=True)
    times_ns = (spans["end_ns"] - spans["start_ns"])[named]
    found: dict[str, tuple[int, Ints]] = {}
    for place in np.argsort(first):
        own = label == place
        name = names.get(int(numbers[place]), f"pipeline {numbers[place]}")
        time_ns, steps = found.get(name, (0, np.empty(0, np.int32)))
        own_ns = sum(times_ns[own].tolist())  # whose sum may not fit 64 bits where they are damaged
        found[name] = time_ns + own_ns, np.union1d(steps, spans["step"][named][own]).astype(np.int32)
    return found
