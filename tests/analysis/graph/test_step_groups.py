import numpy as np

from delayed_runs import run
from drawing import timeline_from_text
from random_pipelines import one_f_one_b
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.step_groups import group_actions
from stagescope.model import empty_timeline


def grouped(timeline):
    table = find_actions(timeline).table
    return table, group_actions(table)


def test_steps_and_ranks_are_contiguous_rows():
    table, groups = grouped(run(one_f_one_b(2, 3), lambda action, rank: 10 + rank, steps=2))
    assert groups.steps.rows() == [(0, 0, 2), (0, 1, 2)]
    assert groups.ranks.rows() == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]
    assert groups.first_of_step.tolist() == [0, 12]
    assert groups.first_of_rank.tolist() == [0, 6, 12, 18]
    assert groups.step_of_rank.tolist() == [0, 0, 1, 1]
    assert groups.step_of_action().tolist() == table["step"].to_list()


def test_window_is_from_first_start_to_last_end_of_all_ranks():
    table, groups = grouped(timeline_from_text(". F0 . B0 -\n. . F0 . ."))
    assert groups.first_start_ns(table).tolist() == [1000]
    assert groups.window_ns(table).tolist() == [4000]
    assert groups.makespan_ns(table["end_ns"].to_numpy()).tolist() == [5000]


def test_work_is_summed_per_rank_and_averaged_per_step():
    table, groups = grouped(timeline_from_text("F0 - B0\nF0 - -"))
    work_ns = groups.work_ns((table["end_ns"] - table["start_ns"]).to_numpy())
    assert work_ns.tolist() == [3000, 3000]
    assert groups.mean_over_ranks(np.array([1, 4])).tolist() == [2.5]


def test_empty_input_has_no_groups():
    table, groups = grouped(empty_timeline())
    assert groups.steps.is_empty()
    assert groups.window_ns(table).tolist() == groups.step_of_action().tolist() == []
