"""Keep only the sources of one run when a directory holds files of several.

A directory may hold today's profile next to last year's logs. Two sources belong to one run if they cover different
ranks at the same time. All others are excluded with a diagnostic: merged, they would look like one run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from stagescope.model import Timeline


class Source(NamedTuple):
    """The Timeline that one reader produced from its files."""

    format: str
    files: Sequence[Path]
    timeline: Timeline


def select_run(sources: Iterable[Source], named: frozenset[Path]) -> tuple[list[Timeline], list[Diagnostic]]:
    """Return the timelines of the run of the source with the most spans, and a diagnostic per excluded source.

    Raises InputError if an excluded source has files that the caller named explicitly.
    """
    largest_first = sorted(sources, key=lambda source: source.timeline.spans.height, reverse=True)
    kept: list[Source] = []
    excluded: list[Diagnostic] = []
    for source in largest_first:
        reasons = (reason for other in kept if (reason := _conflict(source.timeline, other)) is not None)
        reason = next(reasons, None)
        if reason is None:
            kept.append(source)
        elif named.intersection(source.files):
            raise InputError.other_run(source.files[0], reason)
        else:
            text = f"not read: {len(source.files)} files ({source.format}) belong to another run: {reason}"
            severity = "info" if source.timeline.spans.is_empty() else "error"
            excluded.append(
                Diagnostic(
                    severity, text, str(source.files[0]), count=len(source.files), code="input.other_run"
                )
            )
    return [source.timeline for source in kept], excluded


def _conflict(timeline: Timeline, other: Source) -> str | None:
    """Return why a timeline cannot belong to the run of another source; None if it can."""
    shared = set(timeline.ranks["rank"]) & set(other.timeline.ranks["rank"])
    if shared:
        return f"rank {min(shared)} is also in {other.files[0]} ({other.format})"
    span, others = _extent(timeline), _extent(other.timeline)
    if span is None or others is None or (span[0] <= others[1] and others[0] <= span[1]):
        return None
    return f"they cover another time than {other.files[0]} ({other.format})"


def _extent(timeline: Timeline) -> tuple[int, int] | None:
    if timeline.spans.is_empty():
        return None
    return int(timeline.spans["start_ns"].min()), int(timeline.spans["end_ns"].max())  # type: ignore[arg-type] # numbers
