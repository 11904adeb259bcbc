"""A rank that is late for a collective between steps is named with its place and what it costs; by chance, none is."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from stagescope.analysis import build_explained_report
from stagescope.analysis.collectives.late_ranks import find_late_ranks
from stagescope.analysis.collectives.lateness import Lateness, measure_lateness
from stagescope.analysis.intermediates import intermediates_of
from stagescope.model.timeline import Timeline
from truth.causes import Place, late_rank, randomly_late
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

SHAPES = {
    "one pipeline": (Shape(), Place(2), ""),
    "the last rank of the schedule": (Shape(steps=5), Place(0), "checkpoint"),
    "two replicas, interleaved": (Shape("interleaved", replicas=2, chunks=2, steps=5), Place(1, 1), ""),
    "gradients accumulated over three steps": (Shape(steps=12), Place(1), "checkpoint"),
}
LATE_NS = 60 * MS


def base_plan(shape, seed=0):
    plan = make_plan(shape, Costs(noise=0.02), seed).with_end(barrier=True, records_norm=True)
    return replace(plan, accumulated=3) if shape.steps % 3 == 0 else plan


@pytest.mark.parametrize("name", SHAPES)
def test_late_rank_is_named_with_its_place_and_what_it_costs(name):
    shape, place, activity = SHAPES[name]
    base = base_plan(shape)
    run = simulate(late_rank(base, place, LATE_NS, activity))
    report = build_explained_report(timeline_of(run))
    (row,) = report.late_ranks.filter("is_claimed").to_dicts()
    rank = place.replica * shape.ranks + place.rank
    per_iteration = base.accumulated
    cost_ns = per_iteration * (run.iteration_ns - simulate(base).iteration_ns)
    assert row["rank"] == rank
    assert row["activity"] == (activity or None)
    assert row["lost_ns"] == pytest.approx(cost_ns, rel=0.02)
    assert report.findings["code"][0] == "rank.late"
    assert f"rank {rank} comes {row['lost_ns'] / MS:.2f} ms late to the all_reduce: " in report.verdict.why
    assert f"{activity or 'unrecorded time'} after " in report.verdict.why
    whole = report.iterations.filter("is_whole", rank=0)
    assert set(whole["steps"]) == {per_iteration}
    true_ns = run.iterations_ns.reshape(-1, per_iteration).sum(axis=1).mean()
    assert whole["iteration_ns"].mean() == pytest.approx(true_ns, rel=0.01)
    others = report.culprits.filter(pl.col("cause").is_in(["unattributed", "other_work"]))
    by_rank = others.filter(victim_rank=0).group_by("culprit_rank").agg(pl.sum("idle_ns"))
    assert by_rank.sort("idle_ns")["culprit_rank"][-1] == rank


def test_garbage_collection_is_no_place():
    shape, place, _ = SHAPES["one pipeline"]
    timeline = timeline_of(simulate(late_rank(base_plan(shape), place, LATE_NS, "")))
    meets = pl.col("name").str.starts_with("all_reduce") & (pl.col("rank") == place.rank)
    collections = timeline.spans.filter(meets).with_columns(
        kind=pl.lit("other").cast(timeline.spans.schema["kind"]),
        name=pl.lit("garbage collection of generation 0"),
        start_ns=pl.col("start_ns") - LATE_NS // 3,
        end_ns=pl.col("start_ns") - LATE_NS // 3 + MS // 5,
    )
    before, after = (
        build_explained_report(Timeline.from_spans(spans)).late_ranks.select("rank", "after", "before").row(0)
        for spans in (timeline.spans, pl.concat([timeline.spans, collections]))
    )
    assert collections.height >= shape.steps
    assert before == after
    assert after[2] == "the all_reduce"


def claims(plan):
    found = intermediates_of(timeline_of(simulate(plan)))
    late = measure_lateness(found.meetings, found.iteration_steps, found.windows.pipelines)
    iterations = found.iteration_steps.select("step", iteration="step")
    return find_late_ranks(
        Lateness(late.select("step").unique(), [late]), iterations, found.timeline.spans
    ).filter("is_claimed")


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(s, marks=pytest.mark.exhaustive) for s in range(3, 200))]
)
def test_no_rank_is_late_by_chance_or_by_the_schedule(seed):
    shape = Shape(
        ("1f1b", "gpipe", "interleaved")[seed % 3], replicas=1 + seed % 2, chunks=1 + (seed % 3 == 2)
    )
    base = base_plan(shape._replace(steps=5 + 5 * (seed % 4)), seed)
    plan = randomly_late(replace(base, accumulated=1), (0, 2, 20)[seed % 3] * MS, seed)
    assert claims(plan).is_empty()
