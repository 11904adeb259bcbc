"""Text tables with aligned columns, also for scripts with wide characters.

rich.table is not used: in a pipe it wraps cells at 80 columns, whereas these tables keep every cell on one line and
leave it to the caller to cut lines that are too wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len

from stagescope.vocabulary.language import localized_list

if TYPE_CHECKING:
    from collections.abc import Iterable

GAP = "  "


def aligned(head: tuple[str, ...], rows: Iterable[tuple[str, ...]], left: Iterable[int] = ()) -> list[str]:
    """Return the lines of a table in the current language; columns are right-aligned, except those in `left`.

    Cells with text of other people are Foreign.
    """
    table = [localized_list(cells) for cells in (head, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    places = set(left)
    return [
        GAP.join(
            _padded(cell, width, to_left=place in places)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _padded(cell: str, width: int, *, to_left: bool) -> str:
    blanks = " " * (width - cell_len(cell))
    return cell + blanks if to_left else blanks + cell
