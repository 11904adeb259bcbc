"""Chrome traces of paddle.profiler: real ones kept in tests/data, and planted ones."""

import gzip
import json
import subprocess

import polars as pl
import pytest

import stagescope
from peers import INSTALL_SECONDS, paddle_python, peer_variables
from places import DATA, TESTS
from stagescope.cli import main
from stagescope.ingest.paddle.profiler_reader import MOST_PROCESSES, READER
from stagescope.ingest.reader import ReadOptions
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

SAMPLES = sorted((DATA / "paddle_profiler").iterdir())
"""Two processes of a 1F1B pipeline, 4 micro-batches, steps 2 and 3, written by Paddle 3.3.1 on a CPU."""

TRAINING_SECONDS = 240
START_US = 1_795_167_072_410_030


def event(name, start_us, dur_us, **fields):
    """Return one event as Paddle's logger writes it; the label's duration is rounded, `dur` is not."""
    return {
        "name": f"{name}[{dur_us / 1000:.3f} ms]", "pid": 71, "tid": "71(C++)",
        "ts": START_US + start_us, "dur": dur_us, "ph": "X", "cat": "UserDefined",
        "cname": "thread_state_runnable",
        "args": {"start_time": f"{start_us:.3f} us", "end_time": f"{start_us + dur_us:.3f} us"},
        **fields,
    }  # fmt: skip


def step(number, start_us, dur_us, **fields):
    where = {"tid": "71(Python)", "cat": "ProfileStep", **fields}
    return event(f"ProfileStep#{number}", start_us, dur_us, **where)


def run(start_us, dur_us, **fields):
    return event("StandaloneExecutor::run", start_us, dur_us, **fields)


def trace_text(events):
    """Return a trace in the layout of Paddle's logger, with the empty object after the last event."""
    lines = "".join(json.dumps(one, indent=2).replace("\n", "\n  ").join(("  ", ",\n  \n")) for one in events)
    head = '{\n  "displayTimeUnit": "ms",\n  "schemaVersion": "1.0.2",\n  "span_index": "0",\n'
    return f'\n  {head}  "traceEvents": [\n{lines}  {{}}\n  ],\n  "ExtraInfo": {{\n   "71": "MainThread"\n  }}\n}}\n'


STEP = [
    step(5, 0, 100_000.0),
    run(5, 99_000.5),
    event("forward-0", 10, 40.25),
    event("backward-0", 60, 50.5),
    event("optimizer-0", 200, 9.0),
]


@pytest.fixture
def write(tmp_path):
    def write(events, name="host_node-apid_71_time_2026_11_20_09_31_13_204000.paddle_trace.json"):
        path = tmp_path / name
        path.write_text(events if isinstance(events, str) else trace_text(events), encoding="utf-8")
        return path

    return write


def read(*paths):
    return READER.read(paths, ReadOptions())


def diagnosed(timeline, severity):
    table = timeline.diagnostics.filter(pl.col("severity") == severity)
    return [Diagnostic(**row) for row in table.to_dicts()]


def rows(timeline, *columns):
    return timeline.spans.select(columns).rows()


def test_only_traces_of_paddle_are_recognized():
    head = gzip.decompress(SAMPLES[0].read_bytes())[:4096]
    assert READER.recognizes(SAMPLES[0], head)
    assert not READER.recognizes(SAMPLES[0], b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [')


def test_jobs_that_follow_each_other_do_not_overlap_in_a_real_trace():
    for _, jobs in read(*SAMPLES).spans.group_by("rank"):
        assert (jobs["start_ns"][1:] >= jobs["end_ns"][:-1]).all()


def test_reads_every_job_of_a_real_trace_once():
    timeline = read(*SAMPLES)
    jobs = timeline.spans.group_by("rank", "step", "kind").len().sort("rank", "step", "kind").rows()
    assert jobs == [
        (rank, step, kind, count)
        for rank in (0, 1)
        for step in (2, 3)
        for kind, count in (("forward", 4), ("backward", 4), ("optimizer", 1))
    ]
    order = timeline.spans.filter(step=2, rank=0).filter(pl.col("lane") == "compute")
    letters = "".join(
        kind[0] + str(n) for kind, n in order.select("kind", "microbatch").rows() if n is not None
    )
    assert letters == "f0f1b0f2b1f3b2b3"


def test_real_traces_share_the_clock_of_the_host_in_their_names():
    timeline = read(*SAMPLES)
    assert timeline.ranks.select("rank", "machine", "clock").rows() == [
        (0, "vm", "vm/wall clock"),
        (1, "vm", "vm/wall clock"),
    ]
    assert timeline.clocks.select("clock", "offset_ns", "error_hi_ns").rows() == [("vm/wall clock", 0, 0)]


def test_times_are_those_of_ts_and_dur_in_whole_microseconds(write):
    timeline = read(write(STEP))
    start_ns = START_US * 1000
    assert rows(timeline, "kind", "microbatch", "start_ns", "end_ns") == [
        ("forward", 0, start_ns + 10_000, start_ns + 50_000),
        ("backward", 0, start_ns + 60_000, start_ns + 110_000),
        ("optimizer", None, start_ns + 200_000, start_ns + 209_000),
    ]
    assert timeline.steps.rows() == [(5, 0, start_ns, start_ns + 100_000_000)]
    assert diagnosed(timeline, "error") == diagnosed(timeline, "warning") == []


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("forward1-3", ("forward", 1, 3, "forward1")),
        ("backward_b0-2", ("backward_input", 0, 2, "backward_b0")),
        ("backward_w1_reduce-7", ("backward_weight", 1, 7, "backward_w1_reduce")),
        ("recv_forward-1", ("recv_forward", 0, 1, None)),
        ("forward(chunk1)-2", ("forward", 0, 2, "forward(chunk1)")),
        ("prune-4", ("other", None, 4, "prune")),
    ],
)
def test_job_types_mean_the_same_as_in_logs(write, name, meaning):
    timeline = read(write([step(0, 0, 90.0), run(1, 80.0), event(name, 2, 3.0)]))
    assert rows(timeline, "kind", "chunk", "microbatch", "name") == [meaning]


