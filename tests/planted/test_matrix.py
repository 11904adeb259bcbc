"""Reports of real trainings name the causes that were planted in them, and where."""

import pytest

from planted.matrix import FRAMEWORKS, PLANTS, row_of


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_planted_cause_is_named_with_its_place(framework, plant):
    row = row_of(framework, plant)
    assert row.has_cause, row.sentence
    assert row.has_place, row.sentence
