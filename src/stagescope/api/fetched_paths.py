"""Files on object stores: fetched into the cache, read from there, and named by their addresses in everything shown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.listed_files import names_to_read
from stagescope.storage import errors
from stagescope.storage.addresses import address_of
from stagescope.storage.cache_directory import is_named
from stagescope.storage.mirror import mirror
from stagescope.vocabulary.place_names import has_named_places, named_places, with_names

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from stagescope.ingest.reader import Reader
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Source

LOCAL_CLUSTER = "local:"


def local_paths(
    paths: Iterable[str | os.PathLike[str]], readers: Sequence[Reader]
) -> list[str | os.PathLike[str]]:
    """Return paths of this machine: those that are addresses of object stores are fetched, and others are unchanged.

    Raises InputError if an address cannot be read, and CommandError if the library for it is not installed.
    """
    return [local_path(path, readers) for path in paths]


def local_path(path: str | os.PathLike[str], readers: Sequence[Reader]) -> str | os.PathLike[str] | Path:
    """Return one path as `local_paths` does."""
    address = address_of(path)
    return path if address is None else mirror(address, lambda names: names_to_read(names, readers))


def with_addresses(timeline: Timeline) -> Timeline:
    """Return a timeline whose ranks, clocks and diagnostics name the files on object stores, not their copies."""
    if not has_named_places():
        return timeline
    names = named_places()
    renamed = pl.col(pl.String).str.replace_many(list(names), list(names.values()))
    tables = ("ranks", "clocks", "diagnostics")
    return replace(timeline, **{name: getattr(timeline, name).with_columns(renamed) for name in tables})


def with_source_addresses(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Return the sources of a manifest, with the addresses of files on object stores."""
    return tuple(replace(source, path=with_names(source.path)) for source in sources)


def require_shared(paths: Iterable[str | os.PathLike[str]], cluster: str | None) -> None:
    """Raise UsageError for files on object stores and a cluster whose workers do not have this machine's cache."""
    if cluster is None or cluster.startswith(LOCAL_CLUSTER) or is_named():
        return
    for path in paths:
        address = address_of(path)
        if address is not None:
            raise errors.cache_not_shared(str(address), cluster)
