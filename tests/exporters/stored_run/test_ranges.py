"""The report of a run that is analyzed in ranges of steps: that of the whole run."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from machines import on_machines
from planted_runs import Shape, random_times, run
from stagescope.analysis import build_explained_report, sampled_pipelines, sampled_steps
from stagescope.analysis.idle.ledger import IDLE_LEDGER
from stagescope.analysis.idle.origins import ORIGINS
from stagescope.analysis.iteration import culprits
from stagescope.analysis.ranges.long_tables import LongTable
from stagescope.analysis.saved import facts_json, saved_pieces, saved_tables
from stagescope.analysis.statistics import action_samples
from stagescope.analysis.statistics.action_samples import sample_actions
from stagescope.api import (
    counters_in_parts,
    export,
    load_report,
    range_reports,
    read,
    save_report,
    saved_reports,
    store,
    units,
    view_run,
)
from stagescope.api.aligned_copies import store_aligned
from stagescope.cli import main
from stagescope.execution import executor_for
from stagescope.execution.executor import InThisProcess
from stagescope.execution.processes import Processes
from stagescope.execution.spawning import ALLOCATOR, RETURNED_SOON
from stagescope.exporters.stored_run import WriteOptions, write_stored_run
from stagescope.ingest.stored_run import read_manifest
from stagescope.model.implied import implied_steps
from stagescope.model.stored_run import FORMAT, RESULTS, VERSION, Manifest
from stagescope.model.tables import COUNTERS, KERNELS, SPANS
from stagescope.model.validate import conform
from stagescope.viewer.analysis_data import saved_report_extras
from stagescope.vocabulary.causes import CAUSES
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import ALL_SENDS
from truth.cases import PLANTED
from truth.causes import Place, slow_rank
from truth.engine import simulate
from truth.plan import Costs, make_plan
from truth.plan import Shape as TruthShape
from truth.spans import timeline_of

SHAPE = Shape(pipelines=3, stages=4, microbatches=8, steps=16, noise=0.01)
SLOW_RANK, LONG_STEP = 6, 13

PLANTS = ("15 ms of data loading before each step", "one action 1 s longer", "zb-v", "dualpipev", "gpipe")
CASES = {
    name: build
    for name, build in ((build(1).name, build) for build in PLANTED)
    if any(plant in name for plant in PLANTS)
}
"""Causes between steps, in single actions, where steps overlap, in pairs, and with blocking sends."""

BUBBLES = ("iteration", "ideal-ratio", "own-span")
KERNEL_COLUMNS = (
    "rank", "stream", "name", "category", "operation", "start_ns", "end_ns", "kind", "step", "stage", "microbatch",
)  # fmt: skip
NOT_IN_RANGES = ("row", "action")


def planted(*, has_waits, lengths=1.0):
    """Return a run with a slow rank, a long step and reductions of gradients, with or without waits for receivers.

    `lengths` are those of micro-batches, by pipeline, step and micro-batch.
    """
    times = random_times(SHAPE, seed=5)
    times.action_ns[:] *= lengths
    pipeline, stage = divmod(SLOW_RANK, SHAPE.stages)
    times.action_ns[:, pipeline, :, stage] *= 1.15
    times.action_ns[:, 1, LONG_STEP, 2] *= 2.0
    timeline = run(replace(times, action_ns=np.rint(times.action_ns), reduces=True))
    if has_waits:
        return timeline
    is_send = pl.col("kind").is_in(ALL_SENDS)
    waits = ("wait_start_ns", "wait_end_ns")
    return timeline.with_spans(
        timeline.spans.with_columns(pl.when(~is_send).then(name).alias(name) for name in waits)
    )


@pytest.fixture(scope="module", params=[False, True], ids=["prompt sends", "blocking sends"])
def stored(request, tmp_path_factory):
    return store_run(planted(has_waits=request.param), tmp_path_factory.mktemp("ranges"))


def store_run(timeline, folder):
    source, place = folder / "run.parquet", folder / "run.stagescope"
    export(timeline, source)
    store(source, out=place)
    return place


@contextmanager
def report_in_ranges(place, count, executor=None, on_progress=None):
    """Yield the report of a stored run that is analyzed in so many ranges."""
    with analyzed(place, count, executor, on_progress) as found:
        yield found and found.report


@contextmanager
def analyzed(place, count, executor=None, on_progress=None):
    """Yield the same with the tables that workers make."""
    manifest = read_manifest(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_reports, "SPANS_OF_RANGE", -(-manifest.span_count // count))
        patch.setattr(units, "SPANS_OF_UNIT", -(-manifest.span_count // count))
        with range_reports.analyzed_in_ranges(
            place, manifest, executor or InThisProcess(), on_progress
        ) as found:
            yield found


def tables_of(report):
    """Return the tables to save, without what rows and actions of a range mean."""
    return {
        name: rows.drop(each for each in NOT_IN_RANGES if each in rows.columns)
        for name, rows in saved_tables(report)
    }


def facts_of(report):
    facts = msgspec.json.decode(facts_json(report))
    facts["explanation"]["unrecorded"].sort()
    return facts


def assert_equal_reports(divided, tables, facts):
    """Compare a report in ranges with the tables and facts of an analysis at once."""
    found = tables_of(divided)
    assert found.keys() == tables.keys()
    for name, rows in tables.items():
        assert_frame_equal(found[name], rows, rel_tol=1e-9, abs_tol=1e-6)
    assert_equal_facts(facts_of(divided), facts)


def assert_as_at_once(place, count):
    """Compare the report of a stored run in so many ranges with that of an analysis at once, which is returned."""
    whole = build_explained_report(read(place))
    with report_in_ranges(place, count) as divided:
        assert_equal_reports(divided, tables_of(whole), facts_of(whole))
    return whole


def assert_equal_facts(found, expected):
    """Compare facts; numbers that are not whole are sums in another order."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_equal_facts(found[name], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal_facts(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9)
    else:
        assert found == expected


