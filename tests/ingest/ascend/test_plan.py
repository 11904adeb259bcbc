from __future__ import annotations

import json

import pytest

from golden_orders import GOLDEN
from stagescope.ingest.ascend.plan import LOGITS, Plan

CASES = json.loads((GOLDEN / "msprof_dualpipev.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['pp']}-{case['n_mb']}")
def test_a_dualpipev_has_the_marks_that_pp_chart_expects(case):
    rows = Plan("dualpipev", case["pp"], case["n_mb"], 2, logits=LOGITS).rows()
    assert {str(pp): len(row) for pp, row in rows.items()} | case["mstx_num"] == {
        str(pp): len(row) for pp, row in rows.items()
    }


def test_the_loss_comes_right_before_each_backward_of_the_last_stage():
    row = Plan("dualpipev", 2, 4, 2, logits=LOGITS).rows()[0]
    kinds = [due.parts[0].kind for due in row]
    assert kinds.count("loss") == 4
    for at, due in enumerate(row):
        if due.parts[0].kind == "loss":
            ends = [action for action in row[at + 1].parts if action.kind != "forward"]
            assert [(action.stage, action.microbatch) for action in ends] == [(3, due.parts[0].microbatch)]


def test_a_second_chunk_that_counts_on_says_the_numbers_from_m_on():
    said = {
        due.mark.microbatch
        for due in Plan("dualpipev", 2, 4, 2, counts_on=True).rows()[1]
        if due.mark.sort == "forward" and due.mark.chunk == 1
    }
    assert said == {4, 5}


def test_an_overlapped_mark_says_the_number_of_its_forward():
    pairs = [due for due in Plan("dualpipev", 2, 4, 2).rows()[0] if due.mark.sort == "overlap"]
    assert all(due.mark.microbatch == due.parts[0].microbatch for due in pairs)
    assert {due.parts[0].kind for due in pairs} == {"forward"}


def test_a_cool_down_with_marked_weight_gradients_has_more_of_them():
    whole, split = (Plan("dualpipev", 4, 8, 2, split_cooldown=split).rows()[0] for split in (False, True))
    weights = [sum(due.mark.sort == "weight" for due in row) for row in (whole, split)]
    assert weights == [3, 3 + 4]


def test_chunks_are_numbered_by_the_way_through_the_model():
    for name, stages in (("interleaved", {(0, 1), (1, 3)}), ("dualpipev", {(0, 1), (1, 2)})):
        row = Plan(name, 2, 4, 2).rows()[1]
        assert {(action.chunk, action.stage) for due in row for action in due.parts} == stages


def test_sizes_that_a_schedule_cannot_have_make_no_plan():
    assert Plan("dualpipev", 4, 7, 2).rows() is None


def test_only_a_dualpipev_can_be_shown_in_several_ways():
    assert Plan("1f1b", 4, 8).variants(logits_are_told=True) == [Plan("1f1b", 4, 8)]
    assert len(Plan("dualpipev", 4, 8, 2).variants(logits_are_told=True)) == 2
    assert len(Plan("dualpipev", 4, 8, 2).variants(logits_are_told=False)) == 4
