"""Worker logs of a run, and their ranks."""

from pathlib import Path

import pytest

from stagescope.ingest.paddle.worker_logs import device_of, find_worker_logs, machine_names
from stagescope.vocabulary.errors import InputError


def make(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return directory


def found(directory: Path, devices=None, *, multi_machine=False):
    logs = find_worker_logs(directory, devices, multi_machine=multi_machine)
    return [(log.path.relative_to(directory).as_posix(), log.machine, log.device, log.rank) for log in logs]


@pytest.mark.parametrize(
    ("name", "device"),
    [("workerlog.0", 0), ("workerlog.12", 12), ("WORKERLOG.3", 3), ("workerlog.1.gz", 1), ("workerlog.1.zst", 1),
     ("workerlog", None), ("workerlog.x", None), ("workerlog.1.bak", None), ("myworkerlog.1", None)],
)  # fmt: skip
def test_reads_the_device_from_the_name(name, device):
    assert device_of(Path("logs", name)) == device


def test_logs_are_sorted_by_device(tmp_path):
    make(tmp_path, *(f"workerlog.{number}" for number in (10, 2, 0, 1, *range(3, 10))), "default.0.log")
    assert [rank for *_, rank in found(tmp_path)] == list(range(11))


def test_implied_and_requested_devices_are_listed_without_a_file(tmp_path):
    make(tmp_path, "workerlog.0", "workerlog.3")
    assert [name for name, *_ in found(tmp_path)] == [f"workerlog.{number}" for number in range(4)]
    assert found(tmp_path, [3, 5]) == [("workerlog.3", None, 3, 3), ("workerlog.5", None, 5, 5)]


def test_ranks_are_numbered_across_machines_in_natural_order(tmp_path):
    make(tmp_path, *(f"node{n}/workerlog.{device}" for n in (10, 2, 1) for device in (0, 1)), "notes/readme")
    assert found(tmp_path, multi_machine=True) == [
        ("node1/workerlog.0", "node1", 0, 0), ("node1/workerlog.1", "node1", 1, 1),
        ("node2/workerlog.0", "node2", 0, 2), ("node2/workerlog.1", "node2", 1, 3),
        ("node10/workerlog.0", "node10", 0, 4), ("node10/workerlog.1", "node10", 1, 5),
    ]  # fmt: skip


def test_machines_with_equal_names_are_distinguished_by_parent_folders():
    folders = [Path("/run/a/logs"), Path("/run/b/logs"), Path("/run/c/other")]
    assert list(machine_names(folders).values()) == ["a/logs", "b/logs", "other"]


def test_a_directory_without_logs_is_refused(tmp_path):
    make(tmp_path, "machine0/workerlog.0")
    with pytest.raises(InputError) as refused:
        find_worker_logs(tmp_path)
    assert str(refused.value) == f"no workerlog.N in {tmp_path}"
    assert "sub-directories" in refused.value.hint
