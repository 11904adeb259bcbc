"""Traces of rocprofv3 in both formats: complete runs and unsuitable files."""

import gzip
import json
import sqlite3
from contextlib import closing

import polars as pl
import pytest

import stagescope
from drawing import timeline_from_text
from nsight_reports import ENGINE, GEMM, Planted
from rocprof_traces import BOOT_NS, rocprof_json, write_rocpd, write_rocprof_json
from stagescope.vocabulary.errors import InputError

DRAWING = """
F0 F1 .  B0 .  B1
.  F0 B0 F1 B1 .
"""
LATE_NS = 700_000
"""Delay from launch to kernel: longer than any range, so that host times alone give a wrong result."""

GENERIC = 9
NAMES = {GEMM: "Cijk_Ailk_Bljk", 2: "ncclDevKernel_SendRecv", GENERIC: "ncclDevKernel_Generic_4"}


def planted_rank(drawn, rank):
    planted = Planted()
    pid = 100 + rank
    for row in drawn.spans.filter(pl.col("rank") == rank).iter_rows(named=True):
        start, end = row["start_ns"], row["end_ns"]
        letter = "F" if row["kind"] == "forward" else "B"
        planted.range(f"{letter}{row['stage']}.{row['microbatch']} step 0", start, end, pid=pid)
        tid = 1 if letter == "F" else ENGINE
        middle = (start + end) // 2
        planted.kernel(start + 1, start + LATE_NS, middle + LATE_NS, pid=pid, tid=tid, device=rank)
        planted.kernel(end - 1, middle + LATE_NS, end + LATE_NS, pid=pid, tid=tid, device=rank)
    return planted


@pytest.fixture(params=["db", "json", "json.gz"])
def run(request, tmp_path):
    """Return a directory with one trace per rank of a drawn timeline; its times are device times."""
    drawn = timeline_from_text(DRAWING)
    for rank in (0, 1):
        planted, path = planted_rank(drawn, rank), tmp_path / f"rank{rank}_results.{request.param}"
        if request.param == "db":
            write_rocpd(path, planted)
        else:
            write_rocprof_json(path, planted)
        if request.param == "json.gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    return tmp_path, drawn


def test_recovers_a_drawn_run_at_device_times(run):
    folder, drawn = run
    columns = ["rank", "kind", "stage", "microbatch", "start_ns", "end_ns"]
    wanted = drawn.spans.with_columns(pl.col("start_ns", "end_ns") + LATE_NS + BOOT_NS).select(columns)
    found = stagescope.read(folder, align=False)
    assert found.spans.select(columns).equals(wanted)
    assert found.spans["lane"].unique().to_list() == ["compute"]


def test_processes_of_a_machine_share_its_clock(run):
    found = stagescope.read(run[0], align=False)
    assert (
        found.ranks.select("device", "machine", "clock").rows()
        == [("AMD Instinct MI355X", "node1", "node1/time since boot")] * 2
    )
    assert found.clocks["error_hi_ns"].to_list() == [0]


def test_processes_of_one_json_file_are_ranks_by_their_device(tmp_path):
    drawn = timeline_from_text(DRAWING)
    parts = [rocprof_json(planted_rank(drawn, rank))["rocprofiler-sdk-tool"][0] for rank in (1, 0)]
    path = tmp_path / "node_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": parts}))
    found = stagescope.read(path, align=False)
    assert found.spans.select("rank", "stage").unique().sort("rank").rows() == [(0, 0), (1, 1)]


def test_a_generic_kernel_of_rccl_is_a_transfer_in_a_range_of_one_and_a_collective_elsewhere(tmp_path):
    planted = Planted()
    planted.range("PP:0F0", 0, 100)
    planted.kernel(10, 1000, 1100)
    planted.kernel(20, 1100, 1900, name=GENERIC)
    planted.range("PP:0SEND_F0", 200, 300)
    planted.kernel(210, 2000, 2500, name=GENERIC)
    found = stagescope.read(write_rocpd(tmp_path / "rank0_results.db", planted, names=NAMES), align=False)
    rows = found.spans.select("kind", "start_ns", "end_ns").sort("start_ns").rows()
    assert [(kind, start - BOOT_NS, end - BOOT_NS) for kind, start, end in rows] == [
        ("forward", 1000, 1100),
        ("send_forward", 2000, 2500),
    ]


