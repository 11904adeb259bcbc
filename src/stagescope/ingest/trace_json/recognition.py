"""Recognize the tool that wrote a Chrome trace from the beginning of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.ingest.streams import open_stream

if TYPE_CHECKING:
    from pathlib import Path

HEADER = (b'"schemaVersion"', b'"deviceProperties"')
EVENTS = (
    *(b'"External id"', b'"Ev Idx"', b'"baseTimeNanoseconds"'),
    *(b'"gpu_user_annotation"', b'"user_annotation"', b'"cpu_op"'),
)
MOST_HEAD_BYTES = 1 << 20
SUFFIXES = (".json", ".json.gz", ".json.zst")
"""What files may be called that are looked into, whatever their name."""

MERGED = b'"pp_rank_count"'
PADDLE = b'"span_index"'
OURS = (
    b'{"traceEvents":[\n{"ph":"M","pid":',
    b'{"traceEvents": [\n{"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "Paddle pip',
)
"""Beginnings of stagescope's exports for Chrome and of those of `stagescope paddle`, whose process Paddle's own script
does not name. They are not read: the recording they were made from should be.
"""


def is_own_export(head: bytes) -> bool:
    """Return whether stagescope exported a Chrome trace, alone, merged with the original traces, or for Paddle."""
    return head.startswith(OURS)


def is_chrome_trace(head: bytes) -> bool:
    """Return whether a file is a Chrome trace that was written by neither Paddle nor stagescope."""
    text = head.lstrip()
    if PADDLE in head or is_own_export(head):
        return False
    if text.startswith(b"["):
        return b'"ph"' in head
    return text.startswith(b"{") and (b'"traceEvents"' in head or all(mark in head for mark in HEADER))


def longer_head(path: Path, head: bytes) -> bytes:
    """Return the beginning of a JSON object up to its list of events, if that begins within MOST_HEAD_BYTES.

    Tools add metadata before the events: 23 KB in traces of multi-node runs, whose process groups list all ranks.
    """
    if not head.lstrip().startswith(b"{") or b'"traceEvents"' in head:
        return head
    with open_stream(path) as stream:
        longer = stream.read(MOST_HEAD_BYTES)
    found = longer.find(b'"traceEvents"')
    return head if found < 0 else longer[: found + len(head)]


def is_torch_trace(head: bytes) -> bool:
    """Return whether a Chrome trace was written by torch.profiler: by its header, else by the fields of its events."""
    if not is_chrome_trace(head):
        return False
    return all(mark in head for mark in HEADER) or any(mark in head for mark in EVENTS)


def is_merged_torch_trace(path: Path, head: bytes) -> bool:
    """Return whether a trace has all pipeline ranks, as merge_pp_traces of torchtitan writes it.

    Source: compact_cuda_graph_trace.py of pytorch/torchtitan, at 2054a2d: `distributedInfo` has `pp_rank_count`.
    """
    return is_torch_trace(head) and MERGED in longer_head(path, head).partition(b'"traceEvents"')[0]


def looks_like_events(head: bytes) -> bool:
    """Return whether a file may be a Chrome trace of any writer, from its beginning."""
    text = head.lstrip()
    return text.startswith((b"{", b"["))
