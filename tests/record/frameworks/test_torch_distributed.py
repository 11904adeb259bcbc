"""Real trainings with data parallelism on four gloo processes: their reductions and other collectives."""

from __future__ import annotations

import os
import signal

import numpy as np
import polars as pl
import pytest

from children import run_child
from process_groups import once
from scratch import scratch_directory
from stagescope import api as workflow
from stagescope.ingest.recording.frames import read_contents
from stagescope.model.collectives import find_collectives
from stagescope.record.frameworks.groups import ranks_text
from stagescope.record.frameworks.torch_replicas import _buckets
from stagescope.record.launch import recording_environment
from stagescope.vocabulary.kinds import BY_NAME
from trainings import TESTS, run_ranks

RANKS = 4
STEPS = 4


@once
def train(kind: str, *, recorded: bool = True, detail: str = ""):
    """Return the directory of the recording and what each rank printed."""
    directory = scratch_directory("replicas")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if recorded:
        environment = recording_environment(directory, steps=None, run="replicas", inherited=environment)
    environment["STAGESCOPE_DETAIL"] = detail
    done = run_ranks([str(TESTS / "replicated_training.py"), kind, "0"], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return directory, sorted(done.stdout.splitlines())


def spans_of(kind, *chosen, detail=""):
    return workflow.read(train(kind, detail=detail)[0]).spans.filter(pl.col("kind").is_in(chosen))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_results_are_equal_to_the_bit_with_and_without_the_recorder(kind):
    assert train(kind)[1] == train(kind, recorded=False)[1]


def test_every_replica_records_one_reduction_per_step_with_its_stage_group_and_size():
    reductions = spans_of("ddp", "grad_reduce")
    counts = reductions.group_by("rank", "step").len().sort("rank", "step")["len"].to_list()
    # torch's forward for the shapes of a stage is outside of no_sync: the first backward of all reduces as well.
    assert counts == [2, 1, 1, 1] * RANKS
    assert reductions.select("rank", "stage").unique().sort("rank").rows() == [(0, 0), (1, 1), (2, 0), (3, 1)]
    weights = 6 * (192 * 192 + 192) * 4
    assert reductions["bytes"].unique().to_list() == [weights]


def test_reductions_written_by_hand_reduce_gradients_and_averages_of_losses_do_not():
    reductions = spans_of("hand", "grad_reduce")
    assert set(reductions.group_by("rank", "step").len()["len"]) == {12}
    assert reductions.select("rank", "stage").unique().sort("rank").rows() == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert reductions["bytes"].unique().sort().to_list() == [192 * 4, 192 * 192 * 4]
    others = spans_of("hand", "collective").filter(pl.col("name").str.contains("dp"))
    assert set(others.group_by("rank", "step").len()["len"]) == {1}
    causes = workflow.analyze(workflow.read(train("hand")[0])).iterations
    assert (causes["gradient_reduction_ns"] > 0).all()


def test_backward_ends_where_the_wait_for_the_reduction_begins():
    reductions = spans_of("hook", "grad_reduce").filter(pl.col("step") > 0)
    last = spans_of("hook", "backward").group_by("rank", "step").agg(pl.max("end_ns").alias("computed_ns"))
    together = reductions.join(last, on=["rank", "step"])
    assert together.height == RANKS * (STEPS - 1)
    assert (together["computed_ns"] == together["wait_start_ns"]).all()
    assert (together["start_ns"] <= together["wait_start_ns"]).all()
    assert (together["wait_end_ns"] == together["end_ns"]).all()


def test_slow_reduction_is_no_work_of_its_stage():
    """Stage 1 sleeps 150 ms in its reduction; its backwards take a few milliseconds."""
    blocked = spans_of("hook", "grad_reduce").filter(pl.col("stage") == 1)
    assert ((blocked["wait_end_ns"] - blocked["wait_start_ns"]) >= 150e6).all()
    last = spans_of("hook", "backward").filter((pl.col("stage") == 1) & (pl.col("microbatch") == 3))
    assert (last["end_ns"] - last["start_ns"]).median() < 150e6


def test_neighbor_of_a_slow_reduction_is_reported_to_wait_for_that_and_not_for_the_link():
    report = workflow.analyze(workflow.read(train("hook")[0]))
    delays = report.intermediates.ledger.origins.filter(
        pl.col("cause") == "gradient_reduction", pl.col("added_ns") > 100e6
    )
    assert set(delays.select("rank", "stage").rows()) <= {(1, 1), (3, 1)}
    # On a busy machine a rank may come late itself, so that the reduction delays it for less.
    assert delays.height >= STEPS
    assert "gradient reduction" in report.verdict.why
    waits = report.idle.filter(pl.col("cause") == "gradient_reduction", pl.col("waiting_for") == "reduction")
    assert set(waits.filter(pl.col("end_ns") - pl.col("start_ns") > 100e6)["culprit_rank"]) <= {1, 3}
    faster = report.improvements.filter(pl.col("change").str.starts_with("gradient reduction"))
    assert faster["gain_ns"].sum() > 100e6


def test_sharded_stages_record_the_collectives_that_move_gradients_and_weights():
    reductions = spans_of("fsdp", "grad_reduce")
    operations = reductions["name"].str.split(" in ").list.first()
    assert operations.unique().to_list() == ["reduce_scatter"]
    assert reductions.group_by("rank", "step").len()["len"].to_list() == [6] * RANKS * STEPS
    gathers = spans_of("fsdp", "collective").filter(pl.col("name").str.starts_with("all_gather"))
    assert gathers.filter(pl.col("step") == 1)["rank"].n_unique() == RANKS
    assert gathers["stage"].drop_nulls().len() > 0


def test_collectives_inside_actions_are_counted_and_numbered_but_not_recorded_one_by_one():
    within = spans_of("fsdp", "collective").filter(pl.col("stage").is_not_null())
    assert within.filter(~pl.col("name").str.starts_with("all_gather")).is_empty()
    kinds = ("collective", "grad_reduce")
    for path in sorted(train("fsdp")[0].glob("*.sscope")):
        contents = read_contents(path.read_bytes())
        detailed = read_contents((train("fsdp", detail="collectives")[0] / path.name).read_bytes())
        codes = [BY_NAME[kind].code for kind in kinds]
        few, all_ = (np.isin(one.spans["kind"], codes).sum() for one in (contents, detailed))
        assert sum(contents.header["counted_collectives"].values()) == all_ - few > 0
        assert "counted_collectives" not in detailed.header
    columns = ["group", "rank", "step", "sequence", "bytes"]
    few, all_ = (
        find_collectives(workflow.read(train("fsdp", detail=detail)[0]).spans).select(columns)
        for detail in ("", "collectives")
    )
    assert few.join(all_, on=columns, nulls_equal=True, how="anti").is_empty()


def test_collectives_of_a_group_match_on_all_its_ranks():
    table = find_collectives(workflow.read(train("fsdp")[0]).spans)
    assert (
        table["ranks"]
        == table["group"].replace_strict({g: 4 if "0-3" in g else 2 for g in set(table["group"])})
    ).all()
    per_call = table.group_by("group", "sequence").agg(pl.col("operation", "bytes").n_unique())
    assert per_call["operation"].unique().to_list() == per_call["bytes"].unique().to_list() == [1]


def test_the_peer_of_a_collective_with_a_root_is_the_root():
    calls = spans_of("none", "collective").with_columns(
        operation=pl.col("name").str.split(" in ").list.first()
    )
    rooted = calls.filter(pl.col("operation").is_in(["broadcast", "reduce", "gather", "scatter"]))
    roots = {rank: 2 + rank % 2 for rank in range(RANKS)}
    assert rooted.group_by("operation").len()["len"].to_list() == [RANKS] * 4
    assert rooted["peer"].to_list() == [roots[rank] for rank in rooted["rank"].to_list()]
    assert calls.filter(~pl.col("operation").is_in(rooted["operation"].implode()))["peer"].is_null().all()


def test_no_reduction_is_recorded_without_data_parallelism():
    assert spans_of("none", "grad_reduce").is_empty()


def test_recording_is_complete_if_the_training_ends_without_its_exit_functions():
    timeline = workflow.read(train("none")[0])
    assert timeline.diagnostics.is_empty()
    assert timeline.spans.filter(kind="backward").height == RANKS * STEPS * 4


TEN_RANKS = [0, 2, 4, 6, 8, 10, 12, 14, 16, 20]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "3"),
        ([0, 2], "0,2"),
        ([0, 1, 2], "0-2"),
        ([1, 5, 9], "1-9:4"),
        (TEN_RANKS, "0,2,4,6,8,10,12,14,... 10 ranks to 20"),
    ],
)
def test_ranks_of_a_group_are_listed_shortly(ranks, text):
    assert ranks_text(ranks) == text


def test_buckets_are_full_when_they_have_reached_their_size():
    assert _buckets([2, 1, 0], [5, 1, 1], [2, 4]) == [(2, 1), (0,)]
    assert _buckets([0, 1, 2, 3], [4, 4, 4, 4], [1, 8]) == [(0,), (1, 2), (3,)]


def test_everything_is_written_before_the_process_groups_are_destroyed(tmp_path):
    """Launchers such as Ray kill a process as soon as its training has returned."""
    killed = run_child(
        """
        import os, signal, sys
        import torch.distributed as dist
        from stagescope import record
        record.start(sys.argv[1])
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        with record.span("last"):
            pass
        dist.destroy_process_group()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert workflow.read(tmp_path).spans["name"].to_list() == ["last"]