def test_kernels_without_a_recorded_launch_are_counted(tmp_path):
    planted = planted_rank(timeline_from_text(DRAWING), 0)
    planted.launches.clear()
    found = stagescope.read(write_rocpd(tmp_path / "rank0_results.db", planted), align=False)
    assert found.spans["lane"].unique().to_list() == ["host"]
    counted = found.diagnostics.filter(code="kernels.unlaunched")
    assert counted["count"].to_list() == [8]


@pytest.mark.parametrize(
    ("write", "name"), [(write_rocpd, "rank0_results.db"), (write_rocprof_json, "rank0_results.json")]
)
def test_the_error_for_a_trace_without_ranges_explains_what_to_record(tmp_path, write, name):
    planted = Planted()
    planted.kernel(10, 100, 200)
    path = write(tmp_path / name, planted)
    with pytest.raises(InputError) as error:
        stagescope.read(path)
    assert str(error.value) == f"no pipeline action in {path}: it has no roctx range"
    assert "rocprofv3 --kernel-trace --hip-runtime-trace --marker-trace" in error.value.hint


def test_the_error_for_truncated_json_states_that_it_is_not_complete(tmp_path):
    path = write_rocprof_json(tmp_path / "rank0_results.json", planted_rank(timeline_from_text(DRAWING), 0))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError) as error:
        stagescope.read(path)
    assert str(error.value) == f"{path}: not a complete JSON file of rocprofv3: Input data was truncated"


def test_text_that_is_not_valid_is_replaced_with_an_error(tmp_path):
    path = write_rocprof_json(tmp_path / "rank0_results.json", planted_rank(timeline_from_text(DRAWING), 0))
    path.write_bytes(path.read_bytes().replace(b"F0.1 step 0", b"F0.1 step 0\xff"))
    found = stagescope.read(path, align=False)
    assert found.spans.height == 3
    assert found.diagnostics.filter(code="file.damaged").height == 1


def test_a_damaged_trace_of_two_is_named_and_the_other_is_read(tmp_path):
    drawn = timeline_from_text(DRAWING)
    write_rocpd(tmp_path / "rank0_results.db", planted_rank(drawn, 0))
    (tmp_path / "rank1_results.db").write_bytes(b"")
    found = stagescope.read(tmp_path, align=False)
    assert found.ranks["rank"].to_list() == [0]
    assert found.diagnostics.filter(code="file.unreadable")["message"].to_list() == [
        f"not read: {tmp_path / 'rank1_results.db'}: not an SQLite database: it is empty (0 bytes)"
    ]


def test_a_missing_table_is_named(tmp_path):
    planted = planted_rank(timeline_from_text(DRAWING), 0)
    edits = ['DROP TABLE "rocpd_event{run}"']
    with pytest.raises(InputError, match=r"table rocpd_event_\w+ is missing"):
        stagescope.read(write_rocpd(tmp_path / "rank0_results.db", planted, edits=edits))


def test_a_newer_schema_is_refused_in_one_sentence(tmp_path):
    path = write_rocpd(
        tmp_path / "rank0_results.db", Planted(), edits=['CREATE TABLE "rocpd_timestamp{run}" (id INTEGER)']
    )
    with pytest.raises(InputError) as error:
        stagescope.read(path)
    assert str(error.value) == f"{path}: a rocpd database of schema 4, which is not read; schema 3 is"


def test_kernels_are_kept_on_request_with_their_actions(run):
    folder, _ = run
    assert stagescope.read(folder).kernels.is_empty()
    timeline = stagescope.read(folder, align=False, kernels=True)
    found = timeline.kernels
    key = ["rank", "kind", "stage", "microbatch", "step"]
    actions = timeline.spans.select(*key, "start_ns", "end_ns").sort("rank", "start_ns")
    owned = found.group_by(key).agg(pl.min("start_ns"), pl.max("end_ns"), pl.len()).sort("rank", "start_ns")
    assert owned.drop("len").equals(actions.cast(owned.drop("len").schema))
    assert owned["len"].unique().to_list() == [2]
    assert found["category"].unique().to_list() == ["gemm"]


def test_ranges_without_a_thread_are_dropped_and_counted(tmp_path):
    path = tmp_path / "rank0_results.db"
    write_rocpd(path, planted_rank(timeline_from_text(DRAWING), 0))
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        regions = next(name for name in tables if name.startswith("rocpd_region"))
        database.execute(f'UPDATE "{regions}" SET tid = NULL WHERE id = (SELECT max(id) FROM "{regions}")')  # noqa: S608
        database.commit()
    found = stagescope.read(path)
    assert found.spans.height == 3
    assert "events.dropped" in found.diagnostics["code"].to_list()
