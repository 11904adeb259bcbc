"""The only module that uses fsspec: lists the objects below an address, and copies one to a file.

Credentials, endpoints and proxies are those of the environment and of the usual files, as each library finds them.
Errors are distinguished by their types, whose modules are not imported here, and never quote a library: its messages
may contain signed addresses. Therefore they have no cause either.
"""

from __future__ import annotations

import logging
import os
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.storage import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from stagescope.storage.addresses import Address
    from stagescope.vocabulary.errors import InputError

BLOCK_BYTES = 8 << 20
"""One request each: large enough for the speed of a connection, small enough for progress and Ctrl-C."""
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 3}}},
}
"""Libraries wait for minutes by default before they state that a network is gone."""
WITHOUT_CREDENTIALS = frozenset(
    {
        "ClientAuthenticationError",
        "ConfigNotFound",
        "CredentialRetrievalError",
        "DefaultCredentialsError",
        "NoAuthTokenError",
        "NoCredentialsError",
        "PartialCredentialsError",
        "ProfileNotFound",
        "RefreshError",
        "SSOTokenLoadError",
        "TokenRetrievalError",
        "UnauthorizedSSOTokenError",
    }
)
"""Names of exceptions of botocore, google-auth and azure-core."""
VERSIONS = ("ETag", "etag", "generation", "md5Hash")
MODIFIED = ("LastModified", "last_modified", "mtime", "updated")
NS_PER_S = 1_000_000_000
LOGGERS = ("adlfs", "aiobotocore", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs")
"""Libraries that log failed requests, with their addresses, even if the program has not configured logging."""


class Remote(NamedTuple):
    """An object: its size, what changes with its content, and when it was written, if that is known."""

    path: str
    size_bytes: int
    version: str
    modified_ns: int | None


class ObjectStore:
    """The objects below an address. All methods raise InputError."""

    def __init__(self, address: Address) -> None:
        """Load the library. Raises CommandError if it is not installed."""
        self.address = address
        library = address.service.library
        if find_spec("fsspec") is None or find_spec(library) is None:
            raise errors.missing_library(library, address.scheme)
        import fsspec  # noqa: PLC0415 - an optional library, which takes longer to import than reading small files

        _silence()
        self._files = self._called(
            lambda: fsspec.filesystem(address.scheme, **SETTINGS.get(address.scheme, {}))
        )

    def listed(self) -> dict[str, Remote]:
        """Return all objects by their names below the address; the object itself has its last name.

        Raises InputError if there is none.
        """
        self._called(self._files.invalidate_cache)
        found = self._called(lambda: self._files.find(self.address.path, detail=True))
        whole = self.address.path
        objects = {}
        for path, facts in found.items():
            name = path.rpartition("/")[2] if path == whole else path.removeprefix(f"{whole}/")
            is_below = path == whole or path.startswith(f"{whole}/")
            if name and is_below and not path.endswith("/") and facts.get("type") == "file":
                objects[name] = _remote(path, facts)
        if not objects:
            raise errors.no_such_object(str(self.address))
        return objects

    def copy(self, remote: Remote, to: Path, on_bytes: Callable[[int], object]) -> None:
        """Copy an object to a new file. `on_bytes` is called after each block, and may raise to stop.

        Raises InputError if it changes meanwhile, and OSError if the file cannot be written.
        """
        name = f"{self.address.scheme}://{remote.path}"
        source = self._called(
            lambda: self._files.open(remote.path, "rb", block_size=BLOCK_BYTES, cache_type="none"), name
        )
        size_bytes = 0
        with open(to, "xb", opener=_owner_only) as file, source:
            while block := self._called(lambda: source.read(BLOCK_BYTES), name):
                file.write(block)
                size_bytes += len(block)
                on_bytes(len(block))
        if size_bytes != remote.size_bytes:
            raise errors.changed(name)

    def _called(self, call: Callable[[], Any], name: str | None = None) -> Any:
        """Return what a call of the library returns; an exception becomes an InputError without a cause."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the libraries share no base class
            failure = _error(error, self.address, name or str(self.address))
        raise failure


def _silence() -> None:
    """Keep libraries from logging, unless the program or the environment has set a level for them."""
    for name in LOGGERS:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL + 1)


def _owner_only(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remote(path: str, facts: Mapping[str, Any]) -> Remote:
    modified = next((facts[key] for key in MODIFIED if isinstance(facts.get(key), datetime)), None)
    version = next((str(facts[key]) for key in VERSIONS if facts.get(key)), str(modified))
    modified_ns = None if modified is None else int(modified.timestamp() * NS_PER_S)
    return Remote(path, int(facts.get("size") or 0), version, modified_ns)


def _error(error: Exception, address: Address, name: str) -> InputError:
    """Return the error for what a library raised."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & WITHOUT_CREDENTIALS or (address.scheme == "az" and isinstance(error, ValueError)):  # of adlfs
        return errors.no_credentials(name, address.service.credentials)
    if "FileExpired" in kinds:
        return errors.changed(name)
    if isinstance(error, FileNotFoundError):
        return errors.no_such_object(name)
    if isinstance(error, PermissionError) or getattr(error, "code", None) in (401, 403):
        return errors.denied(name)
    number = error.errno if isinstance(error, OSError) else None
    reason = os.strerror(number) if isinstance(number, int) else _words(type(error).__name__)
    return errors.cannot_fetch(name, reason)


def _words(name: str) -> str:
    """Return the name of an exception as words.

    >>> _words("EndpointConnectionError")
    'endpoint connection error'
    """
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
