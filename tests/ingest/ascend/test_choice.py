from __future__ import annotations

import random

import polars as pl
import pytest

from ascend_profiles import Cluster
from ascend_runs import UNSPLIT, MarkedRun
from stagescope.ingest.ascend.choice import choose_plans
from stagescope.ingest.ascend.pipeline_info import PipelineInfo
from stagescope.ingest.ascend.placing import Look
from stagescope.ingest.ascend.plan import Plan

NOTHING = PipelineInfo(None, None)
ONE_F_ONE_B, GPIPE = Plan("1f1b", 2, 4), Plan("gpipe", 2, 4)


def looks(plan, *, without=None):
    """Return what every rank of a plan shows, one rank without some of its marks."""
    lost = without or {}
    shown = {}
    for pp, row in plan.rows().items():
        kept = [due for at, due in enumerate(row) if at not in lost.get(pp, ())]
        shown[pp] = Look(pp, tuple(f"{due.mark.sort}::" for due in kept), may_repeat=False)
    return list(shown.values())


def test_the_plan_that_some_rank_shows_exactly_is_taken_where_nothing_is_declared():
    assert choose_plans(looks(ONE_F_ONE_B), [GPIPE, ONE_F_ONE_B], NOTHING) == [ONE_F_ONE_B]
    assert choose_plans(looks(ONE_F_ONE_B, without={0: [3]}), [GPIPE, ONE_F_ONE_B], NOTHING) == [ONE_F_ONE_B]


def test_no_plan_is_taken_where_no_rank_shows_one_exactly():
    damaged = looks(ONE_F_ONE_B, without={0: [3], 1: [2]})
    assert choose_plans(damaged, [GPIPE, ONE_F_ONE_B], NOTHING) == []


def test_no_plan_is_taken_where_two_that_say_other_things_are_shown_by_as_many_ranks():
    mixed = [looks(ONE_F_ONE_B)[1], looks(GPIPE)[0]]
    assert choose_plans(mixed, [GPIPE, ONE_F_ONE_B], NOTHING) == []


def test_a_plan_is_not_taken_where_ranks_did_more_than_it_prescribes():
    smaller = Plan("1f1b", 2, 3)
    shown = [looks(smaller)[1], looks(ONE_F_ONE_B, without={0: [7]})[0]]
    assert choose_plans(shown, [smaller], NOTHING) == []


def test_what_is_declared_is_believed_until_another_plan_is_borne_out():
    declared = PipelineInfo("1f1b", 4)
    damaged = looks(ONE_F_ONE_B, without={0: [3], 1: [2]})
    assert choose_plans(damaged, [ONE_F_ONE_B, Plan("1f1b", 2, 3)], declared) == [ONE_F_ONE_B]
    other = Plan("1f1b", 2, 6)
    assert choose_plans(looks(other), [ONE_F_ONE_B, other], declared) == [other]


def shape(dice):
    """Return a random schedule in a size that it can have."""
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


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_lost_no_action_gets_a_wrong_name(tmp_path, seed):
    dice = random.Random(seed)  # noqa: S311  # chance that can be repeated
    cluster = Cluster(transfers="none", steps=dice.randint(1, 3), numbered=dice.random() < 0.2, **shape(dice))
    planted = MarkedRun(tmp_path, cluster)
    lost = dice.sample(range(planted.raw.height), dice.randint(0, 9))
    raw = planted.raw.with_row_index().filter(~pl.col("index").is_in(lost)).drop("index")
    if dice.random() < 0.2:
        raw = raw.filter(pl.col("rank") != dice.randrange(cluster.pp))
    said = {} if dice.random() < 0.6 else {"schedule": None, "microbatches": None}
    assert planted.wrong(planted.name(raw, **said)[0])[0] == 0
