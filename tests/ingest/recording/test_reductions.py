"""Collectives of replicas between the last backward and the optimizer step reduce gradients."""

import polars as pl
import pytest

from stagescope.ingest.recording.reductions import name_reductions
from stagescope.model import RANKS, SPANS
from stagescope.model.validate import conform

GROUP = "0,2 (7)"
STEP = (
    ("forward", 0, 10, None, None),
    ("backward", 10, 30, None, None),
    ("optimizer", 60, 70, None, None),
)


def table(*collectives, more=STEP):
    """Return spans of rank 0 and the same of its replica, rank 2; a collective has times, bytes and a name."""
    lanes = {"forward": "compute", "backward": "compute", "optimizer": "host", "collective": "comm"}
    rows = [*more, *(("collective", *each) for each in collectives)]
    return conform(
        pl.DataFrame(
            [
                {"rank": rank, "kind": kind, "lane": lanes[kind], "start_ns": start, "end_ns": end, "step": 3}
                | {"bytes": size, "name": name, "stage": 1 if lanes[kind] == "compute" else None}
                for rank in (0, 2)
                for kind, start, end, size, name in rows
            ],
            infer_schema_length=None,
        ),
        SPANS,
    )


def ranks():
    return conform(
        pl.DataFrame([{"rank": rank, "dp": rank // 2, "pp": rank % 2, "world_size": 4} for rank in range(4)]),
        RANKS,
    )


def kinds(spans):
    return name_reductions(spans, ranks()).filter(rank=0, lane="comm").sort("start_ns")["kind"].to_list()


def test_sums_of_replicas_after_the_last_backward_reduce_gradients_of_the_stage():
    spans = table(
        (30, 40, 4096, f"all_reduce in {GROUP}"), (41, 50, 4096, f"reduce_scatter (async) in {GROUP}")
    )
    named = name_reductions(spans, ranks())
    assert named.filter(kind="grad_reduce").select("rank", "stage").rows() == [(0, 1), (0, 1), (2, 1), (2, 1)]
    assert named.drop("kind", "stage").equals(spans.drop("kind", "stage"))


@pytest.mark.parametrize(
    "collective",
    [
        (5, 8, 4096, f"all_reduce in {GROUP}"),  # before the last backward has ended
        (71, 80, 4096, f"all_reduce in {GROUP}"),  # averages weights after the optimizer step
        (30, 40, 4, f"all_reduce in {GROUP}"),  # a loss
        (30, 40, 4096, f"all_gather in {GROUP}"),
        (30, 40, 4096, "all_reduce in mesh_tp 0,2 (7)"),
        (30, 40, 4096, "all_reduce in default_pg 0-3 (0)"),
    ],
)
def test_other_collectives_stay_what_they_are(collective):
    assert kinds(table(collective)) == ["collective"]


def test_without_a_recorded_optimizer_step_what_follows_the_backwards_counts():
    assert kinds(table((71, 80, 4096, f"all_reduce in {GROUP}"), more=STEP[:2])) == ["grad_reduce"]
