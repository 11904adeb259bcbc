"""Random timelines for property tests: arbitrary ones, valid ones simulated with random costs, and both with sends.

An arbitrary timeline contains the faults of real recordings: actions that overlap, have no duration or an unknown
stage, repeated actions, ranks without actions, effects before their causes, compute other than pipeline actions, and
transfers with only one end.
"""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import strategies as st

from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.model import RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.validate import conform
from stagescope.schedules import simulate
from stagescope.schedules.costs import Costs

KINDS = ("forward", "backward", "backward_input", "backward_weight")
OTHER_KINDS = ("loss", "optimizer")
TRANSFER_KINDS = ("send_forward", "recv_forward", "send_backward", "recv_backward")
STEP_NS = 60


def timeline_of(rows: list[dict[str, Any]], ranks: int) -> Timeline:
    """Return the Timeline with these spans and this number of ranks."""
    spans = pl.DataFrame(rows, schema_overrides={"microbatch": pl.Int32, "stage": pl.Int32})
    bare = empty_timeline()
    table = conform(pl.DataFrame({"rank": range(ranks)}), RANKS)
    return Timeline(conform(spans, SPANS), table, bare.steps, bare.clocks, bare.diagnostics)


@st.composite
def arbitrary_timelines(draw: st.DrawFn) -> Timeline:
    """Return a timeline of up to 4 ranks and 3 steps with arbitrary times."""
    ranks = draw(st.integers(1, 4))
    moments = st.tuples(st.integers(0, STEP_NS), st.integers(0, 15))

    def span(rank: int, step: int, lane: str, kinds: tuple[str, ...]) -> dict[str, Any]:
        start_ns, length_ns = draw(moments)
        return {
            "rank": rank,
            "lane": lane,
            "kind": draw(st.sampled_from(kinds)),
            "step": step,
            "stage": draw(st.sampled_from([rank, rank, rank, ranks - rank, None])),
            "microbatch": draw(st.sampled_from([0, 0, 1, 1, 2, None])),
            "start_ns": step * STEP_NS + start_ns,
            "end_ns": step * STEP_NS + start_ns + length_ns,
        }

    rows = []
    for step in range(draw(st.integers(1, 3))):
        for rank in range(ranks):
            rows += [span(rank, step, "compute", KINDS) for _ in range(draw(st.integers(0, 7)))]
            rows += [span(rank, step, "compute", OTHER_KINDS) for _ in range(draw(st.integers(0, 1)))]
            for _ in range(draw(st.integers(0, 3))):
                transfer = span(rank, step, "comm", TRANSFER_KINDS)
                waits = {"wait_start_ns": transfer["start_ns"], "wait_end_ns": transfer["end_ns"]}
                rows.append({**transfer, **waits, "peer": rank + draw(st.sampled_from([-1, 1]))})
    return timeline_of(rows or [span(0, 0, "compute", KINDS)], ranks)


@st.composite
def simulated_timelines(draw: st.DrawFn) -> Timeline:
    """Return one step of a simulated pipeline with random costs per stage and a random hop, possibly 0."""
    stages, microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    cost = st.lists(st.integers(1, 30), min_size=stages, max_size=stages).map(tuple)
    costs = Costs(forward=draw(cost), backward=draw(cost), hop=draw(st.integers(0, 9)))
    return timeline_of_simulation(simulate(one_f_one_b(stages, microbatches), costs))


@st.composite
def blocked_timelines(draw: st.DrawFn) -> Timeline:
    """Return a timeline of the other two kinds with messages after its actions, most of which block their senders.

    When a send ends, and when its receive is posted and ends, is arbitrary.
    """
    timeline = draw(st.one_of(simulated_timelines(), arbitrary_timelines()))
    is_sender = pl.col("kind").is_in(("forward", "backward", "backward_input"))
    rows = []
    for action in timeline.spans.filter(is_sender).iter_rows(named=True):
        direction, offset = ("forward", 1) if action["kind"] == "forward" else ("backward", -1)
        ends = {"send": (action["rank"], action["stage"], offset)}
        if action["stage"] is not None:
            ends["recv"] = (action["rank"] + offset, action["stage"] + offset, -offset)
        sent_ns = action["end_ns"] + draw(st.sampled_from([0, 0, 0, 1, 5]))
        for verb, (rank, stage, to_peer) in ends.items():
            start_ns = sent_ns if verb == "send" else sent_ns + draw(st.integers(-20, 40))
            end_ns = max(start_ns, sent_ns) + draw(st.integers(0, 40))
            row = {"rank": rank, "lane": "comm", "kind": f"{verb}_{direction}", "step": action["step"]}
            row |= {"stage": stage, "microbatch": action["microbatch"], "peer": rank + to_peer}
            row |= {"start_ns": start_ns, "end_ns": end_ns, "wait_start_ns": start_ns, "wait_end_ns": end_ns}
            if draw(st.integers(0, 3)):
                rows.append(row)
    if not rows:
        return timeline
    more = conform(pl.DataFrame(rows, infer_schema_length=None), SPANS)
    return timeline.with_spans(conform(pl.concat([timeline.spans, more]), SPANS))


def one_f_one_b(stages: int, microbatches: int) -> dict[int, list[str]]:
    """Return the order of 1F1B, one stage per rank."""
    orders = {}
    for rank in range(stages):
        warm_up = min(stages - 1 - rank, microbatches)
        forwards = [f"F{rank}.{microbatch}" for microbatch in range(microbatches)]
        backwards = [f"B{rank}.{microbatch}" for microbatch in range(microbatches)]
        steady = [action for pair in zip(forwards[warm_up:], backwards, strict=False) for action in pair]
        orders[rank] = [*forwards[:warm_up], *steady, *backwards[microbatches - warm_up :]]
    return orders
