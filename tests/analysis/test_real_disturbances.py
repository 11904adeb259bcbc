"""Real four-process trainings, each disturbed in one known way, are diagnosed right."""

from __future__ import annotations

import os
from functools import cache

import polars as pl
import pytest

from scratch import scratch_directory
from stagescope import api as workflow
from stagescope.analysis.statistics.comparison import compare_totals
from stagescope.analysis.statistics.step_trend import find_step_trends
from stagescope.analysis.statistics.stragglers import find_stragglers
from stagescope.record.launch import recording_environment
from trainings import TESTS, run_ranks

pytestmark = pytest.mark.slow

SET_UP_STEP = 0


@cache
def recorded(how):
    """Return the timeline of a training disturbed in some way, without the step that sets up connections."""
    directory = scratch_directory("disturbed") / how
    environment = recording_environment(
        directory, steps=None, run=how, inherited={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    done = run_ranks([str(TESTS / "disturbed_training.py"), how], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    timeline = workflow.read(directory)
    return timeline.with_spans(timeline.spans.filter(pl.col("step") > SET_UP_STEP))


def claims(how, *columns):
    found = find_stragglers(recorded(how)).table
    return found.filter("is_claimed").select(columns).rows()


def test_a_slow_stage_is_the_only_finding_about_actions():
    found = find_stragglers(recorded("stage")).table.filter(
        pl.col("is_claimed") & (pl.col("subject") != "link")
    )
    (row,) = found.to_dicts()
    assert (row["finding"], row["stage"], row["rank"]) == ("imbalance or slow device", 2, 2)
    assert 1.1 < row["excess_fraction"] < 1.6  # 1.5 was planted, in the part of a action that sleeps
    assert row["fast_fraction"] > 1.1


def test_a_held_back_link_is_the_costliest_finding_and_no_rank_is_blamed():
    rows = claims("link", "subject", "rank", "peer", "kind")
    assert rows[0] == ("link", 1, 2, "forward")
    # The rank that is held back takes what comes from there late too: its receives are issued with its sends.
    assert set(rows[1:]) <= {("link", 2, 1, "backward")}


def test_one_slow_step_is_an_outlier_with_its_rank_and_no_straggler():
    outliers = find_step_trends(recorded("step")).outliers
    assert (6, "compute", 1) in outliers.select("step", "cause", "rank").rows()
    worst = outliers.sort("excess_ns", descending=True).row(0, named=True)
    assert worst["step"] == 6
    assert worst["cause_ns"] == pytest.approx(2e9, rel=0.1)
    assert [row for row in claims("step", "subject") if row != ("link",)] == []


def test_a_noisy_rank_is_noisy_and_not_slow():
    rows = [row for row in claims("noise", "subject", "finding", "rank") if row[0] != "link"]
    assert rows == [("rank", "noisy", 3)]


def test_an_undisturbed_training_has_no_straggler():
    assert [row for row in claims("nothing", "subject") if row != ("link",)] == []


def test_comparing_with_the_undisturbed_run_names_the_slow_stage():
    table = compare_totals(recorded("nothing"), recorded("stage")).table.filter("is_claimed")
    assert (table["subject"][0], table["difference_ns"][0] > 0) == ("step", True)
    actions = table.filter(pl.col("subject") == "action_count").sort("difference_ns", descending=True)
    assert set(actions["stage"][:2]) == {2}
    # 8 micro-batches, each 9 ms longer; what else keeps the machine busy adds to it.
    assert actions["difference_ns"][0] > 0.7 * 72e6
    assert actions["low_ns"][0] < 1.2 * 72e6
