"""``stagescope cache``: what is kept in the user's cache, and its removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stagescope.cli.console import echo
from stagescope.vocabulary.printable import printable
from stagescope.vocabulary.sizes import size_text

if TYPE_CHECKING:
    from stagescope.api import CacheEntry

HEADINGS = ("kind", "size", "last used (UTC)", "of")


@click.command(
    "cache",
    epilog="""
    \b
    Examples:
      stagescope cache
      stagescope cache --clear
      STAGESCOPE_CACHE=/scratch/cache stagescope report recordings
      STAGESCOPE_CACHE=off stagescope report recordings
    """,
)
@click.option("--clear", is_flag=True, help="Remove everything that is kept.")
def command(*, clear: bool) -> int:
    """List what is kept in the cache of this user, or remove it.

    Kept are large runs, stored once so that they are read faster, copies of files on object stores, and the tiles of
    pages. What was used least recently is removed when the cache is full; STAGESCOPE_CACHE names another directory, or
    is off.
    """
    from stagescope import api

    place = printable(str(api.cache_place()))
    found = api.clear_cache() if clear else api.cache_entries()
    total = size_text(sum(entry.size_bytes for entry in found))
    if clear:
        echo(f"removed {total} from {place}")
        return 0
    echo(f"{place}: {total}" if found else f"{place}: empty")
    for line in _table(found):
        echo(line)
    return 0


def _table(found: list[CacheEntry]) -> list[str]:
    """Return the lines of the list; none if it is empty."""
    if not found:
        return []
    rows = [
        (entry.kind, size_text(entry.size_bytes), f"{entry.used:%Y-%m-%d %H:%M}", printable(entry.source))
        for entry in found
    ]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in ["", HEADINGS, *rows]
        if row
    ]
