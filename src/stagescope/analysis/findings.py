"""Findings: everything that is statistically claimed about a run, as one table with a sentence per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.analysis.finding_sentences import (
    action_text,
    changing_rank_sentence,
    costliest_outlier,
    joined_names,
    late_rank_sentence,
    outlier_actions_sentence,
    outlier_sentence,
    replica_sentence,
    slow_replica_sentence,
    straggler_sentence,
    stragglers_sentence,
    subjects_text,
    trend_sentence,
)
from stagescope.analysis.slow_replicas import find_slow_replicas, slow_ranks
from stagescope.analysis.statistics.outlier_actions import LEAST_STEP_FRACTION
from stagescope.model.lazy import parts_of
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stagescope.analysis.explanation import Explanation

CODES = (
    "rank.slow",
    "rank.intermittent",
    "rank.drifting",
    "rank.noisy",
    "rank.late",
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
LEAST_SINGLE_FRACTION = 0.1
"""Stragglers with a smaller excess than this are listed together."""

FEWEST_GROUPED = {"stage": 2, "rank": 3, "machine": 3, "link": 3}

EXPLAINED_RATIO = 1.5
"""A rank that is slow on average because it is slow in some steps costs up to so many times as much."""

CodeType = pl.Enum(list(CODES))

FINDINGS = Table(
    "findings",
    "one claimed finding; slow replicas, late ranks, outlier actions, changing ranks and stragglers first, then steps "
    "and replicas",
    (),
    (
        Column("code", CodeType, "", "What was found, as subject and finding."),
        Column("subject", pl.String, "", "What it is about, such as rank 3 or step 7."),
        Column("evidence", pl.String, "", "The finding as a sentence, with its numbers."),
        Column(
            "cost_ns",
            pl.Float64,
            "ns",
            "Time that it adds: of a straggler per step to its own actions or messages (of several, the largest), "
            "which is the most that it can cost the iteration; of outlier actions per step; of an outlier step to that "
            "step; of a trend from the first to the last step; of a last replica and of a late rank to the mean "
            "iteration.",
            nullable=True,
        ),
        Column(
            "share",
            pl.Float64,
            "",
            "cost_ns over the mean iteration, or window without one.",
            nullable=True,
        ),
        Column("confidence", pl.Float64, "", "1 - p of the test behind it.", nullable=True),
        Column("step", pl.Int32, "", "The step that shows it; null: no single one.", nullable=True),
        Column("rank", pl.Int32, "", "The rank that shows it; of a link, the sender.", nullable=True),
        Column("row", pl.UInt32, "", "The action that shows it: its row in the spans.", nullable=True),
    ),
)


class _Finding(NamedTuple):
    code: str
    subject: str
    evidence: str
    cost_ns: float | None
    confidence: float | None
    is_of_iteration: bool = False
    step: int | None = None
    rank: int | None = None
    row: int | None = None


def find_findings(explanation: Explanation) -> pl.DataFrame:
    """Return the table FINDINGS of an explanation; `share` divides by the mean iteration, or window without one."""
    lost = explanation.lost_time
    rows = [each._asdict() for each in _findings(explanation)]
    share = pl.lit(None, pl.Float64)
    if lost is not None and lost.mean_ns:
        share = pl.col("cost_ns") / pl.when("is_of_iteration").then(lost.mean_ns).otherwise(lost.mean_step_ns)
    schema = {name: dtype for name, dtype in FINDINGS.schema.items() if name != "share"}
    return (
        pl.DataFrame(rows, schema={**schema, "is_of_iteration": pl.Boolean})
        .with_columns(share=share)
        .select(FINDINGS.names)
    )


def _findings(explanation: Explanation) -> Iterator[_Finding]:
    yield from _slow_replicas(explanation)
    for row in explanation.late_ranks.filter("is_claimed").iter_rows(named=True):
        yield _Finding(
            "rank.late",
            f"rank {row['rank']}",
            late_rank_sentence(row),
            row["lost_ns"],
            1 - row["p_value"],
            is_of_iteration=True,
            rank=row["rank"],
        )
    yield from _outlier_actions(explanation)
    for row in explanation.stragglers.changing.iter_rows(named=True):
        yield _Finding(
            f"rank.{row['finding']}",
            f"rank {row['rank']}",
            changing_rank_sentence(row) + _clock_note(explanation, row["rank"]),
            row["extra_ns_per_step"],
            1 - row["p_value"],
            rank=row["rank"],
        )
    for group in _grouped(_other_stragglers(explanation)):
        first = group[0]
        yield _Finding(
            f"{first['subject']}.{first['finding'].replace(' ', '_')}",
            _straggler(first) if len(group) == 1 else subjects_text(group),
            _straggler_sentence(explanation, group),
            first["extra_ns_per_step"],
            1 - max(row["p_value"] for row in group),
            rank=first["rank"],
        )
    for row in explanation.trends.outliers.iter_rows(named=True):
        yield _Finding(
            "step.outlier",
            f"step {row['step']}",
            outlier_sentence(row),
            row["excess_ns"],
            None,
            step=row["step"],
            rank=row["rank"],
        )
    yield from _trends(explanation)
    for row in explanation.replicas.table.filter("is_claimed").iter_rows(named=True):
        subject = f"pipeline of rank {row['pipeline']}"
        yield _Finding(
            "replica.last",
            subject,
            replica_sentence(row),
            row["extra_ns_per_step"],
            1 - row["p_value"],
            rank=row["pipeline"],
        )


def _straggler_sentence(explanation: Explanation, group: list[dict[str, Any]]) -> str:
    if len(group) > 1:
        return stragglers_sentence(group)
    note = _clock_note(explanation, group[0]["rank"]) if group[0]["subject"] == "rank" else ""
    return straggler_sentence(group[0]) + note


def _clock_note(explanation: Explanation, rank: int) -> str:
    """Return what the counters of a rank showed during the steps, as a sentence; empty without anything."""
    note = explanation.clock_notes.get(rank)
    return f" Counters of rank {rank} in these steps: {note}." if note else ""


def _slow_replicas(explanation: Explanation) -> Iterator[_Finding]:
    for replica in find_slow_replicas(explanation):
        yield _Finding(
            "replica.slow",
            f"pipeline of rank {replica.pipeline}",
            slow_replica_sentence(replica),
            replica.extra_ns_per_step,
            1 - replica.p_value,
            rank=replica.pipeline,
        )


def _other_stragglers(explanation: Explanation) -> list[dict[str, Any]]:
    """Return the claimed stragglers without ranks of slow replicas and what a changing rank explains."""
    replicas = [each.pipeline for each in find_slow_replicas(explanation)]
    grouped = slow_ranks(explanation).filter(pl.col("pipeline").is_in(replicas))["rank"].to_list()
    changing = explanation.stragglers.changing.select("rank", changing_ns="extra_ns_per_step")
    claimed = explanation.stragglers.table.filter("is_claimed")
    of_stage = (
        explanation.stage_costs.select("rank", "stage")
        .drop_nulls()
        .unique()
        .join(changing, on="rank", how="left")
        .group_by("stage")
        .agg(stage_ns=pl.col("changing_ns").fill_null(0.0).mean())
    )
    cost_ns = pl.coalesce("changing_ns", pl.when(pl.col("subject") == "stage").then("stage_ns"))
    explained = pl.col("extra_ns_per_step") <= EXPLAINED_RATIO * cost_ns
    of_one = pl.col("subject").is_in(["rank", "stage"]) & (pl.col("finding") != "noisy")
    known = claimed.join(changing, on="rank", how="left", maintain_order="left")
    kept = known.join(of_stage, on="stage", how="left", maintain_order="left").filter(
        ~((pl.col("subject") == "rank") & pl.col("rank").is_in(grouped)),
        ~(of_one & explained).fill_null(value=False),
    )
    return one_per_link(kept.to_dicts())


def one_per_link(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the stragglers with one row for a link whose forwards and backwards are both slow: the costlier one.

    It has the costs of both.
    """
    found: dict[object, dict[str, Any]] = {}
    for number, row in enumerate(rows):
        first = found.setdefault((row["rank"], row["peer"]) if row["subject"] == "link" else number, row)
        if first is not row:
            first["extra_ns_per_step"] += row["extra_ns_per_step"]
    return list(found.values())


