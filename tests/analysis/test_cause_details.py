"""The details of causes in the verdict: where time is of which nothing was recorded."""

from __future__ import annotations

import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from stagescope.analysis import build_explained_report
from stagescope.model import SPANS
from stagescope.model.validate import conform

MS = 1_000_000
STEPS = 10


def paused(pauses_ms, pipelines=1):
    """Return the verdict on a run in which pipeline 0 begins some steps later; in between, rank 1 runs its optimizer.

    With replicas, these begin in time and wait for pipeline 0 at the end of the step.
    """
    timeline = run(random_times(Shape(pipelines=pipelines, stages=2, steps=STEPS)))
    steps = pl.int_range(STEPS, dtype=pl.Int32, eager=True)
    extra_ns = pl.Series([pauses_ms.get(step, 0) * MS for step in range(STEPS)])
    whole_ns = extra_ns.cum_sum()
    earlier_ns = (
        pl.when(pl.col("rank") < 2).then("whole_ns").otherwise(pl.col("whole_ns") - pl.col("extra_ns"))
    )
    shifts = pl.DataFrame({"step": steps, "whole_ns": whole_ns, "extra_ns": extra_ns})
    spans = timeline.spans.join(shifts, on="step", how="left", maintain_order="left").with_columns(
        pl.col("start_ns") + earlier_ns, pl.col("end_ns") + earlier_ns
    )
    ends = spans.group_by("step").agg(pl.max("end_ns")).rows()
    optimizes = [
        {
            "rank": 1,
            "kind": "optimizer",
            "lane": "compute",
            "step": step,
            "start_ns": end_ns,
            "end_ns": end_ns + MS,
        }
        for step, end_ns in ends
    ]
    every = pl.concat([spans.select(SPANS.names), conform(pl.DataFrame(optimizes), SPANS)])
    return build_explained_report(timeline.with_spans(every)).verdict


@pytest.mark.parametrize("pipelines", [1, 2])
@pytest.mark.parametrize(
    ("pauses_ms", "where"),
    [
        ({4: 900}, "in step 4"),
        ({STEPS - 1: 900}, f"in step {STEPS - 1}"),
        ({2: 300, 6: 250}, "in steps 2 and 6"),
        ({2: 300, 4: 300, 5: 300, 7: 300}, "in steps 2, 4-5 and 7"),
        ({2: 300, 3: 300, 4: 300}, "in steps 2-4"),
        (dict.fromkeys((2, 4, 6, 8), 300), f"in 4 of {STEPS} steps"),
        (dict.fromkeys(range(1, STEPS), 100), "in each step"),
        ({step: 30 * step for step in range(1, STEPS)}, "in each step"),
    ],
)
def test_pauses_are_named_by_the_steps_that_begin_after_them(pauses_ms, where, pipelines):
    verdict = paused(pauses_ms, pipelines)
    assert f"(nothing recorded before the first forward of rank 0 {where}: often data loading)" in verdict.why
    assert (
        f"no unrecorded time before the first forward of rank 0 {where} (often data loading)"
        in verdict.improvement
    )


def exposed_links(slow_ns):
    """Return the verdict on a pipeline of four ranks in which some messages take longer, by kind and stage."""
    times = random_times(Shape(pipelines=1, steps=8, noise=0.01))
    for (kind, stage), extra_ns in slow_ns.items():
        times.message_ns[kind, :, :, stage] += extra_ns
    return build_explained_report(run(times)).verdict.why


def test_two_directions_of_one_link_are_not_all_links():
    assert "exposed communication (links between rank 1 and rank 2)" in exposed_links(
        {(0, 2): 3 * MS, (1, 1): 3 * MS}
    )
    assert "exposed communication (link from rank 1 to rank 2)" in exposed_links({(0, 2): 6 * MS})
    everywhere = {(0, stage): 3 * MS for stage in (1, 2, 3)} | {(1, stage): 3 * MS for stage in (0, 1, 2)}
    assert "exposed communication (all links)" in exposed_links(everywhere)
