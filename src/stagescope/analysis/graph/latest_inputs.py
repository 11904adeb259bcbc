"""The last input of every action: of all results that it needed, the one that arrived latest."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.reduction_waits import Waits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions

    Booleans = NDArray[np.bool_]
    Integers = NDArray[np.int64]

NO_ACTION = -1
NEVER_NS = np.iinfo(np.int64).min
"""Times of an input that no action needed: before everything."""


class LatestInputs(NamedTuple):
    """One value per action, about its latest input.

    `producer` is the action that computed it, NO_ACTION if none was recorded or needed; `made_ns` its end. `there_ns`
    is the recorded arrival, or else the end of the producer; never before made_ns. `is_timed`: there_ns is known,
    because the arrival was recorded or no transfer was needed. `is_lost`: an input from a neighboring stage was needed
    but not recorded. `held` is how long a wait for a reduction of gradients kept the input from being sent. `need` is
    the row of the input in needs, NO_ACTION without one.
    """

    producer: Integers
    made_ns: Integers
    there_ns: Integers
    is_timed: Booleans
    is_lost: Booleans
    held: Waits
    need: Integers

    @property
    def sent_ns(self) -> Integers:
        """When the input could be sent: when it was made, or after the wait that held it."""
        total_ns = self.held.total_ns
        return np.minimum(self.made_ns + total_ns, self.there_ns) if total_ns.any() else self.made_ns


def find_latest_inputs(actions: Actions) -> LatestInputs:
    """Return the latest input of every action; of two at the same time, the one that was computed later."""
    needs = actions.needs
    action, producers = needs["action"].to_numpy(), needs["needs"].to_numpy()
    made_ns = actions.table["end_ns"].to_numpy()[producers]
    there_ns = np.maximum(needs["arrived_ns"].fill_null(NEVER_NS).to_numpy(), made_ns)
    latest = _choose_latest(action, there_ns, made_ns)
    chosen = action[latest]
    count = actions.table.height
    inputs = LatestInputs(
        np.full(count, NO_ACTION, dtype=np.int64),
        np.full(count, NEVER_NS),
        np.full(count, NEVER_NS),
        np.ones(count, dtype=np.bool_),
        _lost(actions),
        _held(actions, latest),
        np.full(count, NO_ACTION, dtype=np.int64),
    )
    inputs.need[chosen] = latest
    inputs.producer[chosen] = producers[latest]
    inputs.made_ns[chosen] = made_ns[latest]
    inputs.there_ns[chosen] = there_ns[latest]
    is_timed = (needs["arrived_ns"].is_not_null() | ~needs["is_remote"]).to_numpy()
    inputs.is_timed[chosen] = is_timed[latest]
    return inputs


def _held(actions: Actions, latest: Integers) -> Waits:
    """Return how long the latest input of every action was held; `latest` are the rows of these inputs in needs."""
    need, waits = actions.held
    is_latest = np.isin(need, latest)
    action = actions.needs["action"].to_numpy()[need[is_latest]]
    # Zeros that nothing is written to take no memory.
    found = Waits(*(np.zeros(actions.table.height, dtype=np.int64) for _ in waits))
    for whole, part in zip(found, waits, strict=True):
        whole[action] = part[is_latest]
    return found


def _choose_latest(action: NDArray[np.uint32], there_ns: Integers, made_ns: Integers) -> Integers:
    """Return one row of needs per action in `action`, which is sorted: that of its latest input."""
    first = np.flatnonzero(np.append(len(action) > 0, action[1:] != action[:-1]))
    counts = np.diff(np.append(first, len(action)))
    chosen: Integers = first.copy()
    for place in range(1, int(counts.max(initial=0))):
        having = np.flatnonzero(counts > place)
        rival, best = first[having] + place, chosen[having]
        is_later = there_ns[rival] > there_ns[best]
        is_later |= (there_ns[rival] == there_ns[best]) & (made_ns[rival] > made_ns[best])
        chosen[having] = np.where(is_later, rival, best)
    return chosen


def _lost(actions: Actions) -> Booleans:
    """Return which actions have fewer inputs from neighboring stages than they need."""
    table, partners, needs = actions.table, actions.partners, actions.needs
    last = pl.lit(pl.concat([table["stage"], partners["stage"]]).max(), pl.Int32)
    is_forward, stage = pl.col("kind") == "forward", pl.col("stage")
    is_backward = pl.col("kind").is_in(("backward", "backward_input"))
    expects = ((is_forward & (stage > 0)) | (is_backward & (stage < last))).alias("expects")
    expected = table.select(expects).to_series().to_numpy().astype(np.int64)
    np.add.at(expected, partners["action"].to_numpy(), partners.select(expects).to_series().to_numpy())
    from_neighbors = needs.filter(pl.col("direction") != "own")["action"].to_numpy()
    lost: Booleans = np.bincount(from_neighbors, minlength=table.height) < expected
    return lost
