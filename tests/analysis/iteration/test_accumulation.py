"""Steps are grouped by optimizer steps, as far apart as most of them are."""

from __future__ import annotations

import polars as pl
import pytest

from stagescope.analysis.iteration.accumulation import find_accumulation, steps_with_optimizer


def grouped(steps, optimizer):
    spans = pl.DataFrame(
        {"step": optimizer, "kind": ["optimizer"] * len(optimizer)}, schema_overrides={"step": pl.Int32}
    )
    return find_accumulation(pl.Series(steps, dtype=pl.Int32), steps_with_optimizer(spans))


@pytest.mark.parametrize(
    ("steps", "optimizer", "iterations", "size"),
    [
        (range(4), range(4), [0, 1, 2, 3], 1),
        (range(4), [], [0, 1, 2, 3], 1),
        (range(4), [3], [0, 1, 2, 3], 1),
        (range(5), [0, 1, 3, 4], [0, 1, 2, 3, 4], 1),
        (range(6), [2, 5], [0, 0, 0, 3, 3, 3], 3),
        (range(1, 7), [2, 4, 6], [1, 1, 3, 3, 5, 5], 2),
        (range(8), [1, 3, 7], [0, 0, 2, 2, 4, 4, 6, 6], 2),
        (range(4, 12), [5, 8, 11], [4, 4, 6, 6, 6, 9, 9, 9], 3),
    ],
    ids=[
        "every step", "none recorded", "a single one", "one skipped", "of three steps", "from step 1",
        "one of two skipped", "recorded from the middle",
    ],
)  # fmt: skip
def test_iterations_end_with_optimizer_steps(steps, optimizer, iterations, size):
    found = grouped(steps, list(optimizer))
    assert found.table["iteration"].to_list() == iterations
    assert found.steps_per_iteration == size


def test_iterations_of_which_a_step_is_missing_are_incomplete():
    found = grouped(range(4, 13), [5, 8, 11])
    assert found.table["is_complete"].to_list() == [False] * 2 + [True] * 6 + [False]
    assert found.size_among(range(6, 12)) == 3
    assert found.size_among(range(7, 12)) == 1
