"""What a process states of itself while DDP's C++ waits for a reduction inside a backward."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from places import TESTS
from stagescope.record.frameworks.bucket_waits import BucketWaits
from stagescope.record.frameworks.groups import Group
from stagescope.record.launch import recording_environment
from trainings import run_ranks

GROUP, OTHER = "default_pg 0,1 (0)", "mesh_dp 0,2 (1)"


@pytest.fixture
def recorder():
    return SimpleNamespace(unfinished=[], in_child=[], waits_in_native_code=[], stage=1)


def run_backward(waits, group):
    """Wait as the function that runs the engine does."""
    waits.begin("model", group, "all_reduce (async)")


def test_a_real_replica_waits_for_the_one_that_has_not_entered_its_backward(tmp_path):
    pytest.importorskip("torch")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment = recording_environment(tmp_path / "rec", steps=None, run="waits", inherited=environment)
    done = run_ranks([str(TESTS / "waiting_replicas.py"), str(tmp_path)], environment, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    states = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.json")}
    waiting, late = states["waiting-0"], states["waiting-1"]
    (group,) = late["groups"]
    number = late["groups"][group]
    (reduction,) = waiting["calls"][0]["for"]
    assert reduction.pop("since_ns") == waiting["calls"][0]["since_ns"] <= waiting["time_ns"]
    assert reduction == {
        "call": "grad_reduce", "name": f"all_reduce (async) in {group}", "pair": number, "stage": 0,
    }  # fmt: skip
    assert waiting["groups"] == {group: number + 1}
    assert not any(call["call"] == "wait" for call in late["calls"])
    for rank in range(2):
        assert states[f"after-{rank}"]["calls"] == []
        assert states[f"after-{rank}"]["groups"] == {group: number + 1}


def test_reductions_of_several_models_are_numbered_in_the_order_of_their_waits(recorder):
    waits, group, other = BucketWaits(recorder), Group(GROUP, 2), Group(OTHER, 2)
    group.number()
    for name, each in (("a", group), ("b", other), ("c", group)):
        waits.begin(name, each, "all_reduce (async)")
    found = waits.describe(
        {test_reductions_of_several_models_are_numbered_in_the_order_of_their_waits.__code__}
    )
    assert [(each["name"].split(" in ")[1], each["pair"]) for each in found["for"]] == [
        (GROUP, 1), (OTHER, 0), (GROUP, 2)
    ]  # fmt: skip
    assert (waits.count(group), waits.count(other)) == (2, 1)
    waits.end("a")
    waits.end("c")
    assert waits.count(group) == 0


def test_a_wait_lasts_only_as_long_as_the_function_that_runs_its_backward(recorder):
    waits, group = BucketWaits(recorder), Group(GROUP, 2)
    run_backward(waits, group)
    assert waits.describe({run_backward.__code__})["for"][0]["pair"] == 0
    assert (
        waits.describe({test_a_wait_lasts_only_as_long_as_the_function_that_runs_its_backward.__code__})
        is None
    )


def test_a_wait_that_has_failed_is_forgotten_before_the_next_step(recorder):
    waits, group = BucketWaits(recorder), Group(GROUP, 2)
    run_backward(waits, group)
    ((pending, forget),) = recorder.unfinished
    assert pending
    forget()
    assert (len(pending), waits.count(group)) == (0, 0)
