"""Reading the files of a run in worker processes, if they are large together."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from ascend_profiles import Cluster, write_cluster
from ingest.failing_reads import (
    read_and_die,
    read_and_fail,
    read_and_name_the_process,
    read_first_and_hang,
    read_or_die,
    read_or_die_of_even_ranks,
)
from ingest.kineto.planted_traces import event, mark, write_trace
from nsight_reports import Planted, write_report
from places import DATA, TESTS
from stagescope import api
from stagescope.ingest import processes
from stagescope.ingest.kineto.rank_trace import read_rank
from stagescope.ingest.nsight.exports import read_report
from stagescope.ingest.processes import read_each
from stagescope.vocabulary.errors import InputError

SCRIPT = """
from pathlib import Path
from stagescope.ingest import processes
from stagescope.ingest.kineto.rank_trace import read_rank

print("run")
processes.LARGE_BYTES, processes.core_count = 1, lambda: 2
print(len(processes.read_each(read_rank, [Path(path) for path in {paths}], lambda _: None)[0]))
"""


@pytest.fixture
def paths(tmp_path):
    return [
        write_trace(tmp_path / f"rank{rank}.json", [mark(f"PP:{rank}F0", 0, 9)], rank=rank, ranks=(0, 1, 2))
        for rank in range(3)
    ]


def read(monkeypatch, paths, cores, pattern=None, function=read_rank):
    monkeypatch.setattr(processes, "LARGE_BYTES", 1)
    monkeypatch.setattr(processes, "core_count", lambda: cores)
    seen = []
    found, _ = read_each(function, paths, seen.append, pattern)
    return found, seen


def test_workers_return_the_same_as_this_process_in_the_order_of_the_files(monkeypatch, paths):
    local, _ = read(monkeypatch, paths, 1)
    remote, seen = read(monkeypatch, paths, 2)
    assert sorted(seen) == paths
    assert [trace.path for trace in remote] == paths
    for one, other in zip(local, remote, strict=True):
        assert one.facts == other.facts
        assert one.actions.equals(other.actions)


def test_small_files_are_read_in_this_process(monkeypatch, paths):
    monkeypatch.setattr(processes, "ProcessPoolExecutor", None)
    monkeypatch.setattr(processes, "core_count", lambda: 2)
    assert len(read_each(read_rank, paths, lambda _: None)[0]) == 3


def named_ranks(directory, count):
    """Return small files that differ only in their names."""
    found = [directory / f"rank{rank}.json" for rank in range(count)]
    for path in found:
        path.write_bytes(b"[" * 100)
    return found


def test_small_files_are_read_by_workers_if_they_are_large_together(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "core_count", lambda: 2)
    monkeypatch.setattr(processes, "FILE_BYTES", 1)
    few, many = named_ranks(tmp_path, 3), named_ranks(tmp_path, 8)
    monkeypatch.setattr(processes, "LARGE_BYTES", 400)
    assert set(read_each(read_and_name_the_process, few, lambda _: None)[0]) == {os.getpid()}
    assert os.getpid() not in read_each(read_and_name_the_process, many, lambda _: None)[0]


def test_a_file_counts_as_much_as_reading_an_empty_one_takes(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "core_count", lambda: 64)
    assert processes._worker_count(named_ranks(tmp_path, 100)) == 1
    assert processes._worker_count(named_ranks(tmp_path, 200)) == 3


@pytest.fixture
def run_of(tmp_path):
    """Return a function that writes a run in a format and returns its directory."""

    def write(name):
        if name == "kineto":
            return DATA / "kineto" / "1F1B"
        if name == "ascend":
            write_cluster(tmp_path, Cluster(steps=1))
            return tmp_path
        for rank in range(3):
            events = [
                event(None, f"{kind}_{number}", at, at + 5)
                for kind, at in (("forward", 0), ("backward", 20))
                for number in range(2)
                for at in [at + 7 * number + rank]
            ]
            (tmp_path / f"trace_rank{rank}.json").write_text(json.dumps(events), encoding="utf-8")
        return tmp_path

    return write


@pytest.mark.parametrize("name", ["kineto", "ascend", "chrome"])
def test_a_run_does_not_depend_on_workers(monkeypatch, run_of, name):
    directory = run_of(name)
    monkeypatch.setattr(processes, "LARGE_BYTES", 1)
    runs = []
    for cores in (1, 2):
        monkeypatch.setattr(processes, "core_count", lambda cores=cores: cores)
        runs.append(api.read(directory))
    local, remote = runs
    assert local.spans.height
    for table in ("spans", "ranks", "steps", "clocks", "diagnostics"):
        assert getattr(local, table).equals(getattr(remote, table)), table


def test_several_files_that_kill_their_workers_are_named_and_the_others_are_read(monkeypatch, tmp_path):
    paths = named_ranks(tmp_path, 7)
    monkeypatch.setattr(processes, "LARGE_BYTES", 1)
    monkeypatch.setattr(processes, "core_count", lambda: 2)
    found, refused = read_each(read_or_die_of_even_ranks, paths, lambda _: None)
    assert found == ["rank1.json", "rank3.json", "rank5.json"]
    assert [one.source for one in refused] == [str(path) for path in paths[::2]]


def test_reading_ends_if_many_files_in_a_row_kill_their_workers(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "LARGE_BYTES", 1)
    monkeypatch.setattr(processes, "core_count", lambda: 2)
    monkeypatch.setattr(processes, "MOST_KILLED", 2)
    seen = []
    with pytest.raises(InputError, match=r"rank1\.json was not read: a worker process"):
        read_each(read_and_die, named_ranks(tmp_path, 100), seen.append)
    assert [path.name for path in seen] == ["rank0.json"]


def test_workers_fit_into_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "LARGE_BYTES", 1)
    monkeypatch.setattr(processes, "core_count", lambda: 64)
    paths = named_ranks(tmp_path, 100)
    for size_bytes, workers in ((None, 64), (200 << 20, 1), (1 << 30, 3), (64 << 30, 64)):
        monkeypatch.setattr(processes, "memory_bytes", lambda size_bytes=size_bytes: size_bytes)
        assert processes._worker_count(paths) == workers


INTERRUPTED = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from ingest.failing_reads import read_slowly
from stagescope.ingest import processes

processes.LARGE_BYTES, processes.core_count = 1, lambda: 2
processes.read_each(read_slowly, sorted(Path({directory!r}).iterdir()), lambda path: print(path, flush=True))
"""


