"""The two files of Paddle's pipeline profiler, compared with those of its own script where these are correct."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from typing import Any, NamedTuple

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers import open_browser, query_trace
from drawing import timeline_from_text
from paddle_logs import PaddleRun, write_worker_logs
from peers import INSTALL_SECONDS, paddle_python, peer_variables
from stagescope.exporters.other_tools.paddle_profile import WRITERS, lay_out
from stagescope.ingest.paddle import find_worker_logs, read_worker_logs
from stagescope.ingest.reader import ReadOptions
from stagescope.model import RANKS, SPANS, empty_timeline
from stagescope.model.validate import conform

SCRIPT = "paddle.distributed.auto_parallel.static.profiler_helper_static"
CHROME, PERFETTO = WRITERS
PROBLEMS_SQL = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
SLICES_SQL = (
    "select thread.name, slice.name, slice.ts / 1000, slice.dur / 1000 from slice"
    " join thread_track on thread_track.id = slice.track_id join thread using (utid)"
)


class Slice(NamedTuple):
    """One slice of either file, of either tool; times in whole microseconds."""

    thread: str
    name: str
    category: str
    color: str | None
    start_us: int
    end_us: int


def events_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def thread_names(events):
    """Return the names of threads by their ids; a thread without a name has its id as name."""
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


def our_slices(path):
    events = events_of(path)
    names = thread_names(events)
    return [
        Slice(names[e["tid"]], e["name"], e["cat"], e["cname"], e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["ph"] == "X"
    ]


def their_slices(path):
    """Return the slices of Paddle's script, which writes each begin directly followed by its end."""
    events = events_of(path)
    names = thread_names(events)
    begins, ends = ([e for e in events if e["ph"] == phase] for phase in "BE")
    return [
        Slice(
            names.get(b["tid"], b["tid"]), b["name"], b["cat"], b.get("cname"), round(b["ts"]), round(e["ts"])
        )
        for b, e in zip(begins, ends, strict=True)
    ]


def write_both(timeline, folder):
    return {name: writer.write(timeline, folder / name) for name, writer in WRITERS.items()}


def timeline_of(*jobs, devices=("GPU:0",), machines=None):
    """Return a timeline of jobs written as (rank, kind, micro-batch, start, end) in microseconds."""
    spans = pl.DataFrame(
        jobs, ["rank", "kind", "microbatch", "start_ns", "end_ns"], orient="row"
    ).with_columns(pl.col("start_ns", "end_ns") * 1000, lane=pl.lit("compute"), step=pl.lit(0))
    ranks = pl.DataFrame(
        {"rank": range(len(devices)), "device": devices, "machine": machines or [None] * len(devices)},
        schema_overrides={"machine": pl.String},
    )
    bare = empty_timeline()
    return type(bare)(conform(spans, SPANS), conform(ranks, RANKS), bare.steps, bare.clocks, bare.diagnostics)


def threads_of(timeline):
    """Return thread and name of every job, by time."""
    profile = lay_out(timeline)
    places = profile.slices.filter(pl.col("category") > 0).select("thread", "category", "number").rows()
    return [
        (profile.threads[thread].key, f"{profile.categories[category].stem}{number}")
        for thread, category, number in places
    ]


def test_both_files_contain_the_same_slices_in_time_order(tmp_path):
    timeline = timeline_from_text("F0 F1 B0 B1 O0\n. F0 B0 F1 B1")
    written = write_both(timeline, tmp_path)
    chrome, perfetto = (our_slices(tmp_path / name) for name in (CHROME, PERFETTO))
    assert [one[1:] for one in chrome] == [one[1:] for one in perfetto]
    assert [one.start_us for one in chrome] == sorted(one.start_us for one in chrome)
    assert {one.slice_count for one in written.values()} == {len(chrome)} == {timeline.spans.height + 1}
    assert {name: (tmp_path / name).stat().st_size for name in WRITERS} == {
        name: one.size_bytes for name, one in written.items()
    }


def test_a_slice_has_name_category_and_arguments(tmp_path):
    write_both(timeline_from_text("F0 B0 O0", step=7), tmp_path)
    _, *jobs = [e for e in events_of(tmp_path / PERFETTO) if e["ph"] == "X"]
    assert jobs[0] == {
        "name": "forward_0", "cat": "forward", "ph": "X", "ts": 0, "dur": 1, "pid": 0, "tid": 2334,
        "cname": "thread_state_running",
        "args": {"micro_batch_id": 0, "step": 7, "stage": 0, "chunk": 0},
    }  # fmt: skip
    assert [e["cname"] for e in jobs] == ["thread_state_running", "rail_idle", "rail_response"]


