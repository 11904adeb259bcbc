"""The interface of writers, and what they report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.exporters.pictures.figure import Figure
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic


@dataclass(frozen=True)
class Written:
    """The contents of a finished file, as a reader of the file would count them.

    `unit` is what `slice_count` counts: slices, or the rows of a table.
    """

    path: Path
    size_bytes: int
    slice_count: int
    flow_count: int
    track_names: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]
    unit: str = "slice"


@dataclass(frozen=True)
class Writer:
    """One export format: its name, its file suffix, a description, and the function that writes it.

    `write` gets the path of an empty file; exporters/new_files.py renames it when the function returns, so that a
    failure leaves nothing behind. A format that also shows analysis results has `with_extras`, which returns a writer
    with them; a picture has `with_figure`, which returns a writer of that figure; a format of tables has `of_table`,
    which returns a writer of another table than the spans; CSV has `without_formulas`, for spreadsheets. A format that
    reads the original files again has `with_progress`, which returns a writer that calls a function with the number of
    files done and of all files.
    """

    name: str
    suffix: str
    description: str
    write: Callable[[Timeline, Path], Written]
    with_extras: Callable[[AnalysisLayers], Writer] | None = None
    with_figure: Callable[[Figure], Writer] | None = None
    of_table: Callable[[str], Writer] | None = None
    without_formulas: Callable[[], Writer] | None = None
    with_progress: Callable[[Callable[[int, int], object]], Writer] | None = None
