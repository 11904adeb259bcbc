"""Aligns the clocks of a run that is stored in parts: in a worker process of this machine, unless there are none.

For 10,000 ranks, alignment takes a gigabyte for a while, and the process that surveys the files has half of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.api.detached_tables import attach_later
from stagescope.clocks import solve_clocks, timestamps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import polars as pl

    from stagescope.clocks import ClocksOfRun, Observed, SolvedClocks
    from stagescope.clocks.evidence import Ints
    from stagescope.model import Timeline


class ShownRows(NamedTuple):
    """What reads the rows of a part of a run, and the clocks of its ranks."""

    read: Callable[[], Timeline]
    numbered: pl.DataFrame


class Unsolved(NamedTuple):
    """What all parts show about the clocks of a run, and their rows. `observed` has its tables in files."""

    clocks: ClocksOfRun
    observed: tuple[Observed, ...]
    extents: tuple[pl.DataFrame, ...]
    rows: tuple[ShownRows, ...]
    name: str = "the clocks of all machines"


def solve_run(item: Unsolved) -> SolvedClocks:
    """Return the corrections of all clocks of the run. Raises OSError."""

    def timestamps_of_clocks(clocks: Sequence[int]) -> Mapping[int, Ints]:
        found: dict[int, list[Ints]] = {clock: [np.empty(0, np.int64)] for clock in clocks}
        for part in item.rows:
            own = sorted(set(clocks).intersection(part.numbered["clock"]))
            if own:
                for clock, own_ns in timestamps_of(part.read(), part.numbered, own).items():
                    found[clock].append(own_ns)
        return {clock: np.unique(np.concatenate(own)) for clock, own in found.items()}

    observed = [attach_later(each) for each in item.observed]  # one table of all parts after the other
    return solve_clocks(item.clocks, observed, item.extents, timestamps_of_clocks)
