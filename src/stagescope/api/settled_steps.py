"""The last complete steps of a running training, each read and aligned once, and the steps after them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from stagescope.model import Timeline

SHOWN_SPANS = 60_000
"""About so many spans of complete steps are kept, and at least the last three steps."""

FEWEST_STEPS = 3


class _Piece(NamedTuple):
    """Steps that were complete at the same time, and what was recorded between them."""

    first: int
    spans: pl.DataFrame
    steps: pl.DataFrame


class SettledSteps:
    """Complete steps as they were when they had all of their spans, so that each is read and aligned once."""

    def __init__(self, most_spans: int = SHOWN_SPANS) -> None:
        """Begin without steps."""
        self.last = -1
        """The last complete step, -1 before the first."""
        self._most_spans = most_spans
        self._pieces: deque[_Piece] = deque()
        self._cut_ns: int | None = None
        self._timeline: Timeline | None = None

    @property
    def first(self) -> int:
        """The first step that is kept; one more than `last` without any."""
        return self._pieces[0].first if self._pieces else self.last + 1

    @property
    def spans(self) -> pl.DataFrame:
        """All spans of the complete steps that are kept."""
        return self._timeline.spans if self._timeline is not None else pl.DataFrame()

    @property
    def timeline(self) -> Timeline | None:
        """The complete steps that are kept, None before the first."""
        return self._timeline if self._pieces else None

    def take(self, recent: Timeline, complete: int) -> Timeline:
        """Return what is kept and what came after it.

        `recent` has what was recorded after the last complete step so far; steps up to `complete` are complete now.
        """
        spans = recent.spans.filter(self._is_new())
        done = spans.filter(pl.col("step") <= complete)
        if complete > self.last and done.height:
            cut_ns = done["end_ns"].max()
            is_done = pl.col("step") <= complete
            is_between = pl.col("step").is_null() & (pl.col("start_ns") < cut_ns)
            settled = is_done.fill_null(value=False) | is_between
            steps = recent.steps.filter(pl.col("step").is_between(self.last + 1, complete))
            self._pieces.append(_Piece(int(done["step"].min()), spans.filter(settled), steps))  # type: ignore[arg-type]  # a number
            spans = spans.filter(~settled)
            self.last, self._cut_ns = complete, int(cut_ns)  # type: ignore[arg-type]  # same
            self._drop_oldest()
        kept = [piece.spans for piece in self._pieces]
        self._timeline = replace(
            recent,
            spans=pl.concat([spans.clear(), *kept]),
            steps=pl.concat([recent.steps.clear(), *(piece.steps for piece in self._pieces)]),
            counters=recent.counters.clear(),
        )
        return replace(self._timeline, spans=pl.concat([*kept, spans]), steps=recent.steps)

    def _is_new(self) -> pl.Expr:
        is_later = (pl.col("step") > self.last).fill_null(value=False)
        between = pl.col("step").is_null()
        return is_later | (
            between if self._cut_ns is None else between & (pl.col("start_ns") >= self._cut_ns)
        )

    def _drop_oldest(self) -> None:
        """Drop the oldest steps that are too many."""
        total = sum(piece.spans.height for piece in self._pieces)
        while len(self._pieces) > 1:
            oldest, following = self._pieces[0], self._pieces[1]
            if (
                self.last - following.first + 1 < FEWEST_STEPS
                or total - oldest.spans.height < self._most_spans
            ):
                return
            total -= self._pieces.popleft().spans.height