@pytest.fixture(params=[False, True], ids=["whole run", "sample"])
def is_sampled(request, monkeypatch):
    """Let what is usual be learned from the whole run, or from some of its steps."""
    if request.param:
        monkeypatch.setattr(sampled_steps, "MOST_SPANS", 1)
        monkeypatch.setattr(sampled_steps, "SAMPLE_SPANS", 3_000)
    return request.param


@pytest.mark.parametrize("count", [1, 2, 4])
def test_the_report_does_not_depend_on_ranges(stored, count, is_sampled):
    whole = build_explained_report(read(stored))
    tables, facts = tables_of(whole), facts_of(whole)
    bubbles = [whole.bubble.of(name).per_rank for name in BUBBLES]
    with report_in_ranges(stored, count) as divided:
        assert_equal_reports(divided, tables, facts)
        assert [divided.bubble.of(name).per_rank for name in BUBBLES] == bubbles
        for name, load in divided.pieces.items():
            rows = pl.concat(load())
            kept = rows.drop(each for each in NOT_IN_RANGES if each in rows.columns)
            assert_frame_equal(kept, tables[name], rel_tol=1e-9, abs_tol=1e-6)
    assert {"rank.slow", "step.outlier"} <= set(whole.findings["code"])
    assert ("steps.reference" in {each.code for each in whole.diagnostics}) == is_sampled


