"""Gradient reductions without numbers connect replicas, and show short delays only to those who waited last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from planted_runs import Shape, random_times, run
from recorded_runs import write_recordings
from stagescope.api import read

TOLERANCE_NS = 1_000_000
"""Only reductions of 1 ms connect the pipelines, whose ranks enter them some milliseconds apart."""


def test_ranks_that_wait_in_reductions_do_not_look_like_slewed_clocks(tmp_path):
    shape = Shape(pipelines=6, stages=8, microbatches=16, steps=8, noise=0.05)
    truth = run(replace(random_times(shape, 1), reduces=True))
    write_recordings(truth, tmp_path / "run", shape.stages, ranks_per_machine=4, seed=1)
    timeline = read(tmp_path / "run")
    assert not timeline.alignment.slews
    assert [machine.state for machine in timeline.alignment.machines] == ["reference"] + 11 * ["aligned"]
    order = ["rank", "start_ns", "kind", "microbatch"]
    planted = truth.spans.sort(order)["start_ns"].to_numpy()
    found = timeline.spans.sort(order).filter(pl.col("step").is_not_null())
    ahead_ns = found["start_ns"].to_numpy() - planted
    rank = found["rank"].to_numpy()
    # The reference drifts as well: the other clocks are compared with its line.
    rate, offset = np.polyfit(planted[rank == 0] - planted[0], ahead_ns[rank == 0], 1)
    assert np.abs(ahead_ns - offset - rate * (planted - planted[0])).max() < TOLERANCE_NS
