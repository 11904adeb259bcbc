"""Recognize the tool that wrote a Chrome trace from the beginning of the file."""

from __future__ import annotations

HEADER = (b'"schemaVersion"', b'"deviceProperties"')
EVENTS = (
    *(b'"External id"', b'"Ev Idx"', b'"baseTimeNanoseconds"'),
    *(b'"gpu_user_annotation"', b'"user_annotation"', b'"cpu_op"'),
)
PADDLE = b'"span_index"'
OURS = b'{"traceEvents":[\n{"ph":"M","pid":'
"""The beginning of stagescope's own exports. They are not read: the recording they were made from should be."""


def is_chrome_trace(head: bytes) -> bool:
    """Return whether a file is a Chrome trace that was written by neither Paddle nor stagescope."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if PADDLE in head or head.startswith(OURS):
        return False
    if text.startswith(b"["):
        return b'"ph"' in head
    return text.startswith(b"{") and (b'"traceEvents"' in head or all(mark in head for mark in HEADER))


def is_torch_trace(head: bytes) -> bool:
    """Return whether a Chrome trace was written by torch.profiler: by its header, else by the fields of its events."""
    if not is_chrome_trace(head):
        return False
    return all(mark in head for mark in HEADER) or any(mark in head for mark in EVENTS)
