"""The header of a recording, checked: a value of a wrong type, or one that no process has, is ignored and named.

A checksum protects the bytes of a header, not their meaning. The keys are those that the reader uses; docs/formats.md
describes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.ingest.recording.values import storable
from stagescope.vocabulary.limits import limit
from stagescope.vocabulary.parallel import DIMENSIONS

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_NUMBER = 2**62
"""Of times and counts: sums and differences of two such numbers fit 64 bits."""

SHOWN_CHARACTERS = 40

WHOLE = (
    "pid",
    "parent_pid",
    "segment",
    "records_before",
    "max_bytes",
    "keep_seconds",
    "keep_steps",
    "restarts_left",
)
"""Keys whose values are whole numbers."""


class _Key(NamedTuple):
    """One key, what its value must be, and the function that returns the value, or None if it is something else."""

    name: str
    expected: str
    accepted: Callable[[Any], object]


def checked_header(facts: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the header without null and impossible values, and a text per impossible one; other keys are kept."""
    header = {storable(name): value for name, value in facts.items() if value is not None}
    wrong: list[str] = []
    for name, expected, accepted in _keys():
        if name not in header:
            continue
        value = accepted(header[name])
        if value is None:
            wrong.append(f"{name} {_shown(header.pop(name))} (expected {expected})")
        else:
            header[name] = value
    return header, wrong


def _keys() -> tuple[_Key, ...]:
    """Return the keys of this call: the largest number of ranks is a limit that the caller may change."""
    ranks = limit("ranks")
    count = f"a whole number up to {MAX_NUMBER:,}"
    texts = (
        "run",
        "recording",
        "launch",
        "host",
        "boot",
        "clock",
        "pid_namespace",
        "time_namespace",
        "device",
        "device_model",
    )
    return (
        _Key("version", "a whole number from 1", lambda value: _whole(value, 1)),
        _Key("rank", f"0 to {ranks - 1:,}, --limit ranks=N", lambda value: _whole(value, 0, ranks - 1)),
        _Key("world_size", f"1 to {ranks:,}, --limit ranks=N", lambda value: _whole(value, 1, ranks)),
        *(_Key(name, count, _whole) for name in WHOLE),
        _Key("process_start_ns", "nanoseconds", lambda value: _whole(value, -MAX_NUMBER)),
        *(_Key(name, "a text", _text) for name in texts),
        _Key("restarts", "an object of counts", _counts),
        _Key("forked_from", "a list", lambda value: value if isinstance(value, list) else None),
        _Key("parallel", "an object of coordinates", lambda value: _coordinates(value, ranks)),
        _Key("schedule", "an object with a name", _schedule),
        _Key("schedules", "an object of schedules", _schedules),
    )  # fmt: skip


def _whole(value: object, least: int = 0, most: int = MAX_NUMBER) -> int | None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and least <= value <= most else None  # type: ignore[operator,return-value]  # an int


def _text(value: object) -> str | None:
    return storable(value) if isinstance(value, str) and len(value) <= limit("name-length") else None


def _coordinates(value: object, ranks: int) -> dict[str, object] | None:
    if not isinstance(value, dict):
        return None
    own = [value[name] for name in (*DIMENSIONS, "ep") if value.get(name) is not None]
    if any(_whole(each, 0, ranks - 1) is None for each in own):
        return None
    return {name: each for name, each in value.items() if each is not None}


def _counts(value: object) -> dict[str, int] | None:
    if not isinstance(value, dict) or any(_whole(each) is None for each in value.values()):
        return None
    return {storable(name): count for name, count in value.items()}


def _schedule(value: object) -> dict[str, object] | None:
    if not isinstance(value, dict) or value.get("name") is None:
        return {} if isinstance(value, dict) else None
    name = _text(value["name"])
    return None if name is None else {**value, "name": name}


def _schedules(value: object) -> dict[str, object] | None:
    if not isinstance(value, dict):
        return None
    found = {storable(name): _schedule(each) for name, each in value.items()}
    return None if None in found.values() else dict(found)


def _shown(value: object) -> str:
    text = storable(repr(value))
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
