"""What each cause costs an iteration in a run whose steps overlap: replays in which one step follows the other.

The losses of a window (idle/losses.py) are those of its iteration only if all ranks begin a step together. In schedules
such as ZB-V they do not: a slow rank may make the window longer by 40 ms and the iteration by 44, because the others
begin the next step later, too. Here a rank begins a step when all its replicas have ended the one before, and its gap
(step_gaps.py) is over. All steps are replayed at once from where their ranks were free, then again from where they are
free after that replay, until nothing changes. The causes are removed in the order of idle/losses.py:

    C9  everything that is explained, without pauses of which nothing was recorded
    C8  no rank waits in a reduction for the last replica
    C7  no optimizer step
    C6  no gradient reduction between steps; those inside of a step are removed later, and added to this part
    ... no other work, no loading, no launch takes time, no send waits, and so on, until micro-batches are equal

An iteration is the time from the first action of a step to that of the next one, over all pipelines, so no rank waits
for the last pipeline beyond what its causes cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.makespan_shares import ReplayCosts
from stagescope.analysis.graph.replay import replay
from stagescope.analysis.graph.step_groups import group_actions
from stagescope.analysis.idle.losses import REMOVED, list_replays
from stagescope.analysis.iteration.activities import LOADING, OPTIMIZER, OTHER, REDUCTION
from stagescope.analysis.iteration.step_gaps import NONE, find_step_gaps, steps_overlap

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay import ReplayPlan
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.graph.step_groups import StepGroups
    from stagescope.analysis.idle.ledger import Ledger
    from stagescope.analysis.iteration.step_gaps import StepGaps

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

MOST_ROUNDS = 8
"""Rounds of replays. Each is exact for one step more; how a step began is usually forgotten after two or three."""

SETTLED_NS = 1000.0
PAUSE = "pause"
"""The part of a gap in which nothing was recorded."""

BEYOND = (
    "data_parallel_wait",
    OPTIMIZER,
    REDUCTION,
    OTHER,
    LOADING,
    "launch_overhead",
    "blocked_on_send",
)
"""Causes that are removed before those of REMOVED."""


@dataclass(frozen=True)
class StepChain:
    """The steps of a run as they follow each other."""

    plan: ReplayPlan
    groups: StepGroups
    gaps: StepGaps

    def iterations_ns(self, costs: ReplayCosts, activities: Collection[str] = ()) -> Integers:
        """Return the iteration of every step in a replay in which the gaps consist of some activities.

        An activity is also `PAUSE`, in which nothing was recorded.
        """
        gaps, step = self.gaps, self._step_of_row()
        before_ns, after_ns = (_sum_of(parts, activities) for parts in (gaps.before_ns, gaps.after_ns))
        goes_on = gaps.following != NONE
        followers = gaps.following[goes_on]
        released_ns, duration_ns = before_ns.copy(), np.asarray(costs.duration_ns, dtype=np.float64)
        length_ns = np.zeros(0)
        for _ in range(MOST_ROUNDS):
            at_start = np.zeros(len(duration_ns))
            at_start[gaps.first] = released_ns
            ends_ns = np.asarray(
                replay(self.plan, duration_ns, costs.lag_ns, at_start)[gaps.last], np.float64
            )
            free_ns = _latest(ends_ns, gaps.group)[gaps.group] + after_ns * ~goes_on
            free_ns[goes_on] += before_ns[followers]
            length_ns = self._until_next(free_ns, step)
            again_ns = released_ns.copy()
            again_ns[followers] = free_ns[goes_on] - length_ns[step[goes_on]]
            if np.abs(again_ns - released_ns).max(initial=0.0) <= SETTLED_NS:
                break
            released_ns = again_ns
        whole: Integers = np.rint(length_ns).astype(np.int64)
        return whole

    def _step_of_row(self) -> Integers:
        number: Integers = np.unique(self.groups.ranks["step"].to_numpy(), return_inverse=True)[1]
        return number

    def _until_next(self, free_ns: Floats, step: Integers) -> Floats:
        """Return when the first rank that needs no other one can begin the next step; without one, the last time."""
        next_ns = np.full(int(step.max(initial=-1)) + 1, np.inf)
        begins = self.gaps.following != NONE
        begins[begins] = self.gaps.is_source[self.gaps.following[begins]]
        np.minimum.at(next_ns, step[begins], free_ns[begins])
        return np.where(np.isfinite(next_ns), next_ns, _latest(free_ns, step))


def find_step_chain(
    actions: Actions, basis: ReplayBasis, spans: pl.DataFrame, steps: pl.DataFrame, meetings: pl.DataFrame
) -> StepChain | None:
    """Return the steps of a run as they follow each other, None if they do not overlap.

    `steps` is the table ITERATION_STEPS, `meetings` the table MEETINGS.
    """
    if actions.table.is_empty() or steps.is_empty():
        return None
    groups = group_actions(actions.table)
    gaps = find_step_gaps(actions, basis, groups, spans, steps)
    overlap = steps_overlap(gaps, groups, spans, steps, meetings)
    return StepChain(basis.plan, groups, gaps) if overlap else None


def measure_chained_losses(
    chain: StepChain, actions: Actions, basis: ReplayBasis, ledger: Ledger
) -> pl.DataFrame:
    """Return step and what each cause costs its iteration in ns, as columns.

    `bare_ns` is what is left without any cause: ideal work and schedule bubble.
    """
    groups, gaps = chain.groups, chain.gaps
    lengths_ns = [chain.iterations_ns(*each) for each in _list_removals(actions, basis, ledger, gaps)]
    parts = {f"{name}_ns": np.zeros_like(lengths_ns[-1]) for name in (*BEYOND, *REMOVED)}
    for name, (more, less) in zip((*BEYOND, *REMOVED), pairwise(lengths_ns), strict=True):
        parts[f"{name}_ns"] += more - less
    step = groups.ranks["step"].unique().sort()
    return pl.DataFrame({"step": step, **parts, "bare_ns": lengths_ns[-1]})


def _list_removals(
    actions: Actions, basis: ReplayBasis, ledger: Ledger, gaps: StepGaps
) -> list[tuple[ReplayCosts, tuple[str, ...]]]:
    """Return the costs of every replay, and the activities that its gaps consist of."""
    delays, classes, inner = ledger.delays, ledger.classes, actions.inner
    duration_ns = actions.computing_ns()
    # The delays of first actions are parts of the gaps.
    sends_ns, reduced_ns, replicas_ns, blocked_ns, launch_ns, loading_ns, optimizer_ns, other_ns = (
        each.copy() for each in delays[:-1]
    )
    for each in (sends_ns, reduced_ns, replicas_ns, blocked_ns, loading_ns, optimizer_ns, other_ns):
        each[gaps.first] = 0
    sends_ns, replicas_ns = sends_ns + inner.reduction_ns, replicas_ns + inner.replicas_ns
    launch_ns[gaps.first] = gaps.before_ns["launch"]
    needed_ns = duration_ns + sends_ns + reduced_ns
    kept_ns = np.cumsum([needed_ns, blocked_ns, launch_ns, loading_ns, other_ns, optimizer_ns], axis=0)
    explained_ns = basis.without_late(basis.lag_ns, "unattributed")
    joined_ns = basis.without_replicas(explained_ns)
    worked_ns = basis.without_late(joined_ns, "optimizer")
    loaded_ns = basis.without_late(worked_ns, "other_work")
    launched_ns = basis.without_late(loaded_ns, "data_loading")
    lags_ns = (launched_ns, launched_ns, launched_ns, loaded_ns, worked_ns, joined_ns)
    prompt, blocked, launched, loaded, worked, every = map(ReplayCosts, kept_ns, lags_ns)
    return [
        (ReplayCosts(kept_ns[-1] + replicas_ns, explained_ns), (LOADING, OTHER, REDUCTION, OPTIMIZER)),
        (every, (LOADING, OTHER, REDUCTION, OPTIMIZER)),
        (worked, (LOADING, OTHER, REDUCTION)),
        (worked, (LOADING, OTHER)),
        (loaded, (LOADING,)),
        (launched, ()),
        (blocked, ()),
        (ReplayCosts(prompt.duration_ns, basis.joined_ns), ()),
        *((each, ()) for each in list_replays(basis, classes, duration_ns, sends_ns, reduced_ns)),
        (ReplayCosts(classes.costs_ns("stage_ns"), basis.free_ns), ()),
    ]


def _sum_of(parts: dict[str, Integers], chosen: Collection[str]) -> Floats:
    total = np.zeros(len(parts[LOADING]))
    for name in chosen:
        total += parts.get(name, 0)
    return total


def _latest(values: Floats, group: Integers) -> Floats:
    found = np.full(int(group.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(found, group, values)
    return found
