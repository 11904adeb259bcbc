import pytest

from drawing import timeline_from_text
from stagescope.ingest.schedule_names import with_schedule

DRAWN = timeline_from_text("F0 B0\n. F0 B0")


def test_the_callers_schedule_applies_to_ranks_without_one():
    timeline = with_schedule(DRAWN, "Eager1F1B")
    assert timeline.ranks["schedule"].to_list() == ["eager-1f1b"] * 2
    assert with_schedule(timeline, "gpipe").ranks.equals(timeline.ranks)


def test_an_unknown_schedule_name_is_a_warning():
    timeline = with_schedule(DRAWN, "2f2b")
    assert timeline.ranks.equals(DRAWN.ranks)
    assert timeline.diagnostics.select("severity", "message").rows() == [
        ("warning", "unknown schedule '2f2b': ignored")
    ]


@pytest.mark.parametrize("nothing", [None, "", "none"])
def test_no_stated_schedule_changes_nothing(nothing):
    assert with_schedule(DRAWN, nothing) is DRAWN
