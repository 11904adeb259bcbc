"""Lines of wide characters."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.vocabulary.language import cell_width, padded, speaking, wrapped
from stagescope.vocabulary.language.wrapping import NOT_FIRST

SENTENCE = "The bubble is unknown: no step with a forward or backward action was recorded."


def test_english_lines_are_those_of_textwrap():
    for width in (20, 40, 80):
        assert wrapped(SENTENCE, width) == textwrap.wrap(SENTENCE, width)
    assert wrapped(SENTENCE, 30, "* ", "  ") == textwrap.wrap(
        SENTENCE, 30, initial_indent="* ", subsequent_indent="  "
    )


@pytest.mark.parametrize("width", [20, 31, 40, 80])
def test_chinese_lines_fit_and_do_not_begin_with_punctuation(width):
    with speaking("zh"):
        lines = wrapped(f"{SENTENCE} {SENTENCE}", width, "* ", "  ")
    assert all(cell_width(line) <= width for line in lines)
    assert not any(line.lstrip()[:1] in NOT_FIRST for line in lines[1:])
    assert lines[0].startswith("* 空泡未知")


@given(st.text("阶段，。（）ab 12-", min_size=1, max_size=60), st.integers(10, 40))
def test_wrapping_keeps_every_character(text, width):
    with speaking("zh"):
        lines = wrapped(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_padding_counts_cells():
    assert padded("阶段", 6) == "阶段  "
    assert cell_width("阶段 1") == 6
