from __future__ import annotations

import pytest

from stagescope.ingest.ascend.pipeline_info import PipelineInfo
from stagescope.ingest.ascend.plan import Plan
from stagescope.ingest.ascend.sizes import Counts, check_declared, list_plans
from stagescope.schedules.spellings import known_schedule

WHOLE = Counts(forwards=8, longest=8, recorded_microbatches=None, overlaps=False, has_step_numbers=True)


def first(counts, schedule, microbatches, stages=4):
    plans, _ = list_plans(counts, stages, PipelineInfo(schedule, microbatches))
    return plans[0]


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        (("1f1b", 8), ("1f1b", 8, 1)),
        (("None", None), ("1f1b", 8, 1)),
        (("interleaved_1f1b", 8), ("interleaved", 8, 1)),
        (("dualpipev", 4), ("dualpipev", 4, 2)),
        ((None, None), ("1f1b", 8, 1)),
    ],
)
def test_the_declared_schedule_in_the_declared_size_is_tried_first(declared, found):
    plan = first(WHOLE, *declared)
    assert (plan.schedule, plan.microbatches, plan.chunks) == found


def test_spellings_are_case_insensitive():
    assert known_schedule("DualPipeV") == "dualpipev"
    assert [known_schedule(each) for each in ("None", None, "ripipe")] == [None, None, None]


def test_twice_the_forwards_may_be_two_chunks_per_rank():
    plans, _ = list_plans(WHOLE, 4, PipelineInfo("1f1b", 4))
    assert Plan("interleaved", 4, 4, 2) in plans


def test_overlapped_marks_suggest_dualpipev():
    assert first(WHOLE._replace(overlaps=True), None, None).schedule == "dualpipev"


def test_numbers_beyond_m_show_that_the_second_chunk_counts_on():
    counts = WHOLE._replace(overlaps=True)
    assert first(counts._replace(recorded_microbatches=8), "dualpipev", 4).counts_on
    assert not first(counts._replace(recorded_microbatches=4), "dualpipev", 4).counts_on


def test_the_longest_step_is_tried_if_marks_are_missing_in_most():
    plans, _ = list_plans(WHOLE._replace(forwards=7), 4, PipelineInfo("1f1b", None))
    assert [plan.microbatches for plan in plans if plan.chunks == 1] == [7, 8]


def test_several_chunk_counts_are_tried_if_undeclared():
    plans, _ = list_plans(WHOLE._replace(forwards=48, longest=48), 4, PipelineInfo(None, None))
    several = {(plan.chunks, plan.microbatches) for plan in plans if plan.schedule == "interleaved"}
    assert several == {(2, 24), (3, 16), (4, 12), (6, 8), (12, 4)}


def test_undeclared_interleaving_needs_complete_rounds_of_micro_batches():
    counts = WHOLE._replace(forwards=12, longest=12)
    undeclared, declared = (list_plans(counts, 4, PipelineInfo(None, m))[0] for m in (None, 6))
    assert [plan.microbatches for plan in undeclared if plan.chunks > 1] == [4]
    assert [plan.microbatches for plan in declared if plan.chunks > 1] == [6]


def test_an_excessive_declared_number_builds_no_order():
    plans, _ = list_plans(WHOLE, 4, PipelineInfo("1f1b", 10**12))
    assert [plan.microbatches for plan in plans] == [8]


def test_length_of_passes_without_steps_follows_marks_or_declaration():
    counts = WHOLE._replace(forwards=24, longest=24, has_step_numbers=False)
    assert first(counts, "1f1b", 8).microbatches == 8
    assert first(counts._replace(recorded_microbatches=6), "1f1b", None).microbatches == 6


def test_an_unknown_schedule_is_a_warning():
    plans, notes = list_plans(WHOLE, 4, PipelineInfo("ripipe", 8))
    assert {plan.schedule for plan in plans} >= {"1f1b", "gpipe"}
    assert [(note.severity, "'ripipe'" in note.message) for note in notes] == [("warning", True)]


def test_a_contradicted_number_is_a_warning_and_a_missing_one_an_info():
    plan = Plan("1f1b", 4, 8)
    assert list(check_declared(plan, WHOLE, PipelineInfo("1f1b", 8))) == []
    (missing,) = check_declared(plan, WHOLE, PipelineInfo("1f1b", None))
    (wrong,) = check_declared(plan, WHOLE, PipelineInfo("1f1b", 5))
    assert (missing.severity, wrong.severity) == ("info", "warning")
    assert "5 micro-batches per step are declared" in wrong.message
    assert "8 is used" in wrong.message