def test_very_long_runs_are_compared_in_some_steps_and_have_culprits_in_pieces(stored, monkeypatch):
    samples = sample_actions(read(stored).spans).table.height
    monkeypatch.setattr(action_samples, "MOST_SAMPLES", samples // 2)
    monkeypatch.setattr(culprits, "ROWS_AT_ONCE", SHAPE.stages * SHAPE.pipelines)
    whole = assert_as_at_once(stored, 4)
    assert "samples.skipped" in {each.code for each in whole.diagnostics}
    assert {"rank.slow", "step.outlier"} <= set(whole.findings["code"])
    with report_in_ranges(stored, 4) as divided:
        pieces = list(divided.pieces["culprits"]())
    assert len(pieces) > len(CAUSES)
    assert_frame_equal(pl.concat(pieces), whole.culprits)


@pytest.mark.usefixtures("is_sampled")
@pytest.mark.parametrize("name", CASES)
def test_every_planted_cause_is_found_in_ranges(name, tmp_path):
    place = store_run(timeline_of(CASES[name](2).run), tmp_path)
    assert_as_at_once(place, 5)


@pytest.mark.parametrize("shifted_ms", [2, 300])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-v"])
def test_clocks_that_are_off_and_lost_spans_change_nothing(schedule, shifted_ms, tmp_path):
    shape = TruthShape(schedule, replicas=2, steps=8, chunks=2 if schedule == "zb-v" else 1)
    timeline = timeline_of(simulate(make_plan(shape, Costs(noise=0.05), seed=3)))
    random = np.random.default_rng(4)
    ranks = timeline.spans["rank"].unique().sort()
    off = pl.DataFrame({"rank": ranks, "off": (random.normal(0, shifted_ms, len(ranks)) * 1e6).astype(int)})
    kept = pl.Series(random.random(timeline.spans.height) > 0.01)
    spans = timeline.spans.filter(kept).join(off, on="rank", maintain_order="left")
    times = [name for name in spans.columns if name.endswith("_ns")]
    shifted = spans.with_columns(pl.col(name) + pl.col("off") for name in times).drop("off")
    place = store_run(timeline.with_spans(shifted), tmp_path)
    assert_as_at_once(place, 4)


@pytest.mark.parametrize("how", [{"workers": 2}, {"cluster": "local:2"}], ids=["processes", "Dask"])
def test_results_do_not_depend_on_who_computes_them(stored, how):
    with report_in_ranges(stored, 4) as here:
        tables, facts = tables_of(here), facts_of(here)
    with executor_for(**how) as executor, analyzed(stored, 4, executor) as there:
        found = tables_of(there.report)
        assert facts_of(there.report) == facts
        files = {name: pl.read_parquet(file) for name, file in there.joined.files().items()}
        assert files.keys() == there.joined.names
    for name, rows in tables.items():
        assert_frame_equal(found[name], rows)
    of_first_process = {"culprits", "explanation.pauses", "iterations", "ledger", "replicas.steps"}
    assert files.keys() == {"slowdowns", *here.pieces} - of_first_process
    for name, rows in files.items():
        assert_frame_equal(rows.drop(each for each in NOT_IN_RANGES if each in rows.columns), tables[name])


@pytest.mark.usefixtures("small_ranges")
def test_saved_files_do_not_depend_on_the_number_of_workers(stored, tmp_path):
    files = []
    for workers in (1, 2):
        place = shutil.copytree(stored, tmp_path / str(workers))
        save_report(place, workers=workers)
        files.append({file.name: pl.read_parquet(file) for file in (place / RESULTS).glob("*.parquet")})
    one, two = files
    assert one.keys() == two.keys()
    for name, rows in one.items():
        assert_frame_equal(two[name], rows)


@pytest.mark.usefixtures("small_ranges")
def test_one_worker_analyzes_large_runs_in_another_process(stored, monkeypatch, tmp_path):
    files = []
    for most in (saved_reports.LARGE_FOR_ONE_SPANS, 0):
        monkeypatch.setattr(saved_reports, "LARGE_FOR_ONE_SPANS", most)
        place = shutil.copytree(stored, tmp_path / str(most))
        started = []
        monkeypatch.setattr(Processes, "prepare", lambda *given, calls=started: calls.append(given))
        save_report(place, workers=1)
        assert len(started) == (most == 0)
        files.append({file.name: file.read_bytes() for file in (place / RESULTS).glob("*.parquet")})
    assert files[0] == files[1]


@pytest.fixture
def small_ranges(stored, monkeypatch):
    """Let a run count as large."""
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 0)
    monkeypatch.setattr(range_reports, "SPANS_OF_RANGE", read_manifest(stored).span_count // 3)


@pytest.mark.usefixtures("small_ranges")
def test_the_page_of_a_run_that_is_read_as_a_whole_has_the_results_of_its_report(
    stored, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    own = shutil.copytree(stored, tmp_path / "run.stagescope", ignore=shutil.ignore_patterns(RESULTS))
    save_report(own, workers=1)
    saved = saved_report_extras(load_report(own))
    view = view_run(own)
    for name in ("verdict", "ledger"):
        assert json.loads(view.sections[name].data) == json.loads(json.dumps(saved.objects[name]))
    assert {"idle", "slack", "critical_path"} <= set(view.sections)


@pytest.mark.usefixtures("small_ranges")
def test_the_report_of_a_large_run_is_about_all_its_steps(stored, capsys):
    assert save_report(stored, workers=1) == (True, None)
    assert save_report(stored, workers=1) == (False, None)
    report = load_report(stored)
    assert len(report.bubble.steps) == SHAPE.steps
    assert report.ledger.height == SHAPE.steps * SHAPE.pipelines
    assert main(["report", str(stored)]) == 0
    assert f"rank {SLOW_RANK}" in capsys.readouterr().out
    assert not (stored / range_reports.FOLDER).exists()


def test_progress_counts_all_tasks_and_an_interruption_leaves_nothing(stored):
    seen = []

    def interrupt(done, total):
        seen.append((done, total))
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), report_in_ranges(stored, 4, on_progress=interrupt):
        pass
    assert seen[0][0] == 0
    assert [done for done, _ in seen] == list(range(seen[-1][0] + 1))
    assert not (stored / range_reports.FOLDER).exists()


def test_spans_without_a_step_count_once(tmp_path):
    timeline = planted(has_waits=False)
    spans = timeline.spans
    ends = spans.filter(pl.col("rank") == 0).group_by("step").agg(pl.max("end_ns")).sort("step")
    evaluations = pl.DataFrame({
        "rank": pl.Series([0] * SHAPE.steps, dtype=pl.Int32),
        "lane": "compute", "kind": "forward", "stage": 0, "microbatch": 0,
        "start_ns": ends["end_ns"] + 1_000_000, "end_ns": ends["end_ns"] + 2_000_000,
    }).with_columns(step=pl.lit(None, pl.Int32))  # fmt: skip
    added = pl.concat([
        spans,
        evaluations.select(
            (pl.col(name) if name in evaluations.columns else pl.lit(None)).cast(kind).alias(name)
            for name, kind in spans.schema.items()
        ),
    ]).sort("rank", "start_ns", "end_ns")  # fmt: skip
    place = store_run(timeline.with_spans(added), tmp_path)
    whole = build_explained_report(read(place))
    with report_in_ranges(place, 4) as divided:
        found = tables_of(divided)
    counts = [
        [(each.code, each.count) for each in report.diagnostics if each.code == "actions.evaluation"]
        for report in (whole, divided)
    ]
    assert counts == [[("actions.evaluation", SHAPE.steps)]] * 2
    for name in ("steps", "ranks"):
        assert_frame_equal(found[name], tables_of(whole)[name])


def test_steps_that_were_not_ended_and_gaps_between_steps_are_analyzed(tmp_path):
    timeline = planted(has_waits=False)
    timeline = timeline.with_spans(timeline.spans.filter(pl.col("step") != 6))
    ended = implied_steps(timeline.spans).filter(~pl.col("step").is_in([5, SHAPE.steps - 1]))
    place = tmp_path / "run"
    place.mkdir()
    manifest = Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True)
    write_stored_run(replace(timeline, steps=ended), place, manifest, WriteOptions(executor=InThisProcess()))
    whole = build_explained_report(read(place))
    with report_in_ranges(place, 5) as divided:
        assert_equal_reports(divided, tables_of(whole), facts_of(whole))
    assert divided.steps["step"].to_list() == [step for step in range(SHAPE.steps) if step != 6]


