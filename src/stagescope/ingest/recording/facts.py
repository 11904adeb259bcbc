"""What decisions about a whole run need of the spans of one recording, so that these need not stay in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stagescope.ingest.recording.values import SMALL_NUMBER
from stagescope.ingest.stages import PLACED
from stagescope.model.collectives import KINDS as COLLECTIVE_KINDS
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import (
    ACTION_KINDS,
    BACKWARDS,
    BY_CODE,
    BY_NAME,
    COMPUTE,
    LANE_CODES,
    PLAIN_TRANSFERS,
    RECEIVES,
    SENDS,
    STEP_CODE,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.ingest.recording.columns import Columns
    from stagescope.ingest.recording.frames import Contents

    Ints = npt.NDArray[np.int32]

FAR_NS = 2**62


def of_kinds(*kinds: str) -> npt.NDArray[np.bool_]:
    """Return for each code of a kind whether it is one of `kinds`: an array that the codes of records index."""
    codes = np.zeros(256, np.bool_)
    codes[[BY_NAME[kind].code for kind in kinds]] = True
    return codes


IS_ACTION, IS_PLAIN = of_kinds(*ACTION_KINDS), of_kinds(*PLAIN_TRANSFERS)
IS_BACKWARD = of_kinds(*BACKWARDS)
IS_COLLECTIVE = of_kinds(*COLLECTIVE_KINDS)
IS_PLACED = of_kinds(*PLACED)
IS_TRANSFER = of_kinds(*SENDS, *RECEIVES)
IS_UNKNOWN = np.ones(256, np.bool_)
IS_UNKNOWN[[STEP_CODE, *BY_CODE]] = False


@dataclass(frozen=True)
class Facts:
    """Facts about the spans of one recording.

    `steps` are the numbers of its steps that were completed, of those with spans where nothing marks steps; `unmarked`
    are those of other steps with spans, such as the last one of a process that was killed. `labels` has for each
    pipeline that a step names the time of its steps and their numbers, in the order of the first ones. `extent_ns` is
    from the first start to the last end, None without spans, and `peers` are the ranks that it exchanged activations or
    gradients with. `last_step` is the step of the span that ended last, NONE without one; `nameless`, `unknown_kinds`
    and `on_compute` count spans whose name the recording lacks, those of unknown kinds, and those in
    the lane of computations.
    """

    spans: int
    actions: int
    backwards: int
    steps: Ints
    unmarked: Ints
    labels: dict[str, tuple[int, Ints]]
    extent_ns: tuple[int, int] | None
    peers: Ints
    has_steps: bool
    has_plain_transfers: bool
    has_open_stages: bool
    last_step: int
    nameless: int
    unknown_kinds: int
    on_compute: int

    @property
    def every_step(self) -> Ints:
        """The numbers of all steps with a span or a marker; none is negative."""
        numbers = _union(self.steps, self.unmarked)
        return numbers[numbers >= 0]


def facts_of(contents: Contents) -> Facts:
    """Return the facts about the spans of a recording."""
    found = _Found(contents.names)
    for spans in contents.blocks():
        found.add(spans)
    return found.facts()


class _Found:
    """What was found in the spans of one recording so far."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._is_named = numbers_of(names)
        self._count_of_kind = np.zeros(256, np.int64)
        self._marked = self._stepped = self._peers = np.empty(0, np.int32)
        self._labels: dict[str, tuple[int, Ints]] = {}
        self._first_ns, self._last_ns, self._last_step = FAR_NS, -FAR_NS, NONE
        self._nameless = self._on_compute = 0
        self._has_steps = self._has_open_stages = False

    def add(self, spans: Columns) -> None:
        """Add a part of the spans."""
        if not len(spans):
            return
        kind, step = spans["kind"], spans["step"]
        self._count_of_kind += np.bincount(kind, minlength=256)
        is_marker = kind == STEP_CODE
        if is_marker.any():
            self._marked = _union(self._marked, step[is_marker])
            _add_labels(self._labels, spans, is_marker, self._names)
        self._stepped = _union(self._stepped, _distinct(step[step >= 0]))
        self._peers = _union(
            self._peers, _distinct(spans["peer"][IS_TRANSFER[kind] & (spans["peer"] != NONE)])
        )
        last = int(spans["end_ns"].argmax())
        self._first_ns = min(self._first_ns, int(spans["start_ns"].min()))
        if spans["end_ns"][last] > self._last_ns:
            self._last_ns, self._last_step = int(spans["end_ns"][last]), int(step[last])
        self._nameless += count_nameless(spans["name"], self._is_named)
        self._on_compute += int((spans["lane"] == LANE_CODES[COMPUTE]).sum())
        self._has_steps |= bool((~is_marker & (step != NONE)).any())
        self._has_open_stages |= bool((are_placed(spans) & (spans["stage"] == NONE)).any())

    def facts(self) -> Facts:
        """Return the facts about all spans."""
        spans = int(self._count_of_kind.sum())
        return Facts(
            spans=spans,
            actions=int(self._count_of_kind[IS_ACTION].sum()),
            backwards=int(self._count_of_kind[IS_BACKWARD].sum()),
            steps=self._marked if len(self._marked) else self._stepped,
            unmarked=np.setdiff1d(self._stepped, self._marked) if len(self._marked) else self._marked,
            labels=self._labels,
            extent_ns=(self._first_ns, self._last_ns) if spans else None,
            peers=self._peers,
            has_steps=self._has_steps,
            has_plain_transfers=bool(self._count_of_kind[IS_PLAIN].any()),
            has_open_stages=self._has_open_stages,
            last_step=self._last_step,
            nameless=self._nameless,
            unknown_kinds=int(self._count_of_kind[IS_UNKNOWN].sum()),
            on_compute=self._on_compute,
        )


