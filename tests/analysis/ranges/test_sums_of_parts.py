"""What is summed over the tables of a run does not depend on the ranges of steps that they are divided into."""

from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import stagescope
from stagescope.analysis.iteration.outside_times import outside_windows
from stagescope.analysis.prediction.outside_savings import measure_iterations
from stagescope.model import large_tables
from stagescope.model.lazy import InParts, with_later
from truth.cases import PLANTED
from truth.spans import timeline_of

NAMES = ("15 ms of data loading before each step", "one rank 20 % slower in 3 of 10 steps")
CASES = {case.name: case for case in (build(1) for build in PLANTED) if case.name in NAMES}


@pytest.fixture(params=NAMES)
def known(request):
    return stagescope.analyze(timeline_of(CASES[request.param].run)).intermediates


def divided(rows):
    """Return the rows of some steps after those of others."""
    steps = rows["step"].unique().sort().to_list()
    return [rows.filter(pl.col("step").is_in(part)) for part in (steps[:1], steps[1:4], steps[4:])]


def never():
    pytest.fail("a table with a row per rank and step was loaded as a whole")


def tables(known):
    return known.iterations, known.ledger.ranks


def test_times_outside_of_windows(known):
    found = outside_windows(zip(*map(divided, tables(known)), strict=True))
    assert found.height > 0
    assert_frame_equal(found, outside_windows([tables(known)]), check_row_order=False)


def test_what_candidates_need_of_the_iterations(known):
    of_steps, is_replayed = (*tables(known), known.late_starts), pl.col("step") < 3
    found = measure_iterations(zip(*map(divided, of_steps), strict=True), is_replayed)
    at_once = measure_iterations([of_steps], is_replayed)
    assert found.mean_ns == at_once.mean_ns
    assert found.late_starts["step"].unique().sort().to_list() == [0, 1, 2]
    assert found.last_starts["step"].to_list() == found.outside["step"].to_list()
    for name in ("outside", "late_starts", "last_starts"):
        assert_frame_equal(getattr(found, name), getattr(at_once, name))
    assert_frame_equal(found.members, at_once.members, check_row_order=False)


@pytest.mark.parametrize("rows", [10, 1_000_000], ids=["often", "once"])
def test_origins_and_members_of_a_ledger(known, rows, monkeypatch):
    monkeypatch.setattr(large_tables, "ROWS_AT_ONCE", rows)
    ledger = replace(known.ledger)
    in_parts = {
        name: InParts(never, lambda name=name: iter(divided(getattr(ledger, name))))
        for name in ("ranks", "origins")
    }
    lazy = with_later(replace(known.ledger), in_parts)
    assert_frame_equal(lazy.members, ledger.members)
    assert_frame_equal(lazy.summed_origins, ledger.summed_origins)
