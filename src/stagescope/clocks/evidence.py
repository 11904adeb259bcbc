"""Observations as arrays on one coarse time scale, which the solver works on.

A coarse offset per clock makes the timestamps of all clocks comparable to within microseconds. No bound depends on
its accuracy: a poor coarse offset only widens the bounds, because events seem farther apart and more drift is allowed
for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.sparse import coo_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import (  # type: ignore[import-untyped]
    breadth_first_order,
    minimum_spanning_tree,
)

from stagescope.clocks.exits import OF_EXITS
from stagescope.clocks.grouped import distinct

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Bools = npt.NDArray[np.bool_]

TYPICAL_QUANTILE = 0.1
"""The coarse offset uses the 10 % quantile of the delays: close to the minimum, but not moved by a few outliers."""

COLLECTIVE = 1
"""The channel of collectives: their shortest delays are others than those of messages between the same clocks."""


@dataclass(frozen=True)
class Evidence:
    """Observations: `true(source, sent_ns) - true(target, received_ns) <= slack_ns`, in coarse time.

    `row` is the row of the observation in the table it was made from, -1 where it represents several. `channel` is
    COLLECTIVE for collectives and 0 for everything else, and `stay_ns` how long the source stayed in the collective.
    `by_exit` and so on are those of exits.py, 0 for everything else.
    """

    source: Ints
    target: Ints
    sent_ns: Floats
    received_ns: Floats
    slack_ns: Floats
    waited: Bools
    row: Ints
    channel: Ints
    stay_ns: Floats
    by_exit: Bools
    scatter_ns: Floats
    constant_ns: Floats
    target_constant_ns: Floats

    def __len__(self) -> int:
        return len(self.source)

    def where(self, chosen: Bools | Ints) -> Evidence:
        """Return some of the observations, without a copy if all are chosen: 0.1 GB for 1,000 machines."""
        if chosen.dtype == bool and chosen.all():
            return self
        return replace(self, **{name: getattr(self, name)[chosen] for name in self.__dataclass_fields__})

    @property
    def delay_ns(self) -> Floats:
        """The apparent delay between the two events: the true delay plus the offset of the target's clock."""
        return self.received_ns - self.sent_ns + self.slack_ns


@dataclass(frozen=True)
class Coarse:
    """How raw timestamps become coarse time: `timestamp - zero_ns - offset_ns[clock]`."""

    zero_ns: int
    offset_ns: Ints


def coarse_offsets(table: pl.DataFrame, clocks: int) -> Coarse:
    """Return coarse offsets of all clocks, along the spanning tree of the pairs with the shortest round trips.

    `table` is sorted by source and target. Clocks without observations have offset 0.
    """
    if not len(table):
        return Coarse(0, np.zeros(clocks, np.int64))
    source, target = (table[name].to_numpy().astype(np.int64) for name in ("source", "target"))
    delay_ns = (table["received_ns"] - table["sent_ns"]).to_numpy()
    typical: dict[tuple[int, int], float] = {}
    keys, first = distinct(source * clocks + target)[:2]
    for key, delays in zip(keys, np.split(delay_ns, first[1:]), strict=True):
        rank = int(len(delays) * TYPICAL_QUANTILE)
        typical[int(key // clocks), int(key % clocks)] = float(np.partition(delays, rank)[rank])
    ahead, round_trips = _ahead(typical)
    offset_ns = _along_tree(ahead, round_trips, clocks)
    return Coarse(int(table["sent_ns"].min()), offset_ns)  # type: ignore[arg-type]


def _matrix(places: Ints, values: Floats, size: int) -> coo_array:
    row, column = places.astype(np.int32).T  # the graph functions of SciPy 1.15 accept no 64-bit indices
    return coo_array((values, (row, column)), shape=(size, size)).tocsr()


def _ahead(typical: dict[tuple[int, int], float]) -> tuple[dict[tuple[int, int], float], Floats]:
    """Return by how much the second clock of each pair is ahead of the first, and its round trip."""
    ahead: dict[tuple[int, int], float] = {}
    round_trips = []
    one_way = 1e15  # longer than any round trip: used only where nothing else connects two clocks
    for (one, other), delay in typical.items():
        back = typical.get((other, one))
        if back is None:
            ahead[one, other] = delay
            round_trips.append(one_way)
        elif one < other:
            ahead[one, other] = (delay - back) / 2
            round_trips.append(max(1.0, delay + back))
    return ahead, np.array(round_trips)


def _along_tree(ahead: dict[tuple[int, int], float], round_trips: Floats, clocks: int) -> Ints:
    tree = minimum_spanning_tree(_matrix(np.array(list(ahead)).reshape(-1, 2), round_trips, clocks))
    offset_ns = np.zeros(clocks)
    reached = np.zeros(clocks, bool)
    # Each connected component of the tree starts at its first clock, with offset 0.
    for root in range(clocks):
        if reached[root]:
            continue
        nodes, parents = breadth_first_order(tree, root, directed=False)
        for node in nodes[1:]:
            parent = int(parents[node])
            forward = (parent, int(node)) in ahead
            step = ahead[parent, int(node)] if forward else -ahead[int(node), parent]
            offset_ns[node] = offset_ns[parent] + step
        reached[nodes] = True
    return np.rint(offset_ns).astype(np.int64)


def evidence_of(table: pl.DataFrame, coarse: Coarse, error_ns: Floats) -> Evidence:
    """Return the observations of a table in coarse time, in the order of the table.

    `error_ns` is how far timestamps of each clock may be from a clock that drifts steadily.
    """
    source, target = (table[name].to_numpy().astype(np.int64) for name in ("source", "target"))
    # Subtract as integers first: a float64 resolves nanoseconds since the epoch to only 256 ns.
    sent_ns = table["sent_ns"].to_numpy() - coarse.zero_ns - coarse.offset_ns[source]
    received_ns = table["received_ns"].to_numpy() - coarse.zero_ns - coarse.offset_ns[target]
    return Evidence(
        source,
        target,
        sent_ns.astype(float),
        received_ns.astype(float),
        error_ns[source] + error_ns[target],
        table["waited"].to_numpy(),
        np.arange(len(table)),
        np.where(table["kind"].is_in(("collective", "reduction")).to_numpy(), COLLECTIVE, 0),
        table["stay_ns"].fill_null(0).to_numpy().astype(float),
        table["by_exit"].fill_null(value=False).to_numpy(),
        *(table[name].fill_null(0).to_numpy().astype(float) for name in OF_EXITS),
    )


def joined(one: Evidence, other: Evidence) -> Evidence:
    """Return the observations of both."""
    names = Evidence.__dataclass_fields__
    return Evidence(**{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in names})
