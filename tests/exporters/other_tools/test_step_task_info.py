from __future__ import annotations

import json
from dataclasses import replace

import polars as pl
import pytest

from ascend_profiles import Cluster, write_cluster
from ascend_truth import timeline_of_truth
from golden_orders import GOLDEN
from stagescope.exporters.other_tools.step_task_info import PAIR, UNKNOWN, WEIGHT, step_task_rows

CASES = json.loads((GOLDEN / "msprof_pp_chart_labels.json").read_text())["cases"]


def timeline_of(directory, **words):
    cluster = Cluster(transfers="none", steps=1, **words)
    return timeline_of_truth(cluster, write_cluster(directory, cluster))


def labels(rows):
    found = rows.group_by("rank", maintain_order=True).agg(
        pl.concat_list("name", pl.col("type").cast(pl.String))
    )
    return {rank: [(name, int(number)) for name, number in each] for rank, each in found.iter_rows()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['pp']}-{case['n_mb']}")
def test_a_dualpipev_has_the_names_and_phases_of_pp_chart(tmp_path, case):
    timeline = timeline_of(
        tmp_path,
        schedule="dualpipev",
        pp=case["pp"],
        microbatches=case["n_mb"],
        options={"split_cooldown": False},
    )
    expected = {int(pp): [tuple(each) for each in row] for pp, row in case["labels"].items()}
    assert labels(step_task_rows(timeline)) == expected


def test_replicas_have_the_labels_of_their_stage(tmp_path):
    timeline = timeline_of(tmp_path, schedule="dualpipev", pp=2, microbatches=4, dp=2)
    found = labels(step_task_rows(timeline))
    assert (found[0], found[2]) == (found[1], found[3])


def test_weight_gradients_of_a_split_cool_down_are_labeled(tmp_path):
    timeline = timeline_of(tmp_path, schedule="dualpipev", pp=2, microbatches=4)
    split = [label for label in labels(step_task_rows(timeline))[0] if label[0].endswith("w")]
    assert split == [("4w", 2), ("2w", 6), ("3w", 6)]


def test_1f1b_is_drawn_as_fp_and_bp(tmp_path):
    rows = step_task_rows(timeline_of(tmp_path, pp=2, microbatches=2))
    assert labels(rows)[0] == [("FP", 0), ("FP", 0), ("BP", 1), ("BP", 1)]


def test_numbers_are_written_on_request(tmp_path):
    rows = step_task_rows(timeline_of(tmp_path, pp=2, microbatches=2), numbered=True)
    assert rows.filter(pl.col("rank") == 1)["name"].to_list() == ["F0", "B0", "F1", "B1"]


def test_numbers_of_several_chunks_are_stage_and_micro_batch(tmp_path):
    timeline = timeline_of(tmp_path, schedule="interleaved", pp=2, chunks=2, microbatches=2)
    rows = step_task_rows(timeline, numbered=True)
    assert rows.filter(pl.col("rank") == 0)["name"].to_list()[:4] == ["F0.0", "F0.1", "F2.0", "F2.1"]


def test_an_undeclared_dualpipev_is_recognized_by_its_overlaps(tmp_path):
    timeline = timeline_of(tmp_path, schedule="dualpipev", pp=3, microbatches=6)
    undeclared = replace(timeline, ranks=timeline.ranks.with_columns(schedule=pl.lit(None, pl.String)))
    assert step_task_rows(undeclared).equals(step_task_rows(timeline))


def test_weight_gradients_and_pairs_have_their_own_types(tmp_path):
    timeline = timeline_of(tmp_path, schedule="dualpipev", pp=2, microbatches=4)
    undeclared = replace(timeline, ranks=timeline.ranks.with_columns(schedule=pl.lit("1f1b")))
    rows = step_task_rows(undeclared)
    assert set(rows.filter(pl.col("name") == "W")["type"]) == {WEIGHT}
    assert set(rows.filter(pl.col("name") == "F+B")["type"]) == {PAIR}
    assert "F0+B1" not in rows["name"]
    assert rows.height == step_task_rows(timeline).height


def test_an_unnumbered_action_has_its_marks_name_and_type_unknown(tmp_path):
    timeline = timeline_of(tmp_path, schedule="dualpipev", pp=2, microbatches=4)
    unnamed = timeline.with_spans(
        timeline.spans.with_columns(
            microbatch=pl.when(pl.col("microbatch") != 0).then("microbatch"),
            name=pl.when(pl.col("rank") == 0).then("name"),
        )
    )
    rows = step_task_rows(unnamed).filter(pl.col("type") == UNKNOWN)
    assert dict(rows.group_by("rank").agg(pl.col("name").unique()).iter_rows()) == {0: ["mark"], 1: ["?"]}
    assert "" not in step_task_rows(unnamed)["name"]


def test_only_the_requested_step_is_written(tmp_path):
    timeline = timeline_of(tmp_path, pp=2, microbatches=2)
    assert step_task_rows(timeline, step=0).height == 8
    assert step_task_rows(timeline, step=1).height == 0
