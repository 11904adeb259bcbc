"""Stragglers: which rank, machine, stage or link is slower than its peers, by how much, and how certain that is.

A rank is compared with the other ranks of its stage, which do equal work (data-parallel replicas, tensor-parallel
siblings): if it is slower, it is slow. A stage is compared with the other stages. They may have different work, so a
stage that takes longer is an imbalance; and if only one rank runs it, the device may as well be slow. A machine is slow
if each of its ranks is slower than the ranks of other machines. A link is compared with links of the same direction and
message size that cross machines, or do not, as it does.

Every comparison is a row, with a p-value. The noise behind it is that of all
ranks together (noise.py). A claim needs two things:

* to be certain: one false claim in 5,000 runs, over all rows together (Holm). Five kinds of findings have that rate
  each (here, changing ranks, trends, outlier steps, last replicas), so one report in 1,000 has a false claim;
* to matter: what it adds to its own actions or messages, which is the most that it can cost the iteration, is at least
  half a percent of the iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.statistics.action_samples import FEWEST_SAMPLES, sample_actions
from stagescope.analysis.statistics.changing_ranks import find_changing_ranks
from stagescope.analysis.statistics.estimates import Estimates, estimate_means, rejections
from stagescope.analysis.statistics.link_excess import compare_links
from stagescope.analysis.statistics.link_samples import sample_links
from stagescope.analysis.statistics.noise import (
    Noise,
    count_independent,
    estimate_levels,
    fit_noise,
    share_noise,
)
from stagescope.analysis.statistics.peer_excess import (
    PeerExcess,
    compare_all_ranks,
    compare_machines,
    compare_ranks,
)
from stagescope.analysis.statistics.rates import FAMILY_RATE
from stagescope.analysis.statistics.stage_work import StageExcess, measure_stage_excess
from stagescope.analysis.statistics.straggler_table import FINDINGS, FRACTIONS, PEERS, STRAGGLERS, SUBJECTS
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.messages import match_messages
from stagescope.model.pipelines import find_pipelines

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.statistics.action_samples import ActionSamples
    from stagescope.analysis.statistics.link_samples import LinkSamples
    from stagescope.model import Timeline

    Floats = NDArray[np.float64]


class Limits(NamedTuple):
    """The smallest effects worth naming, the rate of false claims, and the smallest cost worth naming.

    Actions 1 % longer, actions spread 50 % wider, and messages 25 % slower; nanoseconds per iteration. That actions
    are longer at all is certain, that they are 1 % longer is the estimate.
    """

    slow_fraction: float = 0.01
    noisy_fraction: float = 0.5
    link_fraction: float = 0.25
    rate: float = FAMILY_RATE
    least_cost_ns: float = 0.0


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Stragglers:
    """The table STRAGGLERS, claims first and the costliest first, and diagnostics about what could not be compared.

    `changing` is the table CHANGING_RANKS, `stage_work` the table STAGE_WORK. `rank_error` is the standard error of how
    much slower a rank is than its peers, and its degrees of freedom; NaN without peers.
    """

    table: pl.DataFrame
    changing: pl.DataFrame
    stage_work: pl.DataFrame
    rank_error: tuple[float, float]
    diagnostics: tuple[Diagnostic, ...]


class ComparedSubjects(NamedTuple):
    """All comparisons, before it is decided which of them are claimed, which depends on how long an iteration takes.

    `rows` have the columns of STRAGGLERS without is_claimed, `changing` is the table CHANGING_RANKS with all of them;
    the other fields are those of Stragglers.
    """

    rows: pl.DataFrame
    changing: pl.DataFrame
    stage_work: pl.DataFrame
    rank_error: tuple[float, float]
    diagnostics: tuple[Diagnostic, ...]


class _Compared(NamedTuple):
    """Ranks compared with each other: the excess, how it varies by chance, and what it is compared with."""

    excess: PeerExcess
    noise: Noise
    levels: Estimates
    peers: str


def find_stragglers(
    timeline: Timeline,
    messages: pl.DataFrame | None = None,
    limits: Limits = DEFAULT_LIMITS,
    *,
    samples: ActionSamples | None = None,
    equal_stages: bool = False,
) -> Stragglers:
    """Return every comparison of ranks, machines, stages and links with their peers, and which of them are claimed.

    Pass only the steps to judge: a set-up step is not a sample of the training. `messages` is from match_messages,
    `samples` from sample_actions; None: computed here. `equal_stages` states that all stages do equal work, so that a
    stage that takes longer is slow. With fewer than four samples nothing is decided, and a diagnostic states it. Never
    raises.
    """
    samples = samples or sample_actions(timeline.spans)
    messages = match_messages(timeline.spans) if messages is None else messages
    links = sample_links(timeline, messages, samples.sampling)
    pipelines = find_pipelines(timeline.spans, timeline.ranks)
    measured = (samples, links)
    compared = measure_subjects(timeline.ranks, pipelines, measured, limits, equal_stages=equal_stages)
    return claim_subjects(compared, limits)


def measure_subjects(
    ranks: pl.DataFrame,
    pipelines: pl.DataFrame,
    measured: tuple[ActionSamples, LinkSamples],
    limits: Limits = DEFAULT_LIMITS,
    *,
    equal_stages: bool = False,
) -> ComparedSubjects:
    """Return all comparisons of subjects with their peers, given the samples of actions and links.

    `ranks` is the table of ranks, `pipelines` is from find_pipelines. The smallest cost of `limits` is not needed yet.
    """
    samples, links = measured
    machines = ranks.select("rank", "machine")
    of_stage = _compare(compare_ranks(samples.parts, samples.sampling.count), pipelines, PEERS[0])
    every = of_stage
    if not np.isfinite(of_stage.excess.shift).any():
        every = _compare(compare_all_ranks(samples.parts, samples.sampling.count), pipelines, PEERS[3])
    slow, noisy, changing = (
        _ranks(of_stage, samples),
        _noisy(every, samples, limits),
        _changing(every, samples, limits),
    )
    # The matrices of ranks and samples are not needed any more: those that follow are as large.
    noise, levels = of_stage.noise, of_stage.levels
    del of_stage, every
    stages = measure_stage_excess(samples)
    families = [
        slow,
        _machines(noise, samples, machines),
        _stages(stages, levels, equal_stages=equal_stages),
        noisy,
        compare_links(links, samples.sampling, limits.link_fraction),
    ]
    rows = pl.concat([_declared(family, machines) for family in families])
    return ComparedSubjects(
        rows.clear() if samples.sampling.count < FEWEST_SAMPLES else rows,
        changing,
        stages.table,
        _usual_error(levels),
        (*samples.diagnostics, *links.diagnostics, *_too_few(samples)),
    )


def claim_subjects(compared: ComparedSubjects, limits: Limits = DEFAULT_LIMITS) -> Stragglers:
    """Return the comparisons with what is claimed; `limits` are those of measure_subjects, and the smallest cost."""
    costs = pl.col("extra_ns_per_step") >= limits.least_cost_ns
    rows, changing = compared.rows, compared.changing.filter(costs)
    rows = _without_disturbed(rows.with_columns(is_claimed=_certain(rows, limits)))
    rows = _without_named_ways(rows)
    rows = _with_changing(rows, changing.filter("has_peers")["rank"], limits)
    rows = rows.with_columns(pl.col("is_claimed") & costs)
    table = rows.sort(
        "is_claimed", "extra_ns_per_step", descending=True, nulls_last=True, maintain_order=True
    )
    return Stragglers(
        table.select(STRAGGLERS.names),
        changing,
        compared.stage_work,
        compared.rank_error,
        compared.diagnostics,
    )


def _with_changing(rows: pl.DataFrame, changing: pl.Series, limits: Limits) -> pl.DataFrame:
    """Return the rows, with ranks that are slow on average because they are slow in some steps as claimed."""
    is_rank = (pl.col("subject") == SUBJECTS[0]) & (pl.col("finding") == FINDINGS[0])
    is_slow = is_rank & (pl.col("excess_fraction") >= limits.slow_fraction)
    return rows.with_columns(pl.col("is_claimed") | (is_slow & pl.col("rank").is_in(changing.implode())))


def _certain(rows: pl.DataFrame, limits: Limits) -> pl.Series:
    """Return which rows are certain. Slow ranks and machines share half of the rate, and all other rows the rest."""
    is_slow = rows["subject"].is_in(SUBJECTS[:2]) & (rows["finding"] == FINDINGS[0])
    is_large = (rows["finding"] == FINDINGS[3]) | (rows["excess_fraction"] >= limits.slow_fraction)
    p_values, certain = rows["p_value"].to_numpy(), np.zeros(rows.height, dtype=np.bool_)
    for part in (is_slow.to_numpy(), ~is_slow.to_numpy()):
        certain[part] = rejections(p_values[part], limits.rate / 2)
    return pl.Series(certain, dtype=pl.Boolean) & is_large


def _compare(excess: PeerExcess, pipelines: pl.DataFrame, peers: str) -> _Compared:
    pipeline = excess.facts.select("rank").join(pipelines, on="rank", how="left", maintain_order="left")
    independent = count_independent(excess.shift, pipeline["pipeline"], excess.facts["peers"].to_numpy())
    noise = fit_noise(excess.shift, independent)
    return _Compared(excess, noise, estimate_levels(excess.shift, noise), peers)


def _usual_error(levels: Estimates) -> tuple[float, float]:
    known = levels.degrees > 0
    if not known.any():
        return np.nan, 0.0
    return float(np.median(levels.error[known])), float(np.median(levels.degrees[known]))


def _changing(compared: _Compared, samples: ActionSamples, limits: Limits) -> pl.DataFrame:
    return find_changing_ranks(
        compared.excess,
        compared.noise,
        samples.sampling,
        limits.rate,
        has_peers=compared.peers == PEERS[0],
    )


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


def _ranks(ranks: _Compared, samples: ActionSamples) -> pl.DataFrame:
    """Return ranks compared with the others of their stage."""
    rows = _slow_rows(ranks.excess, ranks.levels, samples)
    return _labelled(rows, SUBJECTS[0], FINDINGS[0], PEERS[0])


def _machines(usual: Noise, samples: ActionSamples, machines: pl.DataFrame) -> pl.DataFrame:
    """Return machines of several ranks; the p-value is the largest of its ranks', since each rank has to be slow."""
    named = machines.drop_nulls()
    excess = compare_machines(samples.parts, samples.sampling.count, dict(named.iter_rows()))
    noise = usual if usual.series else fit_noise(excess.shift, 1.0)
    rows = _slow_rows(excess, estimate_levels(excess.shift, noise), samples).join(named, on="rank")
    rows = (
        rows.sort("machine", "rank")
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


def _stages(stages: StageExcess, levels: Estimates, *, equal_stages: bool) -> pl.DataFrame:
    """Return stages compared with the other stages; the excess is that of STAGE_WORK."""
    noise = fit_noise(stages.shift, max(len(stages.shift) - 1.0, 1.0))
    over_time = estimate_levels(stages.shift, noise, over_subjects=False)
    estimates = share_noise(over_time, _usual_error(levels), stages.ranks)
    ratio = stages.table["work_to_others"].fill_null(np.nan).to_numpy()
    with np.errstate(divide="ignore"):
        estimates = replace(estimates, value=np.log(ratio))
    facts = pl.DataFrame(
        {
            "stage": stages.table["stage"],
            "rank": pl.Series(stages.only_rank, dtype=pl.Int32),
            "kind": pl.Series(stages.kind, dtype=pl.String),
            "peers": pl.Series([len(ratio) - 1] * len(ratio), dtype=pl.Int64),
            "span_count": stages.span_count,
        }
    ).with_columns(
        finding=pl.when(equal_stages)
        .then(pl.lit(FINDINGS[0]))
        .when(pl.col("rank").is_not_null())
        .then(pl.lit(FINDINGS[2]))
        .otherwise(pl.lit(FINDINGS[1])),
        extra_ns_per_step=pl.Series(stages.busy_ns * (1 - 1 / ratio)),
    )
    rows = _rows(facts, estimates, stages.fast, 0.0)
    return rows.with_columns(subject=pl.lit(SUBJECTS[2]), compared_with=pl.lit(PEERS[2]))


def _noisy(every: _Compared, samples: ActionSamples, limits: Limits) -> pl.DataFrame:
    """Return ranks by the spread of their actions, compared with those of their stage, or with all ranks.

    If its actions deviate by d in total and those of its peers by less, half of the difference is added to them, and
    half is saved.
    """
    excess, steps = every.excess, max(len(samples.sampling.steps), 1)
    estimates = estimate_levels(excess.spread, fit_noise(excess.spread, every.noise.series))
    rows = _rows(excess.facts, estimates, excess.fast, limits.noisy_fraction)
    own_ns = pl.col("deviation_ns") / 2 / steps
    rows = rows.with_columns(extra_ns_per_step=own_ns * (1 - 1 / (1 + pl.col("excess_fraction")))).drop(
        "stage", "kind"
    )
    if samples.sampling.parts > 1:  # parts of a step hold too few actions to measure their spread
        rows = rows.clear()
    return _labelled(rows, SUBJECTS[0], FINDINGS[3], every.peers)


def _labelled(rows: pl.DataFrame, subject: str, finding: str, peers: str) -> pl.DataFrame:
    return rows.with_columns(subject=pl.lit(subject), finding=pl.lit(finding), compared_with=pl.lit(peers))


def _slow_rows(excess: PeerExcess, levels: Estimates, samples: ActionSamples) -> pl.DataFrame:
    """Return one row per rank: how much longer its actions take, and how much that adds to a step."""
    own_ns = pl.col("busy_ns") / max(len(samples.sampling.steps), 1)
    rows = _rows(excess.facts, levels, excess.fast, 0.0)
    return rows.with_columns(extra_ns_per_step=own_ns * (1 - 1 / (1 + pl.col("excess_fraction"))))


def _rows(facts: pl.DataFrame, estimates: Estimates, fast: Floats, least_fraction: float) -> pl.DataFrame:
    """Return one row per subject with at least two samples: its fractions, its n, and p_value."""
    low, high = estimates.intervals()
    rows = facts.with_columns(
        samples=pl.Series(estimates.count),
        excess_fraction=pl.Series(np.expm1(estimates.value)),
        low_fraction=pl.Series(np.expm1(low)),
        high_fraction=pl.Series(np.expm1(high)),
        fast_fraction=pl.Series(np.expm1(estimate_means(fast).value)),
        p_value=pl.Series(estimates.p_above(np.log1p(least_fraction))),
    )
    return rows.filter(pl.Series((estimates.degrees > 0) & np.isfinite(estimates.value), dtype=pl.Boolean))


def _without_named_ways(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows without claims about both ways between two ranks if one of them is claimed to be slow."""
    first, second = pl.min_horizontal("rank", "peer"), pl.max_horizontal("rank", "peer")
    both = rows.with_columns(ends=pl.struct(first=first, second=second))
    is_link = pl.col("subject") == SUBJECTS[3]
    is_way = is_link & pl.col("kind").is_not_null()
    named = both.filter(is_way & pl.col("is_claimed"))["ends"]
    is_double = is_link & pl.col("kind").is_null() & pl.col("ends").is_in(named.implode())
    return both.with_columns(pl.col("is_claimed") & ~is_double.fill_null(value=False)).drop("ends")


def _without_disturbed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows without claims of "slow" for ranks that are only noisy.

    A slow device is slow in its fastest actions as well. One that is disturbed now and then is as fast as its peers in
    its best actions.
    """
    noisy = rows.filter(pl.col("is_claimed") & (pl.col("finding") == FINDINGS[3]))["rank"].implode()
    at_best = pl.col("fast_fraction") < pl.col("excess_fraction") / 2
    only_noise = (pl.col("finding") != FINDINGS[3]) & pl.col("rank").is_in(noisy) & at_best
    return rows.with_columns(pl.col("is_claimed") & ~only_noise.fill_null(value=False))
