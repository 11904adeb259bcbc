"""How late ranks are for collectives is measured some steps at a time, and compared for some pipelines at a time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stagescope.analysis.collectives import late_ranks
from stagescope.analysis.collectives.late_ranks import find_late_ranks
from stagescope.analysis.collectives.lateness import LATENESS, USUAL_FRACTION, Lateness, measure_lateness
from stagescope.analysis.collectives.meetings import KEY, MEETINGS
from stagescope.analysis.intermediates import intermediates_of
from stagescope.analysis.ranges import long_tables
from stagescope.analysis.ranges.long_tables import LongTable, WholePipelines
from truth.causes import Place, late_rank
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

SHAPE = Shape(replicas=3, steps=12)


@pytest.fixture(scope="module")
def known():
    """Return the results of a run in which one rank is always late, and any other one now and then, in two groups."""
    plan = replace(make_plan(SHAPE, Costs(noise=0.02), 3), accumulated=3).with_end(
        barrier=True, records_norm=True
    )
    found = intermediates_of(timeline_of(simulate(late_rank(plan, Place(1, 1), 60 * MS, "checkpoint"))))
    gathers = {"operation": pl.lit("all_gather"), "group": pl.format("dp {}", pl.col("rank") % SHAPE.ranks)}
    return found.with_results(
        meetings=pl.concat(
            [moved(found.meetings, 20 * MS, 1), moved(found.meetings.with_columns(**gathers), 30 * MS, 2)]
        ).sort(MEETINGS.order)
    )


def moved(meetings, mean_ns, seed):
    """Return meetings at which ranks come later by chance."""
    extra_ns = np.random.default_rng(seed).exponential(mean_ns, meetings.height).astype(int)
    later = meetings.with_columns(pl.col("arrived_ns", "own_ns") + pl.Series(extra_ns))
    later = later.with_columns(last_ns=pl.col("arrived_ns").max().over(KEY))
    return later.with_columns(arrival_wait_ns=pl.col("last_ns") - pl.col("arrived_ns"))


def lateness_of(known, own):
    """Return the rows of LATENESS of some steps."""
    steps = known.iteration_steps.filter(own)
    return measure_lateness(known.meetings.filter(own), steps, known.windows.pipelines)


def late_ranks_of(known, lateness):
    return find_late_ranks(lateness, known.accumulation.table, known.timeline.spans)


@pytest.mark.parametrize("at_once", [1, 30, 1_000_000])
def test_parts_of_steps_and_pieces_of_pipelines_give_what_all_do(known, at_once, monkeypatch):
    whole = lateness_of(known, pl.lit(value=True))
    expected = late_ranks_of(known, Lateness(whole.select("step").unique(), [whole]))
    assert expected.height > SHAPE.ranks
    assert "checkpoint" in set(expected["activity"])

    # Iterations of three steps are divided as well.
    step = pl.col("step")
    parts = [lateness_of(known, own) for own in (step < 2, step.is_between(2, 6), step > 6)]
    assert_frame_equal(pl.concat(parts).sort(LATENESS.order, maintain_order=True), whole)
    monkeypatch.setattr(long_tables, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(late_ranks, "SAMPLES_AT_ONCE", at_once)
    long = LongTable([partial(pl.DataFrame.lazy, rows) for rows in parts], LATENESS.order)
    pieces = WholePipelines(long, lambda rows: rows)
    assert len(list(pieces)) == (1 if at_once > whole.height else SHAPE.replicas)
    found = late_ranks_of(known, Lateness(whole.select("step").unique(), pieces))
    assert_frame_equal(found, expected, rel_tol=1e-12)


def test_a_rank_is_late_by_what_it_takes_longer_than_the_others(known):
    """Each rank is compared with all others of its meeting, one after the other."""
    met = known.meetings.join(known.iteration_steps.select("step", "last_end_ns"), on="step")
    expected = {}
    for _, rows in met.group_by(KEY):
        ranks = rows.to_dicts()
        others = [sorted(other["own_ns"] for other in ranks if other is not row) for row in ranks]
        middle = [(own[(len(own) - 1) // 2] + own[len(own) // 2]) // 2 for own in others]
        expected_ns = max(
            row["arrived_ns"] - max(row["own_ns"] - own, 0) for row, own in zip(ranks, middle, strict=True)
        )
        last_ns = ranks[0]["last_ns"]
        lost_ns = max(last_ns - max(expected_ns, ranks[0]["last_end_ns"]), 0)
        late = [row["arrived_ns"] > last_ns - USUAL_FRACTION * lost_ns for row in ranks]
        waited_ns = [row["arrival_wait_ns"] for row, is_late in zip(ranks, late, strict=True) if not is_late]
        shared_ns = min([lost_ns, *waited_ns]) / max(sum(late), 1) if waited_ns else 0
        for row, is_late, own in zip(ranks, late, others, strict=True):
            excess_ns = row["own_ns"] - sum(own) / len(own)
            expected.setdefault((row["step"], row["rank"]), []).append((excess_ns, shared_ns * is_late))
    found = lateness_of(known, pl.lit(value=True))
    assert (found["lost_ns"] > 0).sum() > SHAPE.steps
    for key, rows in found.group_by("step", "rank"):
        both = sorted(rows.select("excess_ns", "lost_ns").rows())
        assert np.array(both) == pytest.approx(np.array(sorted(expected[key])), rel=1e-9)
    assert found.filter(lost_ns=0)["group"].null_count() == found.filter(lost_ns=0).height


def test_no_meetings_make_no_rank_late(known):
    nothing = lateness_of(known, pl.lit(value=False))
    found = late_ranks_of(known, Lateness(nothing.select("step"), [nothing]))
    assert_frame_equal(found, late_ranks.LATE_RANKS.empty())
