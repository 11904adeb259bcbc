"""Inferring stages: simulated, removed, and recovered."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope import schedules
from stagescope.ingest.layout import Layout
from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.ingest.stages import place_stages
from stagescope.model import RANKS, Timeline
from stagescope.model.validate import conform
from stagescope.schedules.simulator import simulate

SCHEDULES = [
    ("1f1b", 1),
    ("gpipe", 1),
    ("eager-1f1b", 1),
    ("zb-h1", 1),
    ("interleaved", 2),
    ("zb-v", 2),
    ("dualpipev", 2),
]


def planted(name: str, ranks: int, chunks: int) -> Timeline:
    order = schedules.order(name, ranks=ranks, microbatches=2 * ranks, chunks=chunks)
    costs = schedules.Costs(forward=1_000, backward=2_000, hop=10)
    timeline = timeline_of_simulation(simulate(order, costs))
    return timeline.with_spans(timeline.spans.filter(pl.col("lane") == "compute"))


def without_stages(timeline: Timeline, *, shift_ns: dict[int, int] | None = None) -> Timeline:
    """Return the timeline without stages and coordinates; each shifted rank is a machine with its own clock."""
    shift = pl.col("rank").replace_strict(shift_ns or {0: 0}, default=0, return_dtype=pl.Int64)
    spans = timeline.spans.with_columns(
        pl.lit(None, pl.Int32).alias("stage"), pl.col("start_ns") + shift, pl.col("end_ns") + shift
    )
    clock = pl.concat_str(pl.lit("clock "), "rank") if shift_ns else pl.lit("clock")
    ranks = timeline.ranks.select("rank", clock=clock)
    return replace(timeline, spans=spans, ranks=conform(ranks, RANKS))


def actions(timeline: Timeline) -> pl.DataFrame:
    return timeline.spans.select("rank", "kind", "stage", "microbatch", "chunk").sort(pl.all())


@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_recovers_stages_from_the_arrival_order_of_microbatch_0(name, chunks, ranks):
    truth = planted(name, ranks, chunks)
    placed = place_stages(without_stages(truth), Layout())
    assert actions(placed).equals(actions(truth))
    assert placed.ranks["pp"].to_list() == list(range(ranks))
    [note] = placed.diagnostics.rows(named=True)
    assert note["severity"] == "info"
    assert "inferred from the order in which micro-batch 0 arrives: 0: rank 0; 1: rank 1" in note["message"]


@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
@settings(deadline=None, max_examples=10)
@given(shifts=st.lists(st.integers(-(10**9), 10**9), min_size=4, max_size=4))
def test_recovers_stages_on_unaligned_clocks(name, chunks, shifts):
    truth = planted(name, 4, chunks)
    placed = place_stages(without_stages(truth, shift_ns=dict(enumerate(shifts))), Layout())
    assert actions(placed).equals(actions(truth))
    assert "the machines' clocks are not aligned" in placed.diagnostics["message"][0]


@given(order=st.permutations(range(4)))
def test_recovers_stages_for_any_numbering_of_ranks(order):
    truth = planted("1f1b", 4, 1)
    number = pl.col("rank").replace_strict(dict(enumerate(order)), return_dtype=pl.Int32)
    renumbered = replace(
        truth, spans=truth.spans.with_columns(number), ranks=truth.ranks.with_columns(number).sort("rank")
    )
    placed = place_stages(without_stages(renumbered), Layout())
    assert actions(placed).equals(actions(renumbered))


def replicas(late_ns: int) -> Timeline:
    """Return two pipelines of two stages, ranks 0 1 and 2 3, the second one later."""
    one = planted("1f1b", 2, 1)
    later = [(pl.col(name) + late_ns) for name in ("start_ns", "end_ns")]
    other = one.spans.with_columns(pl.col("rank") + 2, *later)
    ranks = pl.concat([one.ranks, one.ranks.with_columns(pl.col("rank") + 2)])
    return replace(one, spans=pl.concat([one.spans, other]), ranks=ranks)


def test_ranks_that_run_microbatch_0_together_are_replicas_of_one_stage():
    placed = place_stages(without_stages(replicas(late_ns=100)), Layout())
    assert placed.ranks.select("rank", "pp", "dp").rows() == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)]


@pytest.mark.parametrize("late_ns", [1_050, 5_000])
def test_delayed_replicas_are_not_mistaken_for_stages(late_ns):
    placed = place_stages(without_stages(replicas(late_ns)), Layout())
    assert placed.spans["stage"].null_count() == placed.spans.height
    assert placed.diagnostics["severity"].to_list() == ["warning"]
    assert placed.diagnostics["code"].to_list() == ["stages.unknown"]


@pytest.mark.parametrize("absent", ["its actions", "its row"])
def test_no_stages_are_inferred_when_a_rank_is_missing(absent):
    bare = without_stages(planted("1f1b", 4, 1))
    partial = bare.with_spans(bare.spans.filter(pl.col("rank") != 1))
    if absent == "its row":
        ranks = bare.ranks.filter(pl.col("rank") != 1).with_columns(world_size=pl.lit(4, pl.Int32))
        partial = replace(partial, ranks=ranks)
    placed = place_stages(partial, Layout())
    assert placed.spans["stage"].null_count() == placed.spans.height
    assert placed.diagnostics["severity"].to_list() == ["warning"]
    assert place_stages(partial, Layout(pp=4)).spans["stage"].to_list() == partial.spans["rank"].to_list()


def test_the_callers_layout_determines_the_stages():
    placed = place_stages(without_stages(replicas(late_ns=5_000)), Layout(pp=2, order="pp-dp"))
    assert placed.ranks.select("rank", "pp", "dp").rows() == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)]
    assert placed.spans["stage"].to_list() == (placed.spans["rank"] % 2).to_list()
    assert placed.diagnostics.is_empty()


def test_stated_coordinates_are_kept_and_a_contradiction_is_a_warning():
    truth = planted("1f1b", 4, 1)
    placed = place_stages(truth, Layout(pp=2, dp=2))
    assert placed.ranks["pp"].to_list() == [0, 1, 2, 3]
    [note] = placed.diagnostics.rows(named=True)
    assert (note["severity"], note["count"]) == ("warning", 3)
    assert "contradict the coordinates that the files state for ranks 1-3" in note["message"]


def test_a_timeline_with_stages_is_unchanged():
    truth = planted("interleaved", 4, 2)
    assert place_stages(truth, Layout()) is truth


def test_the_stated_schedule_determines_the_placement():
    truth = planted("dualpipev", 4, 2)
    bare = without_stages(truth)
    stated = replace(bare, ranks=bare.ranks.with_columns(schedule=pl.lit("interleaved")))
    assert place_stages(stated, Layout()).spans["stage"].to_list() != truth.spans["stage"].to_list()
