import itertools

import polars as pl
import pytest

from stagescope.exporters.names import LOOKS, RECEIVE_WAIT, SEND_WAIT, STEP, label, look_of, title
from stagescope.model.tables import KindType
from stagescope.vocabulary.kinds import KIND_NAMES

WORDS = {name: look.word for name, look in LOOKS.items() if name != "other"} | {
    "receive wait": RECEIVE_WAIT.word, "send wait": SEND_WAIT.word, "step": STEP.word,
}  # fmt: skip


def perfetto_hue(word):
    """Return the hue in degrees that Perfetto gives a slice of this name: a hash in JavaScript's arithmetic."""
    state = 0x811C9DC5 & 0xFFFFFFF
    for character in word:
        state ^= ord(character)
        product = int(float(state * 16777619)) & 0xFFFFFFFF
        state = product - 2**32 if product >= 2**31 else product
    return abs(state) % 360


def slices(**columns):
    defaults = {"kind": None, "is_wait": False, "step": None, "stage": None, "microbatch": None, "name": None}
    types = {"kind": KindType, "step": pl.Int32, "stage": pl.Int32, "microbatch": pl.Int32, "name": pl.String}
    frame = pl.DataFrame([defaults | columns], schema_overrides=types)
    return frame.select(title=title(), label=label(), cname=look_of(cname=True)).row(0)


def test_hue_is_computed_as_perfetto_does():
    assert [perfetto_hue(word) for word in ("forward", "backward", "wgrad", "F", "B")] == [
        126,
        208,
        68,
        65,
        61,
    ]


def test_every_kind_has_a_look():
    assert set(LOOKS) == set(KIND_NAMES)


def test_all_kinds_have_distinct_hues_in_perfetto():
    for one, other in itertools.combinations(WORDS, 2):
        distance = abs(perfetto_hue(WORDS[one]) - perfetto_hue(WORDS[other]))
        assert min(distance, 360 - distance) >= 12, f"{one} and {other}"


def test_all_kinds_have_distinct_colors_in_catapult():
    colors = [look.cname for look in (*LOOKS.values(), RECEIVE_WAIT, SEND_WAIT, STEP)]
    assert len(set(colors)) == len(colors)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"kind": "forward", "stage": 0, "microbatch": 12}, ("forward 12", "F0.12", "thread_state_running")),
        ({"kind": "backward_weight", "stage": 1, "microbatch": 2}, ("wgrad 2", "W1.2", "rail_animation")),
        (
            {"kind": "recv_forward", "stage": 1, "microbatch": 2, "is_wait": True},
            ("wait for data 2", "r1.2", "grey"),
        ),
        ({"kind": "optimizer", "step": 3}, ("optim", "O", "detailed_memory_dump")),
        ({"kind": "other", "name": "load 3"}, ("load 3", "X", "generic_work")),
        ({"kind": "other", "name": ""}, ("other", "X", "generic_work")),
        ({"kind": "forward", "name": "mine", "microbatch": 0}, ("forward 0", "F", "thread_state_running")),
        ({"step": 3}, ("step 3", None, "thread_state_sleeping")),
    ],
)
def test_slice_is_titled_labeled_and_colored_by_kind(columns, expected):
    assert slices(**columns) == expected
