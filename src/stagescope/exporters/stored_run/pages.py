"""Write the tiles of the page beside a stored run: under a temporary name until all of them are on the disk."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from contextlib import suppress
from dataclasses import asdict
from stat import S_IMODE
from typing import TYPE_CHECKING

from stagescope.exporters.new_files import NAME_BYTES, make_directory
from stagescope.exporters.stored_run.partition_files import complete_file
from stagescope.ingest.stored_run.pages import checksum_of_edges
from stagescope.model.stored_run import (
    PAGE_DIGITS,
    PAGE_FORMAT,
    PAGE_INDEX,
    PAGES,
    Page,
    PageFile,
    manifest_text,
    page_name,
)
from stagescope.vocabulary.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UNFINISHED = ".unfinished-"
OWN_NAME = re.compile(rf"{re.escape(UNFINISHED)}|[0-9a-f]{{{PAGE_DIGITS}}}-[0-9a-f]{{{PAGE_DIGITS}}}$")
"""Of the directories of pages; anything else is left as it is."""


def write_page(directory: Path, run: str, made_by: str, make: Callable[[Path], None]) -> Page:
    """Write the page of a stored run, whose lock the caller holds, and return its index.

    `make` fills an empty directory; see Page for `run` and `made_by`. Earlier pages are removed first, also what a
    killed process had begun: each may be as large as the new one. Raises OutputError if the operating system refuses to
    write; whatever stops `make` leaves no page.
    """
    place = directory / PAGES
    unfinished = place / f"{UNFINISHED}{secrets.token_hex(NAME_BYTES)}"
    try:
        remove_pages(directory)
        make_directory(unfinished)
        make(unfinished)
        page = _with_index(unfinished, run, made_by)
        unfinished.rename(place / page_name(run, made_by))
    except OSError as reason:
        raise OutputError.not_stored(directory, reason) from reason
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        _remove_empty(place)
    return page


def remove_pages(directory: Path, run: str | None = None) -> None:
    """Remove the pages beside a stored run, whose lock the caller holds, and unfinished ones; with `run`, only others'.

    Raises OSError.
    """
    place = directory / PAGES
    if not place.is_dir():
        return
    for folder in place.iterdir():
        if OWN_NAME.match(folder.name) and (run is None or not folder.name.startswith(run[:PAGE_DIGITS])):
            shutil.rmtree(folder)
    _remove_empty(place)


def _remove_empty(place: Path) -> None:
    with suppress(OSError):  # not empty
        place.rmdir()


def _with_index(folder: Path, run: str, made_by: str) -> Page:
    """Write the index of a page whose other files are complete, and return it when all of them are on the disk."""
    paths = sorted(folder.iterdir())
    files = {path.name: PageFile(path.stat().st_size, checksum_of_edges(path)) for path in paths}
    page = Page(PAGE_FORMAT, run, made_by, files)
    with complete_file(folder / PAGE_INDEX) as unfinished:
        unfinished.write_text(manifest_text(asdict(page)), encoding="utf-8")
    mode = S_IMODE((folder / PAGE_INDEX).stat().st_mode)  # that of new files, which a umask may restrict
    for path in paths:
        path.chmod(mode)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    return page
