"""Limits on what reading may take, so that a hostile or damaged file ends in one clear error, not in a full memory.

All limits are declared in `LIMITS`, and listed in docs/reliability.md. `--limit NAME=VALUE` of the commands and
`limits={NAME: VALUE}` of the API change them for one call. A reader calls

    require("spans", frame.height, path)

as early as it knows a number, above all before it allocates anything of a size that a file declares; this raises an
InputError with the limit, the number found and the option. `limit("depth")` is the number itself, for code that has to
stop on its own. Compressed files need no call: ingest/streams.py counts what they expand to, and ingest/merge.py counts
spans, ranks, steps and names of every Timeline.

The limits of a call are in a context variable instead of an argument, because files are opened and recognized in places
that know no options; ingest/processes.py passes them to worker processes. Threads start with the defaults.
"""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from stagescope.vocabulary.errors import InputError, UsageError
from stagescope.vocabulary.sizes import parse_size_bytes, size_text

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

BYTES, COUNT, SECONDS = "bytes", "count", "s"


class Limit(NamedTuple):
    """One limit: the name of its option, its default and unit, what it limits (in an error), and why it is there."""

    name: str
    default: int
    unit: str
    what: str
    reason: str


LIMITS: tuple[Limit, ...] = (
    Limit("unpacked", 16 * 2**30, BYTES, "the size of one file after decompression",
          "A small compressed file can expand to any size."),
    Limit("ratio", 200, COUNT, "the compression ratio of one file, beyond its first 64 MiB (4 MiB of packets)",
          "Recordings and traces shrink 5 to 50 times; only constructed files shrink 1000 times."),
    Limit("whole", 768 * 2**20, BYTES, "the size of one file that is read as a whole",
          "Recordings, CSV tables and some traces are in memory as a whole, next to what is read from them."),
    Limit("string", 16 * 2**20, BYTES, "the size of one value, event or line",
          "A value is in memory as a whole, also where a file is read in parts."),
    Limit("depth", 500, COUNT, "the depth of nested lists and objects",
          "Traces nest less than 10 levels; parsers of nested text use the stack."),
    Limit("query", 60, SECONDS, "the time of one query",
          "Of a database or of stagescope sql: a view in a database, and a recursive query, can be infinite."),
    Limit("spans", 200_000_000, COUNT, "the number of spans",
          "A span takes about 100 bytes of memory in a Timeline. What is stored, analyzed and shown in parts has no "
          "limit unless you state one."),
    Limit("ranks", 131_072, COUNT, "the number of ranks",
          "More than the largest known trainings; a rank takes about 0.1 ms and 4 kB to analyze, and rows in tables."),
    Limit("steps", 10_000_000, COUNT, "the number of steps",
          "A table has a row per step; a training of months has a million."),
    Limit("stages", 12_000, COUNT, "the number of stages",
          "Actions are followed from stage to stage, at about 0.8 ms each; the largest known runs have hundreds. "
          "Recordings have no limit unless you state one."),
    Limit("microbatches", 12_000, COUNT, "the number of micro-batches of one step",
          "Actions are followed one after the other, as above; the largest known steps have a few thousand. "
          "Recordings have no limit unless you state one."),
    Limit("microbatch-number", 1_000_000, COUNT, "the number of a micro-batch",
          "Tables have a row for each number; some programs number micro-batches through a whole run."),
    Limit("overlapped", 16, COUNT, "the number of actions in one annotation",
          "Schedules overlap two actions; a long list in each name means millions of actions in a small trace."),
    Limit("names", 1_000_000, COUNT, "the number of different names of spans",
          "Names are in memory, and in the page, as one list."),
    Limit("name-length", 65_536, COUNT, "the length of a name in characters",
          "Names are shown in charts, tables and messages."),
)  # fmt: skip
"""Every limit, in the order of the documentation."""

BY_NAME: dict[str, Limit] = {each.name: each for each in LIMITS}

