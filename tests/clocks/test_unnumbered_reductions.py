"""Gradient reductions without numbers connect replicas, and show short delays only to those who waited last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from planted_runs import Shape, random_times, run
from recorded_runs import write_recordings
from stagescope.api import read
from stagescope.clocks import observations, observe, reductions
from stagescope.clocks.alignment import align_clocks
from stagescope.clocks.observations import gather_observations

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


def test_errors_do_not_add_up_along_a_thousand_machines():
    """Machines that are far apart in the ring are compared through the last one to enter."""
    count, steps = 400, 16
    truth = run(replace(random_times(Shape(count, 1, 2, steps, noise=0.05), 2), reduces=True))
    names = [f"clock {number}" for number in range(count)]
    bare = {name: pl.lit(None, pl.Int32) for name in ("tp", "cp")}
    timeline = replace(truth, ranks=truth.ranks.with_columns(**bare, clock=pl.Series(names)))
    random = np.random.default_rng(7)
    offset_ns = random.integers(-(10**6), 10**6, count)
    shift = pl.Series(offset_ns[timeline.spans["rank"].to_numpy()])
    wrong = timeline.with_spans(timeline.spans.with_columns(pl.col("start_ns", "end_ns") + shift))
    found = align_clocks(wrong)
    ahead_ns = found.timeline.spans["start_ns"].to_numpy() - truth.spans["start_ns"].to_numpy()
    ahead_ns -= int(np.median(ahead_ns))
    estimated_ns = [each.estimated_error_ns or 0 for each in found.timeline.alignment.machines]
    assert np.abs(ahead_ns).max() < 60_000
    assert max(estimated_ns) < 100_000


@pytest.mark.parametrize(("most_long", "reach"), [(2_000, 8), (120, 3), (1, 1)])
def test_of_many_machines_each_is_compared_with_those_next_to_it(most_long, reach, monkeypatch):
    count, steps = 40, 30
    monkeypatch.setattr(reductions, "MOST_LONG", most_long)
    truth = run(replace(random_times(Shape(count, 1, 2, steps, noise=0.05), 2), reduces=True))
    numbers = {"rank": range(count), "clock": range(count)}
    clocks = pl.DataFrame(numbers, schema={"rank": pl.Int32, "clock": pl.Int32})
    bare = {name: pl.lit(None, pl.Int32) for name in ("tp", "cp")}
    seen = observe(replace(truth, ranks=truth.ranks.with_columns(**bare)), clocks)
    table = gather_observations([seen], truth.diagnostics, clocks).table.filter(kind="reduction")
    apart = (pl.col("target") - pl.col("source")) % count
    distance = pl.min_horizontal(apart, count - apart)
    stars, table = table.filter(distance > 8), table.filter(distance <= 8)
    short, long = table.filter("waited"), table.filter(~pl.col("waited"))
    assert (table["received_ns"] >= table["sent_ns"]).all()
    assert stars["waited"].all()
    assert stars.group_by("step").agg(pl.n_unique("source"), pl.len()).select(
        "source", "len"
    ).unique().rows() == [(1, count - 17)]
    assert short.select(distance.max()).item() == 8
    assert short.height >= 16 * steps
    assert long.select(distance.max()).item() == reach
    pairs = ["source", "target"]
    assert long.join(short, on=pairs, how="semi").is_empty()
    # Every pair within reach is compared by short delays, or else by all of its delays.
    assert pl.concat([short.filter(distance <= reach), long]).select(pairs).n_unique() == 2 * reach * count
    assert long.height == steps * long.select(pairs).n_unique()


def test_of_many_reductions_those_of_some_steps_are_looked_at(monkeypatch):
    count, steps = 12, 16
    monkeypatch.setattr(observations, "MOST_REDUCTIONS", 1)
    monkeypatch.setattr(observations, "FEWEST_STEPS", 4)
    monkeypatch.setattr(reductions, "MOST_TOGETHER", 1)
    truth = run(replace(random_times(Shape(count, 1, 2, steps, noise=0.05), 2), reduces=True))
    names = [f"clock {number}" for number in range(count)]
    bare = {name: pl.lit(None, pl.Int32) for name in ("tp", "cp")}
    timeline = replace(truth, ranks=truth.ranks.with_columns(**bare, clock=pl.Series(names)))
    numbers = {"rank": range(count), "clock": range(count)}
    clocks = pl.DataFrame(numbers, schema={"rank": pl.Int32, "clock": pl.Int32})
    table = gather_observations([observe(timeline, clocks)], truth.diagnostics, clocks).table
    assert table.filter(kind="reduction")["step"].unique().to_list() == [0, 4, 8, 12]
    shift = pl.col("rank").cast(pl.Int64) * 1_000_000
    wrong = timeline.with_spans(timeline.spans.with_columns(pl.col("start_ns", "end_ns") + shift))
    found = align_clocks(wrong)
    ahead_ns = found.timeline.spans["start_ns"].to_numpy() - truth.spans["start_ns"].to_numpy()
    assert np.abs(ahead_ns - int(np.median(ahead_ns))).max() < 100_000
