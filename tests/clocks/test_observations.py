from dataclasses import replace

import polars as pl
import pytest

from drawing import timeline_from_text
from observed_clocks import observations
from planted_clocks import Plan, plant
from stagescope.clocks.observation_table import OBSERVATION_SCHEMA
from stagescope.clocks.reductions import MOST_REDUCERS
from stagescope.model import RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.validate import conform

PIPELINE = "F0 F1 .  .  B0 B1\n.  F0 F1 B0 B1 . "


def drawn(text, clocks=(0, 1)):
    """Return a drawing with the coordinates of one pipeline, and the clock of each rank."""
    timeline = timeline_from_text(text)
    numbers = list(range(len(clocks)))
    ranks = timeline.ranks.with_columns(pp=pl.Series(numbers, dtype=pl.Int32), dp=0, tp=0, cp=0)
    table = pl.DataFrame({"rank": numbers, "clock": clocks}, schema={"rank": pl.Int32, "clock": pl.Int32})
    return replace(timeline, ranks=conform(ranks, RANKS)), table


def times(found):
    return found.select("source", "target", "microbatch", "sent_ns", "received_ns").rows()


def test_an_action_ends_before_the_action_on_the_next_stage_begins():
    found = observations(*drawn(PIPELINE))
    assert found.schema == OBSERVATION_SCHEMA
    assert times(found) == [
        (0, 1, 0, 1000, 1000),
        (0, 1, 1, 2000, 2000),
        (1, 0, 0, 4000, 4000),
        (1, 0, 1, 5000, 5000),
    ]
    assert found["kind"].unique().to_list() == ["action"]
    assert found["waited"].all()


def test_ranks_with_a_common_clock_give_no_observations():
    assert observations(*drawn(PIPELINE, clocks=(0, 0))).is_empty()


def test_actions_that_occur_twice_are_omitted():
    timeline, clocks = drawn(PIPELINE)
    twice = timeline.with_spans(pl.concat([timeline.spans, timeline.spans.filter(rank=0, microbatch=0)]))
    assert set(observations(twice, clocks)["microbatch"]) == {1}


def test_a_split_backward_is_observed_by_its_input_gradient_half():
    found = observations(*drawn("F0 .  .  . I0 W0\n.  F0 I0 W0 .  . "))
    assert times(found) == [(0, 1, 0, 1000, 1000), (1, 0, 0, 3000, 4000)]


def test_actions_are_not_used_between_clocks_with_messages():
    planted = plant(Plan(ranks=2, steps=1, microbatches=4, seed=1))
    clocks = pl.DataFrame({"rank": [0, 1], "clock": [0, 1]}, schema={"rank": pl.Int32, "clock": pl.Int32})
    found = observations(planted.timeline, clocks)
    assert found["kind"].unique().to_list() == ["message"]
    assert len(found) == 8
    # From the start of the send to the end of the receive.
    sends = planted.timeline.spans.filter(kind="send_forward").sort("start_ns")["start_ns"]
    assert found.filter(source=0)["sent_ns"].to_list() == sends.to_list()


def test_a_receive_that_found_its_message_did_not_wait():
    planted = plant(Plan(ranks=2, steps=2, seed=1))
    clocks = pl.DataFrame({"rank": [0, 1], "clock": [0, 1]}, schema={"rank": pl.Int32, "clock": pl.Int32})
    receives = planted.timeline.spans.filter(pl.col("kind").cast(pl.String).str.starts_with("recv"))
    waited = (receives["end_ns"] - receives["start_ns"] > 5_000).sum()
    assert 0 < waited < len(receives)
    assert observations(planted.timeline, clocks)["waited"].sum() == waited


def reductions(entered_ns, left_ns, *, missing=()):
    """Return a reduction of one stage with one rank per clock, and the clocks; ranks in `missing` ran it twice."""
    count = len(entered_ns)
    rows = [
        {
            "rank": rank,
            "lane": "comm",
            "kind": "grad_reduce",
            "step": 0,
            "stage": 0,
            "start_ns": start,
            "end_ns": end,
        }
        for rank, (start, end) in enumerate(zip(entered_ns, left_ns, strict=True))
    ]
    rows += [rows[rank] for rank in missing]
    empty = empty_timeline()
    numbers = list(range(count))
    ranks = pl.DataFrame({"rank": numbers, "dp": numbers, "pp": 0, "tp": 0, "cp": 0})
    timeline = Timeline(
        conform(pl.DataFrame(rows), SPANS),
        conform(ranks, RANKS),
        empty.steps,
        empty.clocks,
        empty.diagnostics,
    )
    clocks = pl.DataFrame({"rank": numbers, "clock": numbers}, schema={"rank": pl.Int32, "clock": pl.Int32})
    return timeline, clocks


def test_no_rank_leaves_a_reduction_before_the_last_has_entered():
    found = observations(*reductions([10, 30], [50, 60]))
    assert found["kind"].to_list() == ["reduction", "reduction"]
    assert found.select("source", "target", "sent_ns", "received_ns").rows() == [
        (0, 1, 10, 60),
        (1, 0, 30, 50),
    ]


def test_reductions_that_members_ran_unequally_often_are_omitted():
    assert observations(*reductions([10, 30], [50, 60], missing=[1])).is_empty()


@pytest.mark.parametrize(
    ("numbers", "waits", "count"), [((7, 7), True, 2), ((7, 8), True, 0), ((7, 7), False, 0)]
)
def test_numbered_reductions_are_matched_by_group_and_number_if_their_wait_is_known(numbers, waits, count):
    timeline, *rest = reductions([10, 30], [50, 60])
    name = "all_reduce in dp 0,1 (3)"
    waited = pl.col("end_ns") if waits else pl.lit(None, pl.Int64)
    spans = timeline.spans.sort("rank").with_columns(
        name=pl.lit(name), pair=pl.Series(numbers, dtype=pl.Int32), wait_start_ns=waited, wait_end_ns=waited
    )
    assert len(observations(timeline.with_spans(spans), *rest)) == count


def test_members_of_large_reductions_are_compared_with_their_neighbors_and_the_last_to_enter():
    count = 4 * MOST_REDUCERS
    found = observations(*reductions([10] * count, [50] * count))
    others = count - 1 - MOST_REDUCERS
    assert len(found) == count * MOST_REDUCERS + others
