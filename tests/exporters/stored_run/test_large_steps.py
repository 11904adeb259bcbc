"""Runs with large steps, which are analyzed in groups of pipelines: the report is that of the analysis at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from stagescope.analysis import run_sample, sampled_pipelines, sampled_steps
from stagescope.api import divided_analysis, range_reports
from stagescope.execution import executor_for
from stagescope.exporters.stored_run import WriteOptions, write_stored_run
from stagescope.ingest.stored_run import read_manifest
from stagescope.model.implied import implied_steps
from stagescope.model.stored_run import FORMAT, VERSION, Manifest
from stagescope.model.tables import SPANS
from stagescope.model.timeline import Timeline
from stagescope.model.validate import in_order
from truth.causes import Place, reducing_inside, slow_rank
from truth.engine import simulate
from truth.plan import MS, Costs, make_plan
from truth.plan import Shape as TruthShape
from truth.spans import timeline_of

from .test_ranges import (
    CASES,
    assert_as_at_once,
    assert_equal_reports,
    facts_of,
    report_in_ranges,
    store_run,
    tables_of,
)

SHAPE = Shape(pipelines=8, stages=3, microbatches=6, steps=7, noise=0.01)
SLOW_RANK = 7
PLAN = TruthShape("1f1b", replicas=4, steps=4)


def planted():
    """Return a run with a slow rank and reductions of gradients."""
    times = random_times(SHAPE, seed=5)
    pipeline, stage = divmod(SLOW_RANK, SHAPE.stages)
    times.action_ns[:, pipeline, :, stage] *= 1.2
    return run(replace(times, action_ns=np.rint(times.action_ns), reduces=True))


@pytest.fixture
def divided(monkeypatch):
    """Let steps count as large, with groups of few pipelines, and return the divisions that were made."""
    found = []

    def divide(*args, **options):
        found.append(divided_analysis.divide_pipelines(*args, **options))
        return found[-1]

    monkeypatch.setattr(sampled_pipelines, "LARGE_STEP", 10)
    for module in (divided_analysis, run_sample):
        monkeypatch.setattr(module, "SPANS_OF_GROUP", 200)
    monkeypatch.setattr(sampled_steps, "MOST_SPANS", 1)
    monkeypatch.setattr(sampled_steps, "SAMPLE_SPANS", 500)
    monkeypatch.setattr(range_reports, "divide_pipelines", divide)
    return found


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_report_does_not_depend_on_groups(count, divided, tmp_path):
    place = store_run(planted(), tmp_path)
    assert_as_at_once(place, count)
    (made,) = divided

    assert len(made.groups) > 2
    assert len(made.sampled.ranks) < SHAPE.pipelines * SHAPE.stages


def test_pipelines_that_others_wait_for_inside_of_steps_are_sampled(divided, tmp_path):
    plan = reducing_inside(make_plan(PLAN._replace(replicas=8), Costs(noise=0.01, reduce=10 * MS), 3), 2 * MS)
    place = store_run(timeline_of(simulate(slow_rank(plan, Place(1, 2), 1.2))), tmp_path)
    assert_as_at_once(place, 3)
    assert 2 * PLAN.ranks in divided[0].sampled.ranks
    assert len(divided[0].sampled.ranks) < 8 * PLAN.ranks


@pytest.mark.parametrize("count", [1, 3])
def test_files_with_some_of_the_steps_each_are_analyzed_in_groups(count, divided, tmp_path):
    timeline = planted()
    timeline = replace(timeline, steps=implied_steps(timeline.spans))
    options = WriteOptions(most_spans=timeline.spans.height // SHAPE.pipelines // 2)
    write_stored_run(timeline, tmp_path, Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True), options)
    assert len({part.step_range for part in read_manifest(tmp_path).parts}) > 1
    assert_as_at_once(tmp_path, count)
    assert len(divided[0].groups) > 2


def test_groups_are_measured_by_workers(divided, tmp_path):
    place = store_run(planted(), tmp_path)
    with report_in_ranges(place, 3) as here:
        tables, facts = tables_of(here), facts_of(here)
    with executor_for(workers=2) as executor, report_in_ranges(place, 3, executor) as there:
        assert_equal_reports(there, tables, facts)
    assert divided[0] == divided[1]


@pytest.mark.usefixtures("divided")
@pytest.mark.parametrize("name", CASES)
def test_every_planted_cause_is_found_in_groups(name, tmp_path):
    place = store_run(timeline_of(CASES[name](2).run), tmp_path)
    assert_as_at_once(place, 5)


def with_gathers(timeline):
    """Return a run in which replicas gather parameters in the first forward of a stage, for which they wait."""
    first = timeline.spans.filter(pl.col("kind") == "forward", pl.col("stage") <= 1, microbatch=0)
    until_ns = pl.col("start_ns") + (pl.col("end_ns") - pl.col("start_ns")) // 2
    gathers = first.with_columns(
        kind=pl.lit("collective"), lane=pl.lit("comm"), microbatch=None,
        name=pl.format("all_gather in mesh_dp {} (1)", "stage"), pair="step",
        end_ns=until_ns, wait_start_ns="start_ns", wait_end_ns=until_ns,
    )  # fmt: skip
    rows = gathers.select(pl.col(name).cast(dtype) for name, dtype in timeline.spans.schema.items())
    return timeline.with_spans(in_order(pl.concat([timeline.spans, rows]), SPANS))


def with_other_ranks(timeline):
    """Return a run with a rank that runs no actions, and meets the others after each step."""
    ends = timeline.spans.group_by("step").agg(pl.max("end_ns"))
    ranks = pl.DataFrame({"rank": pl.Series([*timeline.spans["rank"].unique().sort(), 99], dtype=pl.Int32)})
    late_ns = pl.when(pl.col("rank") == 99).then(9_000_000).otherwise(pl.col("rank") * 10_000)
    until_ns = pl.col("end_ns") + 20_000_000
    meetings = ends.join(ranks, how="cross").with_columns(
        kind=pl.lit("collective"), lane=pl.lit("comm"), name=pl.lit("all_reduce in world (0)"), pair="step",
        start_ns=pl.col("end_ns") + late_ns, end_ns=until_ns,
        wait_start_ns=pl.col("end_ns") + late_ns, wait_end_ns=until_ns,
    )  # fmt: skip
    works = meetings.filter(rank=99).with_columns(
        kind=pl.lit("other"), lane=pl.lit("host"), name=pl.lit("evaluate"), pair=None,
        start_ns=pl.col("start_ns") - 5_000_000, end_ns="start_ns", wait_start_ns=None, wait_end_ns=None,
    )  # fmt: skip
    added = [
        rows.select(
            (pl.col(name) if name in rows.columns else pl.lit(None)).cast(dtype).alias(name)
            for name, dtype in timeline.spans.schema.items()
        )
        for rows in (meetings, works)
    ]
    return Timeline.from_spans(pl.concat([timeline.spans, *added]))


@pytest.mark.parametrize("change", [with_gathers, with_other_ranks])
def test_ranks_meet_those_of_other_groups(change, divided, tmp_path):
    place = store_run(change(timeline_of(simulate(make_plan(PLAN, Costs(noise=0.05), 3)))), tmp_path)
    whole = assert_as_at_once(place, 2)
    assert len(divided[0].groups) > 2
    assert set(whole.collectives["ranks"]) <= {PLAN.replicas, PLAN.replicas * PLAN.ranks + 1}
