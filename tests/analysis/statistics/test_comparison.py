"""Comparisons of two runs: planted differences are recovered, noise is not claimed."""

from dataclasses import replace
from itertools import pairwise

import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from stagescope.analysis.statistics.comparison import (
    DIFFERENCES,
    Least,
    compare_runs,
    compare_totals,
    gather_run,
)
from stagescope.model import empty_timeline
from truth.engine import simulate
from truth.plan import Costs, make_plan
from truth.plan import Shape as TruthShape
from truth.spans import timeline_of

SHAPE = Shape(pipelines=1)


def claimed(before, after):
    return compare_runs(run(before), run(after)).table.filter("is_claimed")


def test_slower_stage_is_recovered_in_step_part_and_place():
    after = random_times(SHAPE, 2)
    after.action_ns[1, :, :, 2] *= 1.1
    found = claimed(random_times(SHAPE, 1), after)
    parts = found.filter(pl.col("subject") == "part")["part"].to_list()
    assert parts[0] == "stage_imbalance"
    (actions,) = found.filter(pl.col("subject") == "actions").to_dicts()
    assert (actions["stage"], actions["kind"]) == (2, "backward")
    assert actions["difference_ns"] == pytest.approx(8 * 2e6, rel=0.1)
    assert actions["low_ns"] < actions["difference_ns"] < actions["high_ns"]
    (rank,) = found.filter(pl.col("subject") == "rank").to_dicts()
    assert (rank["rank"], rank["difference_ns"]) == (2, pytest.approx(8 * 2e6, rel=0.1))
    assert found["subject"][0] == "iteration"


def test_slower_link_is_recovered():
    after = random_times(SHAPE, 2)
    after.message_ns[0, :, :, 2] *= 20
    found = claimed(random_times(SHAPE, 1), after)
    (link,) = found.filter(pl.col("subject") == "link").to_dicts()
    assert (link["rank"], link["peer"], link["kind"]) == (1, 2, "forward")
    assert link["after_ns"] / link["before_ns"] == pytest.approx(20, rel=0.1)
    assert found.filter(pl.col("subject") == "part")["part"][0] == "exposed_communication"
    assert found.filter(pl.col("subject") == "actions").is_empty()


def test_swapping_the_runs_flips_the_signs():
    one, other = run(random_times(SHAPE, 1)), run(random_times(replace_steps(SHAPE, 12), 2))
    there, back = compare_runs(one, other).table, compare_runs(other, one).table
    key = ["subject", "part", "stage", "kind", "rank", "peer"]
    both = there.join(back, on=key, nulls_equal=True, suffix="_back")
    assert both.height == there.height
    assert both["difference_ns"].to_list() == pytest.approx((-both["difference_ns_back"]).to_list())
    assert both["low_ns"].to_list() == pytest.approx((-both["high_ns_back"]).to_list())


def replace_steps(shape, steps):
    return replace(shape, steps=steps)


def test_run_does_not_differ_from_itself():
    one = run(random_times(SHAPE))
    found = compare_runs(one, one).table
    assert found["difference_ns"].abs().max() == 0
    assert not found["is_claimed"].any()


def test_parts_sum_to_the_difference_of_the_step():
    table = compare_runs(run(random_times(SHAPE, 1)), run(random_times(SHAPE, 2))).table
    iteration = table.filter(pl.col("subject") == "iteration")["difference_ns"][0]
    assert table.filter(pl.col("subject") == "part")["difference_ns"].sum() == pytest.approx(iteration)


def test_one_step_each_gives_no_interval_and_no_claim():
    one = replace_steps(SHAPE, 1)
    after = random_times(one, 2)
    after.action_ns[:] *= 2
    found = compare_runs(run(random_times(one, 1)), run(after)).table
    assert found["low_ns"].null_count() == found.height
    assert not found["is_claimed"].any()


