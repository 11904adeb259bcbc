import polars as pl
import pytest

from delayed_runs import run
from drawing import timeline_from_text
from random_pipelines import one_f_one_b
from stagescope import schedules
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.prediction.ideal import IDEAL, ORDER_DISTANCE, lay_ideal
from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.model import empty_timeline

UNIT = {"F": 10, "B": 20}


def ideal_of(timeline, declared=None):
    actions = find_actions(timeline)
    return actions, lay_ideal(actions, declared)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipev"])
def test_run_without_delays_is_its_own_ideal(name):
    order = schedules.order(name, ranks=4, microbatches=8)
    costs = schedules.Costs(forward=1_000, backward_input=1_000, backward_weight=1_000)
    actions, ideal = ideal_of(timeline_of_simulation(schedules.simulate(order, costs)), name)
    assert (ideal.source, ideal.agrees_with(name)) == ("recognized", True)
    assert ideal.actions["late_ns"].unique().to_list() == [0]
    assert ideal.actions["ideal_end_ns"].to_list() == actions.table["end_ns"].to_list()
    assert ideal.actions["ideal_place"].to_list() == actions.table["place"].to_list()
    assert ideal.ranks["distance_fraction"].unique().to_list() == [0.0]
    assert ideal.makespan_ns == actions.table["end_ns"].max() - actions.table["start_ns"].min()


def test_planted_delay_is_the_lateness_of_what_follows():
    timeline = run(one_f_one_b(2, 3), lambda action, rank: UNIT[action.kind], hop_ns=4)
    actions, ideal = ideal_of(timeline)
    late = dict(
        zip(
            actions.table.select("kind", "stage", "microbatch").rows(),
            ideal.actions["late_ns"],
            strict=True,
        )
    )
    assert late["forward", 0, 0] == 0
    assert late["forward", 1, 0] == 4
    assert late["backward", 0, 0] == 8
    assert ideal.makespan_ns == 3 * 30 + 30
    assert ideal.actions.schema == IDEAL.schema
    assert ideal.ranks.schema == ORDER_DISTANCE.schema


def test_every_step_starts_with_its_ideal():
    actions, ideal = ideal_of(run(one_f_one_b(2, 3), lambda action, rank: UNIT[action.kind], steps=3))
    first = ideal.actions.group_by(actions.table["step"]).agg(pl.min("ideal_start_ns"))
    assert first["ideal_start_ns"].n_unique() == 3
    assert ideal.actions["late_ns"].max() == 0


def test_unequal_stages_are_equal_in_the_ideal():
    _, ideal = ideal_of(run(one_f_one_b(2, 3), lambda action, rank: UNIT[action.kind] * (1 + 2 * rank)))
    assert ideal.makespan_ns == 2 * (3 * 30 + 30)


def test_overtaken_action_is_counted_on_its_rank():
    timeline = run(one_f_one_b(4, 16), lambda action, rank: UNIT[action.kind])
    swapped = timeline.spans.with_columns(
        microbatch=pl.when(
            (pl.col("rank") == 0) & (pl.col("kind") == "forward") & pl.col("microbatch").is_in([0, 1])
        )
        .then(1 - pl.col("microbatch"))
        .otherwise("microbatch")
    )
    _, ideal = ideal_of(timeline.with_spans(swapped), "1F1B")
    assert ideal.ranks.select("actions", "overtaken", "unscheduled").rows() == [
        (32, 1, 0), (32, 0, 0), (32, 0, 0), (32, 0, 0)
    ]  # fmt: skip
    assert ideal.ranks["distance_fraction"][0] == 1 / 32


def nobodys_order():
    """Two ranks that do what no schedule has: one forward in the middle of the backwards."""
    return {
        0: ["F0.0", "F0.1", "F0.2", "B0.0", "B0.1", "F0.3", "F0.4", "B0.2", "F0.5", "B0.3", "B0.4", "B0.5"],
        1: ["F1.0", "B1.0", "F1.1", "F1.2", "B1.1", "B1.2", "F1.3", "F1.4", "B1.3", "B1.4", "F1.5", "B1.5"],
    }


def test_unrecognized_order_has_the_declared_schedule_in_any_spelling():
    timeline = run(nobodys_order(), lambda action, rank: UNIT[action.kind])
    _, ideal = ideal_of(timeline, "FThenB")
    assert (ideal.schedule, ideal.source, ideal.alternatives) == ("gpipe", "declared", ())
    assert ideal.agrees_with("GPipe")
    assert ideal.ranks["distance_fraction"].max() > 0


@pytest.mark.parametrize("declared", [None, "", "none", "my own"])
def test_unknown_schedule_has_no_ideal_but_a_reason(declared):
    _, ideal = ideal_of(run(nobodys_order(), lambda action, rank: UNIT[action.kind]), declared)
    assert (ideal.schedule, ideal.source, ideal.makespan_ns) == (None, None, None)
    assert ideal.actions.is_empty()
    assert [row.severity for row in ideal.diagnostics] == ["info"]
    assert not ideal.agrees_with(declared)
    assert not ideal.agrees_with("1f1b")


def test_indistinguishable_declared_schedule_agrees_with_the_recognized_one():
    # With full backwards ZB-H1 is 1F1B: they differ in where weight gradients run, which is not seen here.
    _, ideal = ideal_of(run(one_f_one_b(4, 8), lambda action, rank: UNIT[action.kind]))
    assert ideal.schedule == "1f1b"
    assert "zb-h1" in ideal.alternatives
    assert ideal.agrees_with("ZBH1")
    assert ideal.agrees_with("1F1B")
    assert not ideal.agrees_with("GPipe")
    assert not ideal.agrees_with(None)


def test_extra_actions_are_counted_on_their_rank():
    timeline = run(one_f_one_b(2, 8), lambda action, rank: UNIT[action.kind], steps=2)
    strange = (pl.col("step") == 1) & (pl.col("microbatch") == 7)
    spans = timeline.spans.with_columns(microbatch=pl.when(strange).then(99).otherwise("microbatch"))
    _, ideal = ideal_of(timeline.with_spans(spans))
    assert [row.count for row in ideal.diagnostics] == [4]
    assert ideal.actions["late_ns"].null_count() == 4
    assert ideal.ranks.select("step", "rank", "unscheduled", "distance_fraction").rows() == [
        (0, 0, 0, 0.0), (0, 1, 0, 0.0), (1, 0, 2, 0.125), (1, 1, 2, 0.125)
    ]  # fmt: skip


def test_timeline_without_actions_has_no_ideal():
    _, ideal = ideal_of(empty_timeline(), "1f1b")
    assert (ideal.schedule, ideal.diagnostics) == (None, ())


def test_single_rank_has_an_ideal():
    _, ideal = ideal_of(timeline_from_text("F0 B0 . F1 B1"))
    assert ideal.actions["late_ns"].to_list() == [0, 0, 1000, 1000]
