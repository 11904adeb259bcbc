from __future__ import annotations

import random

import polars as pl
import pytest

from ascend_profiles import Cluster
from ascend_runs import UNSPLIT, MarkedRun
from stagescope.ingest.ascend.pipeline_info import PipelineInfo
from stagescope.ingest.ascend.plan import Plan
from stagescope.ingest.ascend.plan_matching import MarkSequence
from stagescope.ingest.ascend.plan_selection import choose_plans

NOTHING = PipelineInfo(None, None)
ONE_F_ONE_B, GPIPE = Plan("1f1b", 2, 4), Plan("gpipe", 2, 4)


def sequences(plan, *, without=None):
    """Return the marks of every rank of a plan, without some of them."""
    lost = without or {}
    shown = {}
    for pp, row in plan.rows().items():
        kept = [planned for at, planned in enumerate(row) if at not in lost.get(pp, ())]
        shown[pp] = MarkSequence(pp, tuple(f"{planned.mark.sort}::" for planned in kept), may_repeat=False)
    return list(shown.values())


def test_chooses_an_exactly_matching_plan_if_none_is_declared():
    assert choose_plans(sequences(ONE_F_ONE_B), [GPIPE, ONE_F_ONE_B], NOTHING) == [ONE_F_ONE_B]
    assert choose_plans(sequences(ONE_F_ONE_B, without={0: [3]}), [GPIPE, ONE_F_ONE_B], NOTHING) == [
        ONE_F_ONE_B
    ]


def test_chooses_no_plan_without_an_exact_match():
    damaged = sequences(ONE_F_ONE_B, without={0: [3], 1: [2]})
    assert choose_plans(damaged, [GPIPE, ONE_F_ONE_B], NOTHING) == []


def test_chooses_no_plan_if_two_conflicting_ones_match():
    mixed = [sequences(ONE_F_ONE_B)[1], sequences(GPIPE)[0]]
    assert choose_plans(mixed, [GPIPE, ONE_F_ONE_B], NOTHING) == []


def test_rejects_a_plan_with_fewer_actions_than_recorded():
    smaller = Plan("1f1b", 2, 3)
    shown = [sequences(smaller)[1], sequences(ONE_F_ONE_B, without={0: [7]})[0]]
    assert choose_plans(shown, [smaller], NOTHING) == []


def test_keeps_the_declared_plan_until_another_is_confirmed():
    declared = PipelineInfo("1f1b", 4)
    damaged = sequences(ONE_F_ONE_B, without={0: [3], 1: [2]})
    assert choose_plans(damaged, [ONE_F_ONE_B, Plan("1f1b", 2, 3)], declared) == [ONE_F_ONE_B]
    other = Plan("1f1b", 2, 6)
    assert choose_plans(sequences(other), [ONE_F_ONE_B, other], declared) == [other]


def shape(dice):
    """Return a random schedule with a valid size."""
    name = dice.choice(["1f1b", "gpipe", "interleaved", "dualpipev"])
    pp = dice.choice([2, 3, 4, 5])
    if name == "interleaved":
        return {
            "schedule": name,
            "pp": pp,
            "microbatches": pp * dice.randint(1, 3),
            "chunks": dice.randint(2, 4),
        }
    if name == "dualpipev":
        options = dice.choice([UNSPLIT, {}])
        return {"schedule": name, "pp": pp, "microbatches": dice.randint(2 * pp, 3 * pp), "options": options}
    return {"schedule": name, "pp": pp, "microbatches": dice.randint(1, 12)}


SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(10, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_losses_cause_no_wrong_name(tmp_path, seed):
    dice = random.Random(seed)  # noqa: S311  # chance that can be repeated
    cluster = Cluster(transfers="none", steps=dice.randint(1, 3), numbered=dice.random() < 0.2, **shape(dice))
    planted = MarkedRun(tmp_path, cluster)
    lost = dice.sample(range(planted.raw.height), dice.randint(0, 9))
    raw = planted.raw.with_row_index().filter(~pl.col("index").is_in(lost)).drop("index")
    if dice.random() < 0.2:
        raw = raw.filter(pl.col("rank") != dice.randrange(cluster.pp))
    options = {} if dice.random() < 0.6 else {"schedule": None, "microbatches": None}
    assert planted.wrong(planted.name(raw, **options)[0])[0] == 0
