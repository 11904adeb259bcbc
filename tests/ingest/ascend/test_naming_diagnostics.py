from __future__ import annotations

import polars as pl

from stagescope.ingest.ascend.naming_diagnostics import diagnose_naming
from stagescope.ingest.ascend.plan import Plan
from stagescope.ingest.ascend.plan_matching import FittedPlan, MarkSequence, place

PLAN = Plan("1f1b", 2, 4)
ROWS = PLAN.rows()


def diagnosed(groups):
    """Return the diagnostics of groups given as (rank, step, marks)."""
    frame = pl.DataFrame(
        {
            "group": range(len(groups)),
            "rank": [rank for rank, _, _ in groups],
            "step": [step for _, step, _ in groups],
        },
        schema={"group": pl.Int64, "rank": pl.Int32, "step": pl.Int32},
    )
    sequences = {
        at: MarkSequence(rank, tuple(marks), may_repeat=False) for at, (rank, _, marks) in enumerate(groups)
    }
    matches = {at: place(sequence, ROWS) for at, sequence in sequences.items()}
    return list(diagnose_naming(frame, FittedPlan(PLAN, ROWS, 0, 1), sequences, matches))


def marks(pp):
    return [f"{planned.mark.sort}::{planned.mark.microbatch}" for planned in ROWS[pp]]


def without(pp, *lost):
    return [each for at, each in enumerate(marks(pp)) if at not in lost]


def test_complete_steps_yield_no_diagnostics():
    assert diagnosed([(0, 0, marks(0)), (1, 0, marks(1))]) == []


def test_missing_marks_are_an_error_per_rank_with_the_first_location():
    (note,) = diagnosed([(0, 3, without(0, 1)), (0, 4, without(0, 2)), (1, 3, marks(1))])
    assert (note.severity, note.rank, note.count) == ("error", 0, 2)
    assert note.location == "first in step 3: F0.1"
    assert "1f1b" in note.message


def test_an_ambiguous_missing_mark_has_no_name():
    bare = [each.rsplit(":", 1)[0] + ":" for each in without(0, 0)]
    notes = {note.severity: note for note in diagnosed([(0, 3, bare)])}
    assert notes["error"].location == "first in step 3"
    assert notes["warning"].count == 1


def test_surplus_marks_are_a_warning():
    (note,) = diagnosed([(1, 0, [*marks(1), "weight::"])])
    assert (note.severity, note.count, note.location) == ("warning", 1, "first in step 0: weight")


def test_mismatched_steps_count_all_their_marks():
    (note,) = diagnosed([(0, 0, ["forward::0"] * 5)])
    assert (note.severity, note.count) == ("warning", 5)
    assert "more than 20%" in note.message


def test_reports_actions_outside_steps_if_steps_are_recorded():
    (note,) = diagnosed([(0, 0, marks(0)), (0, None, marks(0))])
    assert (note.severity, note.count) == ("info", 8)
    assert diagnosed([(0, None, marks(0))]) == []
