"""The readers of a call: the built-in ones, and those that installed packages register."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.reader import Reader
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "stagescope.readers"


class Registry(NamedTuple):
    """All usable readers, and one diagnostic per registered reader that cannot be used."""

    readers: tuple[Reader, ...]
    diagnostics: tuple[Diagnostic, ...]


def load_registry(built_in: Iterable[Reader] = ()) -> Registry:
    """Return the built-in readers, followed by the readers that installed packages register.

    A package registers a `Reader` under the entry-point group `stagescope.readers`. A reader that fails to load, or
    an object that is not a Reader, is left out with a diagnostic, because it must not prevent reading other formats.
    """
    loaded = [_load(entry) for entry in entry_points(group=ENTRY_POINT_GROUP)]
    readers = (one for one in loaded if isinstance(one, Reader))
    return Registry((*built_in, *readers), tuple(one for one in loaded if isinstance(one, Diagnostic)))


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
