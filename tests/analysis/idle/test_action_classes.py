import tracemalloc

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings

from delayed_runs import example_timeline, run, run_rows
from drawing import timeline_from_text
from random_pipelines import one_f_one_b, simulated_timelines, timeline_of
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.idle.action_classes import find_action_classes
from stagescope.model import empty_timeline


def classes_of(timeline):
    actions = find_actions(timeline)
    duration_ns = (actions.table["end_ns"] - actions.table["start_ns"]).to_numpy()
    return actions, duration_ns, find_action_classes(actions, duration_ns)


def test_class_is_one_rank_stage_and_kind_in_one_step():
    _, _, classes = classes_of(timeline_from_text("F0 F1 - B0\nF0 - - B0"))
    table = classes.table.select(
        "rank", "stage", "kind", "action_count", "mean_ns", "peers", "peer_ns"
    ).rows()
    assert table == [
        (0, 0, "forward", 2, 1500.0, 1, 1500.0),
        (0, 0, "backward", 1, 1000.0, 1, 1000.0),
        (1, 1, "forward", 1, 3000.0, 1, 3000.0),
        (1, 1, "backward", 1, 1000.0, 1, 1000.0),
    ]
    # Three forwards cost 6000 together, whatever their stage.
    assert classes.table["stage_ns"].to_list() == [2000.0, 1000.0, 2000.0, 1000.0]


@settings(deadline=None, max_examples=20)
@given(simulated_timelines())
def test_means_preserve_the_work_of_ranks_and_stage_means_that_of_the_step(timeline):
    actions, duration_ns, classes = classes_of(timeline)
    rank = actions.table["rank"].to_numpy()
    of_ranks = [np.bincount(rank, weights=cost) for cost in (duration_ns, classes.costs_ns("mean_ns"))]
    assert of_ranks[0] == pytest.approx(of_ranks[1])
    assert classes.costs_ns("stage_ns").sum() == pytest.approx(duration_ns.sum())


def test_same_work_of_other_pipelines_costs_their_median():
    _, _, classes = classes_of(example_timeline(({}, {"1": 1.15}, {"1": 1.3})))
    of_stage = classes.table.filter((pl.col("stage") == 1) & (pl.col("kind") == "forward"))
    means = of_stage["mean_ns"].to_list()
    assert of_stage["peers"].to_list() == [3, 3, 3]
    assert of_stage["peer_ns"].to_list() == [sorted(means)[1]] * 3


def test_ranks_that_share_a_stage_in_a_bidirectional_schedule_are_not_peers():
    order = {0: ["F0.0", "F1.1"], 1: ["F1.0", "F0.1"]}
    _, _, classes = classes_of(run(order, lambda action, rank: 10 + rank))
    assert classes.table["peers"].to_list() == [1, 1, 1, 1]
    assert classes.table["mean_ns"].to_list() == [10, 10, 11, 11]


def test_pairs_are_separate_classes_by_both_actions():
    order = {
        0: ["F0.0", "F0.1", "F0.2+B0.0", "B0.1", "B0.2"],
        1: ["F1.0", "B1.0", "F1.1", "B1.1", "F1.2", "B1.2"],
    }
    actions, _, classes = classes_of(run(order, lambda action, rank: 10))
    pair = classes.table.filter(pl.col("partner_kind").is_not_null()).row(0, named=True)
    assert (pair["rank"], pair["stage"], pair["kind"], pair["partner_stage"], pair["partner_kind"]) == (
        0,
        0,
        "forward",
        0,
        "backward",
    )
    assert pair["action_count"] == 1
    ranks = classes.table["rank"].to_numpy()[classes.of_action]
    assert ranks.tolist() == actions.table["rank"].to_list()


def test_every_step_has_its_own_classes():
    rows = [
        row
        for step in range(2)
        for row in run_rows(
            one_f_one_b(2, 2), lambda action, rank, step=step: 10 + step, step=step, start_ns=step * 1_000
        )
    ]
    _, _, classes = classes_of(timeline_of(rows, 2))
    assert classes.table["mean_ns"].to_list() == [10.0] * 4 + [11.0] * 4


def test_empty_input_has_no_classes():
    _, _, classes = classes_of(empty_timeline())
    assert classes.table.is_empty()
    assert classes.costs_ns("mean_ns").tolist() == []


def test_memory_is_proportional_to_the_actions_of_a_pipeline_with_thousands_of_ranks():
    ranks = 2_000
    timeline = run({rank: [f"F{rank}.0"] for rank in range(ranks)}, lambda _action, _rank: 10)
    actions = find_actions(timeline)
    tracemalloc.start()
    try:
        classes = find_action_classes(actions, np.full(ranks, 10))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert classes.table.height == ranks
    # A table of all ranks and works had 250 MB.
    assert peak < 30e6
