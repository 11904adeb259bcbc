"""Coordinates of ranks in real trainings whose replicas are stated by DeviceMesh, DDP, FSDP2 or process groups."""

from __future__ import annotations

import os

import pytest

from stagescope import api
from stagescope.record.launch import recording_environment
from trainings import TESTS, run_ranks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("way", "dp", "tp"),
    [
        ("mesh", [0, 0, 1, 1], [None] * 4),
        ("hybrid", [0, 0, 1, 1], [None] * 4),
        ("tensor", [None] * 4, [0, 1, 0, 1]),
        ("ddp", [0, 0, 1, 1], [None] * 4),
        ("fsdp", [0, 0, 1, 1], [None] * 4),
        ("plain", [0, 0, 1, 1], [None] * 4),
        ("none", [None] * 4, [None] * 4),
    ],
)
def test_coordinates_are_those_of_the_groups(tmp_path, way, dp, tp):
    plain = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment = recording_environment(tmp_path, steps=None, run=way, inherited=plain)
    done = run_ranks([str(TESTS / "parallel_training.py"), way], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "stagescope" not in done.stderr
    ranks = api.read(tmp_path).ranks
    assert (ranks["dp"].to_list(), ranks["tp"].to_list()) == (dp, tp)
    assert ranks["pp"].to_list() == ([0, 0, 1, 1] if way == "tensor" else [0, 1, 0, 1])
