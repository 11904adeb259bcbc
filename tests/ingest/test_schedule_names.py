import pytest

from drawing import timeline_from_text
from stagescope.ingest.schedule_names import with_schedule

DRAWN = timeline_from_text("F0 B0\n. F0 B0")


def test_what_the_caller_says_fills_in_where_files_state_nothing():
    said = with_schedule(DRAWN, "Eager1F1B")
    assert said.ranks["schedule"].to_list() == ["eager-1f1b"] * 2
    assert with_schedule(said, "gpipe").ranks.equals(said.ranks)


def test_a_spelling_that_nobody_knows_is_said():
    said = with_schedule(DRAWN, "2f2b")
    assert said.ranks.equals(DRAWN.ranks)
    assert said.diagnostics.select("severity", "message").rows() == [
        ("warning", "no schedule '2f2b' is known here: nothing is made of it")
    ]


@pytest.mark.parametrize("nothing", [None, "", "none"])
def test_nothing_said_changes_nothing(nothing):
    assert with_schedule(DRAWN, nothing) is DRAWN