def test_rank_whose_data_is_lost_in_some_steps_is_noticed_across_ranges(tmp_path):
    timeline = planted(has_waits=False)
    is_lost = (pl.col("rank") == 2) & pl.col("step").is_in([3, 4])
    place = store_run(timeline.with_spans(timeline.spans.filter(~is_lost)), tmp_path)
    whole = build_explained_report(read(place))
    with report_in_ranges(place, 5) as divided:
        assert_equal_reports(divided, tables_of(whole), facts_of(whole))
    assert divided.steps.filter(~pl.col("in_totals"))["step"].to_list() == [3, 4]


def with_counters(timeline, tokens):
    """Return a run with the sizes of micro-batches, the memory of each rank, and a slow clock of `SLOW_RANK`."""
    random = np.random.default_rng(3)
    rows = [
        {
            "rank": pipeline * SHAPE.stages,
            "name": "tokens",
            "step": step,
            "microbatch": number,
            "value": value,
        }
        for (pipeline, step, number), value in np.ndenumerate(tokens)
    ]
    for rank in range(SHAPE.pipelines * SHAPE.stages):
        for step in range(SHAPE.steps):
            of_device = {"rank": rank, "step": step, "device": "cuda:0"}
            clock_mhz = 1500.0 if rank == SLOW_RANK else 1980.0
            peak_bytes = float(random.integers(1, 80) << 30)
            rows += [
                {**of_device, "name": "GPU clock", "value": clock_mhz, "unit": "MHz"},
                {**of_device, "name": "peak allocated memory", "value": peak_bytes, "unit": "B"},
            ]
    counters = pl.DataFrame(rows, infer_schema_length=None).with_columns(time_ns=5)
    return replace(timeline, counters=conform(counters, COUNTERS), steps=implied_steps(timeline.spans))


