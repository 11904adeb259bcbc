"""Whether the process of a recording exists, and whether its launcher may start it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
PROCESSES = Path("/proc")
OWN_NAMESPACE = Path("/proc/self/ns/pid")
NAMESPACE = "pid_namespace"
DEAD_STATES = ("Z", "X")
"""Of a process that has ended, and of which its parent has not asked for the status yet."""


def exists(header: Mapping[str, Any], key: str = "pid") -> bool | None:
    """Return whether the process with the id under `key` exists, None if that cannot be known here.

    Recordings of older releases do not state whose ids these are: there, False may also mean another container.
    """
    number = header.get(key)
    if type(number) is not int or not _is_this_machine(header):
        return None
    if header.get(NAMESPACE) and header[NAMESPACE] != _own_namespace():
        return None
    try:
        stat = (PROCESSES / str(number) / "stat").read_bytes()
    except OSError:
        return False
    state = stat.rpartition(b")")[2].split()[:1]  # behind the name of the program, which may contain anything
    return not state or state[0].decode(errors="replace") not in DEAD_STATES


def is_certain(header: Mapping[str, Any]) -> bool:
    """Return whether `exists` is about the process itself, and not about an id that may be of another container."""
    return bool(header.get(NAMESPACE))


def can_restart(header: Mapping[str, Any]) -> bool:
    """Return whether the launcher of a process may start it again, as far as that is known.

    torchrun states how many restarts are left. A launcher that does not exist any more starts nothing.
    """
    if header.get("restarts_left") == 0:
        return False
    return not (exists(header, "parent_pid") is False and is_certain(header))


def _is_this_machine(header: Mapping[str, Any]) -> bool:
    try:
        return header.get("boot") == BOOT_FILE.read_text().strip()
    except OSError:
        return False


def _own_namespace() -> str:
    try:
        return str(OWN_NAMESPACE.readlink())
    except OSError:
        return ""
