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


def test_the_loss_directly_precedes_each_backward_of_the_last_stage():
    row = Plan("dualpipev", 2, 4, 2, logits=LOGITS).rows()[0]
    kinds = [planned.parts[0].kind for planned in row]
    assert kinds.count("loss") == 4
    for at, planned in enumerate(row):
        if planned.parts[0].kind == "loss":
            ends = [action for action in row[at + 1].parts if action.kind != "forward"]
            assert [(action.stage, action.microbatch) for action in ends] == [
                (3, planned.parts[0].microbatch)
            ]


def test_a_second_chunk_that_counts_on_is_numbered_from_m():
    numbers = {
        planned.mark.microbatch
        for planned in Plan("dualpipev", 2, 4, 2, counts_on=True).rows()[1]
        if planned.mark.sort == "forward" and planned.mark.chunk == 1
    }
    assert numbers == {4, 5}


def test_an_overlapped_mark_has_the_number_of_its_forward():
    pairs = [planned for planned in Plan("dualpipev", 2, 4, 2).rows()[0] if planned.mark.sort == "overlap"]
    assert all(planned.mark.microbatch == planned.parts[0].microbatch for planned in pairs)
    assert {planned.parts[0].kind for planned in pairs} == {"forward"}


def test_a_split_cool_down_has_more_weight_gradients():
    whole, split = (Plan("dualpipev", 4, 8, 2, split_cooldown=split).rows()[0] for split in (False, True))
    weights = [sum(planned.mark.sort == "weight" for planned in row) for row in (whole, split)]
    assert weights == [3, 3 + 4]


def test_chunks_are_numbered_in_model_order():
    for name, stages in (("interleaved", {(0, 1), (1, 3)}), ("dualpipev", {(0, 1), (1, 2)})):
        row = Plan(name, 2, 4, 2).rows()[1]
        assert {(action.chunk, action.stage) for planned in row for action in planned.parts} == stages


def test_impossible_sizes_make_no_plan():
    assert Plan("dualpipev", 4, 7, 2).rows() is None


def test_only_dualpipev_has_variants():
    assert Plan("1f1b", 4, 8).variants(logits_are_marked=True) == [Plan("1f1b", 4, 8)]
    assert len(Plan("dualpipev", 4, 8, 2).variants(logits_are_marked=True)) == 2
    assert len(Plan("dualpipev", 4, 8, 2).variants(logits_are_marked=False)) == 4
