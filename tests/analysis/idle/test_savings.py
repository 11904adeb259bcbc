from __future__ import annotations

import pytest

from stagescope.analysis.idle.savings import offset_savings, offset_whole_savings


def test_savings_are_offset_against_overlapping_causes():
    parts = {"schedule_bubble": 6.0, "straggler": -1.0, "jitter": 4.0, "optimizer": 2.0}
    found = offset_savings(parts)
    assert found == pytest.approx({"schedule_bubble": 5.4, "straggler": 0, "jitter": 3.6, "optimizer": 2})


def test_savings_that_overlapping_causes_cannot_offset_reduce_all():
    found = offset_whole_savings({"schedule_bubble": 0, "jitter": 2, "optimizer": 8, "unattributed": -3})
    assert min(found.values()) >= 0
    assert sum(found.values()) == 7
