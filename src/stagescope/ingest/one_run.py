"""Formats that lie in one directory and are not of one run.

A directory may hold a profile of today beside the logs of last year. Two formats are of one run if they tell of
different ranks at the same time. Whatever is not, is left out and said: merged, it would look like one run.
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
    """What one reader made of its files."""

    format: str
    files: Sequence[Path]
    timeline: Timeline


def keep_one_run(
    sources: Iterable[Source], named: frozenset[Path]
) -> tuple[list[Timeline], list[Diagnostic]]:
    """Return the timelines of one run, that of the format with most spans, and what was left out.

    Raises InputError where the caller himself has named files that do not go together.
    """
    largest_first = sorted(sources, key=lambda source: source.timeline.spans.height, reverse=True)
    kept: list[Source] = []
    left_out: list[Diagnostic] = []
    for source in largest_first:
        reasons = (reason for other in kept if (reason := _why_apart(source.timeline, other)) is not None)
        reason = next(reasons, None)
        if reason is None:
            kept.append(source)
        elif named.intersection(source.files):
            raise InputError.other_run(source.files[0], reason)
        else:
            text = f"not read: {len(source.files)} files ({source.format}) are not of the same run: {reason}"
            severity = "info" if source.timeline.spans.is_empty() else "error"
            left_out.append(Diagnostic(severity, text, str(source.files[0]), count=len(source.files)))
    return [source.timeline for source in kept], left_out


def _why_apart(timeline: Timeline, other: Source) -> str | None:
    """Return why a timeline cannot be of the run of another source, None where it can."""
    shared = set(timeline.ranks["rank"]) & set(other.timeline.ranks["rank"])
    if shared:
        return f"rank {min(shared)} is in {other.files[0]} ({other.format}) too"
    span, others = _extent(timeline), _extent(other.timeline)
    if span is None or others is None or (span[0] <= others[1] and others[0] <= span[1]):
        return None
    return f"they tell of another time than {other.files[0]} ({other.format})"


def _extent(timeline: Timeline) -> tuple[int, int] | None:
    if timeline.spans.is_empty():
        return None
    return int(timeline.spans["start_ns"].min()), int(timeline.spans["end_ns"].max())  # type: ignore[arg-type] # numbers
