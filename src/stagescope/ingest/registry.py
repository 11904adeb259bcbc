"""The registry of input formats: the built-in readers, and those that other packages register."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.ascend import reader as ascend
from stagescope.ingest.chrome import reader as chrome_pattern
from stagescope.ingest.kineto import reader as kineto
from stagescope.ingest.nsight import reader as nsight
from stagescope.ingest.paddle import fleet_reader as paddle_fleet
from stagescope.ingest.paddle import log_reader as paddle_log
from stagescope.ingest.paddle import profiler_reader as paddle_profiler
from stagescope.ingest.primus import reader as primus
from stagescope.ingest.reader import Reader
from stagescope.ingest.recording import reader as recording
from stagescope.ingest.table import reader as table
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

READERS: tuple[Reader, ...] = (
    recording.READER,
    ascend.READER,
    nsight.READER,
    table.PARQUET,
    paddle_fleet.READER,
    paddle_profiler.READER,
    primus.READER,
    kineto.READER,
    chrome_pattern.READER,
    table.CSV,
    paddle_log.READER,
)
"""The built-in readers, in the order in which `recognizes` is called.

Readers that must scan a whole file to recognize it come last.
"""

ENTRY_POINT_GROUP = "stagescope.readers"


class Registry(NamedTuple):
    """All usable readers, and one diagnostic per registered reader that cannot be used."""

    readers: tuple[Reader, ...]
    diagnostics: tuple[Diagnostic, ...]


def load_registry() -> Registry:
    """Return READERS followed by the readers that installed packages register.

    A package registers a `Reader` under the entry-point group `stagescope.readers`. An entry that fails to load, or
    is not a Reader, is skipped with a diagnostic: it must not prevent reading the other formats.
    """
    loaded = [_load(entry) for entry in entry_points(group=ENTRY_POINT_GROUP)]
    readers = (one for one in loaded if isinstance(one, Reader))
    return Registry((*READERS, *readers), tuple(one for one in loaded if isinstance(one, Diagnostic)))


def _load(entry: EntryPoint) -> Reader | Diagnostic:
    """Return the registered reader, or a diagnostic with the reason why it cannot be used."""
    try:
        reader = entry.load()
    except Exception as error:  # noqa: BLE001 - foreign code: no fault of it may stop the other readers
        return _unusable(entry, f"{type(error).__name__}: {error}")
    if not isinstance(reader, Reader):
        return _unusable(entry, f"it is of type {type(reader).__name__}, not a Reader")
    return reader


def _unusable(entry: EntryPoint, reason: str) -> Diagnostic:
    message = f"the registered reader {entry.name!r} cannot be used: {reason}"
    return Diagnostic("warning", message, location=entry.value, code="reader.unusable")
