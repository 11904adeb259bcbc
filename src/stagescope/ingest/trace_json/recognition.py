"""Whose Chrome trace a file is, by its beginning."""

from __future__ import annotations

HEADER = (b'"schemaVersion"', b'"deviceProperties"')
EVENTS = (
    *(b'"External id"', b'"Ev Idx"', b'"baseTimeNanoseconds"'),
    *(b'"gpu_user_annotation"', b'"user_annotation"', b'"cpu_op"'),
)
PADDLE = b'"span_index"'
OURS = b'{"traceEvents":[\n{"ph":"M","pid":'
"""How an export of stagescope begins: it was made from a recording, which is what is to be read."""


def is_chrome_trace(head: bytes) -> bool:
    """Tell whether a file is a Chrome trace that neither Paddle nor stagescope has written."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if PADDLE in head or head.startswith(OURS):
        return False
    if text.startswith(b"["):
        return b'"ph"' in head
    return text.startswith(b"{") and (b'"traceEvents"' in head or all(mark in head for mark in HEADER))


def is_torch_trace(head: bytes) -> bool:
    """Tell whether a Chrome trace is one of torch.profiler: by its header, else by the fields of its events."""
    if not is_chrome_trace(head):
        return False
    return all(mark in head for mark in HEADER) or any(mark in head for mark in EVENTS)
