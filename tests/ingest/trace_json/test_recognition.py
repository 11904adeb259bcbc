"""Recognizing the writer of a trace."""

import pytest

from stagescope.ingest.trace_json.recognition import is_chrome_trace, is_torch_trace


@pytest.mark.parametrize(
    ("head", "chrome", "torch"),
    [
        (b'{\n  "schemaVersion": 1,\n  "deviceProperties": [], "distributedInfo": {', True, True),
        (b'\xef\xbb\xbf{"traceEvents": [{"ph": "X", "args": {"External id": 1', True, True),
        (b'{"traceEvents":[{"ph":"X","cat":"user_annotation","name":"PP:0F0"', True, True),
        (b'{"traceEvents": [{"ph": "X", "name": "F_0"', True, False),
        (b' [\n{"name": "F_0", "ph": "B"', True, False),
        (
            b'{"displayTimeUnit": "ms", "schemaVersion": "1.0.2", "span_index": "0", "traceEvents": [',
            False,
            False,
        ),
        (b'{"traceEvents":[\n{"ph":"M","pid":0,"name":"process_name"', False, False),
        (b'{"schemaVersion": 1}', False, False),
        (b"[1, 2, 3]", False, False),
        (b"", False, False),
        (b"\x80\x04\x95traceEvents", False, False),
    ],
)
def test_the_writer_of_a_trace_is_recognized_by_its_beginning(head, chrome, torch):
    assert (is_chrome_trace(head), is_torch_trace(head)) == (chrome, torch)
