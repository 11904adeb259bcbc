"""Worker logs of a run: `workerlog.N`, one per device, in one directory or one directory per machine.

Source: paddle.distributed.launch of PaddlePaddle 3.3.1 (launch/controllers/collective.py) writes them on each machine,
numbered from 0; users with several machines copy the directories together.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.paddle import errors
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

LOG_NAME = re.compile(r"workerlog\.(\d{1,6})(?:\.gz|\.zst)?", re.IGNORECASE)


class WorkerLog(NamedTuple):
    """Log of one rank; the file may be missing, which is reported when it is read."""

    path: Path
    machine: str | None
    device: int
    rank: int


def find_worker_logs(
    log_dir: Path, devices: Sequence[int] | None = None, *, multi_machine: bool = False
) -> list[WorkerLog]:
    """Return the logs of a directory in the order of their ranks, of some devices or of all.

    With `multi_machine` every sub-directory with logs is a machine, in natural order. Devices that were requested, or
    that the numbering implies, are listed even if their file is missing. Raises InputError for a path that is not a
    directory and for a directory without logs.
    """
    if not log_dir.is_dir():
        raise InputError.no_such_path(log_dir)
    folders = [folder for folder in log_dir.iterdir() if folder.is_dir()] if multi_machine else [log_dir]
    found = {folder: _logs_in(folder) for folder in folders}
    by_folder = {folder: logs for folder, logs in found.items() if logs}
    if not by_folder:
        raise errors.no_worker_logs(log_dir)
    return number_ranks(by_folder, devices, multi_machine=multi_machine)


def number_ranks(
    by_folder: Mapping[Path, Iterable[tuple[int, Path]]],
    devices: Sequence[int] | None = None,
    *,
    multi_machine: bool,
) -> list[WorkerLog]:
    """Return the logs of every folder with their ranks: the device, or a running number over several machines."""
    # Without several machines the device is the rank, so selected devices keep their numbers.
    names = machine_names(by_folder) if multi_machine else dict.fromkeys(by_folder)
    logs: list[WorkerLog] = []
    for folder in sorted(by_folder, key=lambda folder: natural_key(str(folder))):
        for device, path in _every_device(folder, by_folder[folder], devices):
            rank = len({(log.machine, log.device) for log in logs}) if multi_machine else device
            logs.append(WorkerLog(path, names[folder], device, rank))
    return logs


def device_of(path: Path) -> int | None:
    """Return the device of a worker log by its file name, None for any other name."""
    found = LOG_NAME.fullmatch(path.name)
    return int(found[1]) if found else None


def machine_names(folders: Iterable[Path]) -> dict[Path, str]:
    """Return a name for each machine: its folder's, with parent folders where that is ambiguous."""
    left = dict.fromkeys(folders, 1)
    names = {folder: folder.name for folder in left}
    while len(set(names.values())) < len(names) and any(depth < len(f.parts) for f, depth in left.items()):
        taken = list(names.values())
        for folder, name in names.items():
            left[folder] += taken.count(name) > 1
        names = {folder: "/".join(folder.parts[-depth:]) for folder, depth in left.items()}
    return names


def _logs_in(folder: Path) -> list[tuple[int, Path]]:
    """Return device and path of the worker logs in a folder."""
    numbered = ((device_of(path), path) for path in folder.iterdir() if path.is_file())
    return [(device, path) for device, path in numbered if device is not None]


def _every_device(
    folder: Path, found: Iterable[tuple[int, Path]], devices: Sequence[int] | None
) -> list[tuple[int, Path]]:
    """Return device and path of each wanted log, with the expected path of missing ones."""
    present = sorted(found)
    there = {device for device, _ in present} | {device for device, _ in _logs_in(folder)}
    # Devices are numbered without gaps: a missing number below the highest is a missing log.
    wanted = range(max(there) + 1) if devices is None else dict.fromkeys(devices)
    absent = [(device, folder / f"workerlog.{device}") for device in wanted if device not in there]
    if devices is None:
        return sorted([*present, *absent])
    return sorted([*(each for each in present if each[0] in wanted), *absent])
