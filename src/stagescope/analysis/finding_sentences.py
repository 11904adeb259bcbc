"""Sentences for claimed findings, made from the rows of their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.statistics.outlier_activities import activity_text
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.kinds import label
from stagescope.vocabulary.ratios import (
    change_text,
    comparative_text,
    conjunction,
    interval_text,
    multiple_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.analysis.slow_replicas import SlowReplica
    from stagescope.analysis.statistics.outlier_patterns import OutlierPattern


SMALL_RATIO = 10.0
MIXED_RATIO = 2.0
"""Outliers whose usual durations differ by more are compared each with its own."""

SUBJECTS = {
    "rank": "Rank {rank}",
    "machine": "Machine {machine}",
    "stage": "Stage {stage}",
    "link": "The link from rank {rank} to rank {peer}",
}
CLAIMS = {
    "noisy": ("has action durations spread", "have action durations spread", "wider"),
    "slow": ("is", "are", "slower"),
    "imbalance": ("takes", "take", "longer"),
    "imbalance or slow device": ("takes", "take", "longer"),
}
UNKNOWN = "imbalance or slow device"


def straggler_sentence(row: Mapping[str, object]) -> str:
    """Return a claimed row of STRAGGLERS as a sentence: the size, and its confidence interval."""
    ratio, low, high = (1 + float(str(row[f"{name}_fraction"])) for name in ("excess", "low", "high"))
    verb, _, word = CLAIMS[str(row["finding"])]
    size = comparative_text(word, ratio, decimals=1)
    interval = interval_text(low, high)
    if row["subject"] == "link" and row["kind"] is None:
        return (
            f"The links between rank {row['rank']} and rank {row['peer']} are {size}, both ways together, "
            f"{conjunction(ratio)} {row['compared_with']} (95 % CI {interval}, n = {row['samples']}). "
            "Which way is slow is not known, because the clocks of both ends may be further apart."
        )
    reason = " It has more work or a slower device: no replica runs the same stage."
    return (
        f"{SUBJECTS[str(row['subject'])].format(**row)} {verb} {size} {conjunction(ratio)} {row['compared_with']} "
        f"(95 % CI {interval}, n = {row['samples']}).{reason if row['finding'] == UNKNOWN else ''}"
    )


def stragglers_sentence(rows: Sequence[Mapping[str, object]]) -> str:
    """Return several claimed rows of STRAGGLERS with one kind of subject and finding as one sentence."""
    first = rows[0]
    ratios = [1 + float(str(row["excess_fraction"])) for row in rows]
    _, verb, word = CLAIMS[str(first["finding"])]
    size = comparative_text(word, min(ratios), max(ratios), decimals=1)
    end = " They have more work or slower devices: no replica runs the same stages."
    return (
        f"{_subjects(rows)} {verb} {size} {conjunction(max(ratios))} {first['compared_with']} "
        f"(n = {first['samples']}).{end if first['finding'] == UNKNOWN else ''}"
    )


def _subjects(rows: Sequence[Mapping[str, object]]) -> str:
    text = subjects_text(rows)
    return f"The {text}" if rows[0]["subject"] == "link" else text.capitalize()


def subjects_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Return several rows of STRAGGLERS with one kind of subject as a name, such as stages 8, 7 and 0."""
    subject = str(rows[0]["subject"])
    if subject == "link":
        names = [f"rank {row['rank']} to rank {row['peer']}" for row in rows]
        return f"links from {joined_names(names)}"
    return f"{subject}s {joined_names([str(row[subject]) for row in rows])}"


