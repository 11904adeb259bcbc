"""Stragglers: which rank, machine, stage or link is slower than its peers, by how much, and how certain that is.

A rank is compared with the other ranks of its stage, which do equal work (data-parallel replicas, tensor-parallel
siblings): if it is slower, it is slow. A stage is compared with the other stages. They may have different work, so a
stage that takes longer is an imbalance; and if only one rank runs it, the device may as well be slow. A machine is slow
if each of its ranks is slower than the ranks of other machines. A link is compared with links of the same direction and
message size that cross machines, or do not, as it does.

Every comparison is a row, with the p-value of "slower by no more than the minimum that is worth naming". Claims are
chosen so that at most 5 % of them are expected to be false (Benjamini and Hochberg, over the whole table); the rate is
an upper bound, because most comparisons without a finding are below the minimum and not at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.statistics.action_samples import FEWEST_SAMPLES, sample_actions
from stagescope.analysis.statistics.estimates import discoveries, estimate_means
from stagescope.analysis.statistics.link_excess import compare_links
from stagescope.analysis.statistics.link_samples import sample_links
from stagescope.analysis.statistics.peer_excess import (
    PeerExcess,
    compare_all_ranks,
    compare_machines,
    compare_ranks,
    compare_stages,
)
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.messages import match_messages
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.statistics.action_samples import ActionSamples
    from stagescope.model import Timeline

    Floats = NDArray[np.float64]

SUBJECTS = ("rank", "machine", "stage", "link")
FINDINGS = ("slow", "imbalance", "imbalance or slow device", "noisy")
PEERS = (
    "ranks of the same stage",
    "ranks of other machines",
    "other stages",
    "all other ranks",
    "other links",
)
FRACTIONS = ("excess_fraction", "low_fraction", "high_fraction", "fast_fraction")
SubjectType, FindingType, PeersType = (pl.Enum(list(names)) for names in (SUBJECTS, FINDINGS, PEERS))

STRAGGLERS = Table(
    "stragglers",
    "one comparison of a rank, machine, stage or link with its peers",
    ("is_claimed", "extra_ns_per_step"),
    (
        Column("subject", SubjectType, "", "What is compared."),
        Column("finding", FindingType, "", "What is claimed about it if is_claimed."),
        Column(
            "rank", pl.Int32, "", "Rank; of a stage, its only rank; of a link, the sender.", nullable=True
        ),
        Column("machine", pl.String, "", "Its machine.", nullable=True),
        Column("stage", pl.Int32, "", "Stage; of a rank, the stage that adds most.", nullable=True),
        Column(
            "kind", pl.String, "", "Kind of action that adds most; of a link, its direction.", nullable=True
        ),
        Column("peer", pl.Int32, "", "The receiver of a link.", nullable=True),
        Column("compared_with", PeersType, "", "The peers, whose median is the denominator."),
        Column("peers", pl.Int64, "", "Number of peers."),
        Column(
            "samples",
            pl.Int64,
            "",
            "Samples, the n of the interval: steps, or parts of steps if there are fewer than 4.",
        ),
        Column("span_count", pl.Int64, "", "Actions, or messages of a link, behind the samples."),
        Column("excess_fraction", pl.Float64, "of the peers'", "How much longer its actions take."),
        Column("low_fraction", pl.Float64, "of the peers'", "Lower end of its 95 % CI."),
        Column("high_fraction", pl.Float64, "of the peers'", "Upper end."),
        Column(
            "fast_fraction",
            pl.Float64,
            "of the peers'",
            "How much longer its fast actions take, at the 20th percentile.",
            nullable=True,
        ),
        Column(
            "extra_ns_per_step",
            pl.Float64,
            "ns",
            "Time that it adds per step to its actions or messages; of a stage or machine, to those of one rank.",
            nullable=True,
        ),
        Column(
            "p_value", pl.Float64, "", "Probability of such an excess if the true one were not worth naming."
        ),
        Column("is_claimed", pl.Boolean, "", "Whether it is claimed."),
    ),
)
"""For a noisy rank the fractions state how much wider its actions are spread, and extra_ns_per_step is null."""


class Limits(NamedTuple):
    """The smallest effects worth naming, and the share of claims that may be false.

    Actions 1 % longer, actions spread 50 % wider, and messages 25 % slower.
    """

    slow_fraction: float = 0.01
    noisy_fraction: float = 0.5
    link_fraction: float = 0.25
    false_discovery_rate: float = 0.05


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Stragglers:
    """The table STRAGGLERS, claims first and the costliest first, and diagnostics about what could not be compared."""

    table: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


def find_stragglers(
    timeline: Timeline,
    messages: pl.DataFrame | None = None,
    limits: Limits = DEFAULT_LIMITS,
    *,
    equal_stages: bool = False,
) -> Stragglers:
    """Return every comparison of ranks, machines, stages and links with their peers, and which of them are claimed.

    Pass only the steps to judge: a set-up step is not a sample of the training. `messages` is from match_messages;
    None: it is computed here. `equal_stages` states that all stages do equal work, so that a stage that takes longer is
    slow. With fewer than four samples nothing is decided, and a diagnostic states it. Never raises.
    """
    samples = sample_actions(timeline.spans)
    if messages is None:
        messages = match_messages(timeline.spans)
    links = sample_links(timeline, messages, samples.sampling)
    machines = timeline.ranks.select("rank", "machine")
    families = [
        _ranks(samples, limits),
        _machines(samples, limits, machines),
        _stages(samples, limits, equal_stages=equal_stages),
        _noisy(samples, limits),
        compare_links(links, samples.sampling, limits.link_fraction),
    ]
    rows = pl.concat([_declared(family, machines) for family in families])
    if samples.sampling.count < FEWEST_SAMPLES:
        rows = rows.clear()
    # One test over all families: per family, a table with many rows would hold more false claims than stated.
    claimed = discoveries(rows["p_value"].to_numpy(), limits.false_discovery_rate)
    rows = _without_disturbed(rows.with_columns(is_claimed=pl.Series(claimed, dtype=pl.Boolean)))
    table = rows.sort(
        "is_claimed", "extra_ns_per_step", descending=True, nulls_last=True, maintain_order=True
    )
    diagnostics = (*samples.diagnostics, *links.diagnostics, *_too_few(samples))
    return Stragglers(table.select(STRAGGLERS.names), diagnostics)


def _declared(rows: pl.DataFrame, machines: pl.DataFrame) -> pl.DataFrame:
    """Return rows with all columns of STRAGGLERS but the last; unknown columns are null."""
    if "machine" not in rows.columns and "rank" in rows.columns:
        rows = rows.join(machines, on="rank", how="left", maintain_order="left")
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None).alias(name)).cast(dtype)
        for name, dtype in STRAGGLERS.schema.items()
        if name != "is_claimed"
    )


def _too_few(samples: ActionSamples) -> list[Diagnostic]:
    count = samples.sampling.count
    if not 0 < count < FEWEST_SAMPLES:
        return []
    message = f"too few steps and micro-batches to find stragglers: n = {count}, at least {FEWEST_SAMPLES} are needed"
    return [Diagnostic("info", message, code="samples.too_few")]


def _ranks(samples: ActionSamples, limits: Limits) -> pl.DataFrame:
    """Return ranks compared with the others of their stage."""
    excess = compare_ranks(samples.table, samples.sampling.count)
    rows = _slow_rows(excess, samples, limits).rename({"subject": "rank"})
    return _labelled(rows, SUBJECTS[0], FINDINGS[0], PEERS[0])


def _machines(samples: ActionSamples, limits: Limits, machines: pl.DataFrame) -> pl.DataFrame:
    """Return machines of several ranks; the p-value is the largest of its ranks', since each rank has to be slow."""
    named = machines.drop_nulls()
    excess = compare_machines(samples.table, samples.sampling.count, dict(named.iter_rows()))
    ranks = _slow_rows(excess, samples, limits).join(named, left_on="subject", right_on="rank")
    rows = (
        ranks.sort("machine", "subject")
        .group_by("machine", maintain_order=True)
        .agg(
            pl.col(*FRACTIONS, "extra_ns_per_step").median(),
            pl.col("peers", "samples").min(),
            pl.col("span_count").sum(),
            pl.col("p_value").max(),
            ranks=pl.len(),
        )
        .filter(pl.col("ranks") > 1)
    )
    return _labelled(rows, SUBJECTS[1], FINDINGS[0], PEERS[1])


