"""What the analysis of some pipelines of a step needs to know of the others, where these are analyzed apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import polars as pl

    from stagescope.analysis.windows import Windows


class OtherPipelines(NamedTuple):
    """The spans of other pipelines that ranks may meet or wait for (model/outlines.py), and the windows of all."""

    spans: pl.DataFrame
    windows: Windows


def spans_of(others: OtherPipelines | None) -> pl.DataFrame | None:
    """Return the spans of other pipelines; None without others."""
    return None if others is None else others.spans


def windows_with(own: Windows, others: OtherPipelines | None) -> Windows:
    """Return the windows of all pipelines, given those of some."""
    return own if others is None else others.windows
