"""Functional collectives that are differentiated, and functional sends and receives: two real ranks, one comes late."""

from __future__ import annotations

import os

import polars as pl
import pytest

pytest.importorskip("torch")

from process_groups import once
from scratch import scratch_directory
from stagescope import api as workflow
from stagescope.model.collectives import find_collectives
from stagescope.record.frameworks.torch_functional import Handle
from stagescope.record.launch import recording_environment
from trainings import TESTS, run_ranks

pytestmark = pytest.mark.slow

RANKS, CALLS, LATE_NS = 2, 3, 100_000_000
WHOLE, HALF = 8 * 4 * RANKS, 8 * 4
FORWARD = [("all_gather", WHOLE), ("reduce_scatter", WHOLE), ("all_to_all", HALF), ("all_gather", WHOLE)]
BACKWARD = [("reduce_scatter", WHOLE), ("all_to_all", HALF), ("all_gather", WHOLE), ("reduce_scatter", WHOLE)]


@once
def train(*, recorded=True, compiled=True):
    """Return where a training recorded, and what its ranks have printed."""
    directory = scratch_directory("functional")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if recorded:
        environment = recording_environment(directory, steps=None, run="run", inherited=environment)
    done = run_ranks(
        [str(TESTS / "functional_training.py"), str(CALLS), *["compiled"] * compiled],
        environment,
        ranks=RANKS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return directory, sorted(done.stdout.splitlines())


def test_collectives_of_gradients_are_recorded_with_their_size_and_wait():
    table = find_collectives(workflow.read(train()[0]).spans).sort("rank", "sequence")
    for rank in range(RANKS):
        found = table.filter(rank=rank)
        assert found.select("operation", "bytes").rows() == (FORWARD + BACKWARD) * CALLS
        assert found["sequence"].to_list() == list(range(8 * CALLS))
    assert table["exposed_ns"].null_count() == 0
    # What rank 0 waits for is the first collective of the backward, to which rank 1 comes late.
    first = table.filter(pl.col("rank") == 0, pl.col("sequence") % 8 == 4)
    assert first["operation"].unique().to_list() == ["reduce_scatter"]
    assert first["exposed_ns"].min() > LATE_NS / 2
    assert first["last_rank"].unique().to_list() == [1]


def test_sends_and_receives_of_compiled_code_are_recorded_like_those_of_other_code():
    columns = ["rank", "step", "kind", "peer", "bytes", "pair", "name"]
    compiled, plain = (
        workflow.read(train(compiled=compiled)[0]).spans.filter(pl.col("kind").is_in(["send", "recv"]))
        for compiled in (True, False)
    )
    assert compiled.height == RANKS * CALLS * 3
    assert sorted(compiled.select(columns).rows()) == sorted(plain.select(columns).rows())
    assert compiled.filter(kind="recv")["wait_end_ns"].null_count() == 0


def test_results_and_gradients_are_equal_to_the_bit_with_and_without_the_recorder():
    assert train()[1] == train(recorded=False)[1]


class Result:
    """Takes the place of a tensor."""


def test_a_result_that_was_dropped_is_waited_for_by_nothing():
    result = Result()
    kept, dropped = Handle(result), Handle(Result())
    assert (kept.is_dropped, dropped.is_dropped, Handle().is_dropped) == (False, True, False)
