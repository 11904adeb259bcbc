"""Errors about object stores. They quote no message of a library: it may contain a signed address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import CommandError, InputError, OutputError, UsageError
from stagescope.vocabulary.sizes import size_text

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

INSTALL = "pip install 'stagescope[cloud]'"
CACHE_VARIABLE = "STAGESCOPE_CACHE"


def missing_library(library: str, scheme: str) -> CommandError:
    """Return the error for an object store whose library is not installed."""
    return CommandError.missing_library(library, f"reading {scheme}:// addresses", INSTALL)


def with_credentials(address: str) -> InputError:
    """Return the error for an address with a user or a query; `address` is redacted."""
    return InputError(
        f"{address}: an address with a user, password or query is not read, because it would be shown with the results",
        "credentials belong in the environment: docs/reading.md lists where",
    )


def other_scheme(address: str, known: Iterable[str]) -> InputError:
    """Return the error for an address of another scheme; `address` is redacted."""
    return InputError(f"{address} is not read: expected a path, or an address with {', '.join(known)}")


def no_bucket(address: str) -> InputError:
    """Return the error for an address without the name of a bucket."""
    return InputError(f"{address}: expected the name of a bucket after ://, such as s3://bucket/recordings")


def no_such_object(address: str) -> InputError:
    """Return the error for an address at which there is nothing."""
    return InputError(f"no such object, prefix or bucket: {address}")


def no_credentials(address: str, where: str) -> InputError:
    """Return the error for missing or unusable credentials; `where` is where they are looked for."""
    return InputError(f"{address} cannot be read: no usable credentials were found", f"set {where}")


def denied(address: str) -> InputError:
    """Return the error for an object that the credentials do not allow to read."""
    return InputError(
        f"{address} cannot be read: access was denied", "check that the credentials may list and read it"
    )


def cannot_fetch(address: str, reason: str) -> InputError:
    """Return the error for a connection or a server that failed."""
    return InputError(
        f"{address} cannot be read: {reason}", "the same command goes on: files that are complete are kept"
    )


def changed(address: str) -> InputError:
    """Return the error for a file that was written while it was fetched."""
    return InputError(f"{address} changed while it was fetched", "run the command again when it is complete")


def impossible_name(address: str) -> InputError:
    """Return the error for an object whose name cannot be that of a file."""
    return InputError(f"{address} cannot be read: its name cannot be that of a file of this machine")


def no_space(address: str, need_bytes: int, place: str | os.PathLike[str], free_bytes: int) -> InputError:
    """Return the error for files that do not fit on the disk with the cache."""
    return InputError(
        f"the files of {address} need {size_text(need_bytes)}, and {place} has {size_text(free_bytes)} free",
        f"name a directory with more space: {CACHE_VARIABLE}=DIR",
    )


def cannot_keep(place: str | os.PathLike[str], reason: OSError) -> InputError:
    """Return the error for a cache directory that the operating system refuses to write to."""
    return InputError(
        f"cannot write to the cache {place}: {reason.strerror or type(reason).__name__}",
        f"name another directory: {CACHE_VARIABLE}=DIR",
    )


def cache_not_shared(address: str, cluster: str) -> UsageError:
    """Return the error for workers of a cluster, which do not have what this machine fetches."""
    return UsageError(
        f"--cluster {cluster} cannot read {address}: its workers do not have the cache of this machine",
        f"name a directory that all machines share: {CACHE_VARIABLE}=DIR; or store with --workers on this machine",
    )


def output_elsewhere(address: str) -> OutputError:
    """Return the error for an output on an object store; `address` is redacted."""
    return OutputError(
        f"cannot write {address}: files are written on this machine",
        "write to a path, and copy it with the tool of the store, such as `aws s3 cp --recursive`",
    )
