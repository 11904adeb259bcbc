"""Findings: everything that is statistically claimed about a run, as one table with a sentence per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.finding_sentences import (
    action_text,
    outlier_actions_sentence,
    outlier_sentence,
    replica_sentence,
    slow_replica_sentence,
    straggler_sentence,
    trend_sentence,
)
from stagescope.analysis.slow_replicas import find_slow_replicas, slow_ranks
from stagescope.analysis.statistics.outlier_actions import LEAST_STEP_FRACTION
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stagescope.analysis.explanation import Explanation

CODES = (
    "rank.slow",
    "rank.noisy",
    "machine.slow",
    "stage.slow",
    "stage.imbalance",
    "stage.imbalance_or_slow_device",
    "link.slow",
    "action.outlier",
    "step.outlier",
    "step.trend",
    "replica.last",
    "replica.slow",
)
CodeType = pl.Enum(list(CODES))

FINDINGS = Table(
    "findings",
    "one claimed finding; slow replicas, outlier actions and stragglers first, then outlier steps, trends and replicas",
    (),
    (
        Column("code", CodeType, "", "What was found, as subject and finding."),
        Column("subject", pl.String, "", "What it is about, such as rank 3 or step 7."),
        Column("evidence", pl.String, "", "The finding as a sentence, with its numbers."),
        Column(
            "cost_ns",
            pl.Float64,
            "ns",
            "Time that it adds: of a straggler per step to its own actions or messages, of outlier actions per step, "
            "of an outlier step to that step, of a trend from the first to the last step, of a replica the waits that "
            "it caused per step.",
            nullable=True,
        ),
        Column("share", pl.Float64, "", "cost_ns over the mean step window in the totals.", nullable=True),
        Column("confidence", pl.Float64, "", "1 - p of the test behind it.", nullable=True),
    ),
)


class _Finding(NamedTuple):
    code: str
    subject: str
    evidence: str
    cost_ns: float | None
    confidence: float | None


def find_findings(explanation: Explanation, bubbles: pl.DataFrame, steps: Sequence[int]) -> pl.DataFrame:
    """Return the table FINDINGS of an explanation.

    `bubbles` is what step_bubbles returns, `steps` are those in the totals: their mean window is what `share`
    divides by.
    """
    longest = bubbles.filter(pl.col("step").is_in(list(steps))).group_by("step").agg(pl.max("window_ns"))
    step_ns = float(longest["window_ns"].sum()) / max(longest.height, 1)
    rows = [each._asdict() for each in _findings(explanation)]
    cost_ns = pl.col("cost_ns")
    share = cost_ns / step_ns if step_ns else pl.lit(None, pl.Float64)
    schema = {name: dtype for name, dtype in FINDINGS.schema.items() if name != "share"}
    return pl.DataFrame(rows, schema=schema).with_columns(share=share).select(FINDINGS.names)


def _findings(explanation: Explanation) -> Iterator[_Finding]:
    replicas = find_slow_replicas(explanation)
    for replica in replicas:
        yield _Finding(
            "replica.slow",
            f"pipeline of rank {replica.pipeline}",
            slow_replica_sentence(replica),
            replica.extra_ns_per_step,
            1 - replica.p_value,
        )
    yield from _outlier_actions(explanation)
    grouped = slow_ranks(explanation).filter(pl.col("pipeline").is_in([each.pipeline for each in replicas]))
    claimed = explanation.stragglers.table.filter("is_claimed")
    in_replica = (pl.col("subject") == "rank") & pl.col("rank").is_in(grouped["rank"].to_list())
    for row in claimed.filter(~in_replica).iter_rows(named=True):
        code = f"{row['subject']}.{row['finding'].replace(' ', '_')}"
        yield _Finding(
            code, _straggler(row), straggler_sentence(row), row["extra_ns_per_step"], 1 - row["p_value"]
        )
    for row in explanation.trends.outliers.iter_rows(named=True):
        yield _Finding("step.outlier", f"step {row['step']}", outlier_sentence(row), row["excess_ns"], None)
    for row in explanation.trends.trends.filter("is_claimed").iter_rows(named=True):
        change_ns = row["change_fraction"] * row["median_ns"]
        subject = f"pipeline of rank {row['pipeline']}"
        yield _Finding("step.trend", subject, trend_sentence(row), change_ns, 1 - row["p_value"])
    for row in explanation.replicas.table.filter("is_claimed").iter_rows(named=True):
        cost_ns = row["caused_wait_ns"] / row["steps"]
        subject = f"pipeline of rank {row['pipeline']}"
        yield _Finding("replica.last", subject, replica_sentence(row), cost_ns, 1 - row["p_value"])


def _outlier_actions(explanation: Explanation) -> Iterator[_Finding]:
    """Yield one finding about all outlier actions, if one of them made its step noticeably longer."""
    outliers, pattern = explanation.outliers, explanation.outlier_pattern
    longest = outliers.filter(pl.col("cost_ns") >= LEAST_STEP_FRACTION * _mean_window_ns(explanation))
    if longest.is_empty():
        return
    steps = max(explanation.ledger.steps["step"].n_unique(), 1)
    subject = (
        f"{outliers.height} actions" if outliers.height > 1 else action_text(outliers.row(0, named=True))
    )
    sentence = outlier_actions_sentence(outliers, pattern)
    yield _Finding("action.outlier", subject, sentence, float(outliers["cost_ns"].sum()) / steps, None)


def _mean_window_ns(explanation: Explanation) -> float:
    steps = explanation.ledger.steps
    return float(steps["window_ns"].sum()) / max(steps.height, 1)


def _straggler(row: Mapping[str, object]) -> str:
    if row["subject"] == "link":
        return f"link from rank {row['rank']} to rank {row['peer']}"
    return f"{row['subject']} {row[str(row['subject'])]}"
