"""What a writer is and what it reports: the shape that every export format has."""

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
    """What stands in a finished file, as a consumer of the file would count it."""

    path: Path
    size_bytes: int
    slice_count: int
    flow_count: int
    track_names: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class Writer:
    """One export format: its name, its file suffix, what reads it, and the function that writes it.

    `write` gets a path that does not exist yet and writes it whole; export.write has chosen the path so
    that a failure leaves nothing behind, and renames the file when `write` has returned. A format that also shows what
    analysis found has `with_extras`, which returns the writer that does; a picture has `with_figure`, which returns the
    writer of that figure.
    """

    name: str
    suffix: str
    description: str
    write: Callable[[Timeline, Path], Written]
    with_extras: Callable[[AnalysisLayers], Writer] | None = None
    with_figure: Callable[[Figure], Writer] | None = None
