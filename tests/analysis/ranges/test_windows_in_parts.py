"""What is found in the windows of a run does not depend on the ranges of steps that they are divided into."""

from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import stagescope
from stagescope.analysis.bubble import DEFINITIONS, measure_bubble
from stagescope.analysis.completeness.incomplete_steps import find_steps_without_ranks
from stagescope.analysis.completeness.inferred_pipelines import is_no_pipeline
from stagescope.analysis.completeness.missing_data import find_missing_data
from stagescope.analysis.idle.shares import share_idle
from stagescope.analysis.idle.step_windows import STEP_WINDOWS, windows_of_bubbles
from stagescope.analysis.iteration.iteration_totals import sum_iterations
from stagescope.analysis.iteration.last_pipeline import measure_losses, of_last_pipelines
from stagescope.analysis.iteration.outside_activity import add_outside_activity, measure_outside_activity
from stagescope.analysis.iteration.outside_culprits import Participants, find_outside_culprits
from stagescope.analysis.iteration.outside_times import outside_windows
from stagescope.analysis.lost_time import measure_lost_time
from stagescope.analysis.totals import measure_totals
from stagescope.analysis.windows import Windows
from stagescope.model.lazy import InParts, lazily
from truth.cases import PLANTED
from truth.spans import timeline_of

NAMES = ("15 ms of data loading before each step", "one rank 20 % slower in 3 of 10 steps")
CASES = {case.name: case for case in (build(1) for build in PLANTED) if case.name in NAMES}
OF_LEDGER = ("losses", "orders", "steps")


def lost(spans):
    """Return spans of which those of a rank in two steps are missing."""
    rank, steps = spans["rank"].max(), spans["step"].drop_nulls().unique().sort()
    return spans.filter(
        (pl.col("rank") != rank) | ~pl.col("step").is_in([steps[2], steps[5]]).fill_null(False)
    )


@pytest.fixture(scope="module", params=[*NAMES, "lost"])
def known(request):
    timeline = timeline_of(CASES[NAMES[0] if request.param == "lost" else request.param].run)
    if request.param == "lost":
        timeline = timeline.with_spans(lost(timeline.spans))
    return stagescope.analyze(timeline).intermediates


def divided(rows):
    """Return the rows of some steps after those of others."""
    steps = pl.col("step")
    return [rows.filter(steps < 1), rows.filter(steps.is_between(1, 3)), rows.filter(steps > 3)]


def never():
    pytest.fail("a table with a row per rank and step was loaded as a whole")


@pytest.fixture
def in_parts(known):
    """Return the same results, with windows in parts."""
    windows = known.windows
    bubbles = InParts(never, lambda: iter(divided(windows.bubbles)))
    facts = {"pipelines": windows.pipelines, "unaligned": windows.unaligned}
    lazy = replace(known, windows=lazily(Windows, facts, {"bubbles": bubbles}, is_kept=False))
    names = (
        "recorded",
        "microbatch_counts",
        "rank_stages",
        "incomplete_steps",
        "recorded_waits",
        "step_counts",
    )
    kept = {name: getattr(known, name) for name in names}
    idle = {name: getattr(known, name) for name in ("idle_of_iterations", "idle_of_own_spans")}
    return lazy.with_results(**kept, **idle, steps_with_optimizer=known.steps_with_optimizer)


def test_totals_and_missing_data(known, in_parts):
    found, whole = measure_totals(in_parts), measure_totals(known)
    assert_frame_equal(found.steps, whole.steps)
    assert_frame_equal(found.ranks, whole.ranks)
    assert found.diagnostics == whole.diagnostics
    assert find_missing_data(in_parts, known.timeline) == find_missing_data(known, known.timeline)
    lacking = find_steps_without_ranks(in_parts.windows.parts)
    assert lacking == find_steps_without_ranks([known.windows.bubbles])


def test_steps_without_a_rank_are_found_across_parts(in_parts, request):
    is_lost = request.node.callspec.params["known"] == "lost"
    assert len(find_steps_without_ranks(in_parts.windows.parts)) == (2 if is_lost else 0)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_bubbles(known, in_parts, name):
    steps = known.windows.bubbles["step"].unique().sort().to_list()[1:]
    assert measure_bubble(in_parts, steps, name) == measure_bubble(known, steps, name)


def test_windows_of_pipelines(known, in_parts):
    found = pl.concat(map(windows_of_bubbles, in_parts.windows.parts)).sort(STEP_WINDOWS.order)
    assert_frame_equal(found, windows_of_bubbles(known.windows.bubbles))
    assert not is_no_pipeline(in_parts.windows.parts, 1, 1)
    assert is_no_pipeline([rows.with_columns(pipeline="rank") for rows in in_parts.windows.parts], 1, 1)


def test_lost_time_and_its_culprits(known):
    def measured(parts):
        bubbles, iterations, ranks = map(parts, (known.windows.bubbles, known.iterations, known.ledger.ranks))
        idle = share_idle(bubbles, ranks)
        totals = sum_iterations(iterations)
        of_last = [of_last_pipelines(totals.last, parts(getattr(known.ledger, name))) for name in OF_LEDGER]
        losses = measure_losses(totals.last, of_last[0], of_last[1], None, of_last[2])
        culprits = find_outside_culprits(
            Participants(totals.ranks, iterations),
            outside_windows(zip(iterations, ranks, strict=True)),
            add_outside_activity(measure_outside_activity(known.timeline.spans, each) for each in iterations),
            known.between_steps.parts,
            pl.DataFrame(schema={"rank": pl.Int32, "own_ns": pl.Int64}),
        )
        return idle, losses, culprits.rows(), measure_lost_time(idle, bubbles, totals, losses=losses)

    *tables, lost_time = measured(divided)
    *whole, at_once = measured(lambda rows: [rows])
    for found, expected in zip(tables, whole, strict=True):
        assert_frame_equal(found, expected, check_exact=True)
    assert lost_time == at_once


def test_losses_are_those_of_the_whole_ledger(known):
    ledger, last = known.ledger, known.iterations
    rows = [of_last_pipelines(last, [getattr(ledger, name)]) for name in OF_LEDGER]
    found = measure_losses(last, rows[0], rows[1], None, rows[2])
    assert_frame_equal(found, measure_losses(last, ledger.losses, ledger.orders, None, ledger.steps))
