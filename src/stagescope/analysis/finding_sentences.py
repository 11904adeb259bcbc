"""Sentences for claimed findings, made from the rows of their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.kinds import label
from stagescope.vocabulary.ratios import comparative_text, conjunction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.analysis.slow_replicas import SlowReplica
    from stagescope.analysis.statistics.outlier_patterns import OutlierPattern


def straggler_sentence(row: Mapping[str, object]) -> str:
    """Return a claimed row of STRAGGLERS as a sentence, with its confidence interval."""
    low, high = (1 + float(str(row[f"{end}_fraction"])) for end in ("low", "high"))
    subject = {
        "rank": f"Rank {row['rank']}",
        "machine": f"Machine {row['machine']}",
        "stage": f"Stage {row['stage']}",
        "link": f"The link from rank {row['rank']} to rank {row['peer']}",
    }[str(row["subject"])]
    verb, comparative, reason = {
        "noisy": ("has action durations spread", "wider", ""),
        "slow": ("is", "slower", ""),
        "imbalance": ("takes", "longer", ""),
        "imbalance or slow device": (
            "takes",
            "longer",
            " It has more work or a slower device: no replica runs the same stage.",
        ),
    }[str(row["finding"])]
    claim = f"{verb} {comparative_text(comparative, low, high, decimals=1)} {conjunction(low, high)}"
    return f"{subject} {claim} {row['compared_with']} (95 % CI, n = {row['samples']}).{reason}"


def slow_replica_sentence(replica: SlowReplica) -> str:
    """Return a replica that is slow as a whole as a sentence."""
    low, high = 1 + replica.low_fraction, 1 + replica.high_fraction
    slower = f"{comparative_text('slower', low, high, decimals=1)} {conjunction(low, high)}"
    return (
        f"All {replica.ranks} ranks of the pipeline of rank {replica.pipeline} are {slower} ranks of the same stage "
        "(95 % CI of each)."
    )


def action_text(row: Mapping[str, object]) -> str:
    """Return a row of OUTLIER_ACTIONS as the action and where it ran, such as F2.4 on rank 2 in step 3."""
    action = label(str(row["kind"]), int(str(row["stage"])), int(str(row["microbatch"])))
    return f"{action} on rank {row['rank']} in step {row['step']}"


def outlier_actions_sentence(outliers: pl.DataFrame, pattern: OutlierPattern) -> str:
    """Return the table OUTLIER_ACTIONS, which has a row, as a sentence: the pattern, or else the longest action."""
    longest = outliers.row(0, named=True)
    if pattern.text:
        return f"{several_actions_text(pattern.rows)}, {pattern.text}{_cost(pattern.rows)}."
    head = f"{action_text(longest)} took {instead_text(longest)}{_cost(outliers.head(1))}."
    others = outliers.height - 1
    return head + (
        f" {counted(others, 'other action')} took more than 1.5x as long as usual." if others else ""
    )


def several_actions_text(rows: pl.DataFrame) -> str:
    """Return how many outlier actions there are and how long they took: 8 forwards took 235 to 363 ms instead of 29."""
    kinds = rows["kind"].unique().cast(pl.String).to_list()
    noun = kinds[0].replace("_", " ") if len(kinds) == 1 else "action"
    sizes = rows.select(
        low=pl.min("duration_ns"), high=pl.max("duration_ns"), usual=pl.median("usual_ns").round()
    )
    low, high, usual = (duration_text(int(value)) for value in sizes.row(0))
    return f"{counted(rows.height, noun)} took {low} to {high} instead of about {usual}"


def instead_text(row: Mapping[str, object]) -> str:
    """Return how long an outlier action took, and how long it usually does."""
    took, usual = (duration_text(round(float(str(row[name])))) for name in ("duration_ns", "usual_ns"))
    return f"{took} instead of {usual}"


def _cost(rows: pl.DataFrame) -> str:
    """Return what outliers cost their steps; empty if that is unknown."""
    costs = rows["cost_ns"].drop_nulls()
    if costs.is_empty():
        return ""
    steps = rows["step"].n_unique()
    total = duration_text(int(costs.sum()))
    return (
        f"; its step was {total} longer"
        if steps == 1
        else f"; their {steps} steps were {total} longer in total"
    )


def outlier_sentence(row: Mapping[str, object]) -> str:
    """Return a row of OUTLIER_STEPS as a sentence."""
    longer = duration_text(round(float(str(row["excess_ns"]))))
    return f"Step {row['step']} took {longer} longer than usual{_where(row)}."


def trend_sentence(row: Mapping[str, object]) -> str:
    """Return a claimed row of STEP_TRENDS as a sentence."""
    change = float(str(row["change_fraction"]))
    amount = (
        comparative_text("longer", 1 + change, decimals=1) if change > 0 else f"{-100 * change:.1f} % shorter"
    )
    return f"Steps became {amount} from the first to the last."


def replica_sentence(row: Mapping[str, object]) -> str:
    """Return a claimed row of REPLICAS as a sentence."""
    waited = duration_text(int(str(row["caused_wait_ns"])))
    return (
        f"The pipeline of rank {row['pipeline']} finished last in {row['last_count']} of {row['steps']} steps; "
        f"the ranks of the other replicas waited {waited} for it in total."
    )


def _where(row: Mapping[str, object]) -> str:
    if row["rank"] is None:
        return ""
    if row["peer"] is None:
        return f", most of it on rank {row['rank']}"
    return f", most of it on the link from rank {row['rank']} to rank {row['peer']}"
