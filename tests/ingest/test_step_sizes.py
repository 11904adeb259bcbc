"""Limits on the number of stages of a run, and of micro-batches of a step."""

from pathlib import Path

import polars as pl
import pytest

from stagescope.api import read, store
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import LIMITS, limit

COUNT = 20_000


def write_run(path, **columns):
    number = pl.int_range(COUNT, eager=True)
    rows = {"rank": 0, "lane": "compute", "kind": "forward", "step": 0, "stage": 0, "microbatch": 0}
    times = {"start_ns": number * 10, "end_ns": number * 10 + 5}
    pl.DataFrame({**rows, **times, **columns}).write_parquet(path)
    return path


NUMBERS = pl.int_range(COUNT, eager=True)


@pytest.mark.parametrize(
    ("name", "column", "what"),
    [
        ("stages", "stage", "the number of stages is 20,000, more than the limit of 12,000"),
        (
            "microbatches",
            "microbatch",
            "the number of micro-batches of one step is 20,000, more than the limit of 12,000",
        ),
    ],
)
def test_more_than_the_limit_is_refused_with_its_name(tmp_path, name, column, what):
    path = write_run(tmp_path / "run.parquet", **{column: NUMBERS})
    with pytest.raises(InputError) as caught:
        read(path)
    assert what in str(caught.value)
    assert f"--limit {name}={COUNT}" in caught.value.hint
    assert read(path, limits={name: COUNT}).spans.height == COUNT


def test_the_limit_holds_for_stored_runs(tmp_path):
    path = write_run(tmp_path / "run.parquet", microbatch=NUMBERS)
    store(path, out=tmp_path / "stored", limits={"microbatches": 0})
    with pytest.raises(InputError, match="the number of micro-batches of one step"):
        read(tmp_path / "stored")


def test_the_error_of_a_stored_run_names_its_directory(tmp_path):
    path = write_run(
        tmp_path / "run.parquet", stage=NUMBERS % 4, microbatch=NUMBERS % 8, step=NUMBERS // 2000
    )
    store(path, out=tmp_path / "stored")
    for limits, place in (({"stages": 1}, "stored: "), ({"microbatches": 1}, "stored, step 0: ")):
        with pytest.raises(InputError) as caught:
            read(tmp_path / "stored", limits=limits)
        assert f"{place}the number of " in str(caught.value)


def test_a_limit_that_is_stated_holds_for_recordings():
    recordings = Path(__file__).parents[1] / "data" / "recordings" / "v1"
    stages = read(recordings).spans["stage"].drop_nulls().n_unique()
    assert read(recordings, limits={"stages": stages}).spans.height
    with pytest.raises(InputError, match=f"the number of stages is {stages}, more than the limit of 1"):
        read(recordings, limits={"stages": 1})


@pytest.mark.parametrize("steps", [{}, {"steps": "1:3"}], ids=["all steps", "some steps"])
@pytest.mark.parametrize("name", ["stages", "microbatches"])
def test_a_limit_that_is_stated_holds_where_recordings_are_stored_in_parts(name, steps, tmp_path):
    recordings = Path(__file__).parents[1] / "data" / "recordings" / "v1"
    assert store(recordings, out=tmp_path / "run", limits={name: 1_000}, **steps).manifest.span_count
    with pytest.raises(InputError, match=r"the number of .* is \d, more than the limit of 1"):
        store(recordings, out=tmp_path / "other", limits={name: 1}, workers=2, **steps)


def test_numbers_that_go_on_through_a_run_are_no_large_step(tmp_path):
    path = write_run(tmp_path / "run.parquet", microbatch=NUMBERS, step=NUMBERS // 100)
    found = read(path)
    assert found.spans["microbatch"].n_unique() == COUNT > limit("microbatches")
    assert found.diagnostics.filter(code="values.impossible").is_empty()


@pytest.mark.parametrize("value", [0, 2**31, 2**62])
@pytest.mark.parametrize("name", [each.name for each in LIMITS])
def test_any_limit_can_be_removed_or_be_larger_than_any_number(tmp_path, name, value):
    path = write_run(tmp_path / "run.parquet")
    assert read(path, limits={name: value}).spans.equals(read(path).spans)