def test_threads_have_the_numbers_of_the_selected_devices(tmp_path):
    timeline = timeline_of((0, "forward", 0, 0, 5), (1, "forward", 0, 5, 9), devices=("GPU:2", "GPU:3"))
    write_both(timeline, tmp_path)
    assert thread_names(events_of(tmp_path / CHROME)) == {"Step": "Step", "GPU2": "GPU2", "GPU3": "GPU3"}
    assert thread_names(events_of(tmp_path / PERFETTO)) == {2333: "STEP", 2334: "GPU:2", 2335: "GPU:3"}


def test_machines_have_the_numbers_in_their_names(tmp_path):
    jobs = [(rank, "forward", 0, rank, rank + 5) for rank in range(3)]
    machines = ["machine2", "machine10", "machine11"]
    write_both(timeline_of(*jobs, devices=["GPU:0"] * 3, machines=machines), tmp_path)
    assert list(thread_names(events_of(tmp_path / PERFETTO)).values()) == [
        "STEP", "GPU:0(machine:2)", "GPU:0(machine:10)", "GPU:0(machine:11)",
    ]  # fmt: skip


def test_machines_of_other_names_are_numbered_in_order(tmp_path):
    jobs = [(rank, "forward", 0, rank, rank + 5) for rank in range(2)]
    write_both(timeline_of(*jobs, devices=["GPU:0"] * 2, machines=["node-a", "node-b"]), tmp_path)
    assert list(thread_names(events_of(tmp_path / CHROME))) == ["Step", "GPU0(machine:0)", "GPU0(machine:1)"]


def test_crossing_jobs_move_to_another_thread_and_nested_jobs_stay():
    timeline = timeline_of(
        (0, "forward", 0, 0, 10),
        (0, "backward", 0, 2, 4),
        (0, "backward", 1, 5, 15),
        (0, "forward", 1, 15, 20),
    )
    assert threads_of(timeline) == [
        ("GPU0", "forward_0"), ("GPU0", "backward_0"), ("GPU0 2", "backward_1"), ("GPU0", "forward_1"),
    ]  # fmt: skip


def test_transfers_have_their_own_thread_and_do_not_extend_the_step():
    timeline = timeline_of(
        (0, "recv_forward", 0, 0, 8), (0, "forward", 0, 8, 12), (0, "send_backward", 0, 10, 30)
    )
    assert threads_of(timeline) == [
        ("GPU0 transfers", "recv_forward_0"), ("GPU0", "forward_0"), ("GPU0 transfers", "send_backward_0"),
    ]  # fmt: skip
    step = lay_out(timeline).slices.filter(category=0).select("start_us", "end_us").rows()
    assert step == [(8, 12)]


def test_a_step_slice_starts_after_the_previous_one():
    first, second = timeline_of((0, "forward", 0, 0, 10)), timeline_of((0, "forward", 0, 6, 18))
    spans = pl.concat([first.spans, second.spans.with_columns(step=pl.lit(1, pl.Int32))])
    steps = lay_out(first.with_spans(spans)).slices.filter(category=0)
    assert steps.select("number", "start_us", "end_us").rows() == [(0, 0, 10), (1, 10, 18)]


def test_a_device_without_a_job_keeps_its_thread(tmp_path):
    write_both(timeline_of((1, "forward", 0, 0, 5), devices=("GPU:0", "GPU:1")), tmp_path)
    assert thread_names(events_of(tmp_path / PERFETTO)) == {2333: "STEP", 2334: "GPU:0", 2335: "GPU:1"}


def test_a_type_with_a_quotation_mark_is_valid_json(tmp_path):
    timeline = timeline_of((0, "other", 0, 0, 5))
    spans = timeline.spans.with_columns(name=pl.lit('my "own" \\ job'))
    write_both(timeline.with_spans(spans), tmp_path)
    assert our_slices(tmp_path / CHROME)[1].name == 'my "own" \\ job_0'


def test_a_timeline_without_jobs_yields_no_slices(tmp_path):
    written = write_both(empty_timeline(), tmp_path)
    assert [one.slice_count for one in written.values()] == [0, 0]
    assert our_slices(tmp_path / CHROME) == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=25))
@settings(deadline=None)
def test_slices_of_one_thread_are_sequential_or_nested(times):
    jobs = [(0, "forward", number, start, start + length) for number, (start, length) in enumerate(times)]
    slices = lay_out(timeline_of(*jobs)).slices.filter(pl.col("category") > 0)
    assert slices.height == len(times)
    for _, thread in slices.group_by("thread"):
        rows = thread.select("start_us", "end_us").rows()
        crossing = [(a, b) for a in rows for b in rows if a[0] < b[0] < a[1] < b[1]]
        assert crossing == []


