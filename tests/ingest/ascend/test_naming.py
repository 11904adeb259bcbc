from __future__ import annotations

import itertools
import random

import polars as pl
import pytest

from ascend_profiles import Cluster
from ascend_runs import UNSPLIT, MarkedRun
from stagescope.ingest.ascend.naming import name_actions
from stagescope.ingest.ascend.pipeline_info import RAW_ACTIONS, PipelineInfo
from stagescope.model import RANKS

NAMED = ["rank", "step", "kind", "stage", "chunk", "microbatch", "start_ns", "end_ns"]


def by_text(notes, severity):
    return [note for note in notes if note.severity == severity]


def in_order(frame):
    return frame.select(NAMED).cast({"kind": pl.String}).sort(NAMED)


@pytest.fixture
def run(tmp_path):
    fresh = itertools.count()
    return lambda **keys: MarkedRun(tmp_path / str(next(fresh)), Cluster(transfers="none", **keys))


@pytest.mark.parametrize(
    "shape",
    [
        {"schedule": "1f1b", "pp": 4, "microbatches": 8},
        {"schedule": "1f1b", "pp": 2, "microbatches": 3, "dp": 3, "numbered": True},
        {"schedule": "interleaved", "pp": 4, "microbatches": 8, "chunks": 2},
        {"schedule": "interleaved", "pp": 2, "microbatches": 4, "chunks": 3, "numbered": True},
        {"schedule": "dualpipev", "pp": 4, "microbatches": 10, "options": UNSPLIT},
        {"schedule": "dualpipev", "pp": 4, "microbatches": 10},
        {"schedule": "dualpipev", "pp": 2, "microbatches": 4, "tp": 2, "options": UNSPLIT},
        {"schedule": "gpipe", "pp": 3, "microbatches": 5},
    ],
    ids=str,
)
def test_every_action_of_a_whole_run_gets_its_name(run, shape):
    planted = run(**shape)
    spans, notes = planted.name()
    assert in_order(spans).equals(in_order(planted.truth))
    assert notes == []


def test_an_overlapped_mark_becomes_a_forward_and_a_backward_with_one_pair_id(run):
    planted = run(schedule="dualpipev", pp=2, microbatches=6, steps=1, options=UNSPLIT)
    pairs = planted.name()[0].drop_nulls("pair").group_by("rank", "pair").agg("kind", "start_ns", "end_ns")
    assert pairs["kind"].to_list() == [["forward", "backward"]] * pairs.height
    assert pairs["start_ns"].list.n_unique().unique().to_list() == [1]
    assert pairs.height == planted.truth.drop_nulls("pair").height // 2


def test_identifies_the_backward_of_the_loss_by_mark_or_position(run):
    planted = run(schedule="dualpipev", pp=4, microbatches=8, options=UNSPLIT)
    alike = planted.raw.with_columns(message=pl.col("message").str.replace("_with_model_graph", ""))
    for raw in (planted.raw, alike):
        spans, _ = planted.name(raw)
        logits = spans.filter(pl.col("kind") == "loss")
        assert (logits.height, logits["name"].unique().to_list()) == (2 * 8, ["logits"])
        assert planted.wrong(spans) == (0, 0)


def test_marks_without_the_loss_are_named_too(run):
    planted = run(schedule="dualpipev", pp=4, microbatches=8, options=UNSPLIT)
    spans, notes = planted.name(planted.raw.filter(pl.col("message") != "backward_step"))
    assert (planted.wrong(spans), notes) == ((0, 0), [])


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
@pytest.mark.parametrize("seed", range(4))
def test_a_missing_mark_shifts_no_other_and_is_counted_as_an_error(run, schedule, seed):
    planted = run(schedule=schedule, pp=4, microbatches=8, seed=seed)
    dice = random.Random(seed)  # noqa: S311  # chance that can be repeated
    for rank in range(4):
        lost = dice.randrange(planted.raw.filter((pl.col("rank") == rank) & (pl.col("step") == 0)).height)
        spans, notes = planted.name(planted.without(rank, lost))
        false, unnamed = planted.wrong(spans)
        assert false == 0
        assert [(note.rank, note.count) for note in by_text(notes, "error")] == [(rank, 1)]
        assert unnamed == sum(note.count for note in by_text(notes, "warning"))


def test_no_single_missing_mark_causes_a_wrong_name(run):
    planted = run(schedule="1f1b", pp=4, microbatches=6, steps=1)
    unnamed = 0
    for rank in range(4):
        for lost in range(12):
            false, missing = planted.wrong(planted.name(planted.without(rank, lost))[0])
            assert false == 0
            unnamed += missing
    # The times nearly always decide: only the ends of warm-up and cool-down leave no idle time.
    assert unnamed <= 12


