"""Collectives in code that torch.compile has generated: two real ranks, one of which comes late."""

from __future__ import annotations

import os

import polars as pl
import pytest

pytest.importorskip("torch")

from process_groups import once
from scratch import scratch_directory
from stagescope import api as workflow
from stagescope.model.collectives import find_collectives
from stagescope.record.launch import recording_environment
from trainings import TESTS, run_ranks

RANKS, CALLS, LATE_NS = 2, 3, 100_000_000
EXPECTED = [
    ("all_reduce", 8 * 8 * 4),
    ("reduce_scatter", 8 * 4),
    ("all_reduce", 2 * 4 * 4),
    ("all_gather", 2 * 4 * 4),
]
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.exhaustive)]


@once
def cache():
    """The folder of compiled code, which all trainings share."""
    return str(scratch_directory("compiled") / "cache")


@once
def compiled(backend, *, recorded=True):
    """Return where a training recorded, and what its ranks have printed."""
    root = scratch_directory("compiled")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": cache()}
    if recorded:
        environment = recording_environment(
            root / "recording", steps=None, run=backend, inherited=environment
        )
    done = run_ranks([str(TESTS / "compiled_training.py"), backend, str(CALLS)], environment, ranks=RANKS)
    assert done.returncode == 0, done.stderr[-3000:]
    return root / "recording", sorted(done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_collective_of_a_compiled_function_is_recorded_once_per_call_with_its_size_and_wait(backend):
    table = find_collectives(workflow.read(compiled(backend)[0]).spans).sort("rank", "sequence")
    each = [("all_reduce", 4)]  # the one that is not compiled, without a handle
    for rank in range(RANKS):
        found = table.filter(rank=rank)
        assert found.select("operation", "bytes").rows() == (EXPECTED + each) * CALLS
        assert found["is_async"].to_list() == [True, True, True, True, False] * CALLS
        assert found["sequence"].to_list() == list(range(5 * CALLS))
    assert not table["exposed_ns"].has_nulls()
    first = table.filter(pl.col("rank") == 0, pl.col("sequence") % 5 == 0, pl.col("sequence") > 0)
    assert first["exposed_ns"].min() > LATE_NS / 2


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_are_equal_to_the_bit_with_and_without_the_recorder(backend):
    assert compiled(backend)[1] == compiled(backend, recorded=False)[1]
