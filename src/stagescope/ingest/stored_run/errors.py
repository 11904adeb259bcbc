"""Errors about stored runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def newer_version(path: Path, version: int, known: int) -> InputError:
    """Return the error for a run that a newer stagescope stored."""
    return InputError(
        f"{path} is a stored run of version {version}; this stagescope reads versions up to {known}",
        "install a newer stagescope, or store the run again with --force",
    )


def damaged_manifest(path: Path, reason: str) -> InputError:
    """Return the error for a manifest that is not what stagescope writes."""
    return InputError(f"{path} is damaged: {reason}", "store the run again with --force")


def nothing_left(directory: Path, count: int) -> InputError:
    """Return the error for a run of which no file with spans can be read."""
    return InputError(
        f"{directory}: none of its {count} files with spans can be read",
        "store the run again: files that are intact are kept",
    )


def damaged_results(path: Path, reason: str) -> InputError:
    """Return the error for a file with results of analysis that is not what stagescope wrote."""
    return InputError(f"{path}: {reason}", "store the run again: the results are computed again")
