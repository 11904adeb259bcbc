"""Ascend profiles: a planted truth is written as databases, damaged, and recovered."""

import json
import os
import random
import shutil
import sqlite3
from contextlib import closing

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from ascend_profiles import EPOCH_NS, Cluster, add_mark, edit, lose_mark, lose_op, write_cluster
from stagescope.ingest.ascend.reader import READER, read_profiles
from stagescope.ingest.discover import find_inputs
from stagescope.ingest.layout import Layout
from stagescope.ingest.merge import read_inputs
from stagescope.ingest.reader import ReadOptions
from stagescope.ingest.registry import Registry
from stagescope.model.messages import match_messages
from stagescope.vocabulary.errors import InputError

DUALPIPEV = {"schedule": "dualpipev", "microbatches": 10, "options": {"split_cooldown": False}}
INTERLEAVED = {"schedule": "interleaved", "chunks": 2, "numbered": True}
SHAPES = {"1f1b": {}, "interleaved": INTERLEAVED, "dualpipev": DUALPIPEV}
ACTION_COLUMNS = ["rank", "step", "kind", "stage", "microbatch", "start_ns", "end_ns"]


def read(truth, **options):
    return read_profiles(sorted(truth.databases.values()), ReadOptions(**options))


def actions_of(timeline):
    return _comparable(timeline.spans.filter(pl.col("lane") == "compute"))


def _comparable(actions):
    return actions.with_columns(pl.col("kind").cast(pl.String)).select(ACTION_COLUMNS).sort(ACTION_COLUMNS)


def diagnosed(timeline, severity=None):
    rows = timeline.diagnostics.filter(severity is None or pl.col("severity") == severity)
    return [(row["rank"], row["message"], row["count"]) for row in rows.iter_rows(named=True)]


def named_transfers(timeline):
    return timeline.spans.filter(pl.col("lane") == "comm", pl.col("kind") != "other")


def wrong_transfers(timeline, truth):
    """Return the transfers whose name differs from the planted one."""
    key = ["rank", "step", "kind", "stage", "microbatch", "peer", "name"]
    named = named_transfers(timeline).with_columns(pl.col("kind").cast(pl.String)).select(key)
    return named.join(truth.transfers.select(key), on=key, how="anti")


def wrong_pairs(timeline, truth):
    """Return the pairs of spans that `match_messages` returns and the truth does not contain."""
    key = ["rank", "name", "kind", "peer"]
    spans = timeline.spans.with_row_index("row").with_columns(pl.col("kind").cast(pl.String))
    numbered = dict(spans.join(truth.transfers, on=key).select("row", "message").iter_rows())
    pairs = match_messages(timeline.spans).select("send_row", "recv_row").rows()
    return [pair for pair in pairs if numbered[pair[0]] != numbered[pair[1]]]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("seed", range(2))
def test_recovers_every_planted_action_and_transfer(tmp_path, shape, seed):
    truth = write_cluster(tmp_path, Cluster(**shape, dp=2, seed=seed))
    timeline = read(truth)
    assert_frame_equal(actions_of(timeline), _comparable(truth.actions))
    assert wrong_transfers(timeline, truth).is_empty()
    assert named_transfers(timeline).height == truth.transfers.height
    assert wrong_pairs(timeline, truth) == []
    assert match_messages(timeline.spans).height == truth.transfers.height // 2
    assert not timeline.is_partial


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("count", [1, 5, 20])
def test_missing_operations_shift_no_other(tmp_path, shape, count):
    truth = write_cluster(tmp_path, Cluster(**shape))
    rows = truth.transfers.select("rank", "name").rows()
    lost = random.Random(count).sample(rows, count)  # noqa: S311 - a planted fault
    for rank, name in lost:
        lose_op(truth.databases[rank], name)
    timeline = read(truth)
    assert wrong_transfers(timeline, truth).is_empty()
    assert wrong_pairs(timeline, truth) == []
    # If one of two messages that an overlapped pair sent to one rank is missing, it is unknown which one.
    unclear = timeline.spans.filter(pl.col("lane") == "comm", pl.col("kind") == "other").height
    assert named_transfers(timeline).height == truth.transfers.height - count - unclear
    assert unclear <= (count if shape is DUALPIPEV else 0)
    missing = timeline.diagnostics.filter(pl.col("code").str.starts_with("messages.missing_"))["count"]
    assert missing.sum() == count + unclear


