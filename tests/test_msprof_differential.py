"""`stagescope pp-chart` compared with `msprof-analyze cluster -m pp_chart` on the same profiles.

Where the peer is correct, every row and every id is the same. Where it is not, ours is the planted truth. One run of
the peer costs about five CPU seconds, so `make test` runs one case of each kind.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
import pytest

from ascend_profiles import Cluster, add_mark, edit, lose_mark, lose_op, write_cluster
from peers import peer_environment, peer_variables
from stagescope.cli import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

MSPROF_ANALYZE = (
    "msprof-analyze==26.2.0",
    "networkx==3.6.1; python_version >= '3.11'",
    "numpy==2.4.6; python_version >= '3.11'",
    "pandas==3.1.1; python_version >= '3.11'",
    "sqlalchemy==2.1.9; python_version >= '3.11'",
)
ROWS = "SELECT name, startNs, endNs, type FROM StepTaskInfo ORDER BY startNs"
IDS = "SELECT s.value, o.opConnectionId FROM COMMUNICATION_OP o JOIN STRING_IDS s ON s.id = o.opName ORDER BY s.value"
UNSPLIT = {"split_cooldown": False}
V = {"schedule": "dualpipev", "pp": 4, "microbatches": 8, "options": UNSPLIT}


class Charts(NamedTuple):
    """Output of both per rank: the rows of the chart, and the ids of the operations."""

    code: int
    ours: dict[int, list[tuple]]
    theirs: dict[int, list[tuple]]
    our_ids: dict[int, dict[str, str | None]]
    their_ids: dict[int, dict[str, str | None]]


@pytest.fixture(scope="session")
def peer():
    return peer_environment("msprof-analyze", *MSPROF_ANALYZE) / "msprof-analyze"


@pytest.fixture
def compare(tmp_path, peer):
    """Return a function that runs both on the profiles written by `plant`."""

    def run(truth, *words: str, link: bool = False, empty_first: bool = False) -> Charts:
        given, copied = tmp_path / "profiles", tmp_path / "theirs"
        if link:
            given.rename(tmp_path / "elsewhere")
            for place in (given, copied):
                place.mkdir()
                for folder in (tmp_path / "elsewhere").iterdir():
                    (place / folder.name).symlink_to(folder)
        else:
            shutil.copytree(given, copied)
        if empty_first:  # the first profile that the peer reads, in the order of os.walk
            for place in (given, copied):
                next((place / next(os.walk(copied))[1][0]).rglob("*.db")).write_bytes(b"")
        step = ["--step_id", words[1]] if words else []
        subprocess.run(
            [peer, "cluster", "-m", "pp_chart", "-d", copied, *step],
            check=True, capture_output=True, timeout=300, env=peer_variables(),
        )  # fmt: skip
        places = {rank: path.relative_to(given) for rank, path in truth.databases.items()}
        found = _collect({rank: copied / place for rank, place in places.items()})
        code = main(["pp-chart", "-d", str(given), "-o", str(tmp_path / "ours"), *words])
        ours = _collect({rank: tmp_path / "ours" / place for rank, place in places.items()})
        return Charts(code, ours[0], found[0], ours[1], found[1])

    return run


@pytest.fixture
def plant(tmp_path):
    return lambda **words: write_cluster(tmp_path / "profiles", Cluster(**words))


def _collect(databases: dict[int, Path]):
    rows = {rank: _ask(path, ROWS) for rank, path in databases.items()}
    return rows, {rank: dict(_ask(path, IDS)) for rank, path in databases.items()}


def _ask(path, query):
    """Return the rows of a query, none if the file, table or column is missing."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []


def pairs(ids):
    """Return the two ends of every id that exactly two operations have."""
    ends: dict[str, list] = {}
    for rank, each in ids.items():
        for name, number in each.items():
            if number is not None:
                ends.setdefault(number, []).append((rank, name))
    return sorted(tuple(sorted(each)) for each in ends.values() if len(each) == 2)


def true_pairs(transfers):
    messages = transfers.group_by("message").agg("rank", "name")
    return sorted(
        tuple(sorted(zip(ranks, names, strict=True)))
        for ranks, names in messages.select("rank", "name").iter_rows()
        if len(ranks) == 2
    )


@pytest.mark.parametrize(
    "shape",
    [
        {"pp": 3, "microbatches": 5, "dp": 2, "seed": 2, "numbered": True},
        {"schedule": "dualpipev", "pp": 3, "microbatches": 7, "dp": 2, "seed": 4, "options": UNSPLIT},
        *(
            pytest.param(shape, marks=pytest.mark.exhaustive)
            for shape in (
                {"pp": 2, "microbatches": 3, "steps": 1},
                {"pp": 4, "microbatches": 8, "steps": 3, "seed": 1},
                {"schedule": "dualpipev", "pp": 2, "microbatches": 4, "steps": 3, "options": UNSPLIT},
                {"schedule": "dualpipev", "pp": 4, "microbatches": 10, "seed": 3, "options": UNSPLIT},
            )
        ),
    ],
    ids=str,
)
def test_rows_and_ids_equal_those_of_the_peer_where_it_is_correct(plant, compare, shape):
    truth = plant(**shape)
    charts = compare(truth)
    assert charts.ours == charts.theirs
    right = true_pairs(truth.transfers)
    assert pairs(charts.our_ids) == right
    # Both actions of an overlapped pair send to the same neighbor at the same time: counting does not distinguish them.
    if pairs(charts.their_ids) == right:
        assert charts.our_ids == charts.their_ids
    else:
        assert shape.get("schedule") == "dualpipev"
    assert charts.code == 0


