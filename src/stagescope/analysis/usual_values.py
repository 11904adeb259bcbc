"""What is usual in a run, as far as an analysis of its steps depends on it: learned once, from its sample."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.graph.blocking_sends import NO_GATES
from stagescope.analysis.graph.replay_basis import UsualTransfers
from stagescope.analysis.graph.transfer_lags import LINK, UsualLags
from stagescope.analysis.idle.action_costs import UsualCauses
from stagescope.analysis.idle.data_lengths import ROW, UsualLengths, Weights
from stagescope.analysis.idle.delays import UsualDelays
from stagescope.analysis.statistics.outlier_actions import CLASS, UsualDurations

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class UsualValues(NamedTuple):
    """What is usual for transfers, for the causes of lost time, and for how long actions take.

    `durations` is None where nothing is compared with it.
    """

    transfers: UsualTransfers
    causes: UsualCauses
    durations: UsualDurations | None = None


def join_usual(parts: Sequence[UsualValues]) -> UsualValues:
    """Return what is usual in a run, given what was learned from each of several groups of its pipelines, at least one.

    What belongs to a rank or a link is known to the group with its pipeline: such rows are put together. What the run
    has one value of is learned by each group from the actions of a million spans, which is enough: what sends wait for
    is a property of the training, so the groups vote, and groups without blocking sends, or that recognized no gate,
    have no vote on it. Of lags, launches, and how lengths of data show, the median of the groups is taken. It is as
    good as one over all actions, needs no actions of several groups at once, and one group with a slow network does not
    change it. Lengths of data are known to the run if most groups found them to be more than noise.
    """
    if len(parts) == 1:
        return parts[0]
    durations = [each.durations for each in parts if each.durations is not None]
    return UsualValues(
        _join_transfers([each.transfers for each in parts]),
        _join_causes([each.causes for each in parts]),
        UsualDurations(
            pl.concat([each.classes for each in durations]).sort(CLASS),
            sum(each.actions for each in durations),
        )
        if len(durations) == len(parts)
        else None,
    )


def _join_transfers(parts: Sequence[UsualTransfers]) -> UsualTransfers:
    voting = [each for each in parts if each.sends.height] or parts
    links = pl.concat([each.lags.links for each in parts]).sort(LINK)
    everywhere_ns = _median(each.lags.everywhere_ns for each in parts)
    return UsualTransfers(
        _most_common([each.gates for each in parts if each.gates != NO_GATES]),
        UsualLags(everywhere_ns, links),
        pl.concat([each.sends for each in parts]).sort("rank"),
        waits_most=2 * sum(each.waits_most for each in voting) > len(voting),
        trusts_late=2 * sum(each.trusts_late for each in voting) >= len(voting),
    )


def _most_common(gates: Sequence[int]) -> int:
    """Return the gates that most groups have, of equally common ones those that are tried first."""
    counts = Counter(gates)
    return min(counts, key=lambda number: (-counts[number], number), default=NO_GATES)


def _join_causes(parts: Sequence[UsualCauses]) -> UsualCauses:
    receivers = [each.receivers for each in parts]
    acting = [each for each in parts if each.lengths.alone.height] or parts  # the others have no actions
    launch_ns = int(median(each.delays.launch_ns for each in acting))
    return UsualCauses(
        UsualDelays(launch_ns, pl.concat([each.delays.sends for each in parts]).sort("rank")),
        _join_lengths([each.lengths for each in acting]),
        None if None in receivers else {k: v for each in receivers for k, v in (each or {}).items()},
    )


def _join_lengths(parts: Sequence[UsualLengths]) -> UsualLengths:
    every = pl.concat([each.alone for each in parts])
    means = [each.means for each in parts if each.means is not None]
    return UsualLengths(
        every.group_by("kind", "stage", maintain_order=True).agg(pl.median("alone_ns")),
        _join_weights([each.microbatches for each in parts]),
        _join_weights([each.steps for each in parts]),
        pl.concat(means).sort(ROW) if means else None,
    )


def _join_weights(parts: Sequence[Weights | None]) -> Weights | None:
    """Return the weights of all groups; None if most of them found no lengths."""
    known = [each for each in parts if each is not None]
    if 2 * len(known) <= len(parts):
        return None
    return Weights(pl.concat([each.of_row for each in known]).sort(ROW), median(each.ratio for each in known))


def _median(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return median(known) if known else None
