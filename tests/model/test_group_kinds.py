"""The kind of a group follows from its purpose, or from the coordinates of its ranks."""

from __future__ import annotations

import polars as pl
import pytest

from stagescope.model import RANKS
from stagescope.model.group_kinds import find_group_kinds
from stagescope.model.validate import conform

RUN = conform(
    pl.DataFrame(
        [
            {"rank": 4 * dp + 2 * pp + tp, "pp": pp, "dp": dp, "tp": tp, "world_size": 8}
            for dp in (0, 1)
            for pp in (0, 1)
            for tp in (0, 1)
        ]
    ),
    RANKS,
)


def kind(group, *ranks):
    members = pl.DataFrame(
        {"group": [group] * len(ranks), "rank": ranks}, schema_overrides={"rank": pl.Int32}
    )
    return find_group_kinds(members, RUN)["group_kind"].to_list()[0]


@pytest.mark.parametrize(
    ("purpose", "expected"),
    [
        ("mesh_dp", "dp"),
        ("mesh_dp_shard_cp", "dp+cp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("MODEL_PARALLEL_GROUP", "tp+pp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp+cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("EMBEDDING_GROUP", "pp"),
        ("default_pg", "world"),
    ],
)
def test_purpose_in_the_name_states_the_kind(purpose, expected):
    assert kind(f"{purpose} 0,1 (3)", 0, 1) == expected


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [((0, 1), "tp"), ((0, 4), "dp"), ((1, 3), "pp"), ((0, 1, 4, 5), "dp+tp"), (tuple(range(8)), "world"), ((5,), None)],
)  # fmt: skip
def test_without_a_purpose_the_coordinates_that_differ_state_the_kind(ranks, expected):
    assert kind(f"{','.join(map(str, ranks))} (3)", *ranks) == expected


def test_without_purpose_and_coordinates_the_kind_is_unknown():
    members = pl.DataFrame({"group": ["0,1 (3)"] * 2, "rank": [0, 1]})
    assert find_group_kinds(members, None)["group_kind"].to_list() == [None]
