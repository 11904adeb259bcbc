"""What counters show in parts, joined: that of all counters at once."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stagescope.analysis.counters.data_sizes import STEP_DATA, measure_step_data, pipeline_data
from stagescope.analysis.counters.memory import measure_rank_memory, most_memory
from stagescope.analysis.counters.parts import CounterPart, SampledCells, join_counters, show_counters
from stagescope.analysis.counters.slow_clocks import SLOWDOWNS, clock_notes
from stagescope.analysis.iteration.boundaries import ITERATION_STEPS
from stagescope.model import large_tables
from stagescope.model.tables import COUNTERS
from stagescope.model.validate import conform, in_order
from stagescope.vocabulary.steps import StepRange

PIPELINES, STAGES, STEPS, MICROBATCHES = 4, 2, 12, 3
RANKS = PIPELINES * STAGES
SLOW_RANK, WAITING_RANK = 2, 5
COUNTED = range(1, STEPS)
SAMPLED = StepRange(3, 6)
STEP_NS, GIB = 1_000_000_000, 2**30


def pipelines():
    number = np.arange(RANKS, dtype=np.int32)
    return pl.DataFrame({"rank": number, "pipeline": number - number % STAGES})


def ranks(*, has_coordinates=True):
    number = np.arange(RANKS, dtype=np.int32)
    dp = number // STAGES if has_coordinates else [None] * RANKS
    return pl.DataFrame({"rank": number, "dp": pl.Series(dp, dtype=pl.Int32)})


def iterations():
    begin = [step * STEP_NS for step in range(STEPS)]
    rows = {
        "step": range(STEPS),
        "start_ns": begin,
        "end_ns": [at + STEP_NS for at in begin],
        "is_whole": True,
    }
    return pl.DataFrame(rows).select(
        pl.col(each).cast(ITERATION_STEPS.schema[each]) for each in ("step", "start_ns", "end_ns", "is_whole")
    )


def counters(*, counting=PIPELINES, units=("tokens", "samples")):
    """Return counters of all kinds; the first `counting` pipelines count data, at both ends and of some whole steps."""
    random = np.random.default_rng(3)
    rows = [
        {"rank": pipeline * STAGES + stage, "name": name, "step": step, "microbatch": number,
         "value": float(value), "time_ns": step * STEP_NS + number}
        for name in (*units, "longest sequence")
        for (pipeline, step, number), value in np.ndenumerate(random.integers(9, 99, (counting, STEPS, MICROBATCHES)))
        for stage in range(STAGES)
    ]  # fmt: skip
    rows += [
        {"rank": rank, "name": name, "step": 7, "value": value, "time_ns": 7 * STEP_NS}
        for name in units
        for rank in range(0, counting * STAGES, STAGES)
        for value in (100.5, 23.25)
    ]
    for rank in range(RANKS):
        rows.append(
            {
                "rank": rank,
                "name": "allocated memory",
                "value": 3.0 * GIB * rank,
                "time_ns": 5,
                "device": "cuda:1",
            }
        )  # outside of every step
        for step in range(STEPS):
            is_slow = rank == SLOW_RANK
            for name, value in (
                ("GPU clock", random.normal(1410.0 if is_slow else 1980.0, 5)),
                ("GPU temperature", float(random.integers(60, 90))),
                ("GPU slowdown reasons", 0x64 if is_slow and step % 3 else 0x4),
                ("CPU thermal throttles", 7.0 * (step > 4) * (rank == 1)),
                ("CPU quota wait", 9e7 * step * (rank == WAITING_RANK)),
                ("peak allocated memory", float(random.integers(1, 80) * GIB)),
                ("peak resident memory", float(random.integers(1, 80) * GIB)),
            ):
                device = "cuda:0" if name.startswith(("GPU", "peak a")) else None
                for moment in range(2):
                    at = {"step": step, "time_ns": step * STEP_NS + 10 + moment}
                    rows.append({"rank": rank, "name": name, "value": value, "device": device, **at})
    return conform(pl.DataFrame(rows, infer_schema_length=None), COUNTERS)


def divided(rows):
    """Return the rows of each pipeline, those of each range of steps apart and those outside of steps first."""
    placed = rows.join(pipelines(), on="rank", maintain_order="left")
    number = (pl.col("step") // 5).fill_null(-1)
    own = placed.with_columns(number=number).sort("pipeline", "number", maintain_order=True)
    return [
        each.drop("pipeline", "number")
        for each in own.partition_by("pipeline", "number", maintain_order=True)
    ]


def joined(parts, of_ranks):
    """Return what is joined of parts, whose data are given three steps after the others."""
    sample = SampledCells(SAMPLED, pipelines())
    found = [CounterPart(most_memory(each), show_counters(each, COUNTED, sample)) for each in parts]
    data = pl.concat([pipeline_data(each, pipelines()) for each in parts])
    by_steps = (data.filter(pl.col("step") // 3 == number) for number in range(STEPS // 3))
    return join_counters(found, by_steps, pipelines(), of_ranks)


@pytest.fixture(params=[5, 1_000_000], ids=["often", "once"])
def joined_how_often(request, monkeypatch):
    """Let rows of parts be joined a few at a time, or all at once."""
    monkeypatch.setattr(large_tables, "ROWS_AT_ONCE", request.param)


@pytest.mark.usefixtures("joined_how_often")
@pytest.mark.parametrize(
    ("options", "has_coordinates", "scope"),
    [({}, True, "run"), ({}, False, "pipeline"), ({"counting": 2}, True, "pipeline"), ({"units": ()}, True, None),
     ({"units": ("samples",)}, True, "run")],
    ids=["replicas", "unknown replicas", "some count", "no data", "samples alone"],
)  # fmt: skip
def test_parts_show_together_what_all_counters_do(options, has_coordinates, scope):
    every, of_ranks = counters(**options), ranks(has_coordinates=has_coordinates)
    parts = divided(every)
    assert len(parts) > 2 * PIPELINES
    found = joined(parts, of_ranks)
    shown = show_counters(every, COUNTED, SampledCells(SAMPLED, pipelines()))

    memory, data = measure_rank_memory(every), measure_step_data(every, pipelines(), of_ranks, iterations())
    assert_frame_equal(found.memory, memory)
    assert_frame_equal(found.step_data(iterations()), data)
    assert set(data["scope"]) == ({scope} if scope else set())
    assert set(memory["device"]) == {"cuda:0"}
    assert memory.height == RANKS

    assert found.shown.units == shown.units == frozenset(options.get("units", ("tokens", "samples")))
    assert set(shown.sizes["step"]) == {*range(SAMPLED.start, SAMPLED.stop)}
    assert_frame_equal(found.shown.sizes, shown.sizes, check_row_order=False)
    assert_frame_equal(found.shown.readings, shown.readings, check_row_order=False, rel_tol=1e-12)
    notes = clock_notes(found.shown.readings)
    assert notes == clock_notes(shown.readings)
    assert notes.keys() == {SLOW_RANK, 1, WAITING_RANK}
    assert all(
        words in notes[SLOW_RANK]
        for words in ("GPU clock of 1,4", "thermal slowdown by the driver in 16 of 22")
    )


def test_the_order_of_parts_does_not_matter():
    parts = divided(counters())
    one, other = (joined(each, ranks()) for each in (parts, parts[::-1]))
    assert_frame_equal(one.memory, other.memory)
    assert_frame_equal(one.data, other.data)
    assert clock_notes(one.shown.readings) == clock_notes(other.shown.readings)


def test_growth_is_that_between_the_first_and_the_last_reading_of_any_part():
    def reading(value, time_ns):
        return {"rank": 0, "name": "CPU thermal throttles", "value": value, "time_ns": time_ns, "step": 1}

    rows = conform(pl.DataFrame([reading(11.0, 30), reading(4.0, 20), reading(2.0, 10)]), COUNTERS)
    parts = [rows[1:2], rows[::2]]
    shown = joined([in_order(each, COUNTERS) for each in parts], ranks()).shown
    assert clock_notes(shown.readings) == {0: "9 thermal throttles of the CPU"}
    assert shown.readings.select("first_ns", "last_ns", "readings").row(0) == (10, 30, 3)
    assert shown.readings.select(SLOWDOWNS.values()).row(0) == (0, 0, 0, 0)


def test_tokens_outside_of_steps_are_no_data_of_any_step():
    tokens = conform(pl.DataFrame([{"rank": 0, "name": "tokens", "value": 5.0, "time_ns": 1}]), COUNTERS)
    samples = counters(units=("samples",))
    found = joined([tokens, *divided(samples)], ranks())
    assert found.shown.units == {"tokens", "samples"}
    assert_frame_equal(found.step_data(iterations()), STEP_DATA.empty())


def test_parts_without_counters_show_nothing():
    found = joined([COUNTERS.empty()], ranks())
    assert found.memory.is_empty()
    assert_frame_equal(found.step_data(iterations()), STEP_DATA.empty())
    assert clock_notes(found.shown.readings) == {}