def test_no_wrong_names_without_a_shared_clock(run):
    planted = run(schedule="1f1b", pp=4, microbatches=6, steps=1, skew_ns=5_000_000, ranks_per_host=1)
    for rank in range(4):
        for lost in range(12):
            spans, _ = planted.name(planted.without(rank, lost), clock=None)
            assert planted.wrong(spans)[0] == 0


def test_several_missing_marks_of_many_ranks_cause_no_wrong_name(run):
    planted = run(schedule="dualpipev", pp=4, microbatches=16, dp=2, steps=3, options=UNSPLIT)
    dice = random.Random(7)  # noqa: S311  # chance that can be repeated
    kept = pl.Series([dice.random() > 0.02 for _ in range(planted.raw.height)])
    spans, notes = planted.name(planted.raw.filter(kept))
    false, unnamed = planted.wrong(spans)
    assert false == 0
    assert unnamed <= 0.02 * spans.height
    assert sum(note.count for note in by_text(notes, "error")) == int((~kept).sum())


def test_an_empty_weight_gradient_pop_is_counted_and_the_rest_is_named(run):
    planted = run(schedule="dualpipev", pp=4, microbatches=8, options=UNSPLIT)
    at = planted.raw.filter((pl.col("rank") == 1) & (pl.col("marker") == "weight")).row(0, named=True)
    stray = pl.DataFrame(
        [{**at, "start_ns": at["end_ns"] + 10, "end_ns": at["end_ns"] + 20}], schema=planted.raw.schema
    )
    raw = pl.concat([planted.raw, stray]).sort("rank", "start_ns")
    spans, notes = planted.name(raw)
    extra = spans.filter((pl.col("rank") == 1) & (pl.col("microbatch").is_null()))
    assert extra["kind"].to_list() == ["backward_weight"]
    assert extra["start_ns"].to_list() == [at["end_ns"] + 10]
    assert [(note.severity, note.count, note.rank) for note in notes] == [("warning", 1, 1)]


@pytest.mark.parametrize(("declared", "severity"), [(None, "info"), (3, "warning"), (500, "warning")])
def test_counts_micro_batches_if_the_declaration_is_wrong_or_missing(run, declared, severity):
    planted = run(schedule="dualpipev", pp=4, microbatches=10, options=UNSPLIT)
    spans, notes = planted.name(microbatches=declared)
    assert planted.wrong(spans) == (0, 0)
    assert [note.severity for note in notes] == [severity]
    assert "10 " in notes[0].message


def test_counts_micro_batches_despite_a_missing_mark(run):
    planted = run(schedule="1f1b", pp=4, microbatches=8, steps=3)
    assert planted.wrong(planted.name(planted.without(2, 5), microbatches=None)[0])[0] == 0


@pytest.mark.parametrize("spelled", ["1F1B", "None", "none", None, "1f1b"])
def test_recognizes_spellings_of_the_schedule(run, spelled):
    planted = run(schedule="1f1b")
    spans, notes = planted.name(schedule=spelled)
    assert (planted.wrong(spans), notes) == ((0, 0), [])


def test_an_unknown_schedule_is_reported_and_likely_ones_are_tried(run):
    planted = run(schedule="1f1b")
    spans, notes = planted.name(schedule="ripipe")
    assert planted.wrong(spans) == (0, 0)
    assert [note.severity for note in notes] == ["warning"]
    assert "'ripipe'" in notes[0].message


def test_an_undeclared_dualpipev_is_known_by_its_overlapped_marks(run):
    planted = run(schedule="dualpipev", pp=4, microbatches=10, options=UNSPLIT)
    spans, _ = planted.name(schedule=None, microbatches=None)
    assert planted.wrong(spans) == (0, 0)


def test_virtual_stages_are_found_by_the_number_of_forwards(run):
    planted = run(schedule="interleaved", pp=4, microbatches=8, chunks=2)
    spans, notes = planted.name(schedule="1f1b")
    assert (planted.wrong(spans), notes) == ((0, 0), [])


@pytest.mark.parametrize("chunks", [2, 3])
def test_undeclared_virtual_stages_are_found_by_the_order(run, chunks):
    made = run(schedule="interleaved", chunks=chunks, microbatches=8)
    named, notes = made.name(schedule=None, microbatches=None)
    assert made.wrong(named) == (0, 0)
    assert [note.severity for note in notes] == ["info"]


def test_virtual_stages_without_known_coordinates_are_not_numbered(run):
    named, notes = run(schedule="interleaved", chunks=2).name(schedule=None, microbatches=None, placed=False)
    assert named["microbatch"].null_count() == named.height
    assert [note.severity for note in notes] == ["warning"]


def test_passes_become_steps_without_step_numbers(run):
    planted = run(schedule="dualpipev", pp=4, microbatches=8, steps=3, options=UNSPLIT)
    spans, _ = planted.name(planted.raw.with_columns(step=pl.lit(0, pl.Int32)))
    assert in_order(spans).equals(in_order(planted.truth))


