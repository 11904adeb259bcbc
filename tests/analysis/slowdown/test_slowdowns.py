"""The slowdowns of public runs are those that their authors published; planted stragglers are found."""

import json

import polars as pl
import pytest

import stagescope
from places import DATA
from stagescope.analysis.slowdown.slowdowns import SLOWDOWNS, measure_slowdowns
from stagescope.model import empty_timeline
from truth.causes import Place, global_rank, slow_rank, slow_stages
from truth.confusion import timeline_of
from truth.engine import simulate
from truth.plan import Costs, Shape, make_plan

FOLDER = DATA / "public_runs"
PUBLISHED = json.loads((FOLDER / "published.json").read_text())
OPERATIONS = {
    "forward-compute": "forward",
    "backward-compute": "backward",
    "forward-pp-comm": "forward transfer",
    "backward-pp-comm": "backward transfer",
    "grads-reduce-scatter": "grad_reduce",
}
"""What the published types of operations are called here; the others have the same name."""


@pytest.fixture(scope="module", params=PUBLISHED)
def public_run(request):
    timeline = stagescope.read(FOLDER / f"bytedance-{request.param}.parquet")
    return stagescope.analyze(timeline, explain=False).slowdowns, PUBLISHED[request.param]


def values(table, metric, key):
    return dict(table.filter(metric=metric).select(pl.col(key).cast(pl.String), "value").iter_rows())


def only(table, metric):
    return table.row(by_predicate=pl.col("metric") == metric, named=True)


@pytest.mark.parametrize("metric", ["S", "M_S", "M_W"])
def test_run_has_the_slowdown_that_the_authors_program_finds(public_run, metric):
    table, known = public_run
    assert only(table, metric)["value"] == pytest.approx(known["stored"][metric], rel=0.02)


def test_slowdown_is_published_within_2_percent(public_run):
    table, known = public_run
    assert only(table, "S")["value"] == pytest.approx(known["published"]["S"], rel=0.02)


def test_steps_are_as_long_as_in_the_authors_replays(public_run):
    table, known = public_run
    whole = only(table, "S")
    assert whole["steps"] == known["stored"]["steps"]
    assert whole["step_ns"] / 1e9 == pytest.approx(known["stored"]["without_launch_delay_s"], rel=0.001)
    assert whole["ideal_step_ns"] / 1e9 == pytest.approx(known["stored"]["ideal_s"], rel=0.001)
    for metric, name in (("M_S", "without_last_stage_slowdown_s"), ("M_W", "without_slowest_ranks_s")):
        assert only(table, metric)["step_ns"] / 1e9 == pytest.approx(known["stored"][name], rel=0.001)


def test_every_type_of_operation_has_its_published_slowdown(public_run):
    table, known = public_run
    found = values(table, "S_t", "operation")
    expected = {OPERATIONS.get(name, name): value for name, value in known["stored"]["S_t"].items()}
    assert found == pytest.approx(expected, rel=0.002)


@pytest.mark.parametrize(("metric", "key"), [("S_stage", "pp_rank"), ("S_dp", "dp_rank")])
def test_stages_and_replicas_have_their_published_slowdown(public_run, metric, key):
    table, known = public_run
    assert values(table, metric, key) == pytest.approx(known["stored"][metric], rel=0.002)


def slowdowns_of(plan):
    return stagescope.analyze(timeline_of(simulate(plan)), explain=False).slowdowns


def test_slow_rank_explains_the_slowdown():
    plan = make_plan(Shape(replicas=4), Costs(), 0)
    place = Place(1, 2)
    table = slowdowns_of(slow_rank(plan, place, 1.5))
    assert table.schema == SLOWDOWNS.schema
    slowest = table.filter(metric="S_w").sort("value").row(-1, named=True)
    assert slowest["rank"] == global_rank(plan, place)
    assert (slowest["pp_rank"], slowest["dp_rank"]) == place
    assert only(table, "M_W")["value"] == pytest.approx(1, abs=0.1)
    assert only(table, "S")["value"] > 1.15


def test_long_last_stage_explains_the_slowdown():
    table = slowdowns_of(slow_stages(make_plan(Shape(replicas=2), Costs(), 0), {3: 1.5}))
    assert only(table, "M_S")["value"] > 0.9
    stages = values(table, "S_stage", "pp_rank")
    assert max(stages, key=stages.get) == "3"


def test_equal_ranks_have_no_slowdown():
    table = slowdowns_of(make_plan(Shape(replicas=2), Costs(noise=0.001), 0))
    assert table.filter(pl.col("metric").cast(pl.String).str.starts_with("S"))[
        "value"
    ].to_list() == pytest.approx([1.0] * (table.height - 2), abs=0.01)


def test_timeline_without_actions_has_no_slowdowns():
    timeline = empty_timeline()
    pipelines = pl.DataFrame(schema={"rank": pl.Int32, "pipeline": pl.Int32})
    assert measure_slowdowns(timeline, pipelines, []).equals(SLOWDOWNS.empty())


def test_a_step_that_would_take_minutes_is_not_replayed(monkeypatch):
    timeline = timeline_of(simulate(make_plan(Shape(replicas=2), Costs(), 0)))
    monkeypatch.setattr("stagescope.analysis.slowdown.slowdowns.MOST_REPLAYED_ACTIONS", 1)
    report = stagescope.analyze(timeline, explain=False)
    assert report.slowdowns.is_empty()