def test_a_missing_receive_shifts_no_later_pair(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    received = truth.transfers.filter(rank=1, kind="recv_forward").row(2, named=True)
    lose_op(truth.databases[1], received["name"])
    timeline = read(truth)
    assert wrong_pairs(timeline, truth) == []
    assert match_messages(timeline.spans).height == truth.transfers.height // 2 - 1
    text = "messages between actions without a certain receive; no other message was shifted"
    assert (1, text, 1) in diagnosed(timeline, "warning")


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_identifies_batches_by_their_messages(tmp_path, shape):
    truth = write_cluster(tmp_path, Cluster(**shape, transfers="batched"))
    timeline = read(truth)
    assert wrong_transfers(timeline, truth).is_empty()
    assert wrong_pairs(timeline, truth) == []
    named = named_transfers(timeline)
    # A batch that can be either end, with the tasks of one message, has no name.
    assert named.height > 0.8 * truth.transfers.height
    both_ways = named.filter(pl.len().over("rank", "name", "peer") > 1)
    assert both_ways["bytes"].null_count() == both_ways.height


def test_reads_marks_of_communication_at_level_none(tmp_path):
    truth = write_cluster(tmp_path, Cluster(transfers="marks"))
    for path in truth.databases.values():
        edit(path, "DROP TABLE COMMUNICATION_OP", "DROP TABLE COMMUNICATION_TASK_INFO")
    timeline = read(truth)
    transfers = timeline.spans.filter(pl.col("lane") == "comm")
    assert transfers.height == truth.transfers.height
    key = ["rank", "start_ns", "end_ns", "kind", "stage", "microbatch", "peer"]
    named = named_transfers(timeline).with_columns(pl.col("kind").cast(pl.String)).select(key)
    assert named.join(truth.transfers.select(key), on=key, how="anti").is_empty()
    assert named.height > 0.9 * truth.transfers.height
    assert transfers["bytes"].unique().to_list() == [8_388_608]
    assert ("database.table_absent", "table COMMUNICATION_OP", 4) in timeline.diagnostics.select(
        "code", "location", "count"
    ).rows()


def test_a_pipeline_group_that_no_cluster_has_is_ignored_and_named(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    group = {"group_name": "pp", "group_rank": 0, "global_ranks": list(range(5_000))}
    groups = json.dumps({"group_name_7": group})
    for path in truth.databases.values():
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE META_DATA SET value = ? WHERE name = 'parallel_group_info'", (groups,))
            connection.commit()
    timeline = read(truth)
    assert timeline.ranks.height == 4
    notes = timeline.diagnostics.filter(pl.col("code") == "database.damaged")["message"].to_list()
    assert len(notes) == 4
    assert "has a pipeline group of 5,000 ranks, more than 4,096, which was ignored" in notes[0]


def test_tables_that_no_profile_of_the_run_has_are_named(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    assert "database.table_absent" not in read(truth).diagnostics["code"]
    for path in truth.databases.values():
        edit(path, "DROP TABLE STEP_TIME", "DROP TABLE META_DATA")
    notes = read(truth).diagnostics.filter(pl.col("code") == "database.table_absent")
    assert notes["location"].to_list() == ["table META_DATA", "table STEP_TIME"]
    assert notes["severity"].to_list() == ["info", "info"]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_clock_offsets_hide_no_transfer(tmp_path, shape):
    truth = write_cluster(tmp_path, Cluster(**shape, skew_ns=5_000_000, ranks_per_host=1))
    timeline = read(truth)
    assert wrong_transfers(timeline, truth).is_empty()
    assert named_transfers(timeline).height == truth.transfers.height
    assert timeline.clocks["clock"].to_list() == [f"uid-{rank}/wall" for rank in range(4)]
    assert timeline.ranks["machine"].to_list() == [f"node{rank}" for rank in range(4)]
    assert timeline.clocks["error_lo_ns"].null_count() == 4


def test_a_transfer_has_the_name_and_size_of_its_operation(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=2, steps=1))
    row = read(truth).spans.filter(pl.col("kind") == "send_forward").row(0, named=True)
    planted = truth.transfers.filter(kind="send_forward").row(0, named=True)
    assert {name: row[name] for name in planted if name != "message"} == {
        name: value for name, value in planted.items() if name != "message"
    }
    assert (row["bytes"], row["wait_start_ns"], row["wait_end_ns"]) == (8_388_608, None, None)


def test_the_ranks_table_locates_every_rank(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=2, dp=2, tp=2, ranks_per_host=4))
    timeline = read(truth)
    columns = ["rank", "machine", "device", "pp", "dp", "tp", "cp", "host", "clock", "world_size", "schedule"]
    assert timeline.ranks.select(columns).row(5) == (
        5,
        "node1",
        "NPU:1",
        1,
        0,
        1,
        0,
        "node1",
        "uid-1/wall",
        8,
        None,
    )
    assert timeline.ranks["source"].to_list() == [str(path) for path in truth.databases.values()]


def test_steps_are_those_of_the_profiler_in_device_time(tmp_path):
    truth = write_cluster(tmp_path, Cluster(steps=3))
    for path in truth.databases.values():
        edit(path, "UPDATE STEP_TIME SET id = id + 40")
    timeline = read(truth)
    borders = truth.actions.group_by("step", "rank").agg(pl.min("start_ns"), pl.max("end_ns"))
    expected = borders.with_columns(pl.col("step") + 40).sort("step", "rank")
    assert_frame_equal(timeline.steps.sort("step", "rank"), expected)


def test_actions_outside_every_step_are_kept_and_counted(tmp_path):
    truth = write_cluster(tmp_path, Cluster(steps=3))
    for path in truth.databases.values():
        edit(path, "DELETE FROM STEP_TIME WHERE id = 1")
    timeline = read(truth)
    assert actions_of(timeline).height == truth.actions.height
    text = (
        "actions started outside every step of the profile (STEP_TIME); they are kept without a step number"
    )
    assert [(rank, text, 16) for rank in range(4)] == [
        row for row in diagnosed(timeline, "warning") if row[1] == text
    ]


def test_ignores_unrecognized_marks(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    start_ns = truth.actions["start_ns"].min() - 500_000
    add_mark(truth.databases[0], "dataloader fast-forward", start_ns, start_ns + 300_000)
    timeline = read(truth)
    assert_frame_equal(actions_of(timeline), _comparable(truth.actions))
    text = "ignored marks that are not pipeline actions: 'dataloader fast-forward'"
    assert diagnosed(timeline) == [(0, text, 1)]


def test_a_nested_mark_is_omitted_and_counted(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    action = truth.actions.filter(rank=2).row(3, named=True)
    add_mark(
        truth.databases[2], "{'name': 'forward_step'}", action["start_ns"] + 1_000, action["end_ns"] - 1_000
    )
    timeline = read(truth)
    assert_frame_equal(actions_of(timeline), _comparable(truth.actions))
    assert (2, "marks of actions inside the mark of another action were omitted", 1) in diagnosed(
        timeline, "info"
    )


def test_a_mark_without_a_task_is_omitted_and_counted(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    edit(truth.databases[1], "DELETE FROM TASK WHERE connectionId = 4000000003")
    timeline = read(truth)
    assert actions_of(timeline).height == truth.actions.height - 1
    assert (1, "marks of actions have no task on the device and were omitted", 1) in diagnosed(
        timeline, "error"
    )


def test_a_missing_mark_causes_no_wrong_transfer(tmp_path):
    truth = write_cluster(tmp_path, Cluster(**DUALPIPEV))
    lose_mark(truth.databases[1], 20)
    timeline = read(truth)
    assert wrong_transfers(timeline, truth).is_empty()
    assert wrong_pairs(timeline, truth) == []
    assert named_transfers(timeline).height > 0.95 * truth.transfers.height


def damaged_cluster(directory, seed):
    """Return the truth of a cluster of random shape with missing operations, marks and possibly a missing profile."""
    chance = random.Random(seed)  # noqa: S311 - a planted fault
    shape = dict(chance.choice(list(SHAPES.values())))
    pp, dp = chance.choice([2, 3, 4]), chance.choice([1, 2])
    if "chunks" in shape:
        shape |= {"microbatches": pp * chance.choice([1, 2, 3]), "chunks": chance.choice([2, 3])}
    shape |= {"transfers": chance.choice(["single", "batched"]), "skew_ns": chance.choice([0, 5_000_000])}
    hosts = {"ranks_per_host": chance.choice([1, 2, 8]), "steps": chance.choice([1, 2])}
    truth = write_cluster(directory, Cluster(**shape, **hosts, pp=pp, dp=dp, seed=seed))
    operations = truth.transfers.select("rank", "name").unique(maintain_order=True).rows()
    for rank, name in chance.sample(operations, min(chance.choice([0, 1, 3, 10, 20]), len(operations) // 2)):
        lose_op(truth.databases[rank], name)
    for _ in range(chance.choice([0, 1, 2, 5])):
        lose_mark(truth.databases[chance.randrange(pp * dp)], chance.randrange(4))
    if chance.random() < 0.2:
        truth.databases[chance.randrange(pp * dp)].write_bytes(b"")
    return truth


SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in range(10, 30))]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_losses_cause_no_wrong_transfer(tmp_path, seed):
    truth = damaged_cluster(tmp_path, seed)
    timeline = read(truth)
    assert wrong_transfers(timeline, truth).is_empty()
    assert wrong_pairs(timeline, truth) == []


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_a_missing_last_rank_causes_no_wrong_name(tmp_path, shape, pp):
    sizes = {"microbatches": 2 * pp} if "chunks" in shape else {}
    truth = write_cluster(tmp_path, Cluster(**{**shape, **sizes}, pp=pp))
    truth.databases[pp - 1].write_bytes(b"")
    timeline = read(truth)
    named = actions_of(timeline).drop_nulls("microbatch")
    assert named.join(_comparable(truth.actions), on=ACTION_COLUMNS, how="anti").is_empty()
    assert wrong_transfers(timeline, truth).is_empty()


def test_context_parallel_ranks_have_their_stage(tmp_path):
    truth = write_cluster(tmp_path, Cluster(**DUALPIPEV, cp=2, dp=2))
    timeline = read(truth)
    assert_frame_equal(actions_of(timeline), _comparable(truth.actions))
    assert timeline.ranks["pp"].to_list() == [rank // 4 for rank in range(16)]
    assert timeline.ranks["cp"].to_list() == [0, 1] * 8


def test_infers_an_undeclared_layout_and_reports_it(tmp_path):
    truth = write_cluster(tmp_path, Cluster(declared=False))
    for path in truth.databases.values():
        edit(path, "DELETE FROM META_DATA")
    timeline = read(truth)
    assert_frame_equal(actions_of(timeline), _comparable(truth.actions))
    assert wrong_transfers(timeline, truth).is_empty()
    text = (
        "no profile records the pipeline layout; "
        "pipeline ranks are inferred from the order in which micro-batch 0 arrives"
    )
    assert (None, text, 4) in diagnosed(timeline, "info")


def test_a_layout_in_the_options_takes_precedence(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    for path in truth.databases.values():
        edit(path, "DELETE FROM META_DATA")
    timeline = read(truth, layout=Layout(pp=4), schedule="1f1b", microbatches=8)
    assert_frame_equal(actions_of(timeline), _comparable(truth.actions))
    assert timeline.ranks["schedule"].to_list() == ["1f1b"] * 4


def test_an_empty_first_rank_hides_nothing_of_the_others(tmp_path):
    truth = write_cluster(tmp_path, Cluster(**DUALPIPEV))
    truth.databases[0].write_bytes(b"")
    timeline = read(truth)
    assert_frame_equal(actions_of(timeline), _comparable(truth.actions.filter(pl.col("rank") > 0)))
    assert wrong_transfers(timeline, truth).is_empty()
    # Rank 0 sent messages of two kinds, whose common order is not recorded.
    of_others = truth.transfers.filter(pl.col("rank") > 0)
    from_first = of_others.filter(pl.col("kind").str.starts_with("recv"), pl.col("peer") == 0)
    assert named_transfers(timeline).height == of_others.height - from_first.height
    path = truth.databases[0]
    assert (0, f"not read: {path}: not an SQLite database: it is empty (0 bytes)", 1) in diagnosed(
        timeline, "error"
    )


def test_a_truncated_profile_is_read_up_to_the_cut(tmp_path):
    truth = write_cluster(tmp_path, Cluster(steps=6, noise_tasks=2_000))
    path = truth.databases[2]
    size = path.stat().st_size
    os.truncate(path, size - size // 4)
    timeline = read(truth)
    assert timeline.is_partial
    errors = [text for rank, text, _ in diagnosed(timeline, "error") if rank == 2]
    assert errors
    assert all(
        "SQLite" in text or text.startswith("table ") or "no task" in text or "no mark" in text
        for text in errors
    )
    others = [rank for rank in truth.databases if rank != 2]
    assert timeline.steps.filter(pl.col("rank").is_in(others)).height == 18


@pytest.mark.parametrize("table", ["MSTX_EVENTS", "TASK", "STRING_IDS"])
def test_a_missing_table_is_reported_and_affects_one_rank_only(tmp_path, table):
    truth = write_cluster(tmp_path, Cluster())
    edit(truth.databases[3], f"DROP TABLE {table}")
    timeline = read(truth)
    assert (3, f"table {table} is missing", 1) in diagnosed(timeline, "error")
    assert timeline.steps["rank"].unique().to_list() == [0, 1, 2]
    assert 3 in timeline.ranks["rank"]


def test_a_missing_column_is_reported(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    edit(truth.databases[1], "ALTER TABLE TASK RENAME COLUMN connectionId TO correlationId")
    timeline = read(truth)
    assert (1, "table TASK has no column connectionId", 1) in diagnosed(timeline, "error")
    assert timeline.steps["rank"].unique().to_list() == [0, 2, 3]


def test_a_locked_profile_is_reported_and_the_others_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr("stagescope.ingest.sqlite_access.BUSY_SECONDS", 0.01)
    truth = write_cluster(tmp_path, Cluster())
    with closing(sqlite3.connect(truth.databases[0], isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        timeline = read(truth)
    path = truth.databases[0]
    assert (0, f"not read: {path}: SQLite cannot read it: database is locked", 1) in diagnosed(
        timeline, "error"
    )
    assert timeline.ranks["rank"].to_list() == [1, 2, 3]


def test_raises_if_no_profile_is_usable(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=2))
    for path in truth.databases.values():
        path.write_bytes(b"not a database at all")
    with pytest.raises(InputError, match="not an SQLite database: it begins with b'not a databa'"):
        read(truth)


def test_profiles_without_any_mark_are_an_error(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=2))
    for path in truth.databases.values():
        edit(path, "DELETE FROM MSTX_EVENTS")
    with pytest.raises(InputError, match="and 1 more profiles: no mark of a forward or backward"):
        read(truth)


def test_reading_changes_no_file(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in truth.databases.values()}
    read(truth)
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".db-wal", ".db-shm", ".db-journal")]


def test_reads_the_newest_profile_of_a_rank_and_reports_older_ones(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    old = truth.databases[1].parents[1]
    new = old.with_name(old.name.replace("20251120", "20251121"))
    shutil.copytree(old, new)
    timeline = read_profiles(
        [*truth.databases.values(), new / "ASCEND_PROFILER_OUTPUT" / truth.databases[1].name]
    )
    newer = str(new / "ASCEND_PROFILER_OUTPUT" / truth.databases[1].name)
    assert timeline.ranks["source"].to_list()[1] == newer
    text = f"an older profile of the same rank was ignored; the newest is {newer}"
    assert diagnosed(timeline, "warning") == [(1, text, 1)]
    assert timeline.diagnostics["source"].to_list() == [str(truth.databases[1])]


def test_finds_profiles_behind_links_and_in_one_directory(tmp_path):
    truth = write_cluster(tmp_path / "real", Cluster())
    (tmp_path / "run").mkdir()
    for rank in (0, 1):
        folder = truth.databases[rank].parents[1]
        (tmp_path / "run" / folder.name).symlink_to(folder)
    both = tmp_path / "run" / "both_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    both.mkdir(parents=True)
    for rank in (2, 3):
        shutil.copyfile(truth.databases[rank], both / truth.databases[rank].name)
    timeline = read_inputs(find_inputs([tmp_path / "run"], Registry((READER,), ())))
    assert_frame_equal(actions_of(timeline), _comparable(truth.actions))


def test_declared_sizes_reveal_a_missing_rank(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    shutil.rmtree(truth.databases[2].parents[1])
    timeline = read_inputs(find_inputs([tmp_path], Registry((READER,), ())))
    assert (None, "no recording of rank 2: the run declared 4 ranks", 1) in diagnosed(timeline, "error")
    assert wrong_transfers(timeline, truth).is_empty()


def test_every_file_is_reported_when_it_has_been_read(tmp_path):
    truth = write_cluster(tmp_path, Cluster())
    truth.databases[3].write_bytes(b"")
    seen = []
    read(truth, on_read=seen.append)
    assert seen == sorted(truth.databases.values())


def test_times_are_those_of_the_device(tmp_path):
    truth = write_cluster(tmp_path, Cluster(pp=1, steps=1, microbatches=1))
    assert read(truth).spans["start_ns"].min() == EPOCH_NS
