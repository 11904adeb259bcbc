"""Finding the ranks of each pipeline."""

import gzip
from pathlib import Path

import polars as pl
import pytest

from places import DATA
from stagescope import api
from stagescope.ingest.kineto.facts import RankFacts
from stagescope.ingest.kineto.pipeline_groups import pipeline_groups, with_places
from stagescope.ingest.kineto.rank_trace import ACTION_SCHEMA, TRANSFER_SCHEMA, RankTrace


def table(rows, schema):
    return pl.DataFrame([{**dict.fromkeys(schema), **row} for row in rows], schema)


def trace(rank, groups, *, stages=(), transfers=()):
    facts = RankFacts(rank, 4, "h", None, True, groups)
    stages = stages or (None,)
    actions = table([{"kind": "forward", "stage": stage, "microbatch": 0} for stage in stages], ACTION_SCHEMA)
    moved = table([{"kind": kind, "stage": stages[0]} for kind in transfers], TRANSFER_SCHEMA)
    return RankTrace(Path(f"rank{rank}.json"), facts, actions, moved, pl.DataFrame(), False, [])


def test_ranks_with_contiguous_stages_are_a_pipeline():
    """Two pipelines of two stages, and their data-parallel groups."""
    groups = ((0, 2), (1, 3), (0, 1), (2, 3))
    traces = {rank: trace(rank, groups, stages=(rank // 2,)) for rank in range(4)}
    assert pipeline_groups(traces) == {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}


def test_a_v_placement_is_a_pipeline_and_determines_the_peers():
    kinds = ("send_forward",)
    traces = {rank: trace(rank, ((0, 1),), stages=(rank, 3 - rank), transfers=kinds) for rank in (0, 1)}
    groups = pipeline_groups(traces)
    assert groups == {0: (0, 1), 1: (0, 1)}
    assert [with_places(r, traces[r], groups, traces).transfers["peer"].to_list() for r in (0, 1)] == [
        [1],
        [1],
    ]


def test_without_stages_transfers_determine_the_order_of_ranks():
    roles = {0: ("send_forward",), 1: ("recv_forward", "send_forward"), 2: ("recv_forward",)}
    traces = {rank: trace(rank, ((0, 1, 2),), transfers=roles[rank]) for rank in roles}
    groups = pipeline_groups(traces)
    assert groups == dict.fromkeys(roles, (0, 1, 2))
    placed = with_places(1, traces[1], groups, traces)
    assert placed.actions["stage"].to_list() == [1]
    assert placed.transfers.select("stage", "peer").rows() == [(1, 0), (1, 2)]


ROLES = {0: ("send_forward",), 1: ("recv_forward", "send_forward"), 2: ("recv_forward", "send_forward")}
"""The transfers of the first three ranks of a pipeline of four."""


def test_a_rank_without_a_trace_has_its_place_in_the_group():
    traces = {rank: trace(rank, ((0, 1, 2, 3),), transfers=ROLES[rank]) for rank in ROLES}
    groups = pipeline_groups(traces)
    assert groups == dict.fromkeys(ROLES, (0, 1, 2, 3))
    placed = with_places(2, traces[2], groups, traces)
    assert placed.actions["stage"].to_list() == [2]
    assert placed.transfers.select("stage", "peer").rows() == [(2, 1), (2, 3)]


def test_a_pipeline_with_all_traces_precedes_a_group_with_missing_ones():
    """Ranks 0 and 1 are a pipeline; rank 0 could also be the first rank of the whole run."""
    roles = {0: ("send_forward",), 1: ("recv_forward",)}
    traces = {rank: trace(rank, ((0, 1, 2, 3), (0, 1), (0, 2)), transfers=roles[rank]) for rank in roles}
    assert pipeline_groups(traces) == {0: (0, 1), 1: (0, 1)}


def test_two_groups_with_missing_ranks_that_fit_leave_stages_unknown():
    assert pipeline_groups({0: trace(0, ((0, 1), (0, 2)), transfers=ROLES[0])}) == {}


@pytest.mark.parametrize("groups", [((0, 1, 2, 4),), ((1, 0, 2, 3),), ((0, 1, 2), (1, 2))])
def test_missing_ranks_need_a_group_that_fits_the_others(groups):
    """Rank 4 is not in a run of four; rank 0 cannot be second; rank 2 sends, so it is not the last one."""
    traces = {rank: trace(rank, groups, transfers=ROLES[rank]) for rank in ROLES}
    assert pipeline_groups(traces) == {}


@pytest.mark.parametrize("groups", [(), ((0,),), ((0, 1, 5),), ((0, 1), (1, 0))])
def test_ambiguous_groups_leave_stages_unknown(groups):
    traces = {rank: trace(rank, groups, stages=(rank,)) for rank in (0, 1)}
    assert pipeline_groups(traces) == {}
    assert with_places(0, traces[0], {}, traces) is traces[0]


def test_a_rank_whose_trace_lost_its_group_is_named(tmp_path):
    """Without annotated stages only the process groups in the traces' headers place the ranks."""
    for path in sorted((DATA / "kineto_transfers").glob("*.gz")):
        text = gzip.decompress(path.read_bytes())
        if path.name.startswith("rank3"):
            text = text.replace(b'"pg_config"', b'"pg_\xf8config"')
        (tmp_path / path.stem).write_bytes(text)
    timeline = api.read(tmp_path)
    assert timeline.ranks["pp"].to_list() == [0, 1, 2, None]
    warnings = timeline.diagnostics.filter(pl.col("code") == "stages.unknown")
    assert warnings.select("severity", "count").rows() == [("warning", 1)]
    assert "rank 3" in warnings["message"].item()
    assert api.read(tmp_path, pp=4).ranks["pp"].to_list() == [0, 1, 2, 3]
