"""Which ranks form one pipeline."""

import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.model import SPANS, empty_timeline
from stagescope.model.pipelines import find_pipelines, infer_replicas
from stagescope.model.validate import conform

FOUR_RANKS = """
F0 B0
F0 B0
F0 B0
F0 B0
"""


def with_transfers(*edges: tuple[int, int], kind: str = "send_forward") -> pl.DataFrame:
    sends = [
        {"rank": rank, "lane": "comm", "kind": kind, "peer": peer, "start_ns": 0, "end_ns": 1}
        for rank, peer in edges
    ]
    drawn = timeline_from_text(FOUR_RANKS).spans
    return pl.concat([drawn, conform(pl.DataFrame(sends), SPANS)]) if sends else drawn


def pipelines(spans: pl.DataFrame) -> dict[int, int]:
    return dict(find_pipelines(spans).iter_rows())


def test_without_any_peer_all_ranks_are_one_pipeline():
    assert pipelines(with_transfers()) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_a_chain_of_sends_is_one_pipeline():
    assert pipelines(with_transfers((0, 1), (1, 2), (2, 3))) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_plain_transfers_connect_ranks_if_all_pipelines_run_the_same_actions_once():
    two_stages = with_transfers((0, 1), (2, 3), kind="send").with_columns(
        stage=pl.when(pl.col("kind").is_in(["forward", "backward"])).then(pl.col("rank") % 2)
    )
    assert pipelines(two_stages) == {0: 0, 1: 0, 2: 2, 3: 2}
    reported = pl.concat([two_stages, with_transfers((3, 0), kind="send").filter(pl.col("kind") == "send")])
    assert pipelines(reported) == {0: 0, 1: 0, 2: 2, 3: 2}
    apart = two_stages.with_columns(stage=pl.when(pl.col("stage").is_not_null()).then(pl.col("rank")))
    assert pipelines(apart) == {0: 0, 1: 0, 2: 0, 3: 0}


def test_replicas_are_separate_pipelines():
    assert pipelines(with_transfers((0, 2), (1, 3))) == {0: 0, 1: 1, 2: 0, 3: 1}


def test_one_end_of_a_transfer_is_enough():
    assert pipelines(with_transfers((3, 1), kind="recv_backward")) == {0: 0, 1: 1, 2: 2, 3: 1}


def test_a_rank_that_was_not_recorded_still_joins_its_neighbors():
    spans = with_transfers((0, 9), (3, 9), (1, 2))
    assert pipelines(spans) == {0: 0, 1: 1, 2: 1, 3: 0}


def test_a_gradient_reduction_joins_no_pipelines():
    spans = pl.concat([with_transfers((0, 1), (2, 3)), with_transfers((0, 2), kind="grad_reduce")])
    assert pipelines(spans) == {0: 0, 1: 0, 2: 2, 3: 2}


def test_a_timeline_without_actions_has_no_pipelines():
    assert find_pipelines(empty_timeline().spans).is_empty()


def test_a_long_chain_in_any_order_is_one_pipeline():
    edges = [(rank, rank + 1) for rank in range(0, 1000, 2)] + [
        (rank, rank + 1) for rank in range(1, 1000, 2)
    ]
    assert set(pipelines(with_transfers(*edges)).values()) == {0}


def test_without_transfers_coordinates_separate_the_pipelines():
    spans = with_transfers()
    ranks = pl.DataFrame(
        {"rank": range(4), "pp": [0, 0, 1, 1], "dp": [0, 1, 0, 1], "tp": [0] * 4, "cp": [None] * 4}
    )
    assert dict(find_pipelines(spans, ranks).iter_rows()) == {0: 0, 1: 1, 2: 0, 3: 1}


def test_incomplete_coordinates_are_ignored():
    ranks = pl.DataFrame(
        {"rank": range(4), "pp": [0, 0, 1, None], "dp": [0, 1, 0, 1], "tp": [0] * 4, "cp": [0] * 4}
    )
    assert dict(find_pipelines(with_transfers(), ranks).iter_rows()) == dict.fromkeys(range(4), 0)


def ranks_running(stages_by_rank, microbatches=2):
    rows = [
        {"rank": rank, "lane": "compute", "kind": kind, "step": 0, "stage": stage, "microbatch": microbatch,
         "start_ns": 10 * microbatch, "end_ns": 10 * microbatch + 5}
        for rank, stages in stages_by_rank.items()
        for stage in stages
        for microbatch in range(microbatches)
        for kind in ("forward", "backward")
    ]  # fmt: skip
    return conform(pl.DataFrame(rows), SPANS)


@pytest.mark.parametrize(
    ("stages", "pipelines"),
    [
        ({0: [0], 1: [1], 2: [0], 3: [1]}, [0, 0, 2, 2]),
        ({0: [0], 1: [0], 2: [1], 3: [1]}, [0, 1, 0, 1]),
        ({0: [0, 2], 1: [1, 3], 2: [0, 2], 3: [1, 3]}, [0, 0, 2, 2]),
        ({0: [0], 1: [1], 2: [2]}, [0, 0, 0]),
    ],
    ids=["by replica", "by stage", "interleaved", "one pipeline"],
)
def test_replicas_without_transfers_are_inferred_from_repeated_actions(stages, pipelines):
    assert find_pipelines(ranks_running(stages))["pipeline"].to_list() == pipelines


def test_replicas_with_a_missing_rank_are_not_guessed():
    spans = ranks_running({0: [0], 1: [1], 2: [0]})
    assert infer_replicas(spans) is None
    assert find_pipelines(spans)["pipeline"].to_list() == [0, 0, 0]
