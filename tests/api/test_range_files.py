"""Files of a run while it is analyzed in ranges of steps."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stagescope.api import range_files
from stagescope.api.detached_tables import write_table
from stagescope.api.range_files import WINDOWS, divide_by_steps, windows_around
from stagescope.vocabulary.steps import StepRange

RANGES = (StepRange(0, 2), StepRange(2, 3), StepRange(3, 7))


def windows(ranks, steps):
    """Return rows as those of step_bubbles, sorted by step and rank."""
    rows = [(step, rank, rank // 2 * 2, 100 * step + rank) for step in steps for rank in ranks]
    names = {"step": pl.Int32, "rank": pl.Int32, "pipeline": pl.Int32, "window_ns": pl.Int64}
    return pl.DataFrame(rows, schema=names, orient="row")


SURVEYED = [windows([0, 1], range(7)), windows([2, 3], [0, 1, 4, 6]), windows([4], []), windows([5], [2])]
WHOLE = pl.concat(SURVEYED).sort("step", "rank")


@pytest.fixture(params=[1, 5, 1_000_000], ids=["range by range", "some", "at once"])
def divided(request, tmp_path, monkeypatch):
    monkeypatch.setattr(range_files, "WINDOWS_AT_ONCE", request.param)
    files = [tmp_path / f"surveyed-{number}.arrow" for number in range(len(SURVEYED))]
    for rows, file in zip(SURVEYED, files, strict=True):
        write_table(rows, file)
    return divide_by_steps(files, RANGES, tmp_path / WINDOWS)


def test_windows_of_the_ranges_are_all_windows_in_order(divided):
    assert_frame_equal(divided(), WHOLE)
    parts = list(divided.parts())
    assert [rows["step"].unique().sort().to_list() for rows in parts] == [[0, 1], [2], [3, 4, 5, 6]]
    assert_frame_equal(pl.concat(divided.parts()), WHOLE)  # again


@pytest.mark.usefixtures("divided")
def test_a_worker_gets_the_windows_of_the_steps_next_to_its_range(tmp_path):
    for number, steps in enumerate(RANGES):
        around = pl.col("step").is_between(steps.start - 1, steps.stop)
        assert_frame_equal(windows_around(tmp_path, number, steps), WHOLE.filter(around))


def test_a_range_without_windows_has_an_empty_file(tmp_path):
    write_table(windows([0, 1], [0, 5]), tmp_path / "surveyed.arrow")
    divided = divide_by_steps([tmp_path / "surveyed.arrow"], RANGES, tmp_path / WINDOWS)
    assert [rows.height for rows in divided.parts()] == [2, 0, 2]
