"""Recognizing the writer of a trace."""

import json

import pytest

from stagescope.api import READERS
from stagescope.ingest.trace_json.recognition import is_chrome_trace, is_torch_trace, longer_head


@pytest.mark.parametrize(
    ("head", "chrome", "torch"),
    [
        (b'{\n  "schemaVersion": 1,\n  "deviceProperties": [], "distributedInfo": {', True, True),
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


def test_metadata_of_23_kilobytes_may_precede_the_events(tmp_path):
    # As in ten traces of AMD-AGI/TraceLens: the process groups of a large run list all of their ranks.
    groups = [{"pg_name": str(number), "ranks": list(range(64))} for number in range(100)]
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 1}
    path = tmp_path / "rank0.json"
    path.write_text(
        json.dumps({"distributedInfo": {"pg_config": groups}, "traceEvents": [event]}), encoding="utf-8"
    )
    head = path.read_bytes()[:4096]
    assert path.stat().st_size > 23_000
    assert not is_torch_trace(head)
    assert is_torch_trace(longer_head(path, head))
    assert [reader.name for reader in READERS if reader.recognizes(path, head)] == ["kineto"]


def test_other_objects_are_not_read_further(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"a": 1}' + " " * 5000, encoding="utf-8")
    assert longer_head(path, b'{"a": 1}') == b'{"a": 1}'
    assert longer_head(tmp_path / "missing", b"[1]") == b"[1]"
