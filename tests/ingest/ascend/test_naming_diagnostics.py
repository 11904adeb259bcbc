from __future__ import annotations

import polars as pl

from stagescope.ingest.ascend.naming_diagnostics import what_was_wrong
from stagescope.ingest.ascend.placing import Fitted, Look, place
from stagescope.ingest.ascend.plan import Plan

PLAN = Plan("1f1b", 2, 4)
ROWS = PLAN.rows()


def said(groups):
    """Return the diagnostics of groups given as (rank, step, marks)."""
    frame = pl.DataFrame(
        {
            "group": range(len(groups)),
            "rank": [rank for rank, _, _ in groups],
            "step": [step for _, step, _ in groups],
        },
        schema={"group": pl.Int64, "rank": pl.Int32, "step": pl.Int32},
    )
    looks = {at: Look(rank, tuple(marks), may_repeat=False) for at, (rank, _, marks) in enumerate(groups)}
    matches = {at: place(look, ROWS) for at, look in looks.items()}
    return list(what_was_wrong(frame, Fitted(PLAN, ROWS, 0, 1), looks, matches))


def marks(pp):
    return [f"{due.mark.sort}::{due.mark.microbatch}" for due in ROWS[pp]]


def without(pp, *lost):
    return [each for at, each in enumerate(marks(pp)) if at not in lost]


def test_whole_steps_say_nothing():
    assert said([(0, 0, marks(0)), (1, 0, marks(1))]) == []


def test_lost_marks_are_an_error_per_rank_that_names_the_first():
    (note,) = said([(0, 3, without(0, 1)), (0, 4, without(0, 2)), (1, 3, marks(1))])
    assert (note.severity, note.rank, note.count) == ("error", 0, 2)
    assert note.location == "first in step 3: F0.1"
    assert "1f1b" in note.message


def test_a_lost_mark_that_could_be_one_of_several_is_not_named():
    bare = [each.rsplit(":", 1)[0] + ":" for each in without(0, 0)]
    notes = {note.severity: note for note in said([(0, 3, bare)])}
    assert notes["error"].location == "first in step 3"
    assert notes["warning"].count == 1


def test_extra_marks_are_a_warning():
    (note,) = said([(1, 0, [*marks(1), "weight::"])])
    assert (note.severity, note.count, note.location) == ("warning", 1, "first in step 0: weight")


def test_steps_that_are_not_forced_count_with_all_their_marks():
    (note,) = said([(0, 0, ["forward::0"] * 5)])
    assert (note.severity, note.count) == ("warning", 5)
    assert "more than 20%" in note.message


def test_actions_outside_every_step_are_said_where_steps_are_told():
    (note,) = said([(0, 0, marks(0)), (0, None, marks(0))])
    assert (note.severity, note.count) == ("info", 8)
    assert said([(0, None, marks(0))]) == []
