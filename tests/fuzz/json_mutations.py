"""Mutators of the values of a JSON file, or of the lines of a file with one JSON value per line."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

from fuzz.mutations import Mutator, of_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

DEPTH = 300
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, -0.0, 1e30, 1e308, -1e308, float("nan"), float("inf"), 2**31, -(2**31), 2**32,
    2**63 - 1, -(2**63), 2**63, 2**64, 10**400, "", "text", "12", "-1", "NaN", "\ud800", "a\0b", "\x1b[2J",
    "x" * 70_000, [], {}, [[]], [None], {"": None}, [1, "a", None, {}],
)  # fmt: skip
"""Values of another type, and of the right type that do not fit."""


def changed(data: bytes, change: Callable[[Any, Random], Any], chance: Random) -> bytes:
    """Return JSON with a changed value; data that are not JSON, as after another mutation, unchanged."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return json.dumps(change(value, chance), ensure_ascii=chance.random() < 0.9).encode(
        "utf-8", "surrogatepass"
    )


def in_a_line(data: bytes, change: Callable[[Any, Random], Any], chance: Random) -> bytes:
    """Return lines of JSON, one of them with a changed value."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    place = chance.randrange(len(lines))
    lines[place] = changed(lines[place], change, chance) + b"\n"
    return b"".join(lines)


def replace_value(value: Any, chance: Random) -> Any:
    """Replace a value by one of another type or size."""
    holder, key = place_in(value, chance)
    new = chance.choice([*VALUES, nested(DEPTH)])
    if holder is None:
        return new
    holder[key] = new
    return value


def delete_value(value: Any, chance: Random) -> Any:
    """Delete a key or an element."""
    holder, key = place_in(value, chance)
    if holder is not None:
        del holder[key]
    return value


def repeat_value(value: Any, chance: Random) -> Any:
    """Repeat an element of a list, or replace a value by a list of itself."""
    holder, key = place_in(value, chance)
    if isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))
    elif holder is not None:
        holder[key] = [holder[key], copy.deepcopy(holder[key])]
    return value


def swap_values(value: Any, chance: Random) -> Any:
    """Exchange two values of one object or list."""
    holder, key = place_in(value, chance)
    if holder:
        other = chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
        holder[key], holder[other] = holder[other], holder[key]
    return value


def rename_key(value: Any, chance: Random) -> Any:
    """Rename a key."""
    holder, key = place_in(value, chance)
    if isinstance(holder, dict):
        holder[chance.choice(["", "other", str(key).upper(), "\ud800"])] = holder.pop(key)
    return value


def nested(depth: int) -> Any:
    """Return a list in a list, many times."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def place_in(value: Any, chance: Random) -> tuple[Any, Any]:
    """Return a random holder in the value and the key in it; (None, None) for the value itself.

    Descends at random, because to list all places would take longer than to read the file.
    """
    holder, key, here = None, None, value
    while isinstance(here, dict | list) and here and chance.random() < 0.85:
        holder = here
        key = chance.choice(list(here)) if isinstance(here, dict) else chance.randrange(len(here))
        here = holder[key]
    return holder, key


CHANGES = (replace_value, replace_value, replace_value, delete_value, repeat_value, swap_values, rename_key)


def _mutator(
    place: Callable[[bytes, Callable[[Any, Random], Any], Random], bytes],
    change: Callable[[Any, Random], Any],
) -> Mutator:
    def apply(data: bytes, chance: Random) -> bytes:
        return place(data, change, chance)

    apply.__name__ = change.__name__
    return of_bytes(apply)


JSON = tuple(_mutator(changed, change) for change in CHANGES)
JSON_LINES = tuple(_mutator(in_a_line, change) for change in CHANGES)
