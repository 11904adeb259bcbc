"""Traces read in processes of their own."""

import pytest

from ingest.kineto.planted_traces import mark, write_trace
from nsight_reports import Planted, write_report
from stagescope.ingest import processes as parallel
from stagescope.ingest.kineto.rank_trace import read_rank
from stagescope.ingest.nsight.process_trace import read_report
from stagescope.ingest.processes import read_each
from stagescope.vocabulary.errors import InputError


@pytest.fixture
def paths(tmp_path):
    return [
        write_trace(tmp_path / f"rank{rank}.json", [mark(f"PP:{rank}F0", 0, 9)], rank=rank, ranks=(0, 1, 2))
        for rank in range(3)
    ]


def read(monkeypatch, paths, cores, pattern=None, function=read_rank):
    monkeypatch.setattr(parallel, "LARGE_BYTES", 1)
    monkeypatch.setattr(parallel, "_cores", lambda: cores)
    seen = []
    return read_each(function, paths, seen.append, pattern), seen


def test_what_was_read_elsewhere_is_the_same_in_the_order_of_the_files(monkeypatch, paths):
    here, _ = read(monkeypatch, paths, 1)
    there, seen = read(monkeypatch, paths, 2)
    assert sorted(seen) == paths
    assert [trace.path for trace in there] == paths
    for one, other in zip(here, there, strict=True):
        assert one.facts == other.facts
        assert one.actions.equals(other.actions)


def test_small_traces_are_read_here(monkeypatch, paths):
    monkeypatch.setattr(parallel.subprocess, "run", None)
    monkeypatch.setattr(parallel, "_cores", lambda: 2)
    assert len(read_each(read_rank, paths, lambda _: None)) == 3


def test_a_pattern_is_known_elsewhere(monkeypatch, tmp_path):
    paths = [write_trace(tmp_path / f"rank{n}.json", [mark("-fwd-3", 0, 9)], rank=n) for n in (0, 1)]
    found, _ = read(monkeypatch, paths, 2, "-{kind}-{microbatch}")
    assert [trace.actions["microbatch"].to_list() for trace in found] == [[3], [3]]


def test_reports_of_nsight_are_read_elsewhere_too(monkeypatch, tmp_path):
    planted = Planted()
    planted.range("F0.0", 0, 10)
    planted.kernel(5, 100, 200)
    paths = [write_report(tmp_path / f"rank{n}.sqlite", planted) for n in (0, 1)]
    found, _ = read(monkeypatch, paths, 2, function=read_report)
    assert [trace.spans.height for traces in found for trace in traces] == [1, 1]


def test_an_error_elsewhere_is_the_same_error(monkeypatch, paths):
    paths[1].write_text('{"schemaVersion": 1, "deviceProperties": []', encoding="utf-8")
    with pytest.raises(InputError, match="no list of events"):
        read(monkeypatch, paths, 2)


def test_a_process_that_dies_costs_one_sentence(monkeypatch, paths):
    monkeypatch.setattr(parallel.sys, "executable", "false")
    with pytest.raises(InputError, match="the process that read it failed: exit code 1"):
        read(monkeypatch, paths, 2)