def test_a_missing_mark_costs_one_name_where_the_peer_loses_the_step(plant, compare):
    truth = plant(**V)
    before = truth.actions.filter(pl.col("rank") == 1)["start_ns"].unique().sort()
    lose_mark(truth.databases[1], 5)
    charts = compare(truth)
    assert sum(name == "" for name, *_ in charts.theirs[1]) == 27
    assert [start for _, start, *_ in charts.ours[1]] == before.drop_nulls().to_list()[:5] + before.to_list()[
        6:
    ]
    assert charts.ours[1][27:] == charts.theirs[1][27:]
    assert all(name for name, *_ in charts.ours[1])
    assert charts.code == 1


@pytest.mark.exhaustive
def test_a_surplus_mark_is_identified_where_the_peer_loses_the_step(plant, compare):
    truth = plant(**V, steps=1)
    last = truth.actions.filter(pl.col("rank") == 3)["end_ns"].max()
    add_mark(truth.databases[3], "{'name': 'WeightGradStore.pop'}", last + 10, last + 20)
    charts = compare(truth)
    assert {name for name, *_ in charts.theirs[3]} == {""}
    assert [name for name, *_ in charts.ours[3]].count("WeightGradStore.pop") == 1
    assert "" not in {name for name, *_ in charts.ours[3]}


@pytest.mark.exhaustive
def test_counts_micro_batches_where_the_peer_names_nothing(plant, compare):
    truth = plant(**V, steps=1)
    for path in truth.databases.values():
        edit(path, """UPDATE META_DATA SET value = '{"pp_type": "dualpipev"}' WHERE name = 'pp_info'""")
    charts = compare(truth)
    assert {name for rows in charts.theirs.values() for name, *_ in rows} == {""}
    assert [name for name, *_ in charts.ours[0]][:7] == ["0", "1", "2", "3", "4", "5", "6"]


def test_context_parallel_ranks_have_their_stage_where_the_peer_drops_them(plant, compare):
    truth = plant(**V, steps=1, cp=2, dp=2)
    charts = compare(truth)
    assert [rank for rank, rows in charts.theirs.items() if not rows] == list(range(8, 16))
    for rank, rows in charts.ours.items():
        stage_mates = [names_of(charts.ours[other]) for other in range(rank // 4 * 4, rank // 4 * 4 + 4)]
        assert [names_of(rows)] * 4 == stage_mates
    assert names_of(charts.ours[0]) == names_of(charts.theirs[0])


def names_of(rows):
    return [name for name, *_ in rows]


def test_a_missing_receive_shifts_no_pair_where_the_peer_pairs_wrongly(plant, compare):
    truth = plant(pp=4, microbatches=8)
    lost = truth.transfers.filter((pl.col("rank") == 1) & (pl.col("kind") == "recv_forward")).row(
        2, named=True
    )
    lose_op(truth.databases[1], lost["name"])
    charts = compare(truth)
    right = true_pairs(truth.transfers.filter(pl.col("message") != lost["message"]))
    assert set(pairs(charts.their_ids)) - set(right)
    assert pairs(charts.our_ids) == right


@pytest.mark.exhaustive
def test_batched_operations_are_paired_where_the_peer_pairs_none(plant, compare):
    truth = plant(pp=4, microbatches=6, transfers="batched")
    charts = compare(truth)
    assert pairs(charts.their_ids) == []
    found, right = pairs(charts.our_ids), true_pairs(truth.transfers)
    assert found
    assert set(found) <= set(right)


@pytest.mark.exhaustive
def test_linked_folders_are_read_where_the_peer_finds_nothing(plant, compare):
    truth = plant(pp=2, microbatches=3)
    charts = compare(truth, link=True)
    assert charts.theirs == {0: [], 1: []}
    assert [len(rows) for rows in charts.ours.values()] == [12, 12]


@pytest.mark.exhaustive
def test_an_empty_first_rank_changes_no_other_where_the_peer_forgets_the_schedule(plant, compare):
    charts = compare(plant(**V, steps=1), empty_first=True)
    read = [rank for rank, rows in charts.ours.items() if rows]
    assert len(read) == 3
    assert {name for rank in read for name in names_of(charts.theirs[rank])} == {"FP", "BP"}
    assert not {name for rank in read for name in names_of(charts.ours[rank])} & {"FP", "BP", ""}
    assert charts.code == 1


@pytest.mark.exhaustive
def test_a_step_without_a_time_is_drawn_where_the_peer_drops_it(plant, compare):
    truth = plant(**V, steps=3)
    for path in truth.databases.values():
        edit(path, "DELETE FROM STEP_TIME WHERE id = 1")
    charts = compare(truth)
    assert [len(charts.theirs[0]), len(charts.ours[0])] == [2 * 38, 3 * 38]
    assert names_of(charts.ours[0]) == 3 * names_of(charts.theirs[0])[:38]


@pytest.mark.exhaustive
def test_one_step_is_one_step_where_the_peer_writes_all(plant, compare):
    truth = plant(pp=2, microbatches=4, steps=3)
    charts = compare(truth, "--step_id", "1")
    assert (len(charts.theirs[0]), len(charts.ours[0])) == (24, 8)
    assert charts.ours[0] == charts.theirs[0][8:16]