def _stages(samples: ActionSamples, limits: Limits, *, equal_stages: bool) -> pl.DataFrame:
    """Return stages compared with the other stages."""
    excess = compare_stages(samples.table, samples.sampling.count)
    holders = samples.table.group_by("stage").agg(pl.min("rank"), ranks=pl.col("rank").n_unique())
    alone = pl.col("ranks") == 1
    rows = (
        _slow_rows(excess, samples, limits)
        .join(holders, on="stage", how="left", maintain_order="left")
        .with_columns(
            pl.when(alone).then("rank"),
            finding=pl.when(equal_stages)
            .then(pl.lit(FINDINGS[0]))
            .when(alone)
            .then(pl.lit(FINDINGS[2]))
            .otherwise(pl.lit(FINDINGS[1])),
        )
    )
    return rows.with_columns(subject=pl.lit(SUBJECTS[2]), compared_with=pl.lit(PEERS[2]))


def _noisy(samples: ActionSamples, limits: Limits) -> pl.DataFrame:
    """Return ranks by the spread of their actions, compared with those of their stage, or with all ranks."""
    count = samples.sampling.count
    excess, peers = compare_ranks(samples.table, count), PEERS[0]
    if not np.isfinite(excess.spread).any():
        excess, peers = compare_all_ranks(samples.table, count), PEERS[3]
    rows = (
        _rows(excess, excess.spread, limits.noisy_fraction).rename({"subject": "rank"}).drop("stage", "kind")
    )
    if samples.sampling.parts > 1:  # parts of a step hold too few actions to measure their spread
        rows = rows.clear()
    return _labelled(rows, SUBJECTS[0], FINDINGS[3], peers)


