"""The sample of a run with large steps: some of its pipelines, which show what an analysis of all of them does."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from stagescope.analysis import build_explained_report, run_sample, sampled_pipelines, sampled_steps
from stagescope.analysis.intermediates import intermediates_of
from stagescope.analysis.run_sample import find_sample
from stagescope.analysis.saved import facts_json, saved_tables
from truth.cases import PLANTED
from truth.causes import Place, late_rank, reducing_inside, slow_link, slow_optimizer, slow_rank
from truth.engine import simulate
from truth.plan import MS, Costs, make_plan
from truth.plan import Shape as TruthShape
from truth.spans import timeline_of

SHAPE = Shape(pipelines=8, stages=4, microbatches=8, steps=6, noise=0.01)
SLOW_RANK = 22
REFERENCE = "steps.reference"


@pytest.fixture
def sample_of(monkeypatch):
    """Return a function that lets a run have large steps, of which its sample has a part of the pipelines."""

    def set_limits(timeline, part=0.5, groups=3):
        of_step = timeline.spans.height // timeline.spans["step"].n_unique()
        monkeypatch.setattr(sampled_steps, "MOST_SPANS", 1)
        monkeypatch.setattr(sampled_steps, "SAMPLE_SPANS", int(part * of_step))
        monkeypatch.setattr(sampled_pipelines, "LARGE_STEP", 0)
        monkeypatch.setattr(run_sample, "SPANS_OF_GROUP", of_step // groups)

    return set_limits


def planted(slow=(SLOW_RANK,), shape=SHAPE):
    times = random_times(shape, seed=5)
    for rank in slow:
        pipeline, stage = divmod(rank, shape.stages)
        times.action_ns[:, pipeline, :, stage] *= 1.15
    return run(replace(times, action_ns=np.rint(times.action_ns), reduces=True))


def pipelines_of(known):
    return known.windows.pipelines["pipeline"].unique().sort().to_list()


def fixes_of(report):
    fixes = report.improvements.filter(kind="fix").select("change", "gain_ns")
    return dict(fixes.iter_rows())


def test_a_slow_rank_is_found_with_what_its_fix_gains(sample_of):
    timeline = planted()
    whole = build_explained_report(timeline)
    sample_of(timeline)
    report = build_explained_report(timeline)
    sampled = pipelines_of(report.intermediates.sample)
    assert len(sampled) == 4
    assert SLOW_RANK // SHAPE.stages * SHAPE.stages in sampled
    assert "rank.slow" in set(report.findings["code"])
    assert report.findings["rank"].to_list() == whole.findings["rank"].to_list()
    change = f"rank {SLOW_RANK} as fast as its replicas"
    assert fixes_of(report)[change] == pytest.approx(fixes_of(whole)[change], rel=0.05)
    measured = [each.improvements["measured_step_ns"].unique() for each in (report, whole)]
    assert measured[0].to_list() == pytest.approx(measured[1].to_list())
    assert report.explanation.ideal.schedule == whole.explanation.ideal.schedule == "1f1b"
    (note,) = (each.message for each in report.diagnostics if each.code == REFERENCE)
    assert note.endswith("4 of 8 pipelines, the slowest and others, in steps 3:4")


def test_nothing_is_claimed_of_a_run_in_which_nothing_is_wrong(sample_of):
    timeline = planted(slow=())
    sample_of(timeline)
    report = build_explained_report(timeline)
    assert len(pipelines_of(report.intermediates.sample)) == 4
    assert report.findings.is_empty()
    assert not any("as fast as" in change for change in fixes_of(report))


def test_a_run_of_one_large_step_has_a_sample(sample_of):
    timeline = planted(shape=replace(SHAPE, steps=1))
    whole = build_explained_report(timeline)
    sample_of(timeline)
    report = build_explained_report(timeline)
    sample = report.intermediates.sample
    assert len(pipelines_of(sample)) == 4
    assert (str(sample.steps), sample.sample_ratio) == ("0:1", 1.0)
    assert dict(saved_tables(report)).keys() == dict(saved_tables(whole)).keys()
    assert facts_json(report)
    redesigns = [each.improvements.filter(kind="redesign").head(1).rows() for each in (report, whole)]
    assert redesigns[0][0][1] == redesigns[1][0][1]
    assert REFERENCE in {each.code for each in report.diagnostics}


def test_steps_that_are_not_large_are_sampled_with_all_pipelines(sample_of, monkeypatch):
    timeline = planted()
    sample_of(timeline)
    monkeypatch.setattr(sampled_pipelines, "LARGE_STEP", timeline.spans.height)
    sample = find_sample(intermediates_of(timeline))
    assert len(pipelines_of(sample)) == SHAPE.pipelines
    assert sample.others is None
    assert sample.usual.durations is not None  # learned from more steps than the sample has
    monkeypatch.setattr(sampled_steps, "LEARNED_STEPS", 1)
    monkeypatch.setattr(run_sample, "SPANS_OF_GROUP", timeline.spans.height)
    assert find_sample(intermediates_of(timeline)).usual is None


@pytest.mark.parametrize("is_large", [False, True])
def test_unequal_data_of_pipelines_are_no_stragglers_where_the_sample_is_one_step(
    is_large, sample_of, monkeypatch
):
    (case,) = (each for build in PLANTED if "unequal length, 4" in (each := build(3)).name)
    timeline = timeline_of(case.run)
    whole = build_explained_report(timeline)
    sample_of(timeline, part=1.0)
    if not is_large:
        monkeypatch.setattr(sampled_pipelines, "LARGE_STEP", timeline.spans.height)
    report = build_explained_report(timeline)
    assert REFERENCE in {each.code for each in report.diagnostics}
    shares = [dict(each.losses.select("part", "fraction").iter_rows()) for each in (report, whole)]
    sampled, true = ({name: share[name] or 0 for name in ("straggler", "data_imbalance")} for share in shares)
    assert true["data_imbalance"] > 0.2
    assert sampled == pytest.approx(true, abs=0.015)


def test_ranks_outside_of_the_sample_have_no_prediction_of_their_own(sample_of):
    shape = replace(SHAPE, pipelines=24)
    slow = [4 * pipeline + 2 for pipeline in range(0, 24, 3)]
    timeline = planted(slow, shape)
    whole = build_explained_report(timeline)
    sample_of(timeline, part=1 / 3)
    report = build_explained_report(timeline)
    sampled = report.intermediates.sample.windows.pipelines["rank"].to_list()
    outside = set(slow).difference(sampled)
    assert outside
    assert report.findings.filter(code="rank.slow").height == len(slow)
    fixes = fixes_of(report)
    assert not any(change.startswith(f"rank {rank} ") for change in fixes for rank in outside)
    change = "8 ranks as fast as their replicas"
    assert fixes[change] == pytest.approx(fixes_of(whole)[change], rel=0.05)
    assert min(fixes.values()) > 0


def base(**costs):
    shape = TruthShape(replicas=8, steps=5)
    return make_plan(shape, Costs(noise=0.01, reduce=10 * MS, optimizer=20 * MS, **costs), 3)


CAUSES = {
    "optimizers of two ranks": lambda: slow_optimizer(
        slow_optimizer(base(), Place(1, 3), 60 * MS), Place(2, 6), 80 * MS
    ),
    "late rank": lambda: late_rank(base(), Place(2, 6), 30 * MS, "checkpoint"),
    "slow link": lambda: slow_link(base(), 0, 1, 4 * MS),
    "slow rank where replicas meet inside of backwards": lambda: slow_rank(
        reducing_inside(base(), 2 * MS, {1: 60 * MS}), Place(1, 2), 1.2
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_what_is_wrong_is_as_in_a_sample_of_all_pipelines(cause, sample_of, monkeypatch):
    timeline = timeline_of(simulate(CAUSES[cause]()))
    sample_of(timeline)
    found = build_explained_report(timeline)
    assert len(pipelines_of(found.intermediates.sample)) < 8
    monkeypatch.setattr(sampled_pipelines, "LARGE_STEP", timeline.spans.height)
    expected = build_explained_report(timeline)
    assert pipelines_of(expected.intermediates.sample) == [*range(0, 32, 4)]
    assert fixes_of(found).keys() == fixes_of(expected).keys()
    assert [*fixes_of(found).values()] == pytest.approx([*fixes_of(expected).values()], rel=0.1)
    assert found.late_ranks.equals(expected.late_ranks)
    assert found.findings.drop("row").equals(expected.findings.drop("row"))


def test_replicas_of_slowdowns_have_their_numbers_in_the_run(sample_of):
    timeline = planted()
    whole = build_explained_report(timeline).slowdowns
    sample_of(timeline)
    report = build_explained_report(timeline)
    numbers = [pipeline // SHAPE.stages for pipeline in pipelines_of(report.intermediates.sample)]
    of_replicas = report.slowdowns.filter(metric="S_dp")
    assert of_replicas["dp_rank"].to_list() == numbers
    slowest = of_replicas.sort("value")["dp_rank"][-1]
    assert slowest == whole.filter(metric="S_dp").sort("value")["dp_rank"][-1] == SLOW_RANK // SHAPE.stages


def test_what_is_usual_is_learned_from_all_pipelines(sample_of):
    timeline = planted()
    sample_of(timeline)
    known = intermediates_of(timeline)
    usual = known.usual
    ranks = [*range(SHAPE.pipelines * SHAPE.stages)]
    assert usual.durations.classes["rank"].unique().sort().to_list() == ranks
    links = usual.transfers.lags.links
    assert sorted({*links["sender"], *links["receiver"]}) == ranks
    assert known.sample.usual is usual
    assert known.sample.costs.usual is usual.causes
    # Actions of the sampled step, as many times as the run has such steps.
    assert usual.durations.actions == 2 * SHAPE.microbatches * len(ranks) * SHAPE.steps


def test_results_of_groups_are_released(sample_of, monkeypatch):
    timeline = planted()
    sample_of(timeline)
    alive, groups = [], []
    learn = run_sample._learn

    def noted(known, counted):
        alive.append(sum(each() is not None for each in groups))
        groups.append(weakref.ref(known.timeline))
        return learn(known, counted)

    monkeypatch.setattr(run_sample, "_learn", noted)
    gc.disable()
    try:
        known = intermediates_of(timeline)
        assert known.usual is not None
        assert len(groups) > 2
        assert alive == [0] * len(groups)
        assert all(each() is None for each in groups)
        reference, of_sample = weakref.ref(known), weakref.ref(known.sample)
        del known
        assert (reference(), of_sample()) == (None, None)
    finally:
        gc.enable()


def test_pipelines_that_are_all_in_the_sample_are_learned_from_in_groups(sample_of):
    timeline = planted(slow=(), shape=replace(SHAPE, pipelines=3))
    sample_of(timeline, part=1.0)
    known = intermediates_of(timeline)
    assert known.sample is not known
    assert pipelines_of(known.sample) == [0, 4, 8]
    assert known.sample.others is None
    assert known.usual.durations is not None
    assert build_explained_report(timeline).improvements.height


def test_spans_of_other_pipelines_are_known_without_actions(sample_of):
    timeline = planted()
    sample_of(timeline)
    sample = find_sample(intermediates_of(timeline))
    own = sample.windows.pipelines["rank"].implode()
    others = sample.spans_with_others.filter(~pl.col("rank").is_in(own))
    assert set(others["rank"]) == {*range(32)}.difference(sample.windows.pipelines["rank"])
    assert set(sample.actions.table["rank"]) == set(sample.windows.pipelines["rank"])
    every = timeline.spans.filter(~pl.col("rank").is_in(own), pl.col("step") == 3)
    assert others.filter(kind="grad_reduce").height == every.filter(kind="grad_reduce").height
    assert others.height < every.height / 5
