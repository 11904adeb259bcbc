"""The texts of numbers that the page writes too (web/tests/model/time.test.ts), ties among them."""

import json
from pathlib import Path

import pytest

from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.ratios import percent_text

CASES = json.loads((Path(__file__).parents[1] / "data/viewer/number_texts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("duration_ns", "text"), CASES["durations"])
def test_duration_is_written_as_the_page_does(duration_ns, text):
    assert duration_text(duration_ns) == text


@pytest.mark.parametrize(("fraction", "text"), CASES["percents"])
def test_fraction_is_written_as_the_page_does(fraction, text):
    assert percent_text(fraction) == text
