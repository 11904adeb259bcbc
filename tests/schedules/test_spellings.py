import pytest

from stagescope.demo.names import THEORY
from stagescope.schedules.catalog import NAMES
from stagescope.schedules.spellings import SPELLINGS, known_schedule


@pytest.mark.parametrize(
    ("spelled", "name"), [("VPP", "interleaved"), ("DualPipeV", "dualpipev"), ("None", None)]
)
def test_spellings_of_any_case_are_known(spelled, name):
    assert known_schedule(spelled) == name


def test_every_spelling_stands_for_a_schedule_of_the_catalog_or_for_none():
    assert set(SPELLINGS.values()) <= {None, *NAMES}
    assert all(spelled == spelled.lower() for spelled in SPELLINGS)


@pytest.mark.parametrize("spelled", THEORY)
def test_the_names_of_torchs_classes_are_known(spelled):
    assert known_schedule(spelled) == THEORY[spelled]