def _grouped(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the stragglers, one group for those of one kind of which none is large, the costliest first."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        is_small = row["excess_fraction"] < LEAST_SINGLE_FRACTION
        key = (row["subject"], row["finding"], row["compared_with"] if is_small else str(number))
        groups.setdefault(key, []).append(row)
    for (subject, *_), group in groups.items():
        if len(group) < FEWEST_GROUPED[subject]:
            yield from ([row] for row in group)
        else:
            yield sorted(group, key=lambda row: -row["excess_fraction"])


def _trends(explanation: Explanation) -> Iterator[_Finding]:
    """Yield one finding per direction, without pipelines in which a rank drifts."""
    drifting = explanation.stragglers.changing.filter(pl.col("finding") == "drifting")["rank"]
    explained = explanation.ledger.members.filter(pl.col("rank").is_in(drifting.implode()))["pipeline"]
    claimed = explanation.trends.trends.filter(
        "is_claimed", ~pl.col("pipeline").is_in(explained.implode())
    ).with_columns(change_ns=pl.col("change_fraction") * pl.col("median_ns"))
    for sign in (1, -1):
        rows = claimed.filter(pl.col("change_ns") * sign > 0).to_dicts()
        if rows:
            largest = max(rows, key=lambda row: abs(row["change_ns"]))
            names = joined_names([str(row["pipeline"]) for row in rows])
            subject = f"pipeline{'s' if len(rows) > 1 else ''} of rank{'s' if len(rows) > 1 else ''} {names}"
            confidence = 1 - max(row["p_value"] for row in rows)
            yield _Finding("step.trend", subject, trend_sentence(rows), largest["change_ns"], confidence)


def _outlier_actions(explanation: Explanation) -> Iterator[_Finding]:
    """Yield one finding about all outlier actions, if one of them made its step noticeably longer."""
    outliers, pattern = explanation.outliers, explanation.outlier_pattern
    longest = outliers.filter(pl.col("cost_ns") >= LEAST_STEP_FRACTION * _mean_window_ns(explanation))
    if longest.is_empty():
        return
    steps = max(sum(rows["step"].n_unique() for rows in parts_of(explanation.ledger, "steps")), 1)
    subject = (
        f"{outliers.height} actions" if outliers.height > 1 else action_text(outliers.row(0, named=True))
    )
    sentence = outlier_actions_sentence(outliers, pattern)
    shown = costliest_outlier(outliers).row(0, named=True)
    place = {name: shown[name] for name in ("step", "rank", "row")}
    yield _Finding(
        "action.outlier", subject, sentence, float(outliers["cost_ns"].sum()) / steps, None, **place
    )


def _mean_window_ns(explanation: Explanation) -> float:
    sums = [(int(rows["window_ns"].sum()), rows.height) for rows in parts_of(explanation.ledger, "steps")]
    return float(sum(window_ns for window_ns, _ in sums)) / max(sum(count for _, count in sums), 1)


def _straggler(row: Mapping[str, object]) -> str:
    if row["subject"] == "link" and row["kind"] is None:
        return f"links between rank {row['rank']} and rank {row['peer']}"
    if row["subject"] == "link":
        return f"link from rank {row['rank']} to rank {row['peer']}"
    return f"{row['subject']} {row[str(row['subject'])]}"
