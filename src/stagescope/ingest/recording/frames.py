"""Frames of one recording file as arrays and facts, and the missing parts."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stagescope.ingest.recording.columns import (
    SPAN_DTYPE,
    Columns,
    concatenated,
    no_columns,
    split_columns,
)
from stagescope.ingest.recording.frame_order import STATED, FrameOrder
from stagescope.ingest.recording.header import MAX_NUMBER, checked_header
from stagescope.ingest.recording.long_spans import LongSpans, SpansInFile
from stagescope.ingest.recording.values import storable
from stagescope.record import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from stagescope.ingest.recording.readings import ReadingsInFile

ANCHOR_DTYPE = np.dtype(list(fmt.ANCHOR_FIELDS))
DEVICE_ANCHOR_DTYPE = np.dtype(list(fmt.DEVICE_ANCHOR_FIELDS))
RAW_ANCHOR_DTYPE = np.dtype(list(fmt.RAW_ANCHOR_FIELDS))
COUNTER_DTYPE = np.dtype(list(fmt.COUNTER_FIELDS))
RECORD_BYTES = {
    fmt.SPANS: SPAN_DTYPE.itemsize,
    fmt.CLOCK: ANCHOR_DTYPE.itemsize,
    fmt.DEVICE_CLOCK: DEVICE_ANCHOR_DTYPE.itemsize,
    fmt.RAW_CLOCK: RAW_ANCHOR_DTYPE.itemsize,
    fmt.COUNTERS: COUNTER_DTYPE.itemsize,
}
MAX_NAME_NUMBER = 2**24
"""Numbers of names index an array; the recorder stops at 2**14."""

STAYING = ("control", "threads")
"""Keys of a STATE frame that stay valid until another one has them."""


@dataclass
class Contents:
    """Content of the valid frames of one file, the byte ranges without one, and a checksum of the frames.

    `header` is checked; `wrong_facts` describes what was removed from it. `state` is the last STATE frame, as it was
    written, with the last answer to a request and the stacks. `unchosen_spans` and `unchosen_steps` are those that were
    not asked for (chosen_steps.py). `long` has the spans of a long recording, which stay in its files; `spans` is empty
    then. `readings` are those of clocks that wait in a file; `anchors` has a few of them then (readings.py).
    `repeated_frames`, `contradictory_frames` and `missing_records` (negative: surplus) are explained in frame_order.py.
    """

    header: dict[str, Any] = field(default_factory=dict)
    wrong_facts: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    state: dict[str, Any] = field(default_factory=dict)
    dropped_spans: int = 0
    dropped_counters: int = 0
    unchosen_spans: int = 0
    unchosen_steps: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    spans: Columns = field(default_factory=no_columns)
    long: LongSpans | None = None
    anchors: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, ANCHOR_DTYPE))
    device_anchors: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, DEVICE_ANCHOR_DTYPE))
    raw_anchors: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, RAW_ANCHOR_DTYPE))
    counters: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, COUNTER_DTYPE))
    readings: ReadingsInFile | None = None
    frames: int = 0
    lost_frames: int = 0
    repeated_frames: int = 0
    contradictory_frames: int = 0
    missing_records: Counter[str] = field(default_factory=Counter)
    gaps: list[fmt.Gap] = field(default_factory=list)
    unknown_frames: Counter[int] = field(default_factory=Counter)
    checksum: bytes = b""

    @property
    def stored_spans(self) -> int:
        """Number of spans in the file, also of steps that were not asked for."""
        return self.span_count + self.unchosen_spans

    @property
    def span_count(self) -> int:
        """Number of spans."""
        return len(self.spans) if self.long is None else len(self.long)

    def blocks(self) -> Iterator[Columns]:
        """Yield the spans a part at a time; those in memory all at once, also if there are none.

        Raises InputError if a file with spans of a long recording has changed or cannot be read.
        """
        return (self.spans if self.long is None else self.long).blocks()

    def in_memory(self, most_spans: int | None = None) -> Contents:
        """Return the content with all spans in memory, unless there are more than `most_spans`."""
        if self.long is None or (most_spans is not None and len(self.long) > most_spans):
            return self
        return replace(self, spans=concatenated(list(self.blocks())), long=None)

    def with_changed_spans(self, change: Callable[[Columns], Columns], count: int) -> Contents:
        """Return the content with other spans: what `change` makes of each block, `count` in total."""
        if self.long is None:
            return replace(self, spans=change(self.spans))
        return replace(self, long=self.long.changed(change, count))

    def with_amendments(
        self, amended: Callable[[Iterator[Columns]], Iterator[Columns]], count: int
    ) -> Contents:
        """Return the content with what `amended` makes of its spans, block by block: `count` of them in total."""
        if self.long is None:
            return replace(self, spans=concatenated(list(amended(self.spans.blocks()))))
        return replace(self, long=replace(self.long, height=count, amended=amended))


def read_contents(data: bytes) -> Contents:
    """Return the content of `data`, the bytes of a recording; never raises, whatever the bytes are.

    Later HEADER frames extend earlier ones. `lost_frames` counts the sequence numbers missing between the frames found.
    """
    return _contents_of((data,), None)


def read_long_contents(path: Path, blocks: Iterable[bytes], most_spans: int) -> Contents:
    """Return the content of a file that is read in blocks, as read_contents does; more than `most_spans` stay in it."""
    return _contents_of(blocks, (path, most_spans))


def _contents_of(blocks: Iterable[bytes], long: tuple[Path, int] | None) -> Contents:
    order = FrameOrder()
    contents = Contents()
    kept = _Payloads(*(long or (None, sys.maxsize)))
    checksum = hashlib.sha256()
    for item in fmt.scan_blocks(blocks):
        if isinstance(item, fmt.Gap):
            contents.gaps.append(item)
            continue
        contents.frames += 1
        checksum.update(item.crc.to_bytes(4, "little"))
        if not order.accepts(item, has_records=item.type in RECORD_BYTES):
            continue
        if item.type in RECORD_BYTES and len(item.payload) % RECORD_BYTES[item.type] == 0:
            kept.add(item, order)
        elif not take_facts(contents, item, order.states):
            contents.unknown_frames[item.type] += 1
    contents.missing_records = order.differences()
    contents.lost_frames = max(order.missing, contents.missing_records.pop("frames", 0))
    contents.repeated_frames = order.repeated
    contents.contradictory_frames = order.contradictory
    contents.checksum = checksum.digest()
    contents.header, contents.wrong_facts = checked_header(contents.header)
    take_records(contents, kept.of_type)
    contents.long = kept.long
    return contents


class _Payloads:
    """Payloads of frames with records; those of more spans than `most_spans` stay in the file, at `places`."""

    def __init__(self, path: Path | None, most_spans: int) -> None:
        self.of_type: dict[int, list[memoryview]] = {frame_type: [] for frame_type in RECORD_BYTES}
        self._path = path
        self._most_bytes = most_spans * SPAN_DTYPE.itemsize
        self._places: list[tuple[int, int]] = []
        self._spans_bytes = 0
        self._is_long = False

    @property
    def long(self) -> LongSpans | None:
        """The spans that stay in the file, None if all are among the payloads."""
        if not self._is_long or self._path is None:
            return None
        return LongSpans(
            (SpansInFile(self._path, tuple(self._places)),), self._spans_bytes // SPAN_DTYPE.itemsize
        )

    def add(self, frame: fmt.Frame, order: FrameOrder) -> None:
        """Keep the payload of a frame that `order` has accepted."""
        if frame.type != fmt.SPANS:
            self.of_type[frame.type].append(_own_copy(frame.payload) if self._is_long else frame.payload)
            return
        size_bytes = len(frame.payload)
        self._spans_bytes += size_bytes
        if self._path is not None:
            self._places.append((frame.offset + fmt.HEAD.size, size_bytes))
        if not self._is_long and self._spans_bytes > self._most_bytes:
            self._is_long = True
            order.forget_payloads()
            self.of_type[fmt.SPANS] = []
            for payloads in self.of_type.values():
                payloads[:] = map(_own_copy, payloads)
        if not self._is_long:
            self.of_type[fmt.SPANS].append(frame.payload)


def _own_copy(payload: memoryview) -> memoryview:
    """Return a payload that does not keep the block of its file in memory."""
    return memoryview(bytes(payload))


def with_earlier(earlier: Contents, last: Contents) -> Contents:
    """Return the content of a file and of the one that its process wrote before it, for what happened last."""
    spans = {
        name: np.concatenate([earlier.spans[name], column]) for name, column in last.spans.arrays.items()
    }
    kept = {name: earlier.state[name] for name in STAYING if name in earlier.state}
    newer = last.state or (earlier.state if not len(last.spans) else {})
    return replace(
        last,
        header=earlier.header | last.header,
        names=earlier.names | last.names,
        state=kept | newer,
        spans=Columns(spans, len(earlier.spans) + len(last.spans)),
        anchors=np.concatenate([earlier.anchors, last.anchors]),
        raw_anchors=np.concatenate([earlier.raw_anchors, last.raw_anchors]),
    )


def take_records(contents: Contents, payloads: Mapping[int, Sequence[memoryview]]) -> None:
    """Set the arrays of a content to the records of these payloads, by frame type."""
    contents.spans = split_columns(payloads[fmt.SPANS])
    contents.anchors = np.frombuffer(b"".join(payloads[fmt.CLOCK]), dtype=ANCHOR_DTYPE)
    contents.device_anchors = np.frombuffer(b"".join(payloads[fmt.DEVICE_CLOCK]), dtype=DEVICE_ANCHOR_DTYPE)
    contents.raw_anchors = np.frombuffer(b"".join(payloads[fmt.RAW_CLOCK]), dtype=RAW_ANCHOR_DTYPE)
    contents.counters = np.frombuffer(b"".join(payloads[fmt.COUNTERS]), dtype=COUNTER_DTYPE)


def take_facts(
    contents: Contents, frame: fmt.Frame, states: Callable[[fmt.Frame, dict[str, Any]], object]
) -> bool:
    """Add the content of a frame with JSON; return whether the frame type is known and the content valid.

    `states` gets what a frame states about those before it in the file.
    """
    try:
        facts = json.loads(bytes(frame.payload))
        if not isinstance(facts, dict):
            return False
        if frame.type in (fmt.HEADER, fmt.END):
            states(frame, {name: facts.pop(name) for name in STATED if name in facts})
        if frame.type == fmt.HEADER:
            contents.header |= facts
        elif frame.type == fmt.NAMES:
            contents.names |= _names(facts)
        elif frame.type == fmt.DROPS:
            dropped = _count(facts["dropped_spans"]), _count(facts.get("dropped_counters", 0))
            contents.dropped_spans, contents.dropped_counters = dropped
        elif frame.type == fmt.END:
            numbers = {name: _count(facts[name]) for name in ("spans", "dropped_spans")}
            contents.end = {**facts, **numbers}
            contents.dropped_spans = max(contents.dropped_spans, contents.end["dropped_spans"])
        elif frame.type == fmt.STATE:
            kept = {name: contents.state[name] for name in STAYING if name in contents.state}
            contents.state = {**kept, **facts}
        else:
            return False
    except (
        ValueError,
        TypeError,
        KeyError,
        RecursionError,
    ):  # a valid CRC over other content: not from our writer
        return False
    return True


def _names(facts: dict[str, Any]) -> dict[int, str]:
    """Return the entries of a NAMES frame. Raises ValueError unless they are texts."""
    names = facts["names"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("expected a list of texts")
    first = _count(facts["first"])
    if first > MAX_NAME_NUMBER:
        raise ValueError("no recording has as many names")
    return dict(enumerate(map(storable, names), first))


def _count(value: object) -> int:
    """Return a number of spans. Raises ValueError for anything that no process can have counted."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_NUMBER:
        raise ValueError("expected a count")
    return value
