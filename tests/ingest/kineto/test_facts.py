"""Reading the headers of traces."""

from pathlib import Path

import pytest

from stagescope.ingest.kineto.facts import RankFacts, rank_facts
from stagescope.ingest.shared_groups import SharedGroups

HEADER = {
    "distributedInfo": {"rank": 3, "world_size": 4, "pg_config": [{"pg_name": "0", "ranks": [0, 1, 2, 3]}]},
    "host_name": "gpu-7",
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
    "baseTimeNanoseconds": 1,
}


def test_a_header_states_rank_world_size_host_device_and_groups():
    assert rank_facts(Path("trace.json"), HEADER) == RankFacts(
        3, 4, "gpu-7", "NVIDIA H100", True, ((0, 1, 2, 3),)
    )


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank12.json", 12),
        ("trace_rank-3.json", 3),
        ("RANK_0.json.gz", 0),
        ("frank1.json", None),
        ("7.json", None),
    ],
)
def test_without_a_header_the_rank_comes_from_the_file_name(name, rank):
    assert rank_facts(Path(name), {}).rank == rank


@pytest.mark.parametrize(
    "info",
    [
        {"distributedInfo": []},
        {"distributedInfo": {"rank": -1, "world_size": "4", "pg_config": {"ranks": 3}}},
        {"distributedInfo": {"rank": True, "world_size": 2**40, "pg_config": [[], {"ranks": "all"}]}},
        {"deviceProperties": [7], "host_name": 7, "baseTimeNanoseconds": "now"},
    ],
)
def test_an_unrelated_header_states_nothing(info):
    found = rank_facts(Path("trace.json"), info)
    assert found[:5] == (None, None, None, None, False)
    assert not any(found.groups)


def test_equal_groups_of_traces_are_kept_once():
    groups = SharedGroups()
    one, other = (tuple(map(groups.of, rank_facts(Path("trace.json"), HEADER).groups)) for _ in range(2))
    assert one == rank_facts(Path("trace.json"), HEADER).groups
    assert one[0] is other[0]
