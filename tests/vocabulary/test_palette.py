from itertools import combinations

import pytest

from stagescope.vocabulary.kinds import ACTION_KINDS, KIND_NAMES
from stagescope.vocabulary.palette import (
    INK,
    PAPER,
    SWATCHES,
    chunk_color,
    contrast,
    mix,
    text_color,
)

# Linear-light matrices of Vienot, Brettel and Mollon (1999) would be the full model; for "not the same" the
# confusion of red with green, which is what both common forms have, is enough.
DISTINGUISHABLE = 28


def without_red_green(color: str) -> tuple[float, float]:
    """Return a color as seen without distinguishing red from green."""
    red, green, blue = bytes.fromhex(color[1:])
    return (red * 0.4 + green * 0.6, blue)


def test_every_kind_has_a_color() -> None:
    assert tuple(SWATCHES) == KIND_NAMES


def test_the_actions_of_a_pipeline_differ_in_texture() -> None:
    assert len({SWATCHES[kind].texture for kind in ACTION_KINDS}) == len(ACTION_KINDS)


@pytest.mark.parametrize(("one", "other"), list(combinations(ACTION_KINDS, 2)))
def test_actions_remain_distinguishable_without_red_and_green(one: str, other: str) -> None:
    a, b = (without_red_green(SWATCHES[kind].color) for kind in (one, other))
    assert max(abs(x - y) for x, y in zip(a, b, strict=True)) > DISTINGUISHABLE


def test_chunks_go_from_the_full_color_to_a_light_one() -> None:
    shades = [chunk_color("backward", chunk, 4) for chunk in range(4)]
    contrasts = [contrast(shade, PAPER) for shade in shades]
    assert shades[0] == SWATCHES["backward"].color
    assert contrasts == sorted(contrasts, reverse=True)
    assert len(set(shades)) == 4


def test_a_chunk_beyond_the_count_is_as_light_as_the_last() -> None:
    assert chunk_color("forward", 9, 2) == chunk_color("forward", 1, 2)
    assert chunk_color("forward", 9, 1) == SWATCHES["forward"].color


@pytest.mark.parametrize("kind", KIND_NAMES)
@pytest.mark.parametrize("chunk", [0, 1, 2, 3])
def test_text_on_every_color_reaches_the_contrast_for_normal_text(kind: str, chunk: int) -> None:
    color = chunk_color(kind, chunk, 4)
    assert contrast(text_color(color), color) >= 4.5


def test_contrast_ranges_from_1_to_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast(INK, INK) == 1


def test_mixing_nothing_and_everything_gives_the_two_colors() -> None:
    assert mix("#0072b2", "#ffffff", 0) == "#0072b2"
    assert mix("#0072b2", "#ffffff", 1) == "#ffffff"
