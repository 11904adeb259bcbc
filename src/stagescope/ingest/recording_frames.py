"""The frames of one recording file, as arrays and facts, with everything that is missing."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stagescope.vocabulary import recording as fmt

if TYPE_CHECKING:
    import numpy.typing as npt

SPAN_DTYPE = np.dtype(list(fmt.SPAN_FIELDS))
ANCHOR_DTYPE = np.dtype(list(fmt.ANCHOR_FIELDS))


@dataclass
class Contents:
    """What the intact frames of one file hold, and the stretches that hold none."""

    header: dict[str, Any] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    dropped_spans: int = 0
    spans: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, SPAN_DTYPE))
    anchors: npt.NDArray[np.void] = field(default_factory=lambda: np.empty(0, ANCHOR_DTYPE))
    frames: int = 0
    lost_frames: int = 0
    gaps: list[fmt.Gap] = field(default_factory=list)
    unknown_frames: Counter[int] = field(default_factory=Counter)


def read_contents(data: bytes) -> Contents:
    """Return what `data`, the bytes of a recording, holds; never raises, whatever the bytes are.

    Later HEADER frames add to earlier ones. `lost_frames` counts the sequence numbers that are missing between
    the frames that are there.
    """
    contents = Contents()
    payloads: dict[int, list[memoryview]] = {fmt.SPANS: [], fmt.CLOCK: []}
    expected = 0
    for item in fmt.scan_frames(data):
        if isinstance(item, fmt.Gap):
            contents.gaps.append(item)
            continue
        contents.frames += 1
        contents.lost_frames += max(0, item.sequence - expected)
        expected = item.sequence + 1
        if item.type in payloads:
            payloads[item.type].append(item.payload)
        else:
            _take_facts(contents, item)
    contents.spans = _records(payloads[fmt.SPANS], SPAN_DTYPE)
    contents.anchors = _records(payloads[fmt.CLOCK], ANCHOR_DTYPE)
    return contents


def _take_facts(contents: Contents, frame: fmt.Frame) -> None:
    """Take over a frame that carries JSON; the CRC has vouched for it."""
    if frame.type not in (fmt.HEADER, fmt.NAMES, fmt.DROPS, fmt.END):
        contents.unknown_frames[frame.type] += 1
        return
    facts = json.loads(bytes(frame.payload))
    if frame.type == fmt.HEADER:
        contents.header |= facts
    elif frame.type == fmt.NAMES:
        contents.names |= dict(enumerate(facts["names"], facts["first"]))
    elif frame.type == fmt.DROPS:
        contents.dropped_spans = facts["dropped_spans"]
    else:
        contents.end = facts
        contents.dropped_spans = max(contents.dropped_spans, facts.get("dropped_spans", 0))


def _records(payloads: list[memoryview], dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    return np.frombuffer(b"".join(payloads), dtype=dtype)
