"""The last values of every subject of a running training, in the form in which level shifts are searched for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagescope.analysis.watching.level_shifts import HISTORY
from stagescope.analysis.watching.step_values import ITERATION, LINK, PART, RANK, Subject

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.watching.step_values import StepValues

    Floats = NDArray[np.float64]

SEARCHED = (RANK, LINK, PART, ITERATION)
"""Kinds of subjects in which shifts are searched for, the most specific first."""

WITH_PEERS = (RANK, LINK)
FEWEST_PEERS = 4
"""With fewer ranks or links, their median is not what they have in common."""

FIRST, NEVER = -1, 2**40
"""Before any step, and after every step."""


class SeriesHistory:
    """The values of the last steps: one row per subject, one column per step, the last step last.

    Steps can be hidden from a row, such as those before a change of its level.
    """

    def __init__(self) -> None:
        """Begin without subjects and steps."""
        self.subjects: list[Subject] = []
        self._rows: dict[Subject, int] = {}
        self._values = np.full((0, HISTORY), np.nan)
        self._steps = np.full(HISTORY, FIRST)
        self._hidden: dict[int, list[tuple[int, int]]] = {}

    def add(self, values: StepValues) -> None:
        """Add the values of the next step."""
        new = [each for each in values.values if each.kind in SEARCHED and each not in self._rows]
        for subject in new:
            self._rows[subject] = len(self.subjects)
            self.subjects.append(subject)
        if new:
            self._values = np.vstack([self._values, np.full((len(new), HISTORY), np.nan)])
        self._values[:, :-1] = self._values[:, 1:]
        self._steps[:-1] = self._steps[1:]
        self._values[:, -1] = [values.values.get(subject, np.nan) for subject in self.subjects]
        self._steps[-1] = values.step

    @property
    def groups(self) -> NDArray[np.int64]:
        """The position in SEARCHED of the kind of each row."""
        return np.array([SEARCHED.index(subject.kind) for subject in self.subjects], np.int64)

    def is_relative(self, kind: str) -> bool:
        """Return whether subjects of this kind are compared with others in the same step."""
        return kind in WITH_PEERS and sum(each.kind == kind for each in self.subjects) >= FEWEST_PEERS

    def levels(self) -> Floats:
        """Return the logarithm of times, and causes relative to the iteration.

        Times of ranks and links are relative to the median of all ranks or links in the same step.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log(np.where(self._values > 0, self._values, np.nan))
        groups = self.groups
        for kind in WITH_PEERS:
            if self.is_relative(kind):
                peers = groups == SEARCHED.index(kind)
                found[peers] -= _medians(found[peers])
        parts = groups == SEARCHED.index(PART)
        found[parts] = self._values[parts] / self.usual(Subject(ITERATION))
        for row, intervals in self._hidden.items():
            for first, last in intervals:
                found[row, (self._steps >= first) & (self._steps <= last)] = np.nan
        return found

    def usual(self, subject: Subject, before: int = NEVER, since: int = FIRST, most: int = HISTORY) -> float:
        """Return the median of a subject's last values, at most `most`, before `before` and since `since`.

        It is NaN if none is known.
        """
        if subject not in self._rows:
            return float("nan")
        return _median_of_last(self._values[self._rows[subject]], self._between(before, since), most)

    def usual_ratio(
        self, subject: Subject, before: int = NEVER, since: int = FIRST, most: int = HISTORY
    ) -> float:
        """Return the same for values relative to the median of all subjects of that kind in the same step."""
        peers = self._values[self.groups == SEARCHED.index(subject.kind)]
        ratios = self._values[self._rows[subject]] / _medians(peers)
        return _median_of_last(ratios, self._between(before, since), most)

    def _between(self, before: int, since: int) -> NDArray[np.bool_]:
        return (self._steps < before) & (self._steps >= since)

    def recent(self, subject: Subject, steps: int) -> Floats:
        """Return the last values of a subject, as many as are known."""
        if subject not in self._rows:
            return np.zeros(0)
        last = self._values[self._rows[subject], -steps:]
        known: Floats = last[np.isfinite(last)]
        return known

    def step_ago(self, steps: int) -> int:
        """Return the number of the step so many steps ago, 1 for the last one."""
        return int(self._steps[-steps])

    @property
    def last_step(self) -> int:
        """The number of the last step, FIRST before any."""
        return int(self._steps[-1])

    def hide(self, row: int, first: int, last: int) -> None:
        """Hide steps from a row."""
        self._hidden.setdefault(row, []).append((first, last))

    def show(self, row: int, first: int, last: int) -> None:
        """Undo `hide` with the same steps."""
        self._hidden[row].remove((first, last))


def _median_of_last(values: Floats, chosen: NDArray[np.bool_], most: int) -> float:
    """Return the median of the last known ones of the chosen values, NaN without any."""
    own = values[chosen]
    known = own[np.isfinite(own)][-most:]
    return float(np.median(known)) if len(known) else float("nan")


def _medians(values: Floats) -> Floats:
    """Return the median of each column, NaN where nothing is known."""
    known = np.isfinite(values).any(axis=0)
    found = np.full(values.shape[1], np.nan)
    found[known] = np.nanmedian(values[:, known], axis=0)
    return found