def numbers_of(names: dict[int, str]) -> npt.NDArray[np.bool_]:
    """Return for each number, up to the first one without a name above all others, whether it is 0 or has a name."""
    is_named = np.zeros(max(names, default=0) + 2, np.bool_)
    is_named[[0, *names]] = True
    return is_named


def count_nameless(numbers: npt.NDArray[np.uint32], is_named: npt.NDArray[np.bool_]) -> int:
    """Return how many numbers lack a name, given `numbers_of`; no sort, because there may be millions."""
    return int((~is_named[np.minimum(numbers, len(is_named) - 1)]).sum())


def _union(known: Ints, more: Ints) -> Ints:
    """Return the distinct ones of sorted and other numbers, sorted."""
    return np.unique(np.concatenate([known, more]) if len(known) else more)


def _distinct(numbers: Ints) -> Ints:
    """Return the distinct ones of some numbers, sorted: thousands of transfers are with a few other ranks."""
    if not len(numbers):
        return numbers
    lowest, highest = int(numbers.min()), int(numbers.max())
    if highest - lowest >= SMALL_NUMBER:
        return np.unique(numbers)
    is_there = np.zeros(highest - lowest + 1, np.bool_)
    is_there[numbers - lowest] = True
    return (np.flatnonzero(is_there) + lowest).astype(np.int32)


def are_placed(spans: Columns) -> npt.NDArray[np.bool_]:
    """Return whether each span is of a kind that belongs to a stage."""
    placed: npt.NDArray[np.bool_] = IS_PLACED[spans["kind"]]
    return placed


def _add_labels(
    found: dict[str, tuple[int, Ints]],
    spans: Columns,
    is_marker: npt.NDArray[np.bool_],
    names: dict[int, str],
) -> None:
    """Add the time and the numbers of the steps of each pipeline that they name."""
    named = np.flatnonzero(is_marker & (spans["name"] > 0))
    numbers, first, label = np.unique(spans["name"][named], return_index=True, return_inverse=True)
    times_ns = (spans["end_ns"] - spans["start_ns"])[named]
    for place in np.argsort(first):
        own = label == place
        name = names.get(int(numbers[place]), f"pipeline {numbers[place]}")
        time_ns, steps = found.get(name, (0, np.empty(0, np.int32)))
        own_ns = sum(times_ns[own].tolist())  # whose sum may not fit 64 bits where they are damaged
        found[name] = time_ns + own_ns, np.union1d(steps, spans["step"][named][own]).astype(np.int32)
