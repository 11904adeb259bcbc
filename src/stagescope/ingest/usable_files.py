"""One rule for all readers: of several files, a file that cannot be read is named, and the others are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError, TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

Found = TypeVar("Found")

REFUSALS = (InputError, TableError)
"""What a reader raises for a file that it cannot use. Wrong arguments of the caller are not among them."""


def itself(found: Found) -> Found:
    """Return what was read."""
    return found


def read_usable(
    read: Callable[..., Found],
    paths: Sequence[Path],
    on_read: Callable[[Path], object],
    *options: object,
    keep: Callable[[Found], Found] = itself,
) -> tuple[list[Found], list[Diagnostic]]:
    """Return `keep(read(path, *options))` for each usable path, and an error for each refused one.

    `on_read` is called after each file. Raises the first refusal if no file is usable.
    """
    outcomes = []
    for path in paths:
        outcome = outcome_of(read, path, *options)
        outcomes.append((path, outcome if isinstance(outcome, REFUSALS) else keep(outcome)))
        on_read(path)
    return usable(outcomes)


def outcome_of(read: Callable[..., Found], path: Path, *options: object) -> Found | InputError | TableError:
    """Return `read(path, *options)`, or the error with which it refuses the file."""
    try:
        return read(path, *options)
    except REFUSALS as error:
        return error


def usable(
    outcomes: Iterable[tuple[Path, Found | InputError | TableError]],
) -> tuple[list[Found], list[Diagnostic]]:
    """Return the results among the outcomes of files, and an error in diagnostics for each refused file.

    Raises the first refusal if all files are refused.
    """
    found: list[Found] = []
    refused: list[InputError | TableError] = []
    diagnostics: list[Diagnostic] = []
    for path, outcome in outcomes:
        if isinstance(outcome, REFUSALS):
            refused.append(outcome)
            diagnostics.append(Diagnostic("error", f"not read: {outcome}", str(path), code="file.unreadable"))
        else:
            found.append(outcome)
    if refused and not found:
        raise refused[0]
    return found, diagnostics
