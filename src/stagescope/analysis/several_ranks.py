"""Several ranks that are stragglers together, in a few words: no one of them is the cause by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.finding_sentences import changing_ranks_text
from stagescope.analysis.slow_replicas import slow_ranks
from stagescope.vocabulary.number_ranges import MOST_LISTED, listed_numbers
from stagescope.vocabulary.ratios import comparative_text

if TYPE_CHECKING:
    from stagescope.analysis.explanation import Explanation

DOMINANT = 0.5
"""Ranks from which together at least this part of the cause comes are named."""

LEAST_PART = 0.1
"""Of several ranks, those from which at least this part comes are named."""


def several_slow(explanation: Explanation, origins: pl.DataFrame) -> str | None:
    """Return the few ranks that are claimed to be slow, if they are most of it and none is most by itself."""
    added = origins.group_by("rank").agg(pl.sum("added_ns")).filter(pl.col("added_ns") > 0)
    claimed = slow_ranks(explanation).select("rank", "excess_fraction")
    named = added.filter(pl.col("added_ns") >= LEAST_PART * pl.sum("added_ns")).join(claimed, on="rank")
    is_most = float(named["added_ns"].sum()) >= DOMINANT * float(added["added_ns"].sum())
    if not 1 < named.height <= MOST_LISTED or not is_most:
        return None
    ratios = (1 + named["excess_fraction"]).to_list()
    slower = comparative_text("slower", min(ratios), max(ratios), decimals=1)
    return f"{listed_numbers('rank', named['rank'].to_list())} are {slower}"


def several_changing(explanation: Explanation, origins: pl.DataFrame) -> str | None:
    """Return ranks that are slow in some steps each, as a straggler that moves, if together they are most of it."""
    added = origins.group_by("rank").agg(pl.sum("added_ns")).filter(pl.col("added_ns") > 0)
    changing = explanation.stragglers.changing.filter("has_peers", finding="intermittent")
    is_part = pl.col("added_ns") >= LEAST_PART * pl.sum("added_ns")
    named = added.filter(is_part).join(changing, on="rank", how="left")
    if not 1 < named.height <= MOST_LISTED or named["finding"].has_nulls():
        return None
    is_most = float(named["added_ns"].sum()) >= DOMINANT * float(added["added_ns"].sum())
    return changing_ranks_text(named) if is_most else None