def test_culprits_of_other_work_between_steps_are_those_of_the_whole_run(tmp_path):
    timeline = run(replace(random_times(SHAPE, seed=5), reduces=True))
    ends = timeline.spans.group_by("step").agg(pl.max("end_ns")).sort("step").rows()
    saves = [
        {"rank": rank, "kind": "other", "lane": "host", "name": "checkpoint", "step": step,
         "start_ns": end_ns, "end_ns": end_ns + length_ns}
        for step, end_ns in ends[:-1]
        for rank, length_ns in ((0, 4_000_000), (1, 1_000_000), (2, 3_000_000))
    ]  # fmt: skip
    spans = pl.concat([timeline.spans, conform(pl.DataFrame(saves), SPANS)])
    place = store_run(timeline.with_spans(spans), tmp_path)
    culprits = [build_explained_report(read(place)).culprits]
    with report_in_ranges(place, 3) as divided:
        culprits.append(divided.culprits)
    whole, found = (
        rows.filter(cause="other_work").select("culprit_rank", "victim_rank", "idle_ns") for rows in culprits
    )
    share = (SHAPE.steps - 1) / SHAPE.steps
    planted_ms = {(0, 0): 4, (0, 1): 3, (0, 2): 1, (0, 3): 4, (1, 1): 1, (2, 2): 3}
    named = {(one, other): ns / share / 1e6 for one, other, ns in whole.iter_rows()}
    assert named == pytest.approx(planted_ms, rel=1e-6)
    assert_frame_equal(found, whole)


def store_with_counters(place):
    """Store a run with counters, in several ranges of steps."""
    shape = (SHAPE.pipelines, SHAPE.steps, SHAPE.microbatches)
    tokens = np.random.default_rng(4).integers(1500, 2500, shape).astype(float)
    run_of_lengths = planted(has_waits=False, lengths=tokens[:, :, None] / 2000)
    manifest = Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True)
    options = WriteOptions(executor=InThisProcess(), most_spans=600)
    write_stored_run(with_counters(run_of_lengths, tokens), place, manifest, options)


@pytest.mark.parametrize("rows", [1, 150, 10**6], ids=["each file", "some files", "all files"])
@pytest.mark.usefixtures("is_sampled")
def test_what_counters_show_is_that_of_the_whole_run(rows, tmp_path, monkeypatch):
    store_with_counters(tmp_path)
    monkeypatch.setattr(counters_in_parts, "ROWS_OF_UNIT", rows)
    monkeypatch.setattr(counters_in_parts, "ROWS_OF_BLOCK", rows)
    whole = build_explained_report(read(tmp_path))
    with report_in_ranges(tmp_path, 4) as divided:
        found, facts = tables_of(divided), facts_of(divided)["explanation"]
        assert_frame_equal(divided.timeline.counters, whole.timeline.counters)
    of_whole = facts_of(whole)["explanation"]
    for name in ("data", "memory"):
        assert found[name].height
        assert_frame_equal(found[name], tables_of(whole)[name])
    assert [*of_whole["clock_notes"]] == [str(SLOW_RANK)]
    assert facts["clock_notes"] == of_whole["clock_notes"]
    assert facts["lengths_note"] == of_whole["lengths_note"] is not None


def test_counters_are_not_read_together_where_ranges_are_joined(tmp_path, monkeypatch):
    store_with_counters(tmp_path)
    read_all_of = range_reports.read_all_of

    def without_counters(table, *args):
        return pytest.fail("all counters were read") if table is COUNTERS else read_all_of(table, *args)

    monkeypatch.setattr(range_reports, "read_all_of", without_counters)
    with report_in_ranges(tmp_path, 4) as divided:
        assert tables_of(divided)["data"].height
        assert divided.throughput


