"""No mutation of a sample leads to a traceback, a hang, a full memory or a silently different result.

`make fuzz` runs more of them, for as long as wanted.
"""

import pytest

from fuzz.campaign import Plan, run
from fuzz.formats import BY_NAME

SEED = 19
COUNT, EXHAUSTIVE_COUNT = 6, 50


def failures(plan, keep):
    return [(name, one.number, one.kind, one.mutators, one.details) for name, one in run(plan, keep).failures]


def test_mutated_files_of_every_format_are_read_or_refused(tmp_path):
    assert failures(Plan(list(BY_NAME), SEED, COUNT, thorough_every=0), tmp_path) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", list(BY_NAME))
def test_many_mutated_files_are_read_or_refused(name, tmp_path):
    assert failures(Plan([name], SEED, EXHAUSTIVE_COUNT), tmp_path) == []
