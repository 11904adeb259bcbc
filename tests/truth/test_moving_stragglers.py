"""A straggler that moves to another rank during the run is named with all of its ranks and steps; noise is not."""

from __future__ import annotations

import re

import numpy as np
import pytest

from stagescope.analysis import build_explained_report
from stagescope.analysis.statistics.stragglers import find_stragglers
from truth.causes import Place, slow_rank
from truth.engine import simulate
from truth.plan import Costs, Shape, make_plan
from truth.spans import timeline_of

STEPS = 40
MOVES = {
    "without replicas": (Shape(), Place(2), Place(1), "stage imbalance"),
    "to another pipeline": (Shape(replicas=2), Place(2), Place(1, 1), "straggler"),
    "to the replica of the same stage": (Shape(replicas=2), Place(2), Place(2, 1), "straggler"),
    "among many ranks": (Shape(ranks=8, replicas=4), Place(2), Place(5, 1), "straggler"),
}


def report_of(shape, first, second, at):
    shape = shape._replace(steps=STEPS, microbatches=4)
    plan = slow_rank(make_plan(shape, Costs(), 0), first, 1.2, slice(0, at))
    report = build_explained_report(timeline_of(simulate(slow_rank(plan, second, 1.2, slice(at, None)))))
    return report, [place.replica * shape.ranks + place.rank for place in (first, second)]


@pytest.mark.parametrize("name", MOVES)
def test_straggler_that_moves_is_named_with_its_ranks_and_steps(name):
    *places, cause = MOVES[name]
    report, ranks = report_of(*places, STEPS // 2)
    changing = report.findings.filter(code="rank.intermittent").sort("rank")
    assert changing["rank"].to_list() == sorted(ranks)
    assert "rank.slow" not in report.findings["code"]
    assert "stage.imbalance" not in report.findings["code"]
    named = [
        rf"rank {rank} is (19|20|21)\.\d % slower in steps {steps}"
        for rank, steps in zip(ranks, ("0 to 19", "20 to 39"), strict=True)
    ]
    assert re.search(rf"{cause} \({', '.join(named)}\)", str(report.verdict))


def test_rank_that_is_slow_in_most_steps_before_it_moves_is_named_with_them():
    report, ranks = report_of(Shape(replicas=3), Place(0), Place(1, 2), 26)
    table = report.findings.filter(code="rank.intermittent").sort("rank")
    assert table["rank"].to_list() == ranks
    assert "in 26 of 40 steps (0-25)" in table["evidence"][0]
    assert "in 14 of 40 steps (26-39)" in table["evidence"][1]


@pytest.mark.parametrize("ranks", [2, 3])
def test_among_few_ranks_without_replicas_no_rank_is_named(ranks):
    report, _ = report_of(Shape(ranks=ranks), Place(0), Place(1), STEPS // 2)
    assert "rank.intermittent" not in report.findings["code"]


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.exhaustive) for s in range(6, 200))]
)
def test_no_rank_is_named_in_stationary_noise(seed):
    rng = np.random.default_rng([seed, 77])
    shape = Shape(
        ("1f1b", "gpipe", "zb-h1")[seed % 3],
        ranks=int(rng.choice([2, 3, 4, 8])),
        replicas=int(rng.choice([1, 1, 2, 2, 3, 4])),
        microbatches=4,
        steps=int(rng.choice([8, 10, 20, 50, 100])),
    )
    costs = Costs(
        noise=float(rng.choice([0.005, 0.01, 0.03])), drift=float(rng.choice([0, 0, 0.005, 0.01, 0.02]))
    )
    assert find_stragglers(timeline_of(simulate(make_plan(shape, costs, seed)))).changing.is_empty()
