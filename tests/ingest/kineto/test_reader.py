"""Traces of torch.profiler: real ones in tests/data, real runs compared with the recorder, and invalid ones."""

import gzip
import json
import os
import pickle
from pathlib import Path

import polars as pl
import pytest

import stagescope
from ingest.kineto.same_run import compared
from places import DATA
from stagescope.cli import main
from stagescope.ingest import processes as parallel
from stagescope.ingest.kineto.rank_trace import read_rank
from stagescope.ingest.kineto.reader import READER
from stagescope.ingest.reader import ReadOptions
from stagescope.model.messages import match_messages
from stagescope.record.launch import recording_environment
from stagescope.schedules import order
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import label
from trainings import SCHEDULES, run_ranks

TRACES = DATA / "kineto"
KEPT = sorted(folder.name for folder in TRACES.iterdir() if folder.is_dir())
CLOSE_NS = 50_000


def paths(schedule):
    return sorted((TRACES / schedule).glob("rank*.json.gz"))


def load(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def save(path, trace):
    path.write_text(trace if isinstance(trace, str) else json.dumps(trace), encoding="utf-8")
    return path


def unsure(found):
    """Return the actions whose edges are off by more than their stated error, or than 50 us if that is larger."""
    off_ns = pl.max_horizontal("start_off_ns", "end_off_ns")
    return found.filter(off_ns > pl.max_horizontal("error_ns", CLOSE_NS))


def messages(timeline, severity):
    return timeline.diagnostics.filter(pl.col("severity") == severity)["message"].to_list()


@pytest.mark.parametrize("schedule", KEPT)
def test_a_real_trace_matches_the_recording_within_the_stated_error(schedule):
    recorded = pl.read_csv(TRACES / schedule / "recorded.txt")
    found = compared(recorded, {rank: read_rank(path) for rank, path in enumerate(paths(schedule))})
    assert (
        found.height
        == recorded.filter(pl.col("kind").str.contains("forward|backward"))
        .filter(~pl.col("kind").str.contains("send|recv"))
        .height
    )
    assert found.select("start_off_ns", "end_off_ns").null_count().row(0) == (0, 0)
    # This run shared two cores with others: a descheduled rank widens the stated error of its edges.
    assert unsure(found).height <= (0.02 if schedule == "1F1B" else 0) * found.height
    assert found["start_off_ns"].median() < CLOSE_NS
    assert found["end_off_ns"].median() < CLOSE_NS


def test_an_annotated_action_excludes_the_wait_for_its_input():
    timeline = stagescope.read(*paths("ZBVZeroBubble"))
    waits = timeline.spans.filter((pl.col("kind") == "recv_forward") & (pl.col("stage") == 3))
    forwards = timeline.spans.filter((pl.col("kind") == "forward") & (pl.col("stage") == 3))
    both = forwards.join(waits, on="microbatch", suffix="_wait")
    assert both.height == 8
    assert (both["start_ns"] >= both["end_ns_wait"]).all()


@pytest.mark.parametrize("schedule", KEPT)
def test_every_transfer_of_a_real_trace_has_a_peer_and_a_match(schedule):
    spans = stagescope.read(*paths(schedule)).spans
    transfers = spans.filter(pl.col("lane") == "comm").filter(pl.col("kind") != "grad_reduce")
    assert transfers.select("peer", "stage", "microbatch").null_count().row(0) == (0, 0, 0)
    ends = transfers.group_by("kind").len().sort("kind")
    counts = dict(ends.with_columns(pl.col("kind").cast(pl.String)).rows())
    assert counts["send_forward"] == counts["recv_forward"] > 0
    assert counts["send_backward"] == counts["recv_backward"] > 0


def test_inferred_1f1b_actions_are_reported_with_their_error():
    timeline = stagescope.read(*paths("1F1B"))
    order = timeline.spans.filter(pl.col("rank") == 1).filter(pl.col("kind").is_in(["forward", "backward"]))
    letters = "".join(
        kind[0].upper() + str(n) for kind, n in order.sort("start_ns").select("kind", "microbatch").rows()
    )
    assert letters == "F0F1F2B0F3B1F4B2F5B3F6B4F7B5B6B7"
    assert timeline.ranks["pp"].to_list() == [0, 1, 2, 3]
    assert len(messages(timeline, "info")) == 4
    assert (
        "inferred from operators, flows and transfers; error of their edges: median"
        in messages(timeline, "info")[0]
    )


def test_1f1b_is_inferred_from_transfers_alone():
    timeline = stagescope.read(TRACES.parent / "kineto_transfers")
    actions = timeline.spans.filter(pl.col("kind").is_in(["forward", "backward"])).sort("start_ns")
    for step in range(2):
        for rank, expected in order("1f1b", ranks=4, microbatches=8).items():
            own = actions.filter((pl.col("step") == step) & (pl.col("rank") == rank))
            labels = [label(*action) for action in own.select("kind", "stage", "microbatch").iter_rows()]
            assert labels == [str(action) for action in expected]
    matched = match_messages(timeline.spans)
    assert matched.height == 2 * 8 * 2 * 3
    assert (matched["recv_end_ns"] >= matched["send_start_ns"]).all()
    assert all("the order of transfers, which is that of 1F1B" in text for text in messages(timeline, "info"))


def test_actions_inferred_from_transfers_match_the_recording_within_the_stated_error(tmp_path):
    for rank, path in enumerate(paths("1F1B")):
        trace = load(path)
        trace["traceEvents"] = [
            one for one in trace["traceEvents"]
            if one.get("cat") == "user_annotation" or one["name"].startswith("c10d::")
        ]  # fmt: skip
        save(tmp_path / f"rank{rank}.json", trace)
    recorded = pl.read_csv(TRACES / "1F1B" / "recorded.txt")
    found = compared(recorded, {rank: read_rank(tmp_path / f"rank{rank}.json") for rank in range(4)})
    assert found.height == 4 * 16
    assert found.select("start_off_ns", "end_off_ns").null_count().row(0) == (0, 0)
    # The machine was busy in this run: four actions are 0.6 to 0.9 ms from a transfer that followed at once.
    assert unsure(found).height <= 0.1 * found.height
    middle = found.filter(
        pl.col("rank").is_in([1, 2])
    )  # a transfer precedes and follows each of their actions
    assert middle["start_off_ns"].median() < CLOSE_NS
    assert middle["end_off_ns"].median() < 3 * CLOSE_NS


def test_an_overlapped_pair_is_two_consecutive_actions():
    spans = stagescope.read(*paths("DualPipeV")).spans.filter(pl.col("pair").is_not_null())
    pairs = spans.group_by("rank", "pair").agg(pl.col("kind").cast(pl.String).sort_by("start_ns"), pl.len())
    assert pairs.height > 10
    assert pairs["kind"].to_list() == [["forward", "backward"]] * pairs.height
    overlap = spans.sort("start_ns").group_by("rank", "pair").agg(pl.first("end_ns"), pl.last("start_ns"))
    assert (overlap["end_ns"] <= overlap["start_ns"]).all()


def test_the_commands_read_a_directory_without_options(capsys):
    assert main(["show", str(TRACES / "GPipe"), "--ascii"]) == 0
    assert capsys.readouterr().out.startswith("Pipeline, 4 ranks, 8 micro-batches, step 0, bubble ")


def test_large_traces_are_read_in_worker_processes(monkeypatch):
    seen = []
    monkeypatch.setattr(parallel, "LARGE_BYTES", 1)
    monkeypatch.setattr(parallel, "core_count", lambda: 2)
    there = READER.read(paths("GPipe"), ReadOptions(on_read=seen.append))
    assert sorted(seen) == paths("GPipe")
    monkeypatch.setattr(parallel, "core_count", lambda: 1)
    assert READER.read(paths("GPipe"), ReadOptions()).spans.equals(there.spans)


def test_a_truncated_trace_yields_everything_before_the_cut(tmp_path):
    whole = [load(path) for path in paths("GPipe")]
    for rank, trace in enumerate(whole):
        text = json.dumps(trace)
        save(tmp_path / f"rank{rank}.json", text[: len(text) // 2] if rank == 2 else text)
    timeline = stagescope.read(tmp_path)
    assert timeline.is_partial
    assert ["truncated" in text for text in messages(timeline, "error")] == [True]
    assert (
        0
        < timeline.spans.filter(pl.col("rank") == 2).height
        < timeline.spans.filter(pl.col("rank") == 1).height
    )


def test_empty_objects_and_invalid_numbers_do_not_lose_actions(tmp_path):
    for rank, path in enumerate(paths("GPipe")):
        trace = load(path)
        trace["traceEvents"][5:5] = [{}, {"ph": "X", "cat": "cpu_op", "args": {"flops": float("nan")}}]
        save(tmp_path / f"rank{rank}.json", trace)
    assert stagescope.read(tmp_path).spans.height == stagescope.read(*paths("GPipe")).spans.height


def test_a_missing_rank_is_reported_and_the_others_are_read():
    timeline = stagescope.read(*paths("ZBVZeroBubble")[:3])
    assert messages(timeline, "error") == ["no recording of rank 3: the run declared 4 ranks"]


def test_traces_of_two_runs_are_rejected(tmp_path):
    for rank, path in enumerate(paths("GPipe")[:3]):
        save(tmp_path / f"rank{rank}.json", load(path))
    other = load(paths("1F1B")[3])
    with pytest.raises(InputError, match="it was recorded at another time"):
        stagescope.read(*sorted(tmp_path.iterdir()), save(tmp_path / "rank3.json", other))
    other["distributedInfo"]["world_size"] = 8
    with pytest.raises(InputError, match="its run had 8 ranks, not 4"):
        stagescope.read(*sorted(tmp_path.iterdir()), save(tmp_path / "rank3.json", other))
    with pytest.raises(InputError, match="two recordings of rank 3"):
        stagescope.read(paths("1F1B")[3], paths("GPipe")[3])


def test_the_error_for_a_trace_without_actions_explains_what_to_record(tmp_path):
    trace = load(paths("GPipe")[0])
    trace["traceEvents"] = [
        one for one in trace["traceEvents"] if one.get("cat") == "cpu_op" and "c10d" not in one["name"]
    ]
    with pytest.raises(
        InputError, match=r"no pipeline action in .*: it has no annotation such as PP:1F0"
    ) as error:
        stagescope.read(save(tmp_path / "rank0.json", trace))
    assert "record_function" in error.value.hint
    assert "stagescope run --also kineto" in error.value.hint


def test_the_recommended_annotation_makes_a_trace_readable(tmp_path):
    trace = load(paths("GPipe")[0])
    renamed = {"Forward": "F0.", "Backward": "B0."}
    for one in trace["traceEvents"]:
        word, _, number = one["name"].partition(" ")
        one["name"] = renamed[word] + number if word in renamed else one["name"]
    actions = stagescope.read(save(tmp_path / "rank0.json", trace)).spans
    assert actions.filter(pl.col("kind") == "forward")["microbatch"].to_list() == list(range(8))


def test_pickles_and_torch_save_files_are_rejected_and_never_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "loaded"),)

    for name, content in (
        ("rank0.json", pickle.dumps(Bomb())),
        ("rank1.json", b"PK\x03\x04archive/data.pkl"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match="is not a recording or trace in a supported format"):
            stagescope.read(path)
    assert not (tmp_path / "loaded").exists()


def test_traces_without_a_rank_are_numbered_with_a_warning(tmp_path):
    for number, path in enumerate(paths("GPipe")):
        trace = load(path)
        del trace["distributedInfo"]
        save(tmp_path / f"trace_{'abcd'[number]}.json", trace)
    timeline = stagescope.read(tmp_path)
    assert timeline.ranks["rank"].to_list() == [0, 1, 2, 3]
    assert "ranks.assumed" in timeline.diagnostics["code"].to_list()


OFTEN_TESTED = ("1F1B", "DualPipeV")
"""Inferred actions, and annotated ones with overlapped pairs; the exhaustive tests have the other schedules."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    [
        name if name in OFTEN_TESTED else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in SCHEDULES
    ],
)
def test_a_run_with_recorder_and_profiler_gives_the_same_actions(tmp_path, schedule):
    script = Path(__file__).parent / "profiled_training.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment = recording_environment(tmp_path / "own", steps=None, run=schedule, inherited=environment)
    done = run_ranks([str(script), schedule, str(tmp_path / "traces")], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    recorded = stagescope.read(tmp_path / "own", align=False).spans.filter(pl.col("step") >= 1)
    traces = {rank: read_rank(tmp_path / "traces" / f"rank{rank}.json") for rank in range(4)}
    found = compared(recorded, traces)
    assert found.select("start_off_ns", "end_off_ns").null_count().row(0) == (0, 0)
    # How close the edges are depends on the load of the machine (benchmarks/kineto_accuracy.py measures it), but they
    # are within their stated error on any machine: a descheduled rank widens that too.
    assert unsure(found).height <= (0.01 if schedule == "1F1B" else 0) * found.height


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    ["1F1B", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("Interleaved1F1B", "GPipe"))],
)
def test_first_step_evaluations_and_gradient_accumulation_match_the_recording(tmp_path, schedule):
    script = Path(__file__).parent / "evaluated_training.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment = recording_environment(tmp_path / "own", steps=None, run=schedule, inherited=environment)
    done = run_ranks([str(script), schedule, str(tmp_path / "traces")], environment, ranks=3)
    assert done.returncode == 0, done.stderr[-3000:]
    recorded, traced = (stagescope.read(tmp_path / name, align=False).spans for name in ("own", "traces"))
    evaluated = recorded.filter(pl.col("step").is_null())
    assert not set(evaluated["kind"]) & {"backward", "backward_input", "backward_weight", "grad_reduce"}
    assert labels_of(traced) == labels_of(recorded)
    assert messages_of(traced) == messages_of(recorded)


def labels_of(spans):
    """Return the actions of each step and rank, in the order in which they ran."""
    actions = spans.filter(pl.col("kind").is_in(["forward", "backward"]) & pl.col("step").is_not_null())
    ordered = actions.sort("start_ns").select("step", "rank", "kind", "stage", "microbatch").rows()
    return {
        place: [label(*action[2:]) for action in ordered if action[:2] == place]
        for place in {action[:2] for action in ordered}
    }


def messages_of(spans):
    """Return the transfers of the steps without their times."""
    transfers = spans.filter(
        pl.col("kind").cast(pl.String).str.contains("send_|recv_") & pl.col("step").is_not_null()
    )
    return sorted(transfers.select("step", "rank", "kind", "stage", "microbatch").rows())
