"""Sentences about alarms."""

from __future__ import annotations

from stagescope.analysis.watching.alarms import Alarm, Change
from stagescope.analysis.watching.step_values import PART, RANK, Subject
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
