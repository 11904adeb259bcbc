"""What the replays of the ledger are made of: the durations, classes and delays of actions. Nothing here is replayed.

What is usual in a run for the causes of lost time is learned on the way, so that it is known before any replay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.graph.step_groups import group_actions
from stagescope.analysis.idle.action_classes import compare_classes, measure_classes
from stagescope.analysis.idle.delays import measure_delays
from stagescope.analysis.idle.origins import find_blocked_receivers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.idle.action_classes import ActionClasses
    from stagescope.analysis.idle.data_lengths import UsualLengths
    from stagescope.analysis.idle.delays import Delays, UsualDelays

    Integers = NDArray[np.int64]


class UsualCauses(NamedTuple):
    """What is usual in a run for the causes of lost time.

    How long launches and blocking sends take, how data differ in length, and the ranks for which ranks wait that are
    blocked in sends (find_blocked_receivers), None without spans.
    """

    delays: UsualDelays
    lengths: UsualLengths
    receivers: dict[int, int] | None


class ActionCosts(NamedTuple):
    """The classes and delays of all actions, and what is usual in the run, as it was given or learned from them."""

    classes: ActionClasses
    delays: Delays
    usual: UsualCauses


def find_action_costs(
    actions: Actions,
    basis: ReplayBasis,
    spans: pl.DataFrame | None = None,
    usual: UsualCauses | None = None,
) -> ActionCosts:
    """Return the costs of actions; `basis` is from find_replay_basis for them.

    `spans` are those of the run, which show why an action was delayed; without them a delay is launch overhead or
    unattributed. `usual` is what is usual in the run; None: it is learned from these actions.
    """
    costs = measure_action_costs(actions, basis, spans, usual)
    return with_peers(costs, costs.classes.table)


def measure_action_costs(
    actions: Actions,
    basis: ReplayBasis,
    spans: pl.DataFrame | None = None,
    usual: UsualCauses | None = None,
) -> ActionCosts:
    """Return what find_action_costs does, without what depends on other pipelines: classes as of measure_classes."""
    classes = measure_classes(actions, split_durations(actions).computing_ns, usual and usual.lengths)
    groups = group_actions(actions.table)
    delays, usual_delays = measure_delays(actions, basis, groups, spans, usual and usual.delays)
    if usual is None:
        blocks = len(basis.plan.sends.need) or delays.blocked_on_send_ns.any()
        receivers = None if spans is None else find_blocked_receivers(spans) if blocks else {}
        usual = UsualCauses(usual_delays, classes.usual, receivers)
    return ActionCosts(classes, delays, usual)


def with_peers(costs: ActionCosts, classes: pl.DataFrame) -> ActionCosts:
    """Return the costs of the actions of some pipelines, given the tables of measure_classes of all pipelines."""
    own = pl.col("pipeline").is_in(costs.classes.table["pipeline"].unique().implode())
    return costs._replace(classes=replace(costs.classes, table=compare_classes(classes).filter(own)))


class Durations(NamedTuple):
    """Durations of actions: as measured, without waits for replicas in them, and without waits for collectives."""

    measured_ns: Integers
    joined_ns: Integers
    computing_ns: Integers


def split_durations(actions: Actions) -> Durations:
    """Return the durations of actions with and without what they wait for inside."""
    duration_ns, inner = actions.duration_ns(), actions.inner
    joined_ns = duration_ns - inner.replicas_ns if inner.replicas_ns.any() else duration_ns
    computing_ns = joined_ns - inner.reduction_ns if inner.reduction_ns.any() else joined_ns
    return Durations(duration_ns, joined_ns, computing_ns)
