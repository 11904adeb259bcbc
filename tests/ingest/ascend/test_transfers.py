"""Operations between two ranks, as recorded in one profile."""

import json

import polars as pl

from ascend_profiles import Cluster, edit, write_cluster
from stagescope.ingest.ascend.metadata import Facts, Group, read_facts
from stagescope.ingest.ascend.transfers import RAW_TRANSFERS, marked_transfers, read_transfers, with_peers
from stagescope.ingest.database import Database


def raw(path, rank):
    with Database(path) as database:
        return read_transfers(database, read_facts(database, rank))


def test_sends_and_receives_have_their_peer_and_size(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=3, microbatches=2, steps=1))
    found = raw(truth.databases[1], 1)
    assert dict(found.schema) == RAW_TRANSFERS
    planted = truth.transfers.filter(rank=1)
    assert found.height == planted.height
    assert found.sort("start_ns")["local_peer"].to_list() == planted.sort("start_ns")["peer"].to_list()
    assert found["bytes"].unique().to_list() == [8_388_608]
    assert found["tasks"].unique().to_list() == [3]
    assert set(found["role"]) == {"send", "receive"}


def test_a_batch_has_one_row_per_peer(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=3, transfers="batched"))
    found = raw(truth.databases[1], 1)
    links = truth.transfers.filter(rank=1).select("name", "peer").unique()
    assert found.height == links.height
    assert set(found["role"]) == {"batch"}
    both_ways = found.filter(pl.col("tasks") == 6)
    assert both_ways["bytes"].unique().to_list() == [2 * 8_388_608]


def test_a_task_with_its_own_rank_last_is_reversed(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=2, microbatches=1, steps=1))
    edit(truth.databases[1], "UPDATE COMMUNICATION_TASK_INFO SET srcRank = dstRank, dstRank = srcRank")
    assert raw(truth.databases[1], 1)["local_peer"].to_list() == [0, 0]


def test_collective_operations_are_not_transfers(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=2, microbatches=1, steps=1))
    path = truth.databases[0]
    edit(path, "UPDATE STRING_IDS SET value = 'hcom_allReduce__1_1_1' WHERE value LIKE 'hcom_send%'")
    assert raw(path, 0)["role"].to_list() == ["receive"]


def test_without_the_table_of_tasks_the_peer_is_null(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=2, microbatches=1, steps=1))
    edit(truth.databases[0], "DROP TABLE COMMUNICATION_TASK_INFO")
    found = raw(truth.databases[0], 0)
    assert found.height == 2
    assert found["local_peer"].null_count() == 2


def test_no_operations_yield_no_transfers(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=2, microbatches=1, steps=1))
    edit(truth.databases[0], "DROP TABLE COMMUNICATION_OP")
    assert raw(truth.databases[0], 0).is_empty()


def test_marks_of_sends_and_receives_are_transfers_once_each():
    fields = {"streamId": "9", "count": "16", "dataType": "fp32", "groupName": "g"}
    names = ("HcclSend", "HcclReceive", "HcclBatchSendRecv", "HcclAllReduce")
    texts = [json.dumps({**fields, "opName": name}) for name in names]
    marks = pl.DataFrame({"text": texts * 2, "start_ns": range(8), "end_ns": range(1, 9)})
    found = marked_transfers(marks, 3)
    assert found.select("role", "bytes", "start_ns", "rank").rows() == [
        ("send", 64, 0, 3), ("receive", 64, 1, 3), ("batch", 64, 2, 3),
        ("send", 64, 4, 3), ("receive", 64, 5, 3), ("batch", 64, 6, 3),
    ]  # fmt: skip


def test_looks_up_the_peer_in_the_group_or_along_the_pipeline():
    rows = [(0, "listed", 1), (0, "other", 1), (0, "listed", None), (0, "other", 9)]
    transfers = pl.DataFrame(
        rows, schema={"rank": pl.Int32, "group": pl.String, "local_peer": pl.Int64}, orient="row"
    )
    facts = {0: Facts(0, "", groups={"listed": Group("pp", (0, 7))})}
    names = ("rank", "pp", "dp", "tp", "cp")
    places = [(0, 0, 0, 0, 0), (1, 0, 1, 0, 0), (2, 1, 0, 0, 0), (3, 1, 1, 0, 0)]
    coordinates = pl.DataFrame(places, schema=dict.fromkeys(names, pl.Int32), orient="row")
    assert with_peers(transfers, facts, coordinates)["peer"].to_list() == [7, 2, None, None]
