"""Groups of ranks that take part in the same iterations."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stagescope.analysis.iteration.attendance import find_attendance


def drawn_iterations(seed, steps=12, ranks=20):
    """Return iterations of which some ranks are missing: those of one half in common, and others one by one."""
    random = np.random.default_rng(seed)
    every = pl.DataFrame(
        {"step": np.repeat(np.arange(steps), ranks), "rank": np.tile(np.arange(ranks), steps)}
    )
    every = every.cast(pl.Int32).with_columns(rank=pl.col("rank") * 3)  # ranks without actions are not in it
    late = (pl.col("rank") >= 3 * ranks // 2) & (pl.col("step") >= random.integers(steps))
    lost = pl.Series(random.random(every.height) < random.choice([0, 0.02]))
    return every.filter(~late & ~lost)


@pytest.mark.parametrize("seed", range(12))
def test_a_rank_takes_part_in_the_steps_of_its_group(seed):
    iterations = drawn_iterations(seed)
    asked = pl.Series("step", [2, 3, 3, 5, 11, 40], dtype=pl.Int32)
    parts = iterations.sort("step").partition_by("step")
    groups, steps = find_attendance(parts, iterations["rank"], asked)
    expected = iterations.filter(pl.col("step").is_in(asked.implode()))
    found = groups.join(steps, on="group").select("step", "rank")
    assert sorted(found.rows()) == sorted(expected.rows())
    assert groups["rank"].to_list() == iterations["rank"].unique().sort().to_list()
    assert groups["group"].n_unique() == expected.group_by("rank").agg(pl.col("step").sort())[
        "step"
    ].n_unique() + (expected["rank"].n_unique() < iterations["rank"].n_unique())


def test_ranks_that_always_take_part_are_one_group():
    iterations = pl.DataFrame(
        {"step": [0, 0, 1, 1], "rank": [4, 7, 4, 7]}, schema_overrides={"step": pl.Int32}
    )
    groups, steps = find_attendance([iterations], iterations["rank"], iterations["step"])
    assert groups["group"].to_list() == [0, 0]
    assert steps.rows() == [(0, 0), (0, 1)]
