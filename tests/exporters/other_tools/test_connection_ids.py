from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from ascend_profiles import Cluster, write_cluster
from ascend_truth import timeline_of_truth
from stagescope.exporters.other_tools.connection_ids import connection_ids
from stagescope.model import SPANS
from stagescope.model.validate import conform

SHAPES = [
    {"schedule": "1f1b", "pp": 4, "microbatches": 6},
    {"schedule": "interleaved", "pp": 2, "chunks": 2, "microbatches": 4},
    {"schedule": "dualpipev", "pp": 3, "microbatches": 6, "dp": 2},
]


@pytest.fixture
def planted(tmp_path):
    def plant(**words):
        cluster = Cluster(**words)
        truth = write_cluster(tmp_path / "cluster", cluster)
        return timeline_of_truth(cluster, truth), truth

    return plant


def pairs_of(ids):
    """Return the two ends, rank and operation, of every id."""
    named = (
        ids.drop_nulls("id").group_by("id").agg(ends=pl.concat_list(pl.col("rank").cast(pl.String), "name"))
    )
    return sorted(sorted(tuple(end) for end in ends) for ends in named["ends"])


def true_pairs(transfers):
    messages = transfers.group_by("message").agg(ends=pl.concat_list(pl.col("rank").cast(pl.String), "name"))
    return sorted(sorted(tuple(end) for end in ends) for ends in messages["ends"])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_ends_of_every_message_share_a_unique_id(planted, shape):
    timeline, truth = planted(**shape)
    ids, without = connection_ids(timeline)
    assert pairs_of(ids) == true_pairs(truth.transfers)
    assert without == 0


def test_an_id_contains_group_coordinates_and_send_number(planted):
    timeline, truth = planted(pp=2, microbatches=2, steps=1)
    ids, _ = connection_ids(timeline)
    digits = truth.transfers["name"][0].split("_")[3]
    found = ids.sort("id")["id"].unique(maintain_order=True).to_list()
    assert found == [f"{digits}_0_1_0", f"{digits}_0_1_1", f"{digits}_1_0_0", f"{digits}_1_0_1"]


def test_a_missing_receive_leaves_its_send_without_an_id(planted):
    timeline, truth = planted(pp=4, microbatches=8)
    received = truth.transfers.filter(pl.col("kind") == "recv_forward").row(5, named=True)
    kept = truth.transfers.filter(pl.col("message") != received["message"])
    spans = timeline.spans.filter(
        ~((pl.col("rank") == received["rank"]) & (pl.col("name") == received["name"]))
    )
    ids, _ = connection_ids(timeline.with_spans(spans))
    assert pairs_of(ids) == true_pairs(kept)
    assert ids["id"].null_count() == 1


def test_replicas_whose_groups_have_the_same_digits_share_no_id(planted):
    timeline, truth = planted(pp=2, microbatches=4, dp=3)
    alike = pl.col("name").str.replace(r"__\d+_", "__007_")
    same = timeline.with_spans(timeline.spans.with_columns(alike))
    ids, _ = connection_ids(same)
    assert pairs_of(ids) == true_pairs(truth.transfers.with_columns(alike))


def test_an_operation_of_several_messages_has_the_id_of_one_and_the_rest_are_counted(planted):
    timeline, truth = planted(pp=4, microbatches=6, transfers="batched")
    ids, without = connection_ids(timeline)
    found, every = pairs_of(ids), true_pairs(truth.transfers)
    assert all(pair in every for pair in found)
    assert all(len(pair) == 2 for pair in found)
    assert len(found) + without == len(every)
    assert not ids.select("rank", "name").is_duplicated().any()


def test_only_operations_of_the_requested_step_are_returned(planted):
    timeline, truth = planted(pp=2, microbatches=3, steps=3)
    ids, _ = connection_ids(timeline, 1)
    whole, _ = connection_ids(timeline)
    assert pairs_of(ids) == true_pairs(truth.transfers.filter(pl.col("step") == 1))
    assert ids.join(whole, on=["rank", "name", "id"]).height == ids.height


def test_no_transfers_yield_no_ids(planted):
    timeline, _ = planted(pp=2, transfers="none")
    ids, without = connection_ids(replace(timeline, spans=conform(timeline.spans, SPANS)))
    assert (ids.height, without) == (0, 0)
