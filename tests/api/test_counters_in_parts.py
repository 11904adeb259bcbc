"""The files of counters that a worker reads at once, and the blocks of steps that are added up at once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stagescope.analysis.counters.data_sizes import measure_step_data, pipeline_data
from stagescope.analysis.iteration.boundaries import ITERATION_STEPS
from stagescope.analysis.ranges import Reference
from stagescope.api import counters_in_parts
from stagescope.api.counters_in_parts import analyze_counters, divide_counters
from stagescope.api.detached_tables import detach, write_table
from stagescope.api.joined_tables import AnalyzedRun
from stagescope.api.range_files import FOLDER
from stagescope.exporters.stored_run.partition_files import unwritten, write_partition
from stagescope.exporters.stored_run.partitions import Partition
from stagescope.model.stored_run import FORMAT, NONE, VERSION, Manifest, Part
from stagescope.model.tables import COUNTERS, SPANS
from stagescope.model.validate import conform
from stagescope.vocabulary.steps import StepRange, StepRanges

PIPELINES, STEPS, STEPS_OF_FILE = 3, 12, 5
WHOLE_STEP = (1, 4)


def manifest_of(parts):
    return Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True, parts=tuple(parts))


def test_files_are_read_together_by_steps_until_they_have_too_many_rows(monkeypatch):
    monkeypatch.setattr(counters_in_parts, "ROWS_OF_UNIT", 10)
    rows = {(0, 0): 4, (0, 1): 2, (4, NONE): 1, (4, 0): 6, (4, 1): 30, (8, 1): 2, (8, 2): 8}
    parts = [
        Part("counters", f"{pipeline}-{number}", count, 0, "", pipeline, number)
        for (pipeline, number), count in rows.items()
    ]
    groups = divide_counters(manifest_of([*parts, Part("spans", "0", 100, 0, "", 0, 0)]))
    assert [[part.path for part in group] for group in groups] == [
        ["4--1", "0-0"], ["4-0", "0-1"], ["4-1"], ["8-1", "8-2"],
    ]  # fmt: skip
    assert divide_counters(manifest_of([])) == ((),)


def counters():
    """Return tokens of two micro-batches of each pipeline and step, and the memory of each outside of steps."""
    values = np.random.default_rng(3).integers(9, 99, (PIPELINES, STEPS, 2))
    rows = [
        {"rank": rank, "name": "tokens", "step": step, "microbatch": number, "value": float(value),
         "time_ns": step}
        for (rank, step, number), value in np.ndenumerate(values)
    ]  # fmt: skip
    rank, step = WHOLE_STEP
    rows.append({"rank": rank, "name": "tokens", "step": step, "value": 1000.0, "time_ns": step})
    rows += [
        {"rank": rank, "name": "reserved memory", "value": 1e9 * rank, "time_ns": 5}
        for rank in range(PIPELINES)
    ]
    return conform(pl.DataFrame(rows, infer_schema_length=None), COUNTERS)


def stored(rows, directory):
    """Write counters as a stored run has them, and return the manifest."""
    number = (pl.col("step") // STEPS_OF_FILE).fill_null(NONE)
    placed = rows.with_columns(number=number).partition_by("rank", "number", as_dict=True, include_key=True)
    partitions = [
        Partition(COUNTERS, own.drop("number"), rank, number) for (rank, number), own in placed.items()
    ]
    return manifest_of(write_partition(unwritten(each, directory, by_file=False)) for each in partitions)


@pytest.mark.parametrize("at_once", [1, 7, 10**6])
def test_blocks_of_steps_show_together_what_all_counters_do(at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(counters_in_parts, "ROWS_OF_UNIT", 10)
    monkeypatch.setattr(counters_in_parts, "ROWS_OF_BLOCK", at_once)
    rows, folder = counters(), tmp_path / FOLDER
    folder.mkdir()
    ranks = pl.DataFrame({"rank": pl.Series(range(PIPELINES), dtype=pl.Int32)})
    pipelines = ranks.with_columns(pipeline="rank")
    write_table(pipelines, folder / "pipelines.arrow")
    write_table(ranks.with_columns(dp="rank"), folder / "ranks.arrow")
    sample = StepRanges((StepRange(2, 4),))
    reference = detach(Reference(sample, 1.0, SPANS.empty(), dict, pipelines), folder / "reference")
    analyzed = AnalyzedRun(folder, (), reference, tuple(range(STEPS)), None, None)
    groups = divide_counters(stored(rows, tmp_path))
    assert len(groups) > PIPELINES
    found = analyze_counters(groups, tmp_path, range(STEPS), analyzed, map)
    iterations = pl.DataFrame(
        [(step, *at, True) for step, at in enumerate(pairwise(range(STEPS + 1)))],
        schema={name: ITERATION_STEPS.schema[name] for name in ("step", "start_ns", "end_ns", "is_whole")},
        orient="row",
    )
    expected = measure_step_data(rows, pipelines, ranks.with_columns(dp="rank"), iterations)
    assert_frame_equal(found.step_data(iterations), expected)
    assert set(expected["scope"]) == {"run"}
    assert expected["step"].to_list() == list(range(STEPS))
    of_step = pipeline_data(rows, pipelines).filter(step=WHOLE_STEP[1])
    assert of_step["size"][WHOLE_STEP[0]] == 1000
    assert found.memory["reserved_bytes"].to_list() == [0, 10**9, 2 * 10**9]
    assert set(found.shown.sizes["step"]) == {2, 3}
    blocks = {path.stem.rpartition("-")[2] for path in folder.glob("counters-*/table-data-*.arrow")}
    assert len(blocks) == {1: STEPS, 7: STEPS // 2}.get(at_once, 1)