def test_user_events_named_like_a_job_are_ignored(write):
    mine = [event("forward-9", 20, 5.0), event("forward-8", 99_500, 10.0), event("layer 3-1", 30, 2.0)]
    assert rows(read(write([*STEP, *mine])), "kind") == [("forward",), ("backward",), ("optimizer",)]


def test_a_job_outside_every_profile_step_has_no_step(write):
    late = [run(200_000, 50.0), event("forward-0", 200_010, 20.0)]
    timeline = read(write([*STEP, *late]))
    assert rows(timeline, "step") == [(5,), (5,), (5,), (None,)]
    (warning,) = diagnosed(timeline, "warning")
    assert (warning.count, warning.rank) == (1, 0)
    assert "prof.step()" in warning.message


def test_reads_the_rank_from_a_user_given_worker_name(write):
    paths = [write(STEP, f"rank{rank}.paddle_trace.json") for rank in (11, 2)]
    timeline = read(*paths)
    assert timeline.ranks.select("rank", "source").rows() == [(2, str(paths[1])), (11, str(paths[0]))]
    assert diagnosed(timeline, "warning") == []


def test_a_number_in_a_host_name_is_not_a_rank(write):
    paths = [
        write(STEP, f"host_worker{host}pid_{pid}_time_1.paddle_trace.json")
        for host, pid in ((10, 5), (9, 80))
    ]
    timeline = read(*paths)
    assert timeline.ranks.select("rank", "machine").rows() == [(0, "worker9"), (1, "worker10")]
    (warning,) = diagnosed(timeline, "warning")
    assert warning.code == "rank.by_file_order"
    assert timeline.clocks["error_hi_ns"].null_count() == 2


def test_several_windows_of_one_process_are_one_rank(write):
    later = [one | {"ts": one["ts"] + 10**6} for one in [step(9, 0, 10**5), *STEP[1:]]]
    names = [f"host_apid_71_time_2026_11_20_09_31_1{second}_0.paddle_trace.json" for second in (3, 4)]
    timeline = read(*(write(*one) for one in zip((STEP, later), names, strict=True)))
    assert timeline.ranks.height == 1
    assert rows(timeline, "step") == [(5,)] * 3 + [(9,)] * 3


def test_several_processes_in_one_file_are_several_ranks(write):
    other = [one | {"pid": 9} for one in STEP]
    assert read(write([*STEP, *other])).spans["rank"].value_counts().sort("rank").rows() == [(0, 3), (1, 3)]


def test_a_file_of_very_many_processes_is_refused(write):
    path = write([event("forward_0", 10 * pid, 5, pid=pid) for pid in range(MOST_PROCESSES + 1)])
    with pytest.raises(InputError, match=f"events of {MOST_PROCESSES + 1} processes"):
        read(path)


def test_a_trace_with_kernels_warns_of_launch_times(write):
    kernel = event("gemm", 80, 500.0, cat="Kernel", tid=7)
    (warning,) = diagnosed(read(write([*STEP, kernel])), "warning")
    assert warning.code == "jobs.host_times"


def test_a_truncated_trace_is_read_up_to_the_cut(write):
    text = trace_text(STEP)
    for cut in range(text.index('"span_index"'), text.index('"ExtraInfo"'), 17):
        whole = text[:cut].count("\n  },") - 2
        if whole < 1:
            continue
        timeline = read(write(text[:cut]))
        assert timeline.spans.height == whole
        (error,) = diagnosed(timeline, "error")
        assert error.count == 1


OUT_OF_RANGE = [("error", "events.out_of_range", 1)]


