from __future__ import annotations

import pytest

from stagescope.vocabulary.kinds import (
    ACTION_KINDS,
    BY_CODE,
    BY_NAME,
    KIND_NAMES,
    KINDS,
    LANE_CODES,
    LANES,
    RECEIVES,
    SENDS,
    STEP_CODE,
    label,
)

CODES_OF_FORMAT_1 = {
    "forward": 1,
    "backward": 2,
    "backward_input": 3,
    "backward_weight": 4,
    "optimizer": 5,
    "send_forward": 6,
    "recv_forward": 7,
    "send_backward": 8,
    "recv_backward": 9,
    "grad_reduce": 10,
    "loss": 11,
    "other": 12,
    "collective": 13,
    "send": 14,
    "recv": 15,
}


def test_the_codes_in_recordings_never_change():
    assert {kind.name: kind.code for kind in KINDS} == CODES_OF_FORMAT_1
    assert LANE_CODES == {"compute": 0, "comm": 1, "host": 2}
    assert STEP_CODE == 0


def test_no_two_kinds_share_a_name_a_letter_or_a_code():
    for field in ("name", "letter", "code"):
        assert len({getattr(kind, field) for kind in KINDS}) == len(KINDS), field


def test_every_code_fits_its_field_and_is_no_step_marker():
    assert all(0 < kind.code < 256 for kind in KINDS)


def test_every_kind_runs_on_a_declared_lane():
    assert {kind.lane for kind in KINDS} <= set(LANES)


def test_kinds_are_found_by_name_and_by_code():
    for kind in KINDS:
        assert BY_NAME[kind.name] is BY_CODE[kind.code] is kind
    assert list(KIND_NAMES) == list(BY_NAME)


def test_the_named_groups_are_kinds():
    assert {*ACTION_KINDS, *SENDS, *RECEIVES} <= set(KIND_NAMES)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (("forward", 0, 3), "F0.3"),
        (("backward_input", 1, 2), "I1.2"),
        (("optimizer", None, None), "O"),
        (("loss", 3, None), "L"),
    ],
)
def test_a_action_is_written_in_the_fields_notation(action, expected):
    assert label(*action) == expected
