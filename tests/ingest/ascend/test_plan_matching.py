from __future__ import annotations

import polars as pl

from stagescope.ingest.ascend.plan import Plan
from stagescope.ingest.ascend.plan_matching import MarkSequence, find_sequences, fit_plan, mark_key, place


def sequence(plan, pp, *, passes=1, lost=(), may_repeat=False):
    row = [f"{planned.mark.sort}::" for planned in plan.rows()[pp]] * passes
    return MarkSequence(pp, tuple(text for at, text in enumerate(row) if at not in lost), may_repeat)


def test_a_mark_key_contains_the_recorded_numbers():
    marks = pl.DataFrame({"sort": ["F", "B"], "recorded_chunk": [1, None], "recorded_microbatch": [3, None]})
    keys = marks.select(mark_key()).to_series().to_list()
    assert keys == ["F:1:3", "B::"]
    (first, second) = MarkSequence(0, tuple(keys), may_repeat=False).marks
    assert (first, second) == (("F", 1, 3), ("B", None, None))


def test_groups_with_equal_marks_have_equal_sequences():
    actions = pl.DataFrame(
        {"group": [0, 0, 1, 1], "pp": [0] * 4, "may_repeat": [False] * 4, "mark_key": ["F::", "B::"] * 2}
    )
    sequences = find_sequences(actions)
    assert sequences[0] == sequences[1]
    assert len(set(sequences.values())) == 1


def test_fits_the_plan_with_the_fewest_edits_on_all_groups():
    right, wrong = Plan("1f1b", 2, 4), Plan("gpipe", 2, 4)
    seen = [sequence(right, 0, lost=(2,)), sequence(right, 1), sequence(right, 1)]
    fitted = fit_plan(seen, [wrong, right])
    assert (fitted.plan, fitted.edits, fitted.marks, fitted.is_near) == (right, 1, 23, True)


def test_the_first_of_equally_close_plans_fits():
    plans = [Plan("1f1b", 1, 2), Plan("interleaved", 1, 2)]
    assert fit_plan([sequence(plans[0], 0)], plans).plan == plans[0]


def test_impossible_plans_and_ranks_without_coordinate_are_skipped():
    plan = Plan("1f1b", 2, 4)
    assert fit_plan([sequence(plan, 0)], [Plan("dualpipev", 2, 3, 2)]) is None
    unknown = MarkSequence(None, ("forward::",), may_repeat=False)
    assert fit_plan([unknown, sequence(plan, 1)], [plan]).marks == 8
    assert place(unknown, plan.rows()) is None


def test_only_a_repeating_group_can_be_several_passes():
    plan = Plan("1f1b", 2, 4)
    found = place(sequence(plan, 0, passes=3, may_repeat=True), plan.rows())
    assert found.places == tuple(range(24))
    assert place(sequence(plan, 0, passes=3), plan.rows()) is None


def test_a_group_missing_over_a_fifth_of_its_marks_is_not_matched():
    plan = Plan("1f1b", 2, 10)
    assert place(sequence(plan, 0, lost=range(4)), plan.rows()).edits == 4
    assert place(sequence(plan, 0, lost=range(5)), plan.rows()) is None
