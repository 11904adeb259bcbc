"""Steps overlap only if ranks begin one without waiting for the others to end the one before."""

from __future__ import annotations

import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.analysis import build_explained_report
from stagescope.model import SPANS
from stagescope.model.validate import conform

MS = 1_000_000
STEPS = 6
WINDOW = """
    F0 F1 .  .  .  I0 I1 W0 W1 .  .  .
    .  F0 F1 I0 I1 W0 -  -  W1 -  -  -
"""
ENDS = (9, 12)
"""When the ranks end a step; each runs its optimizer then, for 1 ms."""
NEXT = 14


def run_with(collectives):
    """Return a run of drawn steps, with an optimizer and `collectives` after each: rank, first and last ms, waits."""
    drawn = []
    for step in range(STEPS):
        start_ns = step * NEXT * MS
        timeline = timeline_from_text(WINDOW, cell_ns=MS, step=step, origin_ns=start_ns)
        optimizes = [
            {"rank": rank, "kind": "optimizer", "lane": "compute", "step": step, "start_ns": start_ns + end * MS,
             "end_ns": start_ns + (end + 1) * MS}
            for rank, end in enumerate(ENDS)
        ]  # fmt: skip
        meets = [
            {"rank": rank, "kind": "collective", "lane": "comm", "step": step, "pair": step,
             "name": "barrier in world of 0-1 (0)", "start_ns": start_ns + first * MS, "end_ns": start_ns + last * MS,
             "wait_start_ns": start_ns + waits * MS, "wait_end_ns": start_ns + last * MS}
            for rank, first, last, waits in collectives
        ]  # fmt: skip
        drawn += [
            timeline.spans,
            conform(pl.DataFrame([*optimizes, *meets], infer_schema_length=None), SPANS),
        ]
    return build_explained_report(timeline.with_spans(pl.concat(drawn)))


def test_steps_between_which_all_ranks_meet_do_not_overlap():
    report = run_with([(0, 10, 14, 10), (1, 13, 14, 13)])
    assert report.intermediates.step_chain is None
    losses = dict(report.losses.select("part", "ns").iter_rows())
    assert losses["unattributed"] == 0
    assert "unattributed" not in report.verdict.why
    assert not report.improvements["change"].str.contains("unrecorded time").any()


@pytest.mark.parametrize(
    "collectives",
    [[], [(1, 13, 14, 13)], [(0, 10, 11, 10), (1, 13, 14, 13)]],
    ids=["none", "one rank alone", "rank 0 goes on before rank 1 comes"],
)
def test_steps_overlap_where_ranks_optimize_after_their_own_end_and_do_not_meet(collectives):
    assert run_with(collectives).intermediates.step_chain is not None