@pytest.mark.parametrize("numbered", [True, False])
def test_undeclared_passes_are_separated_by_recorded_numbers(run, numbered):
    planted = run(schedule="1f1b", pp=4, microbatches=8, steps=3, numbered=numbered)
    spans, _ = planted.name(
        planted.raw.with_columns(step=pl.lit(0, pl.Int32)), microbatches=None if numbered else 8
    )
    assert in_order(spans).equals(in_order(planted.truth))


def test_warns_of_uneven_passes_without_step_numbers(run):
    planted = run(schedule="1f1b", pp=2, microbatches=4, steps=3)
    late = planted.raw.filter((pl.col("rank") == 0) | (pl.col("step") > 0))
    spans, notes = planted.name(late.with_columns(step=pl.lit(0, pl.Int32)))
    assert spans["microbatch"].null_count() == 0
    assert "between 2 and 3 passes" in by_text(notes, "warning")[0].message


def test_actions_outside_every_step_are_named_and_keep_no_step(run):
    planted = run(schedule="dualpipev", pp=4, microbatches=8, steps=3, options=UNSPLIT)
    raw = planted.raw.with_columns(step=pl.when(pl.col("step") != 1).then("step"))
    spans, notes = planted.name(raw)
    assert planted.wrong(spans) == (0, 0)
    assert spans["step"].null_count() == planted.truth.filter(pl.col("step") == 1).height
    assert {(note.severity, note.rank) for note in notes} == {("info", rank) for rank in range(4)}


def test_a_step_with_two_passes_is_not_forced_into_one(run):
    planted = run(schedule="1f1b", pp=4, microbatches=8, steps=4)
    raw = planted.raw.with_columns(step=pl.when(pl.col("step") == 2).then(1).otherwise("step").cast(pl.Int32))
    spans, notes = planted.name(raw)
    assert spans.filter(pl.col("step") == 1)["microbatch"].null_count() == 2 * 64
    assert planted.wrong(spans.filter(pl.col("step") != 1)) == (0, 0)
    assert [(note.severity, note.count) for note in notes] == [("warning", 32)] * 4


def test_a_profile_that_starts_in_the_middle_of_a_step_leaves_that_step_unnamed(run):
    planted = run(schedule="1f1b", pp=4, microbatches=8, steps=3)
    began_ns = planted.truth.filter(pl.col("step") == 0)["start_ns"].quantile(0.5)
    spans, notes = planted.name(planted.raw.filter(pl.col("start_ns") > began_ns))
    assert planted.wrong(spans)[0] == 0
    assert planted.wrong(spans.filter(pl.col("step") > 0)) == (0, 0)
    assert "20%" in by_text(notes, "warning")[0].message


def test_equal_counts_are_numbered_without_coordinates(run):
    planted = run(schedule="1f1b", pp=4, microbatches=8)
    spans, notes = planted.name(placed=False)
    truth = planted.truth.select("rank", "start_ns", "kind", "chunk", "microbatch")
    found = spans.select("rank", "start_ns", pl.col("kind").cast(pl.String), "chunk", "microbatch")
    assert found.sort(found.columns).equals(truth.sort(found.columns))
    assert spans["stage"].null_count() == spans.height
    assert [note.severity for note in notes] == ["info"]


def test_unequal_counts_are_not_numbered_without_coordinates(run):
    planted = run(schedule="1f1b", pp=4, microbatches=8)
    spans, notes = planted.name(planted.without(1, 3), placed=False)
    assert spans["microbatch"].null_count() == spans.height
    assert [(note.severity, note.count) for note in notes] == [("warning", spans.height)]


@pytest.mark.parametrize("missing", [0, 2, 3])
@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
def test_a_missing_rank_does_not_change_the_names_of_the_others(run, schedule, missing):
    options = {"options": UNSPLIT} if schedule == "dualpipev" else {}
    planted = run(schedule=schedule, microbatches=10, **options)
    spans, _ = planted.name(planted.raw.filter(pl.col("rank") != missing))
    assert planted.wrong(spans) == (0, 0)


def test_replicas_with_equal_marks_get_equal_names(run):
    planted = run(schedule="dualpipev", pp=2, microbatches=6, dp=4, options=UNSPLIT)
    spans, _ = planted.name()
    numbered = spans.select(
        "stage",
        "chunk",
        "microbatch",
        nth=pl.int_range(pl.len()).over("rank"),
        replica=pl.col("rank") % 4,
        pp=pl.col("rank") // 4,
    )
    assert numbered.drop("replica").n_unique() == numbered.height // 4


def test_no_actions_yield_no_spans():
    spans, notes = name_actions(pl.DataFrame(schema=RAW_ACTIONS), RANKS.empty(), PipelineInfo())
    assert (spans.height, notes) == (0, [])