@pytest.mark.parametrize(
    ("damage", "height", "found"),
    [
        (lambda text: text.replace(b"MainThread", b"Main\xffThread"), 3, [("warning", "text.invalid", 1)]),
        (
            lambda text: text.replace(b'"optimizer-0', b'"\xffoptimizer-0'),
            2,
            [("warning", "text.invalid", 1)],
        ),
        (
            lambda text: text.replace(b'"dur": 9.0', b'"dur": 18446744073709551616'),
            2,
            [("error", "events.out_of_range", 1)],
        ),
        (lambda text: text.replace(b'"dur": 9.0', b'"dir": 9.0'), 2, [("error", "events.out_of_range", 1)]),
        (lambda text: text + b"}", 3, [("error", "file.damaged", 1)]),
        (lambda text: text[:-4], 3, [("error", "file.damaged", 1)]),
    ],
    ids=["other text", "name", "2^64", "no duration", "bracket", "end"],
)
def test_damage_of_any_part_is_reported(tmp_path, damage, height, found):
    path = tmp_path / "host_a.paddle_trace.json"
    path.write_bytes(damage(trace_text(STEP).encode()))
    timeline = read(path)
    assert timeline.spans.height == height
    damaged = timeline.diagnostics.filter(pl.col("code").is_in([code for _, code, _ in found]))
    assert damaged.select("severity", "code", "count").rows() == found


def test_repeated_events_are_used_once(write):
    timeline = read(write([*STEP, *STEP[2:4]]))
    assert timeline.spans.height == 3
    (error,) = diagnosed(timeline, "error")
    assert (error.code, error.count) == ("events.repeated", 2)


def test_events_that_are_not_read_may_be_alike(write):
    """Paddle's timestamps are whole microseconds, and it infers shapes several times in one."""
    alike = event("PhiKernelInstruction::infermeta[0.190 us]", 70, 0.19)
    timeline = read(write([*STEP, alike, alike]))
    assert timeline.spans.height == 3
    assert diagnosed(timeline, "error") == []


def test_a_quotation_mark_costs_one_event_only(write):
    text = trace_text([*STEP[:3], event("THEIRS", 70, 1.0), *STEP[3:]]).replace("THEIRS", 'my "own" range')
    timeline = read(write(text))
    assert timeline.spans.height == 3
    (error,) = diagnosed(timeline, "error")
    assert (error.count, error.code) == (1, "events.damaged")
    assert error.message.startswith("events are truncated or damaged; omitted (")


def test_a_truncated_compressed_trace_is_reported(tmp_path):
    packed = gzip.compress(trace_text(STEP * 50).encode())
    path = tmp_path / "host_apid_71.paddle_trace.json.gz"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    timeline = read(path)
    assert timeline.is_partial
    assert timeline.spans.height > 0


def test_one_trace_without_a_job_is_an_error_and_the_rest_is_read(write):
    empty = write([step(0, 0, 9.0)], "rank1.paddle_trace.json")
    timeline = read(write(STEP, "rank0.paddle_trace.json"), empty)
    (error,) = diagnosed(timeline, "error")
    assert (error.source, timeline.spans.height) == (str(empty), 3)


def test_traces_without_jobs_are_refused(write):
    path = write([step(0, 0, 9.0)])
    with pytest.raises(
        InputError, match=r"no pipeline action in .*: no event has a name like forward-0\[39.575 ms\]"
    ):
        read(path)


def test_a_file_other_than_a_trace_is_refused(write):
    with pytest.raises(InputError, match="not a readable trace"):
        read(write('{"span_index": "0", "schemaVersion": '))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(INSTALL_SECONDS)
def test_reads_and_shows_a_real_pipeline_under_paddles_profiler(tmp_path, capsys):
    microbatches, steps, traces = 6, 3, tmp_path / "traces"
    script = TESTS / "paddle_training" / "static_executor.py"
    running = [
        subprocess.Popen(
            [paddle_python(), script, traces, f"rank{rank}", *map(str, (rank, 2, microbatches, steps))],
            cwd=tmp_path, env=peer_variables(OMP_NUM_THREADS="1"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    diagnosed = [process.communicate(timeout=TRAINING_SECONDS)[1].decode() for process in running]
    assert [process.returncode for process in running] == [0, 0], diagnosed
    timeline = stagescope.read(traces)
    jobs = timeline.spans.group_by("rank", "step", "kind").len().sort("rank", "step", "kind").rows()
    assert jobs == [
        (rank, step, kind, count)
        for rank in (0, 1)
        for step in range(2, 2 + steps)
        for kind, count in (("forward", microbatches), ("backward", microbatches), ("optimizer", 1))
    ]
    assert main(["show", str(traces), "--step", "3", "--ascii"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Pipeline, 2 ranks, 6 micro-batches, step 3, bubble ")
    assert "error:" not in shown