def test_communication_of_kernels_is_that_of_the_whole_run(tmp_path):
    timeline = planted(has_waits=False)
    actions = timeline.spans.filter(pl.col("kind") == "forward").with_columns(stream=7)
    sent = actions.with_columns(
        start_ns=pl.col("start_ns") + 1_000_000,
        stream=9,
        name=pl.lit("ncclKernel_AllReduce"),
        category=pl.lit("communication"),
        operation=pl.lit("all_reduce"),
    )
    computed = actions.with_columns(name=pl.lit("gemm"), category=pl.lit("gemm"))
    kernels = conform(pl.concat([sent, computed], how="diagonal_relaxed").select(KERNEL_COLUMNS), KERNELS)
    manifest = Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True)
    options = WriteOptions(executor=InThisProcess(), most_spans=600)
    known = replace(timeline, kernels=kernels, steps=implied_steps(timeline.spans))
    write_stored_run(known, tmp_path, manifest, options)
    whole = build_explained_report(read(tmp_path))
    with report_in_ranges(tmp_path, 4) as divided:
        found = tables_of(divided)
    assert found["kernel_communication"].height
    for name in ("kernel_communication", "kernel_communication_kinds"):
        assert_frame_equal(found[name], tables_of(whole)[name])


def test_damaged_counters_are_an_error(tmp_path):
    store_with_counters(tmp_path)
    part = next((tmp_path / "counters").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-9] + b"x" * 9)
    with pytest.raises(InputError, match="counters/pipeline="), report_in_ranges(tmp_path, 2):
        pass


def test_rows_of_a_damaged_file_are_missing_and_counted(tmp_path):
    place = store_run(planted(has_waits=False), tmp_path)
    (part,) = (place / "spans" / "pipeline=4").rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:-9] + b"x" * 9)
    with report_in_ranges(place, 2) as report:
        pass
    assert "store.damaged" in {each.code for each in report.diagnostics}
    assert sorted(report.ranks["rank"]) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_the_saved_report_of_a_damaged_run_is_partial(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 0)
    monkeypatch.setattr(range_reports, "SPANS_OF_RANGE", 2_000)
    place = store_run(planted(has_waits=False), tmp_path)
    (part,) = (place / "spans" / "pipeline=4").rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:-9] + b"x" * 9)
    for _ in range(2):
        assert main(["report", str(place)]) == 1
        error = capsys.readouterr().err
        assert error.startswith("stagescope: partial data: spans/pipeline=4/")


