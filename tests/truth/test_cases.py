"""Every planted case costs what it should, and the confusion table can be made of it."""

from __future__ import annotations

import pytest

from truth.cases import NULLS, PLANTED, Truth
from truth.confusion import details, improvements, matrix, mentions, rows_of, summary
from truth.engine import simulate
from truth.plan import MS
from truth.spans import spans_of

CASES = {case.name: case for case in (build(0) for build in PLANTED)}


def only_truth(name) -> tuple[float, Truth]:
    case = CASES[name]
    return case.lost_ns(case.truths[0]) / MS, case.truths[0]


def test_names_of_cases_are_distinct():
    assert len(CASES) == len(PLANTED)
    assert len({null.name for null in NULLS}) == len(NULLS)


@pytest.mark.parametrize("name", CASES)
def test_every_planted_cause_costs_time(name):
    case = CASES[name]
    for truth in case.truths:
        assert 0 < case.lost_ns(truth) < case.run.iteration_ns


def test_reduction_and_optimizer_cost_exactly_their_length():
    case = CASES["all-reduce 60 ms, optimizer 20 ms"]
    assert [case.lost_ns(truth) / MS for truth in case.truths] == [60, 20]


def test_hiccup_costs_its_length_over_the_number_of_steps():
    assert only_truth("one action 1 s longer")[0] == pytest.approx(1000 / 6, rel=0.01)


def test_loading_before_each_step_costs_its_length():
    assert only_truth("15 ms of data loading before each step")[0] == 15


def test_slow_replica_costs_a_sixth_of_the_iteration_without_its_end():
    lost, truth = only_truth("a replica 20 % slower, 2 replicas")
    assert lost == pytest.approx(0.2 * (truth.run_without.iteration_ns / MS - 9), rel=0.05)


def test_idle_time_caused_on_the_slow_rank_itself_is_negative():
    case = CASES["one rank 20 % slower, 2 replicas"]
    idle = case.caused_idle_ns(case.truths[0])
    assert idle[1, 1] < 0 < min(idle[0, 0], idle[1, 0], idle[3, 1])


def test_recording_the_loading_does_not_change_the_run():
    names = [
        "15 ms of data loading before each forward of stage 0" + extra for extra in ("", ", not recorded")
    ]
    assert only_truth(names[0])[0] == only_truth(names[1])[0]


def test_null_runs_depend_on_the_seed_alone():
    for null in NULLS:
        first, again, other = (null.plan(seed).action_ns for seed in (0, 0, 1))
        assert (first == again).all()
        assert (first != other).any()


def test_set_up_step_is_the_first_and_has_number_1():
    null = next(null for null in NULLS if null.set_up > 1)
    run = simulate(null.plan(0))
    assert run.iterations_ns[0] > 2.5 * run.iterations_ns[1:].max()
    assert spans_of(run)["step"].min() == 1


def test_culprits_are_matched_as_whole_words():
    assert mentions("Rank 1 is slower.", "rank 1 / stage 1")
    assert not mentions("Rank 13 is slower.", "rank 1")
    assert mentions("anything", "")


@pytest.mark.exhaustive
def test_confusion_table_has_a_row_per_truth():
    rows = rows_of([CASES["one rank 20 % slower, 2 replicas"], CASES["all-reduce 60 ms, optimizer 20 ms"]])
    assert [row.truth.cause for row in rows] == ["straggler", "gradient reduction", "optimizer"]
    table, other = list(summary(rows)), list(matrix(rows))
    assert len(table) == 2 + 3 + 3
    assert len(other) == 2 + 3
    assert len({line.count("|") for line in other}) == 1
    assert "60.0" in table[3]
    assert len(list(improvements(rows))) == 2 + 3 + 1
    assert sum(line.startswith("\n###") for line in details(rows)) == 3
