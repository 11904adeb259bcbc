"""How much longer each rank, stage or machine takes than its peers, sample by sample.

Per class of actions and sample, a subject is compared with the median of the others that ran the same class in the same
sample; the classes of a subject are averaged, weighted by the time that they usually take. What slows all peers in a
step equally (a longer sequence, a slow file system) cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.statistics.action_samples import as_matrix
from stagescope.analysis.statistics.estimates import medians_of_others

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Reference = Callable[[Floats, pl.Series], Floats]

LEAST_SPREAD_FRACTION = 0.01
"""Spreads below this fraction of the duration count as equal: ratios of such small numbers mean nothing."""


@dataclass(frozen=True)
class PeerExcess:
    """The comparison of subjects with their peers. Matrices are subjects x samples, NaN without a peer.

    `shift`, `fast` and `spread` are logarithms of ratios to the peers: of the median duration, of the 20th percentile,
    and of the spread relative to the median. `facts` has a row per subject: subject (its number or name), peers,
    span_count (actions with a peer), busy_ns (their time), stage and kind (of the class that adds most).
    """

    facts: pl.DataFrame
    shift: Floats
    fast: Floats
    spread: Floats


def compare_ranks(samples: pl.DataFrame, count: int) -> PeerExcess:
    """Return ranks compared with the other ranks of their stage, usually data-parallel replicas."""
    return _compare(samples, count, ("rank", ["stage", "kind", "is_pair"]), _of_others)


def compare_machines(samples: pl.DataFrame, count: int, machine_of: dict[int, str]) -> PeerExcess:
    """Return ranks compared with the ranks of *other* machines that run the same stage."""

    def of_other_machines(values: Floats, ranks: pl.Series) -> Floats:
        machines = np.array([machine_of[rank] for rank in ranks])
        found = np.full_like(values, np.nan)
        for machine in np.unique(machines):
            others = values[machines != machine]
            found[machines == machine] = _column_medians(others)
        return found

    known = samples.filter(pl.col("rank").is_in(list(machine_of)))
    return _compare(known, count, ("rank", ["stage", "kind", "is_pair"]), of_other_machines)


def compare_stages(samples: pl.DataFrame, count: int) -> PeerExcess:
    """Return stages compared with the other stages, each as the lower median of its ranks.

    The lower one, so that one slow rank of two replicas does not make a slow stage.
    """
    values = pl.col("median_ns", "fast_ns", "spread_ns", "total_ns").quantile(0.5, "lower")
    stages = samples.group_by("stage", "kind", "is_pair", "sample").agg(values, pl.col("action_count").sum())
    return _compare(stages, count, ("stage", ["kind", "is_pair"]), _of_others)


def compare_all_ranks(samples: pl.DataFrame, count: int) -> PeerExcess:
    """Return ranks compared with all other ranks, whatever stage they run; only their spread is comparable."""
    values = pl.col("median_ns", "fast_ns", "spread_ns").mean()
    ranks = samples.group_by("rank", "kind", "is_pair", "sample").agg(
        values, pl.col("action_count", "total_ns").sum()
    )
    return _compare(ranks, count, ("rank", ["kind", "is_pair"]), _of_others)


def _of_others(values: Floats, _subjects: pl.Series) -> Floats:
    return medians_of_others(values)


def _column_medians(values: Floats) -> Floats:
    """Return the median of every column, NaN for a column without numbers."""
    found = np.full(values.shape[1], np.nan)
    known = np.isfinite(values).any(axis=0)
    if known.any():
        found[known] = np.nanmedian(values[:, known], axis=0)
    return found


def _compare(
    samples: pl.DataFrame, count: int, split: tuple[str, list[str]], reference: Reference
) -> PeerExcess:
    """Return the subjects (a column) of each class (some columns) compared with what `reference` returns for peers."""
    subject, classes = split
    subjects = samples[subject].unique().sort()
    shape = (len(subjects), count)
    sums, weights = np.zeros((3, *shape)), np.zeros(shape)
    facts = []
    for one in samples.partition_by(classes, maintain_order=True):
        own = one[subject].unique().sort()
        rows = subjects.search_sorted(own).to_numpy()
        matrices = {
            name: as_matrix(one, name, own, subject, count)
            for name in ("median_ns", "fast_ns", "spread_ns", "action_count", "total_ns")
        }
        # Logarithms: "twice as long" and "half as long" are equally far from equal, and classes can be averaged.
        logs = _logarithms(matrices)
        ratios = logs - np.stack([reference(each, own) for each in logs])
        known = np.isfinite(ratios[0])
        if not known.any():
            continue
        weight_ns = float(np.nanmedian(matrices["total_ns"]))
        sums[:, rows] += np.where(known, ratios, 0.0) * weight_ns
        weights[rows] += known * weight_ns
        facts.append(_class_facts(one, own, matrices, np.where(known, ratios[0], 0.0) * weight_ns))
    with np.errstate(invalid="ignore"):
        means = np.where(weights > 0, sums / weights, np.nan)
    return PeerExcess(_facts(facts, subjects, split), *means)


def _logarithms(matrices: dict[str, Floats]) -> Floats:
    """Return the logarithms of median, fast end and relative spread."""
    relative = np.maximum(matrices["spread_ns"] / matrices["median_ns"], LEAST_SPREAD_FRACTION)
    logs: Floats = np.log(np.stack([matrices["median_ns"], matrices["fast_ns"], relative]))
    return logs


def _class_facts(
    samples: pl.DataFrame, own: pl.Series, matrices: dict[str, Floats], excess: Floats
) -> pl.DataFrame:
    """Return the facts of one class about each of its subjects."""
    compared = np.isfinite(matrices["median_ns"]) & (np.isfinite(matrices["median_ns"]).sum(axis=0) > 1)
    first = samples.row(0, named=True)
    return pl.DataFrame(
        {
            "subject": own,
            "peers": len(own) - 1,
            "span_count": np.where(compared, matrices["action_count"], 0).sum(axis=1).astype(np.int64),
            "busy_ns": np.where(compared, matrices["total_ns"], 0).sum(axis=1),
            "excess": excess.sum(axis=1),
            "stage": pl.Series([first.get("stage")], dtype=pl.Int32).new_from_index(0, len(own)),
            "kind": samples["kind"].new_from_index(0, len(own)),
        }
    )


def _facts(facts: list[pl.DataFrame], subjects: pl.Series, split: tuple[str, list[str]]) -> pl.DataFrame:
    """Return one row per subject, in order; subjects without a peer have 0 peers."""
    if not facts:
        numbers = pl.lit(0, pl.Int64)
        return pl.DataFrame({"subject": subjects}).with_columns(
            peers=numbers,
            span_count=numbers,
            busy_ns=pl.lit(0.0),
            stage=pl.lit(None, pl.Int32),
            kind=pl.lit(None, pl.String),
        )
    united = (
        pl.concat(facts)
        .sort("excess", descending=True, maintain_order=True)
        .group_by("subject", maintain_order=True)
        .agg(pl.col("peers").max(), pl.col("span_count", "busy_ns").sum(), pl.first("stage", "kind"))
        .with_columns(pl.col("kind").cast(pl.String))
    )
    named = pl.DataFrame({"subject": subjects}).join(united, on="subject", how="left", maintain_order="left")
    named = named.with_columns(pl.col("peers", "span_count", "busy_ns").fill_null(0))
    return named.with_columns(stage=pl.col("subject")) if split[0] == "stage" else named