def has_members(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(sys.platform == "win32", reason="there are no process groups")
def test_ctrl_c_ends_the_workers_that_read_many_files(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    named_ranks(files, 1000)
    program = INTERRUPTED.format(tests=str(TESTS), directory=str(files))
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as process:
        assert process.stdout.readline().strip().endswith(".json")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, errors = process.communicate(timeout=60)
    assert process.returncode in {1, -signal.SIGINT}
    assert errors.count("Traceback") == errors.count("KeyboardInterrupt") == 1
    deadline = time.monotonic() + 20
    while has_members(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not has_members(process.pid)


def test_a_daemonic_process_reads_without_workers(monkeypatch, paths):
    monkeypatch.setattr(processes, "ProcessPoolExecutor", None)
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    found, _ = read(monkeypatch, paths, 2)
    assert len(found) == 3


def test_workers_get_the_pattern(monkeypatch, tmp_path):
    paths = [write_trace(tmp_path / f"rank{n}.json", [mark("-fwd-3", 0, 9)], rank=n) for n in (0, 1)]
    found, _ = read(monkeypatch, paths, 2, "-{kind}-{microbatch}")
    assert [trace.actions["microbatch"].to_list() for trace in found] == [[3], [3]]


def test_workers_read_nsight_reports(monkeypatch, tmp_path):
    planted = Planted()
    planted.range("F0.0", 0, 10)
    planted.kernel(5, 100, 200)
    paths = [write_report(tmp_path / f"rank{n}.sqlite", planted) for n in (0, 1)]
    found, _ = read(monkeypatch, paths, 2, function=read_report)
    assert [trace.spans.height for traces in found for trace in traces] == [1, 1]


def test_a_file_that_a_worker_refuses_is_named_and_the_others_are_read(monkeypatch, paths):
    paths[1].write_text('{"schemaVersion": 1, "deviceProperties": []', encoding="utf-8")
    monkeypatch.setattr(processes, "LARGE_BYTES", 1)
    monkeypatch.setattr(processes, "core_count", lambda: 2)
    found, (refused,) = read_each(read_rank, paths, lambda _: None)
    assert [trace.path for trace in found] == [paths[0], paths[2]]
    assert (refused.severity, refused.code, refused.source) == ("error", "file.unreadable", str(paths[1]))


def test_an_input_error_in_a_worker_keeps_its_type_and_text(monkeypatch, paths):
    for path in paths[:2]:
        path.write_text('{"schemaVersion": 1, "deviceProperties": []', encoding="utf-8")
    with pytest.raises(InputError, match=r"rank0\.json: no list of events"):
        read(monkeypatch, paths[:2], 2)


def test_any_other_error_in_a_worker_keeps_its_type(monkeypatch, paths):
    with pytest.raises(ZeroDivisionError, match=r"rank[01]\.json"):  # whichever worker is the first
        read(monkeypatch, paths[:2], 2, function=read_and_fail)


def test_a_killed_worker_is_an_input_error(monkeypatch, paths):
    with pytest.raises(InputError, match="a worker process that was reading traces was killed"):
        read(monkeypatch, paths[:2], 2, function=read_and_die)
    assert multiprocessing.active_children() == []


def test_a_file_that_kills_its_worker_is_named_and_the_others_are_read(monkeypatch, paths):
    monkeypatch.setattr(processes, "LARGE_BYTES", 1)
    monkeypatch.setattr(processes, "core_count", lambda: 2)
    seen = []
    found, (refused,) = read_each(read_or_die, paths, seen.append)
    assert found == [paths[0].name, paths[2].name]
    assert (refused.code, refused.source) == ("file.unreadable", str(paths[1]))
    assert sorted(seen) == paths
    assert multiprocessing.active_children() == []


def test_no_worker_is_left_when_reading_ends_early(monkeypatch, paths):
    with pytest.raises(ZeroDivisionError):
        read(monkeypatch, paths[:2], 2, function=read_first_and_hang)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("from_stdin", [True, False])
def test_a_program_without_a_main_guard_runs_once(tmp_path, paths, from_stdin):
    text = SCRIPT.format(paths=[str(path) for path in paths])
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    command = [sys.executable, "-"] if from_stdin else [sys.executable, str(script)]
    done = subprocess.run(
        command, input=text if from_stdin else None, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["run", "3"]
