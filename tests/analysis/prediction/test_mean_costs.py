import polars as pl
import pytest

from delayed_runs import run
from random_pipelines import one_f_one_b
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.transfer_lags import find_transfer_lags
from stagescope.analysis.prediction.mean_costs import (
    HALVED,
    JOINED,
    PAIR,
    SUMMED,
    MeanCosts,
    find_mean_costs,
    fit_costs,
)
from stagescope.schedules.costs import Costs

FULL = MeanCosts(2, {"F": {0: 10.0, 1: 20.0}, "B": {0: 30.0, 1: 50.0}}, 0.0, {0: 4.0})
SPLIT = MeanCosts(
    2, {"F": {0: 10.0, 1: 20.0}, "I": {0: 14.0, 1: 24.0}, "W": {0: 16.0, 1: 26.0}}, 0.0, {0: 4.0}
)


def measured(timeline, is_counted=None, launch_delay_ns=0.0):
    actions = find_actions(timeline)
    table = actions.table
    columns = table.select(
        duration_ns=(pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64),
        launch_delay_ns=pl.lit(launch_delay_ns),
        is_counted=pl.lit(value=True) if is_counted is None else is_counted,
    )
    return find_mean_costs(actions, columns, pl.Series(find_transfer_lags(actions).lag_ns))


def test_means_are_per_kind_and_stage_and_hops_per_link():
    mean = measured(
        run(one_f_one_b(3, 4), lambda action, rank: 10 * (rank + 1) + action.microbatch, hop_ns=7),
        launch_delay_ns=3.0,
    )
    assert mean.stages == 3
    assert mean.lasting_ns["F"] == mean.lasting_ns["B"] == {0: 11.5, 1: 21.5, 2: 31.5}
    assert mean.launch_delay_ns == 3.0
    assert mean.hop_ns == {0: 7.0, 1: 7.0}


def test_only_counted_actions_are_averaged():
    timeline = run(one_f_one_b(2, 2), lambda action, rank: 10 + 100 * action.microbatch)
    assert measured(timeline, pl.col("microbatch") == 0).lasting_ns["F"] == {0: 10.0, 1: 10.0}


def test_pairs_have_their_own_costs():
    order = {
        0: ["F0.0", "F0.1", "F0.2+B0.0", "B0.1", "B0.2"],
        1: ["F1.0", "B1.0", "F1.1", "B1.1", "F1.2", "B1.2"],
    }
    mean = measured(run(order, lambda action, rank: 10 if action.kind == "F" else 25))
    assert mean.lasting_ns[PAIR] == {0: 25.0}
    assert mean.of(PAIR) is None  # stage 1 had none
    assert mean.of("F") == [10.0, 10.0]


@pytest.mark.parametrize(
    ("mean", "stages", "letters", "costs", "conditions"),
    [
        (FULL, 2, {"F", "B"}, Costs(forward=[10, 20], backward=[30, 50], hop=[4, 4]), ()),
        (
            FULL, 2, {"F", "I", "W"},
            Costs(forward=[10, 20], backward_input=[15, 25], backward_weight=[15, 25], hop=[4, 4]), (HALVED,),
        ),
        (SPLIT, 2, {"F", "B"}, Costs(forward=[10, 20], backward=[30, 50], hop=[4, 4]), (JOINED,)),
        (
            FULL, 4, {"F", "B"}, Costs(forward=[5, 5, 10, 10], backward=[15, 15, 25, 25], hop=[4, 4, 4, 4]),
            ("if every stage can be cut into 2 equal parts",),
        ),
        (FULL, 1, {"F", "B"}, Costs(forward=[30], backward=[80], hop=[4]), ("if every 2 stages can be joined",)),
        (FULL, 2, {"F", "B", PAIR}, Costs(forward=[10, 20], backward=[30, 50], hop=[4, 4]), (SUMMED,)),
    ],
)  # fmt: skip
def test_derived_costs_state_their_assumptions(mean, stages, letters, costs, conditions):
    fitted = fit_costs(mean, stages, letters)
    assert fitted.costs == costs
    assert fitted.conditions == conditions


def test_measured_pairs_are_used_for_unchanged_stages():
    paired = MeanCosts(2, {**FULL.lasting_ns, PAIR: {0: 33.0, 1: 44.0}}, 0.0, {})
    fitted = fit_costs(paired, 2, {"F", "B", PAIR})
    assert fitted.costs.overlapped == Costs(forward=1, backward=1, overlapped=[33, 44]).overlapped
    assert fitted.conditions == ()


def test_every_action_includes_the_launch_delay():
    late = MeanCosts(1, {"F": {0: 10.0}}, 2.0, {})
    assert fit_costs(late, 1, {"F"}).costs == Costs(forward=[12], hop=[0])


def test_unmeasured_or_indivisible_stages_have_no_costs():
    assert fit_costs(MeanCosts(2, {"F": {0: 1.0}}, 0.0, {}), 2, {"F"}) is None
    assert fit_costs(MeanCosts(2, {"F": {0: 1.0, 1: 1.0}}, 0.0, {}), 2, {"F", "B"}) is None
    assert fit_costs(FULL, 3, {"F"}) is None
