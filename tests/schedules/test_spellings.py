import pytest

from stagescope.demo.names import THEORY
from stagescope.schedules.catalog import NAMES
from stagescope.schedules.spellings import SPELLINGS, known_schedule


@pytest.mark.parametrize(
    ("spelled", "name"), [("VPP", "interleaved"), ("DualPipeV", "dualpipev"), ("None", None)]
)
def test_spellings_ignore_case(spelled, name):
    assert known_schedule(spelled) == name


def test_every_spelling_means_a_schedule_of_the_catalog_or_none():
    assert set(SPELLINGS.values()) <= {None, *NAMES}
    assert all(spelled == spelled.lower() for spelled in SPELLINGS)


@pytest.mark.parametrize("spelled", THEORY)
def test_knows_the_class_names_of_torch(spelled):
    assert known_schedule(spelled) == THEORY[spelled]
