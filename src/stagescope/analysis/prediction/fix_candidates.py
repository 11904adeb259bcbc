"""What could be fixed: one candidate per cause, and one per claimed rank, replica, machine and link.

A candidate is made of evidence: a rank or link is normalized only if it is claimed to be slower than its peers, an
action only if it is a claimed outlier, micro-batches only if their lengths differ beyond noise, a rank comes earlier to
a collective only if it is claimed to be late, and delays are left out only if something was recorded that explains
them, or if most of what nothing explains is in one place. A stage that takes longer than the others has more work,
which no fix takes away. The data-parallel wait is a consequence of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.finding_sentences import late_place_text
from stagescope.analysis.graph.blocking_sends import NO_GATE
from stagescope.analysis.idle.action_classes import WORK
from stagescope.analysis.iteration.activities import LOADING, name_activities
from stagescope.analysis.prediction.evidence import Candidate
from stagescope.analysis.prediction.faster_links import faster_links
from stagescope.analysis.prediction.outside_savings import OutsideSaving, save_outside
from stagescope.analysis.prediction.slow_optimizers import (
    find_slow_optimizers,
    lags_without,
    save_optimizers,
)
from stagescope.analysis.prediction.unknown_devices import device_change, factors_as_others, unknown_devices
from stagescope.vocabulary.kinds import ACTION_KINDS, TRANSFERS, label
from stagescope.vocabulary.number_ranges import MOST_LISTED, listed_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.prediction.evidence import Evidence
    from stagescope.analysis.prediction.faster_links import SlowLink
    from stagescope.analysis.prediction.iteration_replay import IterationReplay

    Floats = NDArray[np.float64]

MOST_SUBJECTS = 3
"""So many slow ranks, and slow links, are normalized one at a time; all are normalized together as well."""


class Candidates:
    """The candidates of one run."""

    def __init__(self, actions: Actions, replay: IterationReplay, evidence: Evidence) -> None:
        """Keep what all candidates are made of."""
        self.actions, self.replay, self.evidence = actions, replay, evidence
        self.classes, self.delays = evidence.ledger.classes, evidence.ledger.delays
        self.replayed = frozenset(actions.table["rank"].unique())

    def find(self) -> list[Candidate]:
        """Return all candidates."""
        return [
            *self._slow_ranks(),
            *self._slow_links(),
            *self._noisy_ranks(),
            *self._outliers(),
            *self._lengths(),
            *self._transfers(),
            *self._delays(),
            *self._late_ranks(),
            *self._unrecorded(),
            *self._after_windows(),
            *self._slow_optimizers(),
            *self._unknown_devices(),
        ]

    def _slow_ranks(self) -> Iterator[Candidate]:
        """Yield claimed ranks, pipelines and machines at the costs of their replicas."""
        claimed = self._claimed("rank", pl.col("finding") != "noisy")
        excess = dict(claimed.select("rank", "excess_fraction").iter_rows())
        if not excess:
            return
        ranks_of = self.evidence.iterations.members.group_by("pipeline")
        members = {pipeline: frozenset(ranks["rank"]) for (pipeline,), ranks in ranks_of}
        groups = {
            frozenset([rank]): f"rank {rank} as fast as its replicas"
            for rank in [each for each in excess if each in self.replayed][:MOST_SUBJECTS]
        }
        machines = self._claimed("machine")["machine"].to_list()
        of_machine = dict(claimed.select("rank", "machine").iter_rows()) if machines else {}
        for machine in machines[:MOST_SUBJECTS]:
            ranks = frozenset(rank for rank, own in of_machine.items() if own == machine)
            groups[ranks] = f"machine {machine} as fast as the others"
        for pipeline, ranks in members.items():
            if len(ranks) > 1 and ranks <= excess.keys():
                groups[ranks] = f"all ranks of the pipeline of rank {pipeline} as fast as their replicas"
        groups.setdefault(
            frozenset(excess), f"{listed_numbers('rank', list(excess))} as fast as their replicas"
        )
        for ranks, change in groups.items():
            if ranks & self.replayed:  # the others end before the slowest pipelines anyway
                faster = self._at_costs_of_peers(ranks, excess)
                yield Candidate("straggler", change, faster, pipelines=self._pipelines_of(ranks))

    def _at_costs_of_peers(self, ranks: frozenset[int], excess: dict[int, float]) -> Floats:
        """Return durations in which these ranks cost what their replicas do in the same step.

        Replicas that are slow as well are no reference. Without others, the claimed excess is taken away.
        """
        table, work = self.classes.table, ["step", *WORK]
        is_slow = pl.col("rank").is_in(list(excess))
        usual = table.filter(~is_slow).group_by(work).agg(usual_ns=pl.median("balanced_ns"))
        known = table.join(usual, on=work, how="left", nulls_equal=True, maintain_order="left")
        by_claim = 1 / (1 + pl.col("rank").replace_strict(excess, default=0.0, return_dtype=pl.Float64))
        by_peers = pl.col("usual_ns") / pl.max_horizontal("balanced_ns", 1)
        chosen = pl.when(pl.col("rank").is_in(list(ranks))).then(by_peers.fill_null(by_claim)).otherwise(1.0)
        factor = known.select(chosen).to_series().to_numpy()
        faster: Floats = self.replay.duration_ns * factor[self.classes.of_action]
        return faster

    def _slow_links(self) -> Iterator[Candidate]:
        """Yield claimed links as fast as links of the same direction and size, with forwards and backwards together."""
        slow = self._claimed("link", pl.col("excess_fraction") > 0, pl.col("rank").is_in(self.replayed))
        links = slow.select("rank", "peer", "kind", "excess_fraction").rows()
        ends = list(dict.fromkeys((rank, peer) for rank, peer, *_ in links))
        for rank, peer in ends[:MOST_SUBJECTS]:
            is_way = any(link[2] is not None for link in links if link[:2] == (rank, peer))
            ends_text = f"link from rank {rank} to" if is_way else f"links between rank {rank} and"
            change = f"the {ends_text} rank {peer} as fast as other links"
            faster = self._faster([link for link in links if link[:2] == (rank, peer)])
            yield Candidate(
                "exposed_communication", change, lag_ns=faster, pipelines=self._pipelines_of([rank])
            )
        if len(ends) > 1:
            change = f"the {len(ends)} slow links as fast as other links"
            pipelines = self._pipelines_of([rank for rank, _ in ends])
            yield Candidate("exposed_communication", change, lag_ns=self._faster(links), pipelines=pipelines)

    def _faster(self, links: Sequence[SlowLink]) -> Floats:
        return faster_links(self.actions, self.replay.measured.basis, self.replay.lag_ns, links)

    def _noisy_ranks(self) -> Iterator[Candidate]:
        """Yield claimed noisy ranks with the spread of their peers."""
        usual_ns = self.classes.fitted_ns()
        rank = self.actions.table["rank"].to_numpy()
        noisy = self._claimed("rank", pl.col("finding") == "noisy", pl.col("rank").is_in(self.replayed))
        for one, excess in noisy.select("rank", "excess_fraction").head(MOST_SUBJECTS).iter_rows():
            steadier = usual_ns + (self.replay.duration_ns - usual_ns) / (1 + excess)
            duration_ns = np.where(rank == one, steadier, self.replay.duration_ns)
            change = f"rank {one} as steady as its peers"
            yield Candidate("jitter", change, duration_ns, pipelines=self._pipelines_of([one]))

    def _outliers(self) -> Iterator[Candidate]:
        """Yield all outlier actions as long as such actions usually are."""
        table, outliers = self.actions.table, self.evidence.outliers
        usual_ns = table.select("row").join(
            outliers.select("row", "usual_ns"), on="row", how="left", maintain_order="left"
        )["usual_ns"]
        if outliers.is_empty():
            return
        duration_ns = usual_ns.fill_null(pl.Series(self.replay.duration_ns)).to_numpy()
        change = f"{outliers.height} outlier actions as long as usual"
        if outliers.height == 1:
            one = outliers.row(0, named=True)
            action = label(one["kind"], one["stage"], one["microbatch"])
            change = f"{action} of rank {one['rank']} in step {one['step']} as long as usual"
        yield Candidate("jitter", change, duration_ns, pipelines=self._pipelines_of(outliers["rank"]))

    def _lengths(self) -> Iterator[Candidate]:
        """Yield micro-batches of equal length, and pipelines with the same amount of data."""
        table = self.classes.table
        same_data = table["balanced_ns"].to_numpy() / np.maximum(table["mean_ns"].to_numpy(), 1)
        factor = same_data[self.classes.of_action] / self.classes.length_of_action
        if np.any(np.abs(factor - 1) > np.finfo(np.float64).eps):
            yield Candidate(
                "data_imbalance",
                "micro-batches of equal length",
                duration_ns=self.replay.duration_ns * factor,
            )

    def _transfers(self) -> Iterator[Candidate]:
        """Yield sends that do not block their rank, and transfers without waiting."""
        basis = self.replay.measured.basis
        sends, delay_ns = basis.plan.sends, None
        if self.delays.sends_ns.any() or len(sends.need):
            delay_ns = self._without(self.delays.sends_ns)
            change = "sends that do not block"
            lag_ns = basis.unblocked(basis.async_ns)
            yield Candidate("exposed_communication", change, delay_ns=delay_ns, lag_ns=lag_ns)
        if self.delays.blocked_on_send_ns.any() or (sends.gate != NO_GATE).any():
            without = self._without(self.delays.blocked_on_send_ns)
            change = "sends that do not wait for their receiver"
            yield Candidate(
                "blocked_on_send", change, delay_ns=without, lag_ns=basis.unblocked(basis.apart_ns)
            )
        yield Candidate(
            "exposed_communication",
            "all transfers hidden behind compute",
            duration_ns=self._without_collectives(),
            delay_ns=delay_ns,
            lag_ns=basis.unblocked(basis.free_ns),
            is_bound=True,
        )

    def _delays(self) -> Iterator[Candidate]:
        """Yield actions that are not delayed by launches, loading of data or other work."""
        launch, loading, other = (
            getattr(self.delays, f"{name}_ns") for name in ("launch_overhead", "data_loading", "other_work")
        )
        # Without any recorded transfer, what is between two actions may be transfers, which no faster launch removes.
        if launch.any() and self.actions.has_transfers:
            yield Candidate(
                "launch_overhead",
                "no launch overhead",
                delay_ns=self._without(launch),
                is_bound=True,
                condition="if all launches are hidden, as with CUDA graphs",
            )
        lag_ns, late = self._without_late("data_loading"), self.replay.measured.basis.late
        outside = self._outside("data_loading")
        if loading.any() or late.data_loading_ns.any() or outside.total_ns:
            yield Candidate(
                "data_loading",
                f"{self._loaded_data()} loaded ahead of time",
                delay_ns=self._without(loading),
                lag_ns=lag_ns,
                outside=outside,
                condition="if loading can run while the ranks compute",
                removes_outside=True,
            )
        outside = self._outside("other_work")
        if other.any() or late.other_work_ns.any() or outside.total_ns:
            yield Candidate(
                "other_work",
                "no other work between actions and steps",
                delay_ns=self._without(other),
                lag_ns=self._without_late("other_work"),
                outside=outside,
                is_bound=True,
                removes_outside=True,
            )

    def _late_ranks(self) -> Iterator[Candidate]:
        """Yield claimed late ranks that come as early as the others, apart from those that load data."""
        late = self.evidence.late_ranks.filter("is_claimed", pl.col("cause") != LOADING)
        for row in late.head(MOST_SUBJECTS).iter_rows(named=True):
            yield Candidate(
                row["cause"],
                f"rank {row['rank']} as early as the others at the {row['operation']}, without {late_place_text(row)}",
                outside=OutsideSaving(row["lost_ns"]),
            )

    def _unrecorded(self) -> Iterator[Candidate]:
        """Yield no pauses of which nothing was recorded, if most of them are in one place."""
        place, hint = self.evidence.unrecorded_place
        if place:
            yield Candidate(
                "unattributed",
                f"no unrecorded time {place}",
                delay_ns=self._without(self.delays.unexplained_ns),
                lag_ns=self._without_late("unattributed"),
                outside=self._outside("unattributed"),
                is_bound=True,
                condition=hint,
                removes_outside=True,
            )

    def _after_windows(self) -> Iterator[Candidate]:
        """Yield the gradient reduction, wherever it takes time, and the optimizer."""
        pipelines = self.evidence.iterations.members["pipeline"].n_unique()
        basis = self.replay.measured.basis
        yield Candidate(
            "gradient_reduction",
            "gradient reduction hidden behind backward passes",
            delay_ns=self._without(self.delays.gradient_reduction_ns),
            lag_ns=basis.without_reductions(self.replay.lag_ns),
            outside=self._outside("gradient_reduction"),
            is_bound=True,
            removes_outside=True,
        )
        if pipelines > 1:
            saved, lag_ns = 1 - 1 / pipelines, self.replay.measured.lag_ns
            delays_ns = self.delays.optimizer_ns.astype(np.float64)
            yield Candidate(
                "optimizer",
                f"optimizer divided among {pipelines} replicas",
                delay_ns=self._without(saved * delays_ns),
                lag_ns=lag_ns - saved * (lag_ns - self._without_late("optimizer")),
                outside=self._outside("optimizer", saved),
                is_bound=True,
                condition="if every replica updates all parameters now",
            )

    def _unknown_devices(self) -> Iterator[Candidate]:
        """Yield the ranks whose stages take longer at the costs of others, if no replica runs these stages."""
        ranks = unknown_devices(self.evidence.stragglers)
        if self.replayed.intersection(ranks):
            change, why = device_change(ranks)
            faster = factors_as_others(self.classes.table, ranks)[self.classes.of_action]
            known = Candidate("stage_imbalance", change, self.replay.duration_ns * faster, condition=why)
            pipelines = self._pipelines_of(ranks)
            yield known._replace(is_bound=True, is_unknown=True, pipelines=pipelines)

    def _slow_optimizers(self) -> Iterator[Candidate]:
        """Yield the optimizer steps of ranks that take longer than those of their peers."""
        known = self.evidence
        stages = self.actions.table if known.not_replayed is None else known.not_replayed.stages
        slow = find_slow_optimizers(known.spans, stages, known.meetings)
        if slow is None:
            return
        ranks = self.actions.table["rank"]
        part = ranks.replace_strict(slow.part_of_rank, default=0.0, return_dtype=pl.Float64).to_numpy()
        yield Candidate(
            "optimizer",
            slow.change,
            delay_ns=self._without(part * self.delays.optimizer_ns),
            lag_ns=lags_without(self.replay.measured.basis, self.replay.measured.lag_ns, part),
            outside=save_optimizers(known.iterations, self.replay.measured.groups.steps, slow, known.spans),
            is_bound=not slow.has_peers,
            condition="" if slow.has_peers else "if no more parameters are updated there",
            pipelines=self._pipelines_of(slow.ranks),
        )

    def _claimed(self, subject: str, *conditions: pl.Expr) -> pl.DataFrame:
        """Return the claims about a kind of subject that meet the conditions, the costliest first."""
        return self.evidence.stragglers.filter("is_claimed", pl.col("subject") == subject, *conditions)

    def _pipelines_of(self, ranks: Iterable[int]) -> frozenset[int]:
        members = self.evidence.iterations.members
        return frozenset(members.filter(pl.col("rank").is_in(list(ranks)))["pipeline"])

    def _without(self, part_ns: Floats | NDArray[np.int64]) -> Floats:
        return np.asarray(np.maximum(self.replay.delay_ns - part_ns, 0))

    def _without_collectives(self) -> Floats | None:
        """Return durations without what data-parallel collectives inside of actions take, None without any."""
        inner_ns = self.actions.inner.reduction_ns
        return self.replay.duration_ns - inner_ns if inner_ns.any() else None

    def _without_late(self, cause: str) -> NDArray[np.int64]:
        """Return the lags without what late receivers did."""
        lags: NDArray[np.int64] = self.replay.measured.basis.without_late(self.replay.measured.lag_ns, cause)
        return lags

    def _loaded_data(self) -> str:
        """Return the ranks that load data, if there are few."""
        spans = self.evidence.spans.filter(~pl.col("kind").is_in([*ACTION_KINDS, *TRANSFERS]))
        named = name_activities(spans).filter(pl.col("activity") == LOADING)
        ranks = named["rank"].unique().sort().to_list()
        return f"data of {listed_numbers('rank', ranks)}" if 0 < len(ranks) <= MOST_LISTED else "data"

    def _outside(self, cause: str, fraction: float = 1.0) -> OutsideSaving:
        """Return what a change saves outside the windows if it removes that fraction of a cause."""
        return save_outside(self.evidence.iterations, self.replay.measured.groups.steps, cause, fraction)
