"""Sentences about alarms."""

from __future__ import annotations

from stagescope.analysis.watching.alarms import Alarm, Change
from stagescope.analysis.watching.step_values import LINK, PART, RANK, Subject
from stagescope.reports.watch_text import alarm_sentences


def test_changes_that_round_to_nothing_are_left_out():
    slower = Change(Subject(RANK, rank=2), 73, 0.98, 48.74e6, 96.39e6)
    jitter = Change(Subject(PART, part="jitter"), 73, 0.47, 1e6, 50e6)
    other = Change(Subject(PART, part="other_work"), 73, -0.001, 10e6, 9.9e6)
    assert alarm_sentences(Alarm(3, 73, 76, changes=[slower, jitter, other])) == [
        "Rank 2 is 98 % slower (its actions take 96.39 ms per step, 48.74 ms before) since step 73; found at step 76.",
        "At the same time: Jitter takes 49.00 ms more per iteration (47 % of the usual iteration).",
    ]
    assert len(alarm_sentences(Alarm(3, 73, 76, changes=[slower, other]))) == 1


def test_a_rank_or_link_that_fell_behind_others_that_became_faster_is_not_called_slower_by_nothing():
    rank = Change(Subject(RANK, rank=2), 73, 0.001, 48.74e6, 48.79e6, relative_size=0.25)
    assert alarm_sentences(Alarm(3, 73, 76, changes=[rank])) == [
        (
            "Rank 2 is 25 % slower relative to the other ranks, which became faster "
            "(its actions take 48.79 ms per step, 48.74 ms before) since step 73; found at step 76."
        )
    ]
    link = Change(Subject(LINK, rank=1, peer=2), 73, -0.02, 1.02e6, 1e6, relative_size=0.25)
    assert alarm_sentences(Alarm(3, 73, 76, changes=[link])) == [
        (
            "Each message from rank 1 to rank 2 takes 25 % longer relative to the other links, which became faster "
            "(1.000 ms, 1.020 ms before) since step 73; found at step 76."
        )
    ]
    slower = Change(Subject(RANK, rank=2), 73, 0.2, 40e6, 48e6, relative_size=0.25)
    assert alarm_sentences(Alarm(3, 73, 76, changes=[slower]))[0].startswith("Rank 2 is 20 % slower (its")