def _labelled(rows: pl.DataFrame, subject: str, finding: str, peers: str) -> pl.DataFrame:
    return rows.with_columns(subject=pl.lit(subject), finding=pl.lit(finding), compared_with=pl.lit(peers))


def _slow_rows(excess: PeerExcess, samples: ActionSamples, limits: Limits) -> pl.DataFrame:
    """Return one row per subject: how much longer its actions take, and how much that adds to a step."""
    own_ns = pl.col("busy_ns") / max(len(samples.sampling.steps), 1)
    rows = _rows(excess, excess.shift, limits.slow_fraction)
    return rows.with_columns(extra_ns_per_step=own_ns * (1 - 1 / (1 + pl.col("excess_fraction"))))


def _rows(excess: PeerExcess, logarithms: Floats, least_fraction: float) -> pl.DataFrame:
    """Return one row per subject with at least two samples: its fractions, its n, and p_value."""
    estimates = estimate_means(logarithms)
    low, high = estimates.intervals()
    rows = excess.facts.with_columns(
        samples=pl.Series(estimates.count),
        excess_fraction=pl.Series(np.expm1(estimates.value)),
        low_fraction=pl.Series(np.expm1(low)),
        high_fraction=pl.Series(np.expm1(high)),
        fast_fraction=pl.Series(np.expm1(estimate_means(excess.fast).value)),
        p_value=pl.Series(estimates.p_above(np.log1p(least_fraction))),
    )
    return rows.filter(pl.Series(estimates.degrees > 0))


def _without_disturbed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows without claims of "slow" for ranks that are only noisy.

    A slow device is slow in its fastest actions as well. One that is disturbed now and then is as fast as its peers in
    its best actions.
    """
    noisy = rows.filter(pl.col("is_claimed") & (pl.col("finding") == FINDINGS[3]))["rank"].implode()
    at_best = pl.col("fast_fraction") < pl.col("excess_fraction") / 2
    only_noise = (pl.col("finding") != FINDINGS[3]) & pl.col("rank").is_in(noisy) & at_best
    return rows.with_columns(pl.col("is_claimed") & ~only_noise.fill_null(value=False))