UNLIMITED = 2**63 - 1
"""What `limit` returns for a limit that the caller removed by setting it to 0."""

_changed: ContextVar[dict[str, int]] = ContextVar("limits", default={})  # noqa: B039  # never changed in place
_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgt]?)", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def limit(name: str) -> int:
    """Return the limit `name` of this call; a removed one is `UNLIMITED`."""
    found = _changed.get().get(name, BY_NAME[name].default)
    return found or UNLIMITED


def require(name: str, found: float, where: str | os.PathLike[str]) -> None:
    """Raise InputError if `found` is more than the limit `name`; `where` is the file, and the place in it."""
    if found > limit(name):
        raise beyond(name, where, found)


def require_if_stated(name: str, found: float, where: str | os.PathLike[str]) -> None:
    """Raise InputError as `require` does, but only if the caller stated the limit: nothing has to be in memory."""
    if name in _changed.get():
        require(name, found, where)


def beyond(name: str, where: str | os.PathLike[str], found: float | None = None) -> InputError:
    """Return the error for a file that exceeds a limit; `found` is None where reading ended at the limit."""
    known = found is not None and math.isfinite(found)
    enough = math.ceil(found) if found is not None and known else 2 * limit(name)
    is_size = BY_NAME[name].unit == BYTES
    option = f"--limit {name}={f'{-(-enough // 2**20)}MiB' if is_size else enough}"
    what = f"{BY_NAME[name].what}{f' is {limit_text(name, enough)},' if known else ' is'}"
    return InputError.beyond_limit(where, what, limit_text(name, limit(name)), option)


def limit_text(name: str, value: int) -> str:
    """Return a value of a limit as text, which `parse_limit` reads: ``16 GiB``, ``200,000,000``, ``60 s``."""
    unit = BY_NAME[name].unit
    return size_text(value) if unit == BYTES else f"{value} s" if unit == SECONDS else f"{value:,}"


def parse_limits(texts: Iterable[str]) -> dict[str, int]:
    """Return the limits of options such as ``unpacked=20GB``. Raises UsageError for an unknown name or value."""
    parts = [text.partition("=") for text in texts]
    return checked_limits({name.strip(): value for name, _, value in parts})


def checked_limits(given: Mapping[str, int | str] | None) -> dict[str, int]:
    """Return limits as whole numbers in their units; values may be texts with units. Raises UsageError."""
    return {name: _value(name, value) for name, value in (given or {}).items()}


@contextmanager
def limits_in_force(given: Mapping[str, int]) -> Iterator[None]:
    """Use the limits `given`, and the others as they are, until the block ends."""
    before = _changed.set({**_changed.get(), **given})
    try:
        yield
    finally:
        _changed.reset(before)


def changed_limits() -> dict[str, int]:
    """Return the limits that differ from their defaults in this context, to pass them to another process."""
    return dict(_changed.get())


def use_limits(given: Mapping[str, int]) -> None:
    """Use the limits `given` from now on: for a process that was started to read."""
    _changed.set(dict(given))


def _value(name: str, value: float | str) -> int:
    if name not in BY_NAME:
        raise UsageError.limit_unknown(name, BY_NAME)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise UsageError.limit_malformed(name, value)
    if isinstance(value, str):
        return _parsed(name, value.strip().replace(",", "").replace("_", ""))
    if not 0 <= value < UNLIMITED:  # also false for NaN
        raise UsageError.limit_malformed(name, value)
    return int(value)


def _parsed(name: str, text: str) -> int:
    unit = BY_NAME[name].unit
    if unit == BYTES:
        return min(parse_size_bytes(text), UNLIMITED)
    found = _NUMBER.fullmatch(text.removesuffix("s").rstrip() if unit == SECONDS else text)
    if found is None:
        raise UsageError.limit_malformed(name, text)
    return int(min(float(found[1]) * 1000 ** _POWERS[found[2].lower()], UNLIMITED))
