"""The exact output of the commands on a real recording; `make golden` regenerates it."""

import pytest

from golden_outputs import GOLDEN, NAMES, output_of


@pytest.mark.parametrize("name", NAMES)
def test_output_equals_the_golden_file(name):
    assert output_of(name) == (GOLDEN / name).read_text(encoding="utf-8")
