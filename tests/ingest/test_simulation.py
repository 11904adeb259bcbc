from textwrap import dedent

import polars as pl
import pytest

from drawing import timeline_to_text
from stagescope.analysis.report import build_report
from stagescope.ingest.merge import merge_timelines
from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.model import Timeline
from stagescope.model.messages import match_messages
from stagescope.model.simulated import is_in_cost_units, is_simulated
from stagescope.schedules.catalog import SCHEDULES, order
from stagescope.schedules.costs import Costs
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.kinds import ACTION_KINDS, label

UNIT = Costs(forward=1_000, backward=2_000)


def simulated(name: str, costs: Costs = UNIT, *, ranks: int = 2, microbatches: int = 3) -> Timeline:
    actions = order(name, ranks=ranks, microbatches=microbatches)
    return timeline_of_simulation(simulate(actions, costs), schedule=name)


def drawn(text: str) -> str:
    return dedent(text).strip()


def test_a_simulated_1f1b_step_matches_the_published_diagram() -> None:
    assert timeline_to_text(simulated("1f1b")) == drawn("""
        F0 F1 . . B0 - F2 B1 - . B2 -
        . F0 B0 - F1 B1 - F2 B2 - . .
        """)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
def test_every_action_becomes_a_span_with_its_times(schedule) -> None:
    step = simulate(order(schedule.name, ranks=4, microbatches=8), Costs(forward=1_000, hop=50))
    spans = timeline_of_simulation(step).spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    found = {
        (row["rank"], label(row["kind"], row["stage"], row["microbatch"]), row["start_ns"], row["end_ns"])
        for row in spans.iter_rows(named=True)
    }
    assert found == {
        (timed.rank, str(part), timed.start_ns, timed.end_ns)
        for timed in step.actions
        for part in timed.action.parts
    }
    assert spans.height == len(found)


def test_a_simulated_timeline_can_be_analyzed() -> None:
    step = simulate(order("zb-h1", ranks=4, microbatches=8), UNIT)
    report = build_report(merge_timelines([timeline_of_simulation(step)]))
    assert report.bubble.fraction == pytest.approx(step.bubble_fraction)
    assert report.diagnostics == ()


def test_the_actions_of_a_pair_share_id_and_times() -> None:
    spans = simulated("dualpipev", ranks=2, microbatches=4).spans.filter(pl.col("pair").is_not_null())
    pairs = spans.group_by("pair").agg(
        pl.len(), pl.col("start_ns", "end_ns", "rank").n_unique(), pl.col("kind").cast(pl.String).sort()
    )
    assert pairs.drop("pair", "kind").unique().rows() == [(2, 1, 1, 1)]
    assert pairs["kind"].explode().unique().sort().to_list() == ["backward", "forward"]


def test_messages_without_transfer_time_are_omitted() -> None:
    assert set(simulated("1f1b").spans["lane"]) == {"compute"}


def test_every_message_has_a_matching_send_and_receive() -> None:
    step = simulate(order("1f1b", ranks=3, microbatches=4), Costs(forward=1_000, hop=100))
    messages = match_messages(timeline_of_simulation(step).spans)
    assert messages.height == len(list(step.transfers())) == 2 * 2 * 4
    assert (messages["recv_end_ns"] - messages["send_start_ns"] == 100).all()


def test_a_receive_waits_from_when_its_rank_became_idle() -> None:
    spans = simulated("1f1b", Costs(forward=1_000, backward=2_000, hop=100)).spans
    waits = spans.filter(pl.col("wait_start_ns").is_not_null()).select(
        "rank", "kind", "microbatch", "wait_start_ns", "wait_end_ns"
    )
    assert waits.rows() == [
        (0, "recv_backward", 0, 2_000, 4_200),
        (0, "recv_backward", 2, 9_200, 10_400),
        (1, "recv_forward", 0, 0, 1_100),
        (1, "recv_forward", 2, 7_100, 7_300),
    ]


def test_waits_equal_the_idle_time_before_received_actions() -> None:
    step = simulate(order("1f1b", ranks=4, microbatches=8), Costs(forward=1_000, backward=2_000, hop=300))
    spans = timeline_of_simulation(step).spans
    waited = spans.group_by("rank").agg(
        (pl.col("wait_end_ns") - pl.col("wait_start_ns")).sum().alias("waited_ns")
    )
    for rank, waited_ns in waited.sort("rank").iter_rows():
        last_end_ns = step.ends_ns[rank][-1]
        assert waited_ns == step.idle_ns[rank] - (step.makespan_ns - last_end_ns)


def test_blocking_sends_wait_for_their_whole_duration() -> None:
    costs = Costs(forward=1_000, backward=2_000, hop=100, blocking=True)
    spans = simulated("1f1b", costs).spans
    sends = spans.filter(pl.col("kind").cast(pl.String).str.starts_with("send"))
    assert (sends["wait_end_ns"] - sends["wait_start_ns"] == 100).all()
    receives = spans.filter(pl.col("kind").cast(pl.String).str.starts_with("recv"))
    blocked = sends.filter(pl.col("rank") == 0)["end_ns"].to_list()
    assert receives.filter(pl.col("rank") == 0)["wait_start_ns"].drop_nulls()[0] in blocked


def test_messages_have_their_size() -> None:
    costs = Costs(forward=1_000, hop=10, bandwidth=10**9, message_bytes=[64, 128, 256])
    spans = simulated("gpipe", costs, ranks=3).spans.filter(pl.col("lane") == "comm")
    sizes = (
        spans.group_by(pl.min_horizontal("rank", "peer").alias("link"))
        .agg(pl.col("bytes").unique())
        .sort("link")
    )
    assert sizes.rows() == [(0, [64]), (1, [128])]


def test_reductions_and_optimizer_come_at_the_end_of_the_step() -> None:
    timeline = simulated("gpipe", Costs(forward=1_000, grad_reduce=500, optimizer=700))
    ends = timeline.spans.filter(pl.col("kind").is_in(["grad_reduce", "optimizer"]))
    assert ends.group_by("kind", "lane").len().sort("kind").rows() == [
        ("optimizer", "compute", 2),
        ("grad_reduce", "comm", 2),
    ]
    assert timeline.steps["end_ns"].max() == timeline.spans["end_ns"].max()


def test_chunk_0_of_a_bidirectional_schedule_is_the_same_direction_on_every_rank() -> None:
    spans = simulated("dualpipe", ranks=4, microbatches=8).spans
    assert set(spans.filter(pl.col("chunk") == 0)["microbatch"]) == {0, 1, 2, 3}


def test_chunks_of_a_v_placement_are_numbered_by_model_depth() -> None:
    spans = simulated("zb-v", ranks=2, microbatches=4).spans
    places = spans.select("rank", "chunk", "stage").unique().sort("rank", "chunk")
    assert places.rows() == [(0, 0, 0), (0, 1, 3), (1, 0, 1), (1, 1, 2)]


def test_the_clock_marks_times_in_cost_units() -> None:
    step = simulate(order("1f1b", ranks=2, microbatches=2), UNIT)
    plain, units = timeline_of_simulation(step), timeline_of_simulation(step, in_cost_units=True)
    assert (is_simulated(plain), is_in_cost_units(plain)) == (True, False)
    assert (is_simulated(units), is_in_cost_units(units)) == (True, True)
    assert units.spans.equals(plain.spans)


def test_an_empty_order_gives_a_timeline_without_spans() -> None:
    timeline = timeline_of_simulation(simulate({0: [], 1: []}))
    assert (timeline.spans.height, timeline.ranks["rank"].to_list()) == (0, [0, 1])
