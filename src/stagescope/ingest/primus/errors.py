"""Errors about dumps of Primus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os


def no_iteration(path: str | os.PathLike[str]) -> InputError:
    """Return the error for a dump without a complete iteration."""
    return InputError.damaged(path, "it has no complete iteration, such as Primus writes with --dump_pp_data")


def no_dumps(path: str | os.PathLike[str]) -> InputError:
    """Return the error for a config.json in a directory without dumps."""
    return InputError.damaged(path, "there is no pp_rank_N.json next to it")


def other_directory(path: str | os.PathLike[str], first: str | os.PathLike[str]) -> InputError:
    """Return the error for dumps of several directories, which are several runs."""
    return InputError.other_run(path, f"it is in another directory than {first}")
