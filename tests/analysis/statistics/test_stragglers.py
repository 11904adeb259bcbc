"""Stragglers: planted slow ranks, machines, stages and links are recovered, and nothing else is claimed."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from planted_runs import Shape, Times, random_times, run
from stagescope.analysis.statistics.stragglers import STRAGGLERS, Limits, find_stragglers
from stagescope.model import empty_timeline

WITHOUT_MINIMUM = Limits(0.0, 0.0, 0.0, rate=0.05)


def claims(times, **asked):
    table = find_stragglers(run(times), **asked).table
    return table.filter("is_claimed").to_dicts()


def named(rows, *columns):
    return [tuple(row[column] for column in columns) for row in rows]


def slowed(times: Times, where, factor) -> Times:
    times.action_ns[where] *= factor
    return times


def test_slow_replica_is_recovered_with_its_size():
    times = slowed(random_times(Shape(pipelines=4)), np.s_[:, 2, :, 1], 1.10)
    (found,) = claims(times)
    assert (found["subject"], found["finding"], found["rank"], found["stage"]) == ("rank", "slow", 9, 1)
    assert found["excess_fraction"] == pytest.approx(0.10, abs=0.01)
    assert found["extra_ns_per_step"] == pytest.approx(0.10 * 8 * 30e6, rel=0.1)
    assert (found["compared_with"], found["peers"], found["span_count"]) == (
        "ranks of the same stage",
        3,
        320,
    )


def test_interval_covers_the_planted_size_as_often_as_stated():
    shape = Shape(pipelines=4, stages=4, steps=8, microbatches=4)
    held = 0
    for seed in range(20):
        (found,) = claims(slowed(random_times(shape, seed), np.s_[:, 1, :, 1], 1.2))
        held += found["low_fraction"] < 0.2 < found["high_fraction"]
    assert held >= 17  # 19 expected; fewer than 17 has a probability of 1.6 %


def test_rank_as_slow_as_its_actions_vary_is_found():
    times = slowed(random_times(Shape(pipelines=4, stages=8, steps=10, noise=0.03)), np.s_[:, 2, :, 5], 1.03)
    assert named(claims(times), "subject", "finding", "rank") == [("rank", "slow", 21)]


def test_what_costs_too_little_is_not_claimed():
    times = slowed(random_times(Shape(pipelines=4)), np.s_[:, 2, :, 1], 1.10)
    cost_ns = 0.10 * 8 * 30e6
    assert named(claims(times, limits=Limits(least_cost_ns=0.8 * cost_ns)), "rank") == [(9,)]
    assert not claims(times, limits=Limits(least_cost_ns=1.2 * cost_ns))


def test_slow_one_of_two_replicas_is_named():
    (found,) = claims(slowed(random_times(Shape(pipelines=2)), np.s_[:, 1, :, 3], 1.05))
    assert (found["rank"], found["peers"]) == (7, 1)


def test_two_slow_replicas_of_four_do_not_hide_each_other():
    times = slowed(random_times(Shape(pipelines=4)), np.s_[:, 1:3, :, 0], 1.1)
    assert sorted(named(claims(times), "rank")) == [(4,), (8,)]


def test_slow_kind_is_named():
    times = random_times(Shape(pipelines=3))
    times.action_ns[0, 1, :, 2] *= 1.3
    assert named(claims(times), "rank", "kind") == [(6, "forward")]


def test_slow_stage_without_replicas_may_be_a_slow_device():
    times = slowed(random_times(Shape(pipelines=1)), np.s_[:, :, :, 2], 1.12)
    (found,) = claims(times)
    assert named([found], "subject", "finding", "stage", "rank") == [
        ("stage", "imbalance or slow device", 2, 2)
    ]
    assert found["excess_fraction"] == pytest.approx(0.12, abs=0.01)


def test_stage_slow_in_all_replicas_is_an_imbalance():
    times = slowed(random_times(Shape(pipelines=3)), np.s_[:, :, :, 3], 1.2)
    assert named(claims(times), "subject", "finding", "stage", "rank") == [("stage", "imbalance", 3, None)]


def test_stage_with_equal_work_is_slow():
    times = slowed(random_times(Shape(pipelines=1)), np.s_[:, :, :, 2], 1.12)
    assert named(claims(times, equal_stages=True), "subject", "finding") == [("stage", "slow")]


def test_machine_is_slow_if_all_its_ranks_are():
    shape = Shape(pipelines=4, stages=2)
    machines = ["a", "a", "b", "b", "c", "c", "d", "d"]
    whole = slowed(random_times(shape), np.s_[:, 1], 1.1)
    found = claims(replace(whole, machines=machines, errors_ns=dict.fromkeys("abcd", 0)))
    assert sorted(named(found, "subject", "machine")) == [("machine", "b"), ("rank", "b"), ("rank", "b")]
    half = slowed(random_times(shape), np.s_[:, 1, :, 0], 1.1)
    found = claims(replace(half, machines=machines, errors_ns=dict.fromkeys("abcd", 0)))
    assert named(found, "subject", "rank") == [("rank", 2)]


def test_slow_link_is_recovered_with_its_size():
    times = random_times(Shape(pipelines=2))
    times.message_ns[0, 1, :, 2] *= 3
    (found,) = claims(times)
    assert named([found], "subject", "finding", "rank", "peer", "kind") == [("link", "slow", 5, 6, "forward")]
    assert found["excess_fraction"] == pytest.approx(2.0, rel=0.1)


def test_clock_error_prevents_the_claim_of_a_slow_link():
    times = random_times(Shape(pipelines=2, stages=3))
    times.message_ns[0, 1, :, 2] *= 3
    machines = list("abcdef")
    assert claims(replace(times, machines=machines, errors_ns=dict.fromkeys(machines, 1_000)))
    inexact = claims(replace(times, machines=machines, errors_ns=dict.fromkeys(machines, 1_000_000)))
    # Both ways together do not depend on the clocks.
    assert [(row["rank"], row["peer"], row["kind"]) for row in inexact] == [(4, 5, None)]
    unknown = find_stragglers(run(replace(times, machines=machines, errors_ns=dict.fromkeys(machines))))
    assert unknown.table.filter(pl.col("subject") == "link").is_empty()
    assert any(one.code == "clock.error_unknown" for one in unknown.diagnostics)


def test_noisy_rank_is_not_slow():
    times = random_times(Shape(pipelines=1))
    disturbed = np.random.default_rng(5).random(times.action_ns[:, :, :, 3].shape) < 0.4
    times.action_ns[:, :, :, 3][disturbed] *= 2
    assert named(claims(times), "subject", "finding", "rank") == [("rank", "noisy", 3)]


def test_one_long_step_does_not_make_a_straggler():
    times = slowed(random_times(Shape(pipelines=3)), np.s_[:, 1, 7, 2], 3)
    assert claims(times) == []


def test_variation_of_whole_steps_cancels():
    times = random_times(Shape(pipelines=3, step_noise=0.3, steps=10))
    times.action_ns[:, :, :, :] *= np.exp(np.random.default_rng(0).normal(0, 0.3, (1, 1, 10, 1, 1)))
    assert claims(times) == []


def test_too_few_samples_decide_nothing_and_are_reported():
    times = slowed(random_times(Shape(pipelines=2, steps=3, microbatches=4)), np.s_[:, 1], 2)
    found = find_stragglers(run(times))
    assert found.table.is_empty()
    assert any(one.code == "samples.too_few" for one in found.diagnostics)


def test_one_step_of_many_micro_batches_is_enough():
    times = slowed(random_times(Shape(pipelines=3, steps=1, microbatches=32)), np.s_[:, 1, :, 2], 1.2)
    assert named(claims(times), "rank", "samples") == [(6, 8)]


def test_table_always_has_the_declared_columns():
    for timeline in (empty_timeline(), run(random_times(Shape())), run(random_times(Shape(1, 1, 1, 1)))):
        found = find_stragglers(timeline).table
        assert dict(found.schema) == dict(STRAGGLERS.schema)


def test_renumbering_ranks_renumbers_the_findings():
    times = slowed(random_times(Shape(pipelines=3)), np.s_[:, 1, :, 2], 1.1)
    timeline = run(times)
    there = {rank: (5 * rank + 3) % 12 for rank in range(12)}
    moved = replace(
        timeline.with_spans(timeline.spans.with_columns(pl.col("rank", "peer").replace(there))),
        ranks=timeline.ranks.with_columns(pl.col("rank").replace(there)),
    )
    key = ["subject", "finding", "rank", "stage", "kind", "peer"]
    before = (
        find_stragglers(timeline)
        .table.with_columns(pl.col("rank", "peer").replace(there))
        .drop("stage", "kind")
    )
    after = find_stragglers(moved).table.drop("stage", "kind")
    key = ["subject", "finding", "rank", "peer", "p_value"]
    before, after = (each.select(key).with_columns(pl.col("p_value").round(9)) for each in (before, after))
    assert sorted(before.rows(), key=str) == sorted(after.rows(), key=str)


def test_shifting_and_scaling_time_change_no_fraction():
    timeline = run(slowed(random_times(Shape(pipelines=2)), np.s_[:, 1, :, 2], 1.1))
    times = ["start_ns", "end_ns"]
    moved = timeline.with_spans(timeline.spans.with_columns((pl.col(*times) - 10**18) * 3))
    one, other = (find_stragglers(each).table for each in (timeline, moved))
    assert one["is_claimed"].to_list() == other["is_claimed"].to_list()
    assert one["excess_fraction"].to_list() == pytest.approx(other["excess_fraction"].to_list())


@pytest.mark.exhaustive
def test_claims_without_planted_effect_are_as_rare_as_stated():
    """With a rate of 5 %, a claim is made in at most 5 % of such runs; with the default rate in none."""
    shape = Shape(pipelines=2, stages=2, steps=6, microbatches=4)
    runs = [run(random_times(shape, seed)) for seed in range(200)]
    bare = sum(bool(find_stragglers(one, limits=WITHOUT_MINIMUM).table["is_claimed"].any()) for one in runs)
    assert bare <= 20  # at most 10 expected; more than 20 has a probability of 0.1 %
    assert sum(bool(find_stragglers(one).table["is_claimed"].any()) for one in runs) == 0
