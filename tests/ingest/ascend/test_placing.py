from __future__ import annotations

import polars as pl

from stagescope.ingest.ascend.placing import Look, find_looks, fit_plan, place, word
from stagescope.ingest.ascend.plan import Plan


def look(plan, pp, *, passes=1, lost=(), may_repeat=False):
    row = [f"{due.mark.sort}::" for due in plan.rows()[pp]] * passes
    return Look(pp, tuple(text for at, text in enumerate(row) if at not in lost), may_repeat)


def test_a_word_is_what_a_mark_says():
    marks = pl.DataFrame({"sort": ["F", "B"], "said_chunk": [1, None], "said_microbatch": [3, None]})
    words = marks.select(word()).to_series().to_list()
    assert words == ["F:1:3", "B::"]
    (first, second) = Look(0, tuple(words), may_repeat=False).marks
    assert (first, second) == (("F", 1, 3), ("B", None, None))


def test_groups_that_look_alike_have_equal_looks():
    actions = pl.DataFrame(
        {"group": [0, 0, 1, 1], "pp": [0] * 4, "may_repeat": [False] * 4, "word": ["F::", "B::"] * 2}
    )
    looks = find_looks(actions)
    assert looks[0] == looks[1]
    assert len(set(looks.values())) == 1


def test_the_plan_with_the_fewest_edits_on_all_groups_fits():
    right, wrong = Plan("1f1b", 2, 4), Plan("gpipe", 2, 4)
    seen = [look(right, 0, lost=(2,)), look(right, 1), look(right, 1)]
    fitted = fit_plan(seen, [wrong, right])
    assert (fitted.plan, fitted.edits, fitted.marks, fitted.is_near) == (right, 1, 23, True)


def test_of_equally_near_plans_the_first_fits():
    plans = [Plan("1f1b", 1, 2), Plan("interleaved", 1, 2)]
    assert fit_plan([look(plans[0], 0)], plans).plan == plans[0]


def test_plans_that_cannot_be_built_and_ranks_of_unknown_place_are_passed_over():
    plan = Plan("1f1b", 2, 4)
    assert fit_plan([look(plan, 0)], [Plan("dualpipev", 2, 3, 2)]) is None
    unknown = Look(None, ("forward::",), may_repeat=False)
    assert fit_plan([unknown, look(plan, 1)], [plan]).marks == 8
    assert place(unknown, plan.rows()) is None


def test_only_a_group_that_may_repeat_is_taken_as_several_passes():
    plan = Plan("1f1b", 2, 4)
    found = place(look(plan, 0, passes=3, may_repeat=True), plan.rows())
    assert found.places == tuple(range(24))
    assert place(look(plan, 0, passes=3), plan.rows()) is None


def test_more_than_a_fifth_of_lost_marks_is_not_forced():
    plan = Plan("1f1b", 2, 10)
    assert place(look(plan, 0, lost=range(4)), plan.rows()).edits == 4
    assert place(look(plan, 0, lost=range(5)), plan.rows()) is None
