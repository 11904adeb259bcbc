"""The tiles of the page beside a stored run: found, and checked before they are used."""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from stat import S_ISREG
from typing import TYPE_CHECKING

from stagescope.ingest.stored_run.indexes import read_index
from stagescope.model.stored_run import (
    CHECKSUM_BYTES,
    PAGE_FORMAT,
    PAGE_INDEX,
    PAGES,
    Page,
    page_name,
)

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.model.stored_run import PageFile

FILE_NAME = re.compile(r"[a-z][a-z0-9_.-]*")
"""What stagescope writes; anything else could lead out of the directory."""

EDGE_BYTES = 8 << 20
"""What the checksum of a file is about: its first and last bytes, which is all of it up to twice this size.

The spans of a large page have gigabytes, and are read a few tiles at a time. What an interrupted copy lacks is at the
end.
"""


def find_page(directory: Path, run: str, made_by: str) -> tuple[Path, Page] | None:
    """Return the directory of the prepared page of a stored run, and its index.

    None without any, if it is of another run or was made otherwise, and if one of its files is missing or damaged.
    """
    folder = directory / PAGES / page_name(run, made_by)
    page = read_index(folder / PAGE_INDEX, Page)
    if page is None or (page.format, page.run, page.made_by) != (PAGE_FORMAT, run, made_by):
        return None
    try:
        others = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")} - {PAGE_INDEX}
    except OSError:
        return None
    is_whole = others == page.files.keys() and all(
        _is_intact(folder, name, file) for name, file in page.files.items()
    )
    return (folder, page) if is_whole else None


def checksum_of_edges(path: Path) -> str:
    """Return the checksum of the first and last EDGE_BYTES of a file. Raises OSError."""
    sum_ = blake2b(digest_size=CHECKSUM_BYTES)
    with path.open("rb") as file:
        sum_.update(file.read(EDGE_BYTES))
        file.seek(max(os.fstat(file.fileno()).st_size - EDGE_BYTES, EDGE_BYTES))
        sum_.update(file.read(EDGE_BYTES))
    return sum_.hexdigest()


def _is_intact(folder: Path, name: str, file: PageFile) -> bool:
    if FILE_NAME.fullmatch(name) is None:
        return False
    path = folder / name
    try:
        found = path.lstat()  # no links, which lead out of the directory, and no pipes, which never end
        return (
            S_ISREG(found.st_mode)
            and found.st_size == file.size_bytes
            and checksum_of_edges(path) == file.checksum
        )
    except OSError:
        return False
