"""The verdict names other work by what ranks did, and by the collectives that they met at between steps."""

from __future__ import annotations

import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.analysis import build_explained_report
from stagescope.analysis.other_work import find_other_work, name_of_other_work
from stagescope.model import SPANS
from stagescope.model.coverage import unite_computing
from stagescope.model.validate import conform

MS = 1_000_000
WINDOW = """
    F0 F1 .  .  B0 -  F2 B1 -  F3 B2 -  .  B3 -
    .  F0 B0 -  F1 B1 -  F2 B2 -  F3 B3 -  .  .
"""
DELAYED = """
    F0 F1 .  .  .  .  B0 -  F2 B1 -  F3 B2 -  .  B3 -
    .  .  .  F0 B0 -  F1 B1 -  F2 B2 -  F3 B3 -  .  .
"""
STEPS = 5


def run_with(between, *, window=WINDOW, gap_ms=6):
    """Return a run of drawn steps, each followed by spans that `between` gives: rank, kind, name, first, last ms."""
    drawn, window_ns = [], len(window.splitlines()[1].split()) * MS
    for step in range(STEPS):
        start_ns = step * (window_ns + gap_ms * MS)
        origin_ns = start_ns + window_ns
        rows = [
            {
                "rank": rank,
                "name": name,
                "step": step,
                **of_kind(kind, step, origin_ns + first * MS, origin_ns + last * MS),
            }
            for rank, kind, name, first, last in between
        ]
        timeline = timeline_from_text(window, cell_ns=MS, step=step, origin_ns=start_ns)
        drawn += [timeline.spans, conform(pl.DataFrame(rows), SPANS)]
    return timeline.with_spans(pl.concat(drawn))


def of_kind(kind, step, start_ns, end_ns):
    times = {"kind": kind, "start_ns": start_ns, "end_ns": end_ns}
    if kind != "collective":
        return {**times, "lane": "compute" if kind == "optimizer" else "host"}
    return {**times, "lane": "comm", "pair": step, "wait_start_ns": start_ns, "wait_end_ns": end_ns}


@pytest.mark.parametrize("rank", [0, 1])
def test_verdict_names_what_a_rank_did_between_steps(rank):
    why = build_explained_report(run_with([(rank, "other", "evaluation", 0, 6)])).verdict.why
    assert f"other work (rank {rank}: evaluation)" in why


def test_verdict_names_the_collective_that_ranks_met_at_between_steps():
    barriers = [(rank, "collective", "barrier in world of 0-1 (0)", 0, 6) for rank in range(2)]
    why = build_explained_report(run_with(barriers)).verdict.why
    assert "other work (collectives between steps: barrier)" in why


def test_optimizer_step_that_delays_the_next_step_is_a_cause_of_its_own():
    optimizers = [(0, "optimizer", None, 0, 1), (1, "optimizer", None, -2, 4)]
    report = build_explained_report(run_with(optimizers, window=DELAYED, gap_ms=1))
    assert "optimizer (rank 1, " in report.verdict.why
    # The first step has none before it; in the others, rank 1 begins 2 ms later than its input allows.
    assert report.ledger["optimizer_ns"].to_list() == [0, *[2 * MS] * (STEPS - 1)]
    assert report.ledger["other_work_ns"].sum() == 0


def test_optimizer_step_beside_the_end_of_the_window_delays_nothing():
    report = build_explained_report(run_with([(1, "optimizer", None, -2, 0)]))
    assert report.ledger["optimizer_ns"].sum() == 0


def test_work_without_a_name_is_not_named_after_shorter_work():
    parts = [(1, "other", None, 0, 5), (1, "other", "logging", 5, 6)]
    why = build_explained_report(run_with(parts)).verdict.why
    assert "other work (rank 1)" in why


def test_work_of_several_kinds_has_no_name():
    parts = [
        (1, "other", name, at, at + 2) for at, name in enumerate(("logging", "evaluation", "checkpoint"))
    ]
    why = build_explained_report(run_with(parts)).verdict.why
    assert "other work (rank 1)" in why


def test_other_work_is_without_loading_and_without_what_ran_beside_actions():
    timeline = run_with([(1, "other", "data loading", 0, 3), (1, "other", "evaluation", -3, 2)])
    work = find_other_work(timeline.spans, unite_computing(timeline.spans))
    assert work.rows() == [(1, "other", "evaluation", STEPS * 4 * MS)]
    assert name_of_other_work(work, ranks=[0]) is None
