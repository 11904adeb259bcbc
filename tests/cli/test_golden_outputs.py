"""What the commands say about one real recording, to the letter; `make golden` writes it anew."""

import pytest

from golden_outputs import GOLDEN, NAMES, output_of


@pytest.mark.parametrize("name", NAMES)
def test_output_is_the_golden_one(name):
    assert output_of(name) == (GOLDEN / name).read_text(encoding="utf-8")
