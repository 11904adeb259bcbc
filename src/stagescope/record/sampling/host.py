"""Counters of the process and of its CPUs, as Linux states them in files.

Sources: proc_pid_status(5) for VmRSS and VmHWM, proc_pid_stat(5) for the CPU on which a thread ran last, and the
kernel's documents cgroup-v2 (cpu.stat), cpufreq (scaling_cur_freq) and x86's thermal_throttle. On other systems there
are no such counters. Not read: /proc/cpuinfo, which asks every CPU for its frequency.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from stagescope.vocabulary.counters import (
    CPU_FREQUENCY,
    CPU_QUOTA_WAIT,
    CPU_THROTTLES,
    PEAK_RESIDENT,
    RESIDENT,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Source = Callable[[], list[tuple[str, float]]]

PROC = "/proc"
CPUS = "/sys/devices/system/cpu"
CGROUPS = "/sys/fs/cgroup"
KIB = 1024
PROCESSOR_FIELD = 36
"""Position of the CPU in /proc/.../stat, counted from 0 after the name of the command."""
_MEMORY = {"VmRSS": RESIDENT, "VmHWM": PEAK_RESIDENT}


def host_sources() -> list[Source]:
    """Return functions that read the counters of this process. Each may raise where its files do not exist."""
    return [resident_memory, cpu_frequency, _quota_wait(), _throttles()]


def resident_memory() -> list[tuple[str, float]]:
    """Return the memory of the process in RAM, and its peak.

    The peak is that of the kernel and not of getrusage, which a process inherits from the one that started it.
    """
    lines = (line.partition(":") for line in _read(f"{PROC}/self/status").splitlines())
    return [(_MEMORY[name], int(value.split()[0]) * KIB) for name, _, value in lines if name in _MEMORY]


def cpu_frequency() -> list[tuple[str, float]]:
    """Return the frequency of the CPU on which the main thread ran last."""
    thread = threading.main_thread().native_id
    fields = _read(f"{PROC}/self/task/{thread}/stat").rpartition(")")[2].split()
    kilohertz = int(_read(f"{CPUS}/cpu{fields[PROCESSOR_FIELD]}/cpufreq/scaling_cur_freq"))
    return [(CPU_FREQUENCY, kilohertz / 1e3)]


def _quota_wait() -> Source:
    """Return the source of the time in which the threads of a control group had used up their CPU quota."""

    def read() -> list[tuple[str, float]]:
        facts = dict(line.split() for line in _read(path).splitlines())
        # Version 2 counts microseconds, version 1 nanoseconds.
        wait_ns = (
            int(facts["throttled_usec"]) * 1000 if "throttled_usec" in facts else int(facts["throttled_time"])
        )
        return [(CPU_QUOTA_WAIT, wait_ns)]

    path = _file_of_cgroup()
    return read


def _file_of_cgroup() -> str:
    """Return the path of cpu.stat of this process's control group, whichever version of them the system has."""
    groups: dict[str, str] = {}
    for line in _read(f"{PROC}/self/cgroup", "").splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    folders = [
        f"{CGROUPS}/cpu{groups.get('cpu', '')}",
        f"{CGROUPS}/cpu",
        f"{CGROUPS}{groups.get('', '')}",
        CGROUPS,
    ]
    found = (f"{folder}/cpu.stat" for folder in folders if "throttled" in _read(f"{folder}/cpu.stat", ""))
    return next(found, "")


def _throttles() -> Source:
    """Return the source of how often CPU packages were throttled, which counts each package once."""

    def read() -> list[tuple[str, float]]:
        return [(CPU_THROTTLES, sum(int(_read(path)) for path in paths))]

    first_of_package: dict[str, str] = {}
    for cpu in sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []:
        package = _read(f"{CPUS}/cpu{cpu}/topology/physical_package_id", "")
        path = f"{CPUS}/cpu{cpu}/thermal_throttle/package_throttle_count"
        if package and package not in first_of_package and _read(path, ""):
            first_of_package[package] = path
    paths = list(first_of_package.values())
    return read if paths else _none


def _none() -> list[tuple[str, float]]:
    return []


def _read(path: str, default: str | None = None) -> str:
    """Return the content of a small file; `default` if it cannot be read, unless that is None.

    UTF-8 is a part of the interpreter. Other encodings are modules, whose import fails with CPython 3.13.0 in a working
    directory that was deleted.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        if default is None:
            raise
        return default