MACHINES = {rank: "bc"[rank // 2 % 2] if rank in range(4, 8) else "a" for rank in range(12)}
"""Of the second pipeline, two ranks are on each of two machines."""


@pytest.mark.parametrize("count", [2, 5])
def test_pipelines_that_are_not_on_one_clock_are_left_out(count, is_sampled, tmp_path):
    timeline = on_machines(planted(has_waits=True), MACHINES, {"a": (0, 0), "b": None, "c": None})
    manifest = Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True)
    marked = replace(timeline, steps=implied_steps(timeline.spans))
    write_stored_run(marked, tmp_path, manifest, WriteOptions(executor=InThisProcess()))
    whole = build_explained_report(read(tmp_path))
    seen = []
    with report_in_ranges(tmp_path, count, on_progress=lambda *done: seen.append(done)) as divided:
        assert_equal_reports(divided, tables_of(whole), facts_of(whole))
    assert divided.unaligned == whole.unaligned == (4, 5, 6, 7)
    assert ("steps.reference" in {each.code for each in whole.diagnostics}) == is_sampled
    assert seen[-1][0] == seen[-1][1]


def test_runs_without_a_pipeline_on_one_clock_are_divided(tmp_path):
    timeline = planted(has_waits=False)
    machines = {rank: f"{rank % 2}" for rank in range(12)}
    store_as_it_is(on_machines(timeline, machines, {"0": None, "1": None}), tmp_path)
    whole = build_explained_report(read(tmp_path))
    with report_in_ranges(tmp_path, 2) as divided:
        assert_equal_reports(divided, tables_of(whole), facts_of(whole))
        assert dict(saved_tables(divided))["transfers"].height
    assert divided.unaligned == tuple(range(12))


def store_as_it_is(timeline, place):
    manifest = Manifest(FORMAT, VERSION, "planted", (), {}, aligned=True)
    write_stored_run(timeline, place, manifest, WriteOptions(executor=InThisProcess()))


@pytest.mark.parametrize("is_aligned", [True, False])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_runs_without_steps_are_divided_by_pipelines(count, is_aligned, tmp_path):
    timeline = planted(has_waits=True)
    launches = timeline.spans.filter(kind="forward").with_columns(lane=pl.lit("host"))
    spans = pl.concat([timeline.spans, conform(launches, SPANS)]).with_columns(step=pl.lit(None, pl.Int32))
    without = replace(timeline.with_spans(conform(spans, SPANS)), steps=timeline.steps.clear())
    machines = {rank: "2" if rank > 3 else f"{rank % 2}" for rank in range(12)}
    errors = dict.fromkeys("012", (-10.0, 10.0) if is_aligned else None)
    store_as_it_is(on_machines(without, machines, errors), tmp_path)
    whole = build_explained_report(read(tmp_path))
    seen = []
    with report_in_ranges(tmp_path, count, on_progress=lambda *done: seen.append(done)) as divided:
        assert_equal_reports(divided, tables_of(whole), facts_of(whole))
        assert dict(saved_tables(divided))["transfers"].height
    assert bool(divided.unaligned) != is_aligned
    codes = {note.code for note in divided.diagnostics}
    assert {"actions.no_step", "actions.host"} <= codes
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("is_large", [False, True])
def test_workers_return_memory_soon_if_steps_are_large(stored, is_large, monkeypatch):
    monkeypatch.setattr(saved_reports, "STORING_BYTES", 0)
    monkeypatch.setattr(sampled_pipelines, "LARGE_STEP", 0 if is_large else 10**9)
    monkeypatch.delenv(ALLOCATOR, raising=False)
    options = []

    @contextmanager
    def noted(*_, **__):
        options.append(os.environ.get(ALLOCATOR))
        yield InThisProcess()

    monkeypatch.setattr(saved_reports, "executor_for", noted)
    shutil.rmtree(stored / RESULTS, ignore_errors=True)
    save_report(stored)
    assert options == [RETURNED_SOON if is_large else None]


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_runs_of_few_steps_are_divided(steps, tmp_path):
    shape = TruthShape("zb-v", replicas=3, steps=steps, chunks=2)
    plan = slow_rank(make_plan(shape, Costs(noise=0.02), seed=3), Place(1, 1), 1.2)
    place = store_run(timeline_of(simulate(plan)), tmp_path)
    whole = assert_as_at_once(place, steps)
    assert steps == 1 or "rank.slow" in set(whole.findings["code"])


def test_large_tables_of_causes_are_read_a_few_times(stored, monkeypatch):
    read = Counter()
    rows = LongTable.rows

    def counted(table):
        read[tuple(table.order)] += 1
        return rows(table)

    monkeypatch.setattr(LongTable, "rows", counted)
    with report_in_ranges(stored, 4) as report:
        # Everything that is saved, apart from what is saved in pieces.
        tables = [name for name, pieces in saved_pieces(report) if [*pieces]]
    assert "culprits" in tables
    assert read[tuple(IDLE_LEDGER.order)] <= 4  # twenty times before
    assert read[tuple(ORIGINS.order)] <= 1


@pytest.mark.parametrize("count", [1, 3])
def test_the_report_of_a_run_that_was_stored_without_alignment_is_that_of_an_analysis_at_once(
    count, recordings, tmp_path
):
    unaligned = write_stored_run(
        read(recordings, align=False),
        tmp_path,
        Manifest(FORMAT, VERSION, "planted", (), {}, aligned=False),
        WriteOptions(most_spans=300),
    )
    whole = build_explained_report(read(unaligned.path))
    copy = store_aligned(unaligned.path, out=tmp_path / "copy", workers=1)
    with report_in_ranges(copy.path, count) as divided:
        assert_equal_reports(divided, tables_of(whole), facts_of(whole))
