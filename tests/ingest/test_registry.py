"""The registry of built-in and third-party readers."""

import sys
from importlib.metadata import EntryPoint

import pytest

from stagescope.api import READERS
from stagescope.ingest import registry
from stagescope.ingest.paddle import log_reader as paddle_log
from stagescope.ingest.reader import Reader
from stagescope.ingest.registry import ENTRY_POINT_GROUP, load_registry
from stagescope.model import empty_timeline

THIRD_PARTY = Reader("third", ("*.third",), "", lambda *_: False, lambda *_: empty_timeline())
NO_READER = object()


@pytest.fixture
def registered(monkeypatch):
    def register(*values: str) -> None:
        entries = [EntryPoint("third", value, ENTRY_POINT_GROUP) for value in values]
        monkeypatch.setattr(
            registry, "entry_points", lambda group: entries if group == ENTRY_POINT_GROUP else []
        )
        monkeypatch.setitem(sys.modules, "third_party", sys.modules[__name__])

    return register


def test_the_built_in_readers_are_registered(registered):
    registered()
    assert load_registry(READERS) == (READERS, ())


def test_readers_that_scan_whole_files_come_last():
    assert READERS[-1] is paddle_log.READER


def test_reader_names_are_distinct_and_patterns_are_lower_case():
    assert len({reader.name for reader in READERS}) == len(READERS)
    assert all(pattern == pattern.lower() for reader in READERS for pattern in reader.patterns)


HEADS = {
    "rank0.sscope": b"\xabSSC\0\0\0\0",
    "spans.parquet": b"PAR1\x15\x04",
    "spans.csv": b"rank,lane,kind,start_ns,end_ns\n",
    "workerlog.0": b"LAUNCH INFO 2023-11-20 09:31:01,881",
    "profile_record_tmp_file_for_rank_0": b'{"name": "F0", "cat": "pipeline timeline", "ph": "B", "ts": 1}\n',
    "rank0.json": b'{"schemaVersion": 1, "deviceProperties": [], "trace_id": "A1", "traceEvents": [',
    "rank0_results.json": b'{\n "rocprofiler-sdk-tool": [\n  {\n   "metadata": {\n    "pid": 908',
    "rank0_results.db": b"",
    "run.otlp.jsonl": b'{"resourceSpans":[{"resource":{"attributes":[',
    "host.xplane.pb": b"\x0a\x9d\xb2\x08\x12\x0e/host:metadata",
    "trace.json": b'{"traceEvents": [{"ph": "X", "name": "forward_0", "ts": 0, "dur": 1, "pid": 0}',
    "pp_rank_0.json": b'{\n  "1": {\n    "total": 9.5,\n    "memory": 1.0,\n    "fwd_start": [\n      0.5',
    "run.pftrace": b"\x0a\x0e\x50\x01\xe2\x03\x09\x08\x01\x12\x03run\x60\x00",
    "pid1.paddle_trace.json": b'{"displayTimeUnit": "ms", "schemaVersion": "1.0.2", "span_index": "0", "traceEv',
}


@pytest.mark.parametrize("name", HEADS)
def test_no_two_readers_recognize_the_same_file(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(HEADS[name])
    assert sum(reader.recognizes(path, HEADS[name]) for reader in READERS) == 1


def test_third_party_readers_come_after_the_built_in_ones(registered):
    registered("third_party:THIRD_PARTY")
    assert load_registry(READERS) == ((*READERS, THIRD_PARTY), ())


def test_a_reader_that_fails_to_load_is_reported_and_the_others_work(registered):
    registered("no_such_module_anywhere:READER", "third_party:NO_READER", "third_party:THIRD_PARTY")
    readers, diagnostics = load_registry(READERS)
    assert readers == (*READERS, THIRD_PARTY)
    unusable = "the registered reader 'third' cannot be used: "
    assert [(row.severity, row.message, row.location) for row in diagnostics] == [
        (
            "warning",
            unusable + "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
            "no_such_module_anywhere:READER",
        ),
        ("warning", unusable + "it is of type object, not a Reader", "third_party:NO_READER"),
    ]
