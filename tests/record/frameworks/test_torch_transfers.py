"""Sends and receives outside of schedules: a real pipeline of two ranks, and replaced process groups."""

from __future__ import annotations

import os
from types import SimpleNamespace

import polars as pl
import pytest

from observing import during
from process_groups import once
from scratch import scratch_directory
from stagescope import api as workflow
from stagescope.model.collectives import find_collectives
from stagescope.record.frameworks import collectives
from stagescope.record.frameworks.groups import Group
from stagescope.record.frameworks.runs import Runs
from stagescope.record.frameworks.torch_transfers import MOST_EARLY, plain_transfers_of
from stagescope.record.hooks import Guard, observed
from stagescope.record.launch import recording_environment
from stagescope.record.process_state import process_state
from trainings import TESTS, run_ranks

STEPS, WAYS, BYTES = 3, 4, 4 * 16 * 4


@once
def train(*options: str, recorded: bool = True):
    """Return the directory of the recording and what each rank printed."""
    directory = scratch_directory("transfers")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if recorded:
        environment = recording_environment(directory, steps=None, run="transfers", inherited=environment)
    done = run_ranks([str(TESTS / "point_to_point_training.py"), *options], environment, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    return directory, sorted(done.stdout.splitlines())


def real_transfers():
    spans = workflow.read(train("marked")[0]).spans.filter(pl.col("kind").is_in(["send", "recv"]))
    source = pl.when(pl.col("kind") == "send").then("rank").otherwise("peer").alias("source")
    message = pl.col("name").str.strip_prefix("send").str.strip_prefix("recv").alias("message")
    return spans.with_columns(source, message)


def test_losses_and_weights_are_equal_to_the_bit_with_and_without_the_recorder():
    assert train("marked")[1] == train(recorded=False)[1]


def test_every_transfer_is_recorded_once_on_both_ranks_from_the_first_on():
    transfers = real_transfers()
    counts = transfers.group_by("rank", "kind").len()
    assert counts["len"].to_list() == [STEPS * WAYS] * 4
    sends, receives = (transfers.filter(pl.col("kind") == kind) for kind in ("send", "recv"))
    both = sends.join(receives, on=["source", "message", "pair"], validate="1:1")
    assert both.height == 2 * STEPS * WAYS
    assert (both["start_ns"] <= both["end_ns_right"]).all()
    assert transfers["bytes"].unique().to_list() == [BYTES]
    tags = ("", " tag 1", " tag 2", " tag 3")
    assert set(transfers["message"]) == {f"{tag} in default_pg 0,1 (0)" for tag in tags}


def test_transfer_has_its_peer_its_issue_and_its_wait_but_no_place_in_a_pipeline():
    transfers = real_transfers()
    assert (transfers["peer"] == 1 - transfers["rank"]).all()
    assert transfers.select(pl.col("stage", "microbatch").is_null().all()).row(0) == (True, True)
    assert (transfers["wait_start_ns"] >= transfers["start_ns"]).all()
    assert (transfers["wait_end_ns"] == transfers["end_ns"]).all()


COLLECTIVES = {
    ("all_reduce", False): 1,
    ("all_reduce", True): 2 + 2,
    ("all_gather", True): 1,
    ("reduce_scatter", True): 1,
}
"""The collectives of a step by operation and whether they are asynchronous: those of C++ are, too."""


def test_every_collective_is_recorded_once_with_its_number_and_wait_whatever_issued_it():
    spans = workflow.read(train("marked")[0]).spans
    table = find_collectives(spans)
    counts = table.group_by("rank", "operation", "is_async").len().rows()
    assert {(one, is_async, number) for _, one, is_async, number in counts} == {
        (*key, STEPS * number) for key, number in COLLECTIVES.items()
    }
    per_call = table.group_by("group", "sequence").agg(pl.len(), pl.col("operation", "bytes").n_unique())
    assert per_call.select(pl.exclude("group", "sequence")).unique().rows() == [(2, 1, 1)]
    assert per_call["sequence"].max() == STEPS * sum(COLLECTIVES.values()) - 1
    assert not table["exposed_ns"].has_nulls()
    gathers = table.filter(pl.col("operation") == "all_gather")
    assert gathers["bytes"].unique().to_list() == [2 * 4]


class ProcessGroup:
    """A process group in which this process is rank 0."""


@pytest.fixture
def transfers(recorder, monkeypatch):
    monkeypatch.setattr(collectives, "group_of", lambda _: Group("ranks", 2, [4, 6]))
    return plain_transfers_of(recorder)


GROUP = ProcessGroup()


def send(transfers, tag=0, work=None):
    """Send to the other rank of the group, as the wrapper of a process group's method does."""
    call = SimpleNamespace(owner=GROUP, name="send", arguments=[GROUP, [], 1, tag], keywords={})
    if not transfers.ignores((GROUP,)):
        during(transfers.observe(call), lambda: work)


def recorded(recorder, tmp_path):
    recorder.stop("test")
    if not list(tmp_path.glob("**/*.sscope")):
        return []
    spans = workflow.read(tmp_path).spans
    return spans.sort("start_ns").select("name", "pair", "peer").rows()


def test_transfers_before_the_first_step_are_those_of_the_set_up(recorder, tmp_path, transfers):
    send(transfers)
    recorder.begin_step()
    send(transfers)
    assert recorded(recorder, tmp_path) == [("send in ranks", 1, 6)]


def test_transfers_of_a_process_that_does_nothing_else_are_recorded(recorder, tmp_path, transfers):
    for number in range(MOST_EARLY + 1):
        send(transfers, tag=number % 2)
    assert len(recorded(recorder, tmp_path)) == MOST_EARLY + 1


def test_process_that_is_forked_discards_the_transfers_of_its_parent(recorder, tmp_path, transfers):
    send(transfers)
    send(transfers, work=ProcessGroup())
    recorder.restart_in_child()
    assert recorded(recorder, tmp_path) == []


def test_transfers_inside_a_run_of_a_schedule_are_left_to_it(recorder, tmp_path, transfers):
    during(Runs(recorder).observe_step(), lambda: send(transfers))
    assert [name for name, *_ in recorded(recorder, tmp_path)] == []


def test_transfer_that_is_being_issued_is_what_the_process_is_doing(recorder, transfers):
    states = []

    class Group:
        def send(self, *_):
            states.append(process_state(recorder)["calls"])

    send_to = observed(Group.send, transfers.watch, Guard(recorder, "torch.distributed"))
    recorder.begin_step()
    send_to(Group(), [], 1, 3)
    call = states[0][0]
    assert (call["call"], call["peer"], call["name"]) == ("send", 6, "ranks")