SAMPLES: dict[str, Any] = {
    "crossing": timeline_of((0, "forward", 0, 0, 10), (0, "backward", 0, 5, 15), (0, "forward", 1, 12, 20)),
    "transfers": timeline_of((0, "recv_forward", 0, 0, 8), (0, "forward", 0, 8, 12)),
    "pipeline": timeline_from_text("F0 F1 B0 B1 O0\n. F0 B0 F1 B1", origin_ns=1_697_793_307_213_987_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_trace_processor_opens_the_file_and_finds_every_slice(tmp_path, sample, name):
    path = tmp_path / name
    WRITERS[name].write(SAMPLES[sample], path)
    problems, slices = query_trace(path, PROBLEMS_SQL, SLICES_SQL)
    assert problems == []
    ours = Counter((s.thread, s.name, str(s.start_us), str(s.end_us - s.start_us)) for s in our_slices(path))
    assert Counter(tuple(map(str, row)) for row in slices) == ours


@pytest.fixture(scope="module")
def browser():
    with open_browser() as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_catapult_opens_the_file_and_finds_every_slice(tmp_path, browser, name):
    path = tmp_path / name
    WRITERS[name].write(SAMPLES["pipeline"], path)
    found = browser.catapult(path).evaluate(
        "() => { const all = []; for (const t of window.model.getAllThreads())"
        " for (const s of t.sliceGroup.slices) all.push([t.name || String(t.tid), s.title]); return all; }"
    )
    assert Counter(map(tuple, found)) == Counter((s.thread, s.name) for s in our_slices(path))


class Difference(NamedTuple):
    """One run on which Paddle's script is correct."""

    run: PaddleRun
    machines: int = 0


DIFFERENCES = {
    "1F1B": Difference(PaddleRun(schedule="1f1b", first_step=20)),
    "FThenB, one device": Difference(PaddleRun(schedule="gpipe", devices=1, microbatches=3)),
    "VPP": Difference(PaddleRun(schedule="interleaved", chunks=2)),
    "ZBH1": Difference(PaddleRun(schedule="zb-h1", noise_lines=2.5)),
    "ZBVPP": Difference(PaddleRun(schedule="zb-v", glog=False, banner=False)),
    "PIR with transfers": Difference(PaddleRun(transfers=True, steps=5)),
    "two machines": Difference(PaddleRun(devices=8, microbatches=16), machines=2),
    "five machines": Difference(PaddleRun(devices=5), machines=5),
}


def write_logs(folder, difference):
    run, machines = difference
    if not machines:
        write_worker_logs(folder, run)
        return
    per_machine = run.devices // machines
    for machine in range(machines):
        ranks = range(machine * per_machine, (machine + 1) * per_machine)
        write_worker_logs(folder / f"machine{machine}", run, ranks=ranks)


RUN_MODULE = """
import json, runpy, sys
module, calls = sys.argv[1], json.loads(sys.argv[2])
for words in calls:
    sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__")
"""
"""Runs a module once per list of arguments."""


def script_arguments(folder, difference):
    per_machine = difference.run.devices // max(1, difference.machines)
    words = ["--devices", ",".join(map(str, range(per_machine))), "--log_dir", str(folder)]
    return [*words, *(["--multi_machine"] if difference.machines else [])]


@pytest.fixture(scope="module")
def script_folders(tmp_path_factory):
    """Return a folder per case with logs and the files of Paddle's script; one process, to import Paddle once."""
    folders = {case: tmp_path_factory.mktemp("logs") / "logs" for case in DIFFERENCES}
    for case, folder in folders.items():
        write_logs(folder, DIFFERENCES[case])
    calls = [script_arguments(folder, DIFFERENCES[case]) for case, folder in folders.items()]
    done = subprocess.run(
        [str(paddle_python()), "-c", RUN_MODULE, SCRIPT, json.dumps(calls)],
        capture_output=True, text=True, check=False, env=peer_variables(), timeout=480,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folders


def with_true_machines(slices, folder):
    """Return slices with machines named after their directories: the script numbers them in listing order."""
    listed = [name for name in os.listdir(folder) if name.startswith("machine")]
    true = {f"(machine:{place})": f"(machine:{name[7:]})" for place, name in enumerate(listed)}
    return [
        one._replace(thread=one.thread.partition("(")[0] + true["(" + one.thread.partition("(")[2]])
        if "(" in one.thread
        else one
        for one in slices
    ]


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_SECONDS)
@pytest.mark.parametrize("case", DIFFERENCES)
def test_every_slice_equals_that_of_paddles_script(tmp_path, script_folders, case):
    difference, folder = DIFFERENCES[case], script_folders[case]
    logs = find_worker_logs(folder, None, multi_machine=difference.machines > 0)
    write_both(read_worker_logs(logs, ReadOptions()), tmp_path)
    for name in WRITERS:
        theirs = with_true_machines(their_slices(folder / name), folder)
        ours = [one for one in our_slices(tmp_path / name) if "transfers" not in one.thread]
        colored = {(one.category, one.color) for one in theirs if one.color}
        assert colored <= {(one.category, one.color) for one in ours}
        assert Counter(one._replace(color=None) for one in ours) == Counter(
            one._replace(color=None) for one in theirs
        )
