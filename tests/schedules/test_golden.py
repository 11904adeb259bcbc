"""Comparison with recorded orders of reference implementations."""

import json

import pytest

from golden_orders import GOLDEN, words
from stagescope.schedules import order, parse_action, validate
from stagescope.schedules.costs import Costs
from stagescope.vocabulary.errors import ScheduleError

SCHEDULES = {
    "chimera": ("chimera", {}),
    "deepseek_dualpipe": ("dualpipe", {}),
    "deepseek_dualpipev": ("dualpipev", {}),
    "eager_1f1b": ("eager-1f1b", {}),
    "gpipe_lifo": ("gpipe", {"lifo": True}),
    "msprof_dualpipev": ("dualpipev", {"split_cooldown": False}),
    "sailsg_zbv_greedy_zb": ("zb-v", {"costs": Costs()}),
    "torch_1f1b_executed": ("1f1b", {}),
    "torch_dualpipev": ("dualpipev", {}),
    "torch_gpipe": ("gpipe", {}),
    "torch_gpipe_executed": ("gpipe", {}),
    "torch_interleaved_1f1b": ("interleaved", {}),
    "torch_interleaved_zb1p": ("interleaved-zb", {}),
    "torch_looped_bfs": ("looped-bfs", {}),
    "torch_zbh1": ("zb-h1", {}),
    "torch_zbv": ("zb-v", {}),
    "victarry_1f1b_batch_overlap": ("1f1b-overlap", {}),
    "zb_h2": ("zb-h2", {}),
}
DEFECTIVE = "torch_1f1b"
"""A list of the visualizer of torch that numbers the forwards of the last rank from 1."""


def load(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def cases(name):
    return [
        pytest.param(case, id=f"{name}-{case['pp']}x{case['n_mb']}x{case['v']}")
        for case in load(name)["cases"]
    ]


def reference(case):
    return {int(rank): actions for rank, actions in case["orders"].items()}


def ours(name, case, **options):
    return order(name, ranks=case["pp"], microbatches=case["n_mb"], chunks=case["v"], **options)


@pytest.mark.parametrize(
    ("case", "name", "options"),
    [pytest.param(*case.values, *SCHEDULES[name], id=case.id) for name in SCHEDULES for case in cases(name)],
)
def test_orders_equal_the_reference(case, name, options):
    assert words(ours(name, case, **options)) == reference(case)


@pytest.mark.parametrize("case", cases("megatron_1f1b_vpp"))
def test_orders_equal_megatron(case):
    if case["v"] == 1:
        assert words(ours("1f1b", case)) == reference(case)
        return
    name = "interleaved-overlap" if case["overlap_moe_expert_parallel_comm"] else "interleaved"
    asked = ours(name, case, group_size=case["group_size_per_vp_stage"])
    assert words(asked) == reference(case)
    if case["n_mb"] % case["pp"] == 0:
        assert ours(name, case) == asked


@pytest.mark.parametrize(
    ("rejected", "name"),
    [
        (each, SCHEDULES[name][0])
        for name in ("deepseek_dualpipe", "deepseek_dualpipev")
        for each in load(name)["rejected"]
    ],
)
def test_rejects_what_the_reference_rejects(rejected, name):
    with pytest.raises(ScheduleError):
        order(name, ranks=rejected["pp"], microbatches=rejected["n_mb"])


@pytest.mark.parametrize("case", cases(DEFECTIVE))
def test_finds_the_known_defect_of_a_reference(case):
    last = case["pp"] - 1
    defective = {rank: [parse_action(word) for word in actions] for rank, actions in reference(case).items()}
    with pytest.raises(ScheduleError, match=rf"rank {last}, F{last}\.0: is missing"):
        validate(defective)
    whole = ours("1f1b", case)
    validate(whole)
    assert {rank: words(whole)[rank] for rank in range(last)} == {
        rank: reference(case)[rank] for rank in range(last)
    }