def test_another_number_of_micro_batches_gives_times_per_micro_batch():
    found = compare_runs(run(random_times(SHAPE)), run(random_times(replace(SHAPE, microbatches=4))))
    actions = found.table.filter(pl.col("subject") == "actions")
    assert actions["before_ns"].to_list() == pytest.approx(actions["after_ns"].to_list(), rel=0.02)
    assert actions.filter(stage=0, kind="forward")["before_ns"][0] == pytest.approx(10e6, rel=0.02)
    assert not actions["is_claimed"].any()
    assert (found.per, found.changes) == (
        "micro-batch",
        ("the number of micro-batches per step from 8 to 4",),
    )
    assert any("8 and 4 micro-batches per step" in one.message for one in found.diagnostics)


def test_step_that_was_cut_off_does_not_change_the_number_of_micro_batches():
    before, after = (run(random_times(SHAPE, seed)) for seed in (1, 2))
    last = after.spans.filter(pl.col("step") == SHAPE.steps - 1)
    cut_ns = (last["start_ns"].min() + last["end_ns"].max()) // 2
    after = after.with_spans(after.spans.filter(pl.col("end_ns") < cut_ns))
    found = compare_totals(gather_run(before), gather_run(after))
    assert (found.per, found.changes) == ("iteration", ())
    assert not found.table["is_claimed"].any()


def test_different_stages_compare_the_whole_only_with_a_diagnostic():
    found = compare_runs(run(random_times(SHAPE)), run(random_times(replace(SHAPE, stages=2))))
    assert set(found.table["subject"]) == {"iteration", "step", "part"}
    assert any("4 and 2 stages" in one.message for one in found.diagnostics)
    assert found.changes[:2] == ("the number of stages from 4 to 2", "the number of ranks from 4 to 2")


def halved_backwards(timeline):
    """Return a run in which every backward is recorded as its two halves, in the same time."""
    spans = timeline.spans.with_columns(pl.col("kind").cast(pl.String))
    middle_ns = (pl.col("start_ns") + pl.col("end_ns")) // 2
    is_full = pl.col("kind") == "backward"
    halves = [
        spans.filter(is_full).with_columns(kind=pl.lit("backward_input"), end_ns=middle_ns),
        spans.filter(is_full).with_columns(kind=pl.lit("backward_weight"), start_ns=middle_ns),
    ]
    every = pl.concat([spans.filter(~is_full), *halves]).cast(timeline.spans.schema)
    return timeline.with_spans(every.sort("rank", "start_ns"))


def test_full_backwards_are_compared_with_both_halves():
    found = compare_runs(run(random_times(SHAPE)), halved_backwards(run(random_times(SHAPE))))
    actions = found.table.filter(pl.col("subject") == "actions")
    assert set(actions["kind"]) == {"forward", "backward"}
    assert actions["difference_ns"].abs().max() == 0
    assert any("split backwards differently" in one.message for one in found.diagnostics)


def test_changed_schedule_is_a_change():
    one, other = run(random_times(SHAPE)), timeline_of(simulate(make_plan(TruthShape("gpipe"), Costs())))
    assert compare_runs(one, other).changes == ("the schedule from 1f1b to gpipe",)


def test_set_up_step_is_left_out_and_reported():
    times = random_times(SHAPE)
    times.action_ns[:, :, 0] *= 3
    found = compare_totals(gather_run(run(times)), gather_run(run(random_times(SHAPE, 2))))
    assert found.table["steps_before"][0] == 19
    assert found.diagnostics[0].message == "first run: step 0 is not in the totals; left out"


def test_empty_runs_give_an_empty_comparison():
    found = compare_runs(empty_timeline(), empty_timeline()).table
    assert dict(found.schema) == dict(DIFFERENCES.schema)
    assert found.is_empty()


@pytest.mark.exhaustive
def test_equal_runs_differ_no_more_often_than_stated():
    """Without a minimum a claim is made in at most 5 % of such pairs: the compared series are correlated."""
    shape = Shape(pipelines=1, stages=2, steps=8, microbatches=4, step_noise=0.03)
    runs = [run(random_times(shape, seed)) for seed in range(201)]
    pairs = pairwise(runs)
    bare = sum(bool(compare_runs(*pair, Least(0.0, 0.0)).table["is_claimed"].any()) for pair in pairs)
    assert bare <= 20