def joined_names(names: Sequence[str]) -> str:
    """Return names with commas and "and".

    >>> joined_names(["8", "7", "0"])
    '8, 7 and 0'
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def changing_rank_sentence(row: Mapping[str, object]) -> str:
    """Return a row of CHANGING_RANKS as a sentence."""
    rank, steps = row["rank"], row["steps"]
    last, first = (1 + float(str(row[f"{name}_fraction"])) for name in ("excess", "first"))
    slower = f"{comparative_text('slower', last, decimals=1)} {conjunction(last)}"
    peers = "ranks of the same stage"
    if row["finding"] == "intermittent":
        some = f"Rank {rank} is {slower}"
        when = f"in {row['slow_count']} of {steps} steps ({row['slow_steps']})"
        return (
            f"{some} {peers} {when}."
            if row["has_peers"]
            else f"{some} in its other steps {when}; other ranks are not."
        )
    if row["has_peers"]:
        ends = f"{change_text(first)} in the first step to {change_text(last)} in the last"
        return f"Rank {rank} drifts relative to {peers}: from {ends} (n = {steps})."
    return f"Rank {rank} became {slower} at first over {steps} steps; other ranks did not."


def changing_rank_text(row: Mapping[str, object]) -> str:
    """Return a row of CHANGING_RANKS in a few words."""
    last, first = (1 + float(str(row[f"{name}_fraction"])) for name in ("excess", "first"))
    if row["finding"] == "intermittent":
        slower = comparative_text("slower", last, decimals=1)
        first_step, _, last_step = str(row["slow_steps"]).partition("-")
        if last_step.isdecimal():
            return f"rank {row['rank']} is {slower} in steps {first_step} to {last_step}"
        return f"rank {row['rank']} is {slower} in {row['slow_count']} of {row['steps']} steps"
    return f"rank {row['rank']} drifts from {change_text(first)} to {change_text(last)}"


def changing_ranks_text(rows: pl.DataFrame) -> str:
    """Return rows of CHANGING_RANKS in a few words, in the order of their steps."""
    ordered = sorted(rows.iter_rows(named=True), key=lambda row: (_first_step(row), row["rank"]))
    return ", ".join(map(changing_rank_text, ordered))


def _first_step(row: Mapping[str, object]) -> int:
    return int(str(row["slow_steps"] or 0).replace(",", "-").split("-")[0])


def slow_replica_sentence(replica: SlowReplica) -> str:
    """Return a replica that is slow as a whole as a sentence."""
    low, high = 1 + replica.low_fraction, 1 + replica.high_fraction
    slower = f"{comparative_text('slower', low, high, decimals=1)} {conjunction(low, high)}"
    return f"All {replica.ranks} ranks of the pipeline of rank {replica.pipeline} are {slower} ranks of the same stage."


def action_text(row: Mapping[str, object]) -> str:
    """Return a row of OUTLIER_ACTIONS as the action and where it ran, such as F2.4 on rank 2 in step 3."""
    action = label(str(row["kind"]), int(str(row["stage"])), int(str(row["microbatch"])))
    return f"{action} on rank {row['rank']} in step {row['step']}"


def late_rank_sentence(row: Mapping[str, object]) -> str:
    """Return a claimed row of LATE_RANKS as a sentence."""
    lost, low, high = (
        duration_text(round(float(str(row[f"{name}_ns"])))) for name in ("lost", "low", "high")
    )
    when = f"in {row['late_count']} of {counted(int(str(row['iterations'])), 'iteration')}"
    return (
        f"Rank {row['rank']} is late for the {row['operation']} in {row['group']} {when}: the other ranks wait {lost} "
        f"per iteration (95 % CI {low} to {high}) for it, because of {late_place_text(row)}."
    )


def late_rank_text(row: Mapping[str, object]) -> str:
    """Return a claimed row of LATE_RANKS in a few words: the rank, and where it loses the time."""
    lost = duration_text(round(float(str(row["lost_ns"]))))
    return f"rank {row['rank']} comes {lost} late to the {row['operation']}: {late_place_text(row)}"


def late_place_text(row: Mapping[str, object]) -> str:
    """Return what a late rank did, and between what."""
    what, meeting, after = row["activity"] or "unrecorded time", f"the {row['operation']}", row["after"]
    if after == meeting:  # as the last of several of one name
        after = f"the previous {row['operation']}"
    return (
        f"{what} after {after}" if row["before"] == meeting else f"{what} between {after} and {row['before']}"
    )


def outlier_actions_sentence(outliers: pl.DataFrame, pattern: OutlierPattern) -> str:
    """Return the table OUTLIER_ACTIONS, which has a row, as a sentence: the pattern, or else the costliest action."""
    first = costliest_outlier(outliers)
    longest = first.row(0, named=True)
    if pattern.text:
        return f"{several_actions_text(pattern.rows)}, {pattern.text}{_cost(pattern.rows)}."
    head = f"{action_text(longest)} took {instead_text(longest)}{_cost(first)}."
    others = outliers.height - 1
    return head + (
        f" {counted(others, 'other action')} took more than 1.5x as long as usual." if others else ""
    )


def costliest_outlier(outliers: pl.DataFrame) -> pl.DataFrame:
    """Return the row of OUTLIER_ACTIONS that made its step longest, of several or unknown costs the longest."""
    return outliers.sort("cost_ns", descending=True, nulls_last=True, maintain_order=True).head(1)


def _times_text(ratio: float) -> str:
    """Return a ratio as a multiple, with a decimal where it is small: 1.6 would become 2x."""
    return f"{ratio:.1f}x" if ratio < SMALL_RATIO else multiple_text(ratio)


def several_actions_text(rows: pl.DataFrame) -> str:
    """Return how many outlier actions there are and how long they took: 8 forwards took 235 to 363 ms instead of 29."""
    kinds = rows["kind"].unique().cast(pl.String).to_list()
    noun = kinds[0].replace("_", " ") if len(kinds) == 1 else "action"
    sizes = rows.select(
        low=pl.min("duration_ns"), high=pl.max("duration_ns"), usual=pl.median("usual_ns").round()
    )
    low, high, usual = (duration_text(int(value)) for value in sizes.row(0))
    if rows["usual_ns"].max() > MIXED_RATIO * rows["usual_ns"].min():  # type: ignore[operator]  # a column of numbers
        times = rows["duration_ns"] / rows["usual_ns"]
        least, most = (_times_text(float(str(each))) for each in (times.min(), times.max()))
        span = least if least == most else f"{least} to {most}"
        return f"{counted(rows.height, noun)} took {span} as long as usual"
    return f"{counted(rows.height, noun)} took {low} to {high} instead of about {usual}"


def instead_text(row: Mapping[str, object]) -> str:
    """Return how long an outlier action took, and how long it usually does."""
    took, usual = (duration_text(round(float(str(row[name])))) for name in ("duration_ns", "usual_ns"))
    return f"{took} instead of {usual}{activity_text(row)}"


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


def trend_sentence(rows: Sequence[Mapping[str, object]]) -> str:
    """Return claimed rows of STEP_TRENDS with one direction as a sentence."""
    changes = sorted((abs(float(str(row["change_fraction"]))), row["change_fraction"]) for row in rows)
    (low, change), (high, _) = changes[0], changes[-1]
    if float(str(change)) > 0:
        amount = comparative_text("longer", 1 + low, 1 + high if len(rows) > 1 else None, decimals=1)
    else:
        ends = dict.fromkeys(f"{100 * each:.1f}" for each in (low, high))
        amount = f"{' to '.join(ends)} % shorter"
    where = "" if len(rows) == 1 else f" of {len(rows)} pipelines"
    return f"Steps{where} became {amount} from the first to the last."


def replica_sentence(row: Mapping[str, object]) -> str:
    """Return a claimed row of REPLICAS as a sentence."""
    later = duration_text(round(float(str(row["extra_ns_per_step"]))))
    return (
        f"The pipeline of rank {row['pipeline']} finished last in {row['last_count']} of {row['steps']} steps, "
        f"on average {later} per step after the last of the others."
    )


def _where(row: Mapping[str, object]) -> str:
    if row["rank"] is None:
        return ""
    if row["peer"] is None:
        return f", most of it on rank {row['rank']}"
    return f", most of it on the link from rank {row['rank']} to rank {row['peer']}"
