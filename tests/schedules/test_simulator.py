from __future__ import annotations

import doctest
import importlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from places import DATA
from stagescope.schedules import NAMES, order, parse_action
from stagescope.schedules.costs import Costs
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import ScheduleError

GOLDEN = DATA / "golden"
TABLE5 = json.loads((GOLDEN / "zb_paper_table5.json").read_text(encoding="utf-8"))
LEDGER = json.loads((GOLDEN / "ledger_example.json").read_text(encoding="utf-8"))
SIZES = {"dualpipe": (4, 8)}


def drawn(text):
    """Return the order whose ranks are the lines of `text`."""
    lines = filter(None, map(str.strip, text.splitlines()))
    return {rank: [parse_action(word) for word in line.split()] for rank, line in enumerate(lines)}


def chart(step, cell_ns=1):
    """Return a step as a drawing, one line per rank, one word per `cell_ns`; '.' is idle, '-' continues."""
    lines = []
    for rank, actions in step.order.items():
        cells = ["."] * (step.makespan_ns // cell_ns)
        for action, start_ns, end_ns in zip(actions, step.starts_ns[rank], step.ends_ns[rank], strict=True):
            first, last = start_ns // cell_ns, end_ns // cell_ns
            cells[first:last] = [str(action), *"-" * (last - first - 1)]
        lines.append(" ".join(cells))
    return lines


def sketch(text):
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def small(name):
    ranks, microbatches = SIZES.get(name, (2, 4))
    return order(name, ranks=ranks, microbatches=microbatches)


def slow_but_plain(planned, costs):
    """Return (start, end) per action by applying every rule until nothing changes: the definition, written directly.

    `costs` are per kind and one hop; a pair costs the sum of its planned.
    """
    rank_of = {part: rank for rank, actions in planned.items() for action in actions for part in action.parts}
    ends = dict.fromkeys(rank_of, 0)
    times = {}
    while True:
        before = dict(ends)
        for rank, actions in planned.items():
            free = 0
            for action in actions:
                ready = [free]
                for kind, stage, microbatch, _ in action.parts:
                    for other, offset in {"F": [("F", -1)], "W": [("I", 0)]}.get(
                        kind, [("F", 0), ("B", 1), ("I", 1)]
                    ):
                        source = parse_action(f"F0.{microbatch}")._replace(kind=other, stage=stage + offset)
                        if source in ends:
                            ready.append(ends[source] + (costs["hop"] if rank_of[source] != rank else 0))
                start = max(ready)
                free = start + sum(costs[part.kind] for part in action.parts)
                times[rank, str(action)] = (start, free)
                ends.update(dict.fromkeys(action.parts, free))
        if ends == before:
            return times


@pytest.mark.parametrize("name", ["simulator", "memory", "bounds", "closed_forms"])
def test_examples_of_the_module_run(name):
    tried = doctest.testmod(importlib.import_module(f"stagescope.schedules.{name}"))
    assert (tried.failed, tried.attempted > 0) == (0, True)


def test_an_action_starts_when_rank_and_input_are_ready():
    step = simulate(drawn("F0.0 F0.1 B0.0 B0.1\nF1.0 B1.0 F1.1 B1.1"))
    assert chart(step) == sketch("""
        F0.0 F0.1 .    .    B0.0 -    .    B0.1 -
        .    F1.0 B1.0 -    F1.1 B1.1 -    .    .
    """)


def test_a_pair_starts_when_both_parts_can_and_both_end_with_it():
    step = simulate(drawn("F0.0 F0.1 B0.0 B0.1\nF1.0 F1.1+B1.0 B1.1"), Costs(overlapped=2))
    assert chart(step) == sketch("""
        F0.0 F0.1 .         . B0.0 - B0.1 -
        .    F1.0 F1.1+B1.0 - B1.1 - .    .
    """)


def test_inputs_come_from_the_rank_that_ran_the_producer():
    step = simulate(drawn("F0.0 F1.1 B1.1 B0.0\nF0.1 F1.0 B1.0 B0.1"))
    assert chart(step) == sketch("""
        F0.0 F1.1 B1.1 - B0.0 -
        F0.1 F1.0 B1.0 - B0.1 -
    """)


def test_a_hop_delays_only_messages_between_ranks():
    step = simulate(drawn("F0.0 F3.0 B3.0 B0.0\nF1.0 F2.0 B2.0 B1.0"), Costs(hop=1))
    assert chart(step) == sketch("""
        F0.0 .  .    .    .  F3.0 B3.0 - . .    . .    . . B0.0 -
        .    .  F1.0 F2.0 .  .    .    . . B2.0 - B1.0 - . .    .
    """)


def test_hops_may_differ_by_stage():
    step = simulate(drawn("F0.0\nF1.0\nF2.0"), Costs(hop=[3, 5, 0]))
    assert [each.start_ns for each in step.actions] == [0, 4, 10]


def test_messages_queue_for_the_wire_but_share_the_latency():
    costs = Costs(hop=10, message_bytes=4, bandwidth=1_000_000_000)
    step = simulate(drawn("F0.0 F0.1\nF1.0 F1.1"), costs)
    assert [(each.start_ns, each.end_ns) for each in step.transfers()] == [(1, 15), (2, 19)]
    assert [each.start_ns for each in step.actions] == [0, 1, 15, 19]


def test_a_blocking_sender_waits_for_its_message_to_arrive():
    assert chart(simulate(drawn("F0.0 F0.1\nF1.0 F1.1"), Costs(hop=2, blocking=True))) == sketch("""
        F0.0 . .    F0.1 .    .    .
        .    . .    F1.0 .    .    F1.1
    """)


def test_transfers_have_producer_sender_and_receiver():
    step = simulate(drawn("F0.0 B0.0\nF1.0 I1.0 W1.0"), Costs(hop=5))
    transfers = [
        (str(each.producer), each.sender, each.receiver, each.start_ns, each.end_ns)
        for each in step.transfers()
    ]
    assert transfers == [("F0.0", 0, 1, 1, 6), ("I1.0", 1, 0, 8, 13)]


def test_costs_may_differ_by_micro_batch():
    step = simulate(drawn("F0.0 F0.1"), Costs(forward={(0, 0): 7, (0, 1): 2}))
    assert [each.end_ns for each in step.actions] == [7, 9]


def test_idle_own_span_and_both_bubbles_differ():
    step = simulate(drawn("F0.0 B0.0\nF1.0 B1.0"))
    assert step.busy_ns == {0: 3, 1: 3}
    assert step.idle_ns == {0: 3, 1: 3}
    assert step.own_span_ns == {0: 6, 1: 3}
    assert (step.bubble_fraction, step.own_span_bubble_fraction) == (0.5, 0.5)


def test_a_reduction_overlaps_with_computing_and_delays_the_optimizer():
    costs = Costs(forward=2, backward=4, grad_reduce=[3, 5], optimizer=[1, 2])
    step = simulate(drawn("F0.0 F1.0 B1.0 B0.0"), costs)
    assert [tuple(each) for each in step.reductions] == [(1, (0,), 8, 13), (0, (0,), 13, 16)]
    assert step.optimizer_steps == {0: (16, 19)}
    assert (step.makespan_ns, step.busy_ns) == (19, {0: 15})


def test_replicas_on_two_ranks_reduce_a_stage_together():
    step = simulate(drawn("F0.0 F1.1 B1.1 B0.0\nF0.1 F1.0 B1.0 B0.1"), Costs(grad_reduce=10))
    assert [tuple(each) for each in step.reductions] == [(1, (0, 1), 4, 14), (0, (0, 1), 14, 24)]
    assert step.makespan_ns == 24


def test_a_barrier_delays_all_optimizer_steps_to_the_last_rank():
    planned = drawn("F0.0 B0.0\nF1.0 B1.0")
    assert simulate(planned, Costs(optimizer=5)).optimizer_steps == {0: (6, 11), 1: (4, 9)}
    together = simulate(planned, Costs(optimizer=5, optimizer_barrier=True))
    assert together.optimizer_steps == {0: (6, 11), 1: (6, 11)}


@pytest.mark.parametrize(
    ("planned", "sentence"),
    [
        (
            "B0.0 F0.0",
            "the order deadlocks: B0.0 on rank 0 waits for F0.0 on rank 0 waits for B0.0 on rank 0",
        ),
        (
            "F0.0 B0.1 F0.1 B0.0\nF1.0 B1.0 F1.1 B1.1",
            "the order deadlocks: B0.1 on rank 0 waits for F0.1 on rank 0 waits for B0.1 on rank 0",
        ),
        (
            "F0.0 B0.0 F0.1 B0.1\nF1.0 F1.1 B1.0 B1.1",
            (
                "the order deadlocks: B0.0 on rank 0 waits for B1.0 on rank 1 waits for F1.1 on rank 1 "
                "waits for F0.1 on rank 0 waits for B0.0 on rank 0"
            ),
        ),
        ("F0.0 B0.0\nB1.0", "B1.0 on rank 1 waits for F1.0, which no rank runs"),
        ("F1.0", "F1.0 on rank 0 waits for F0.0, which no rank runs"),
        ("F0.0 W0.0", "W0.0 on rank 0 waits for I0.0, which no rank runs"),
        ("F0.0 F0.0", "F0.0 runs more than once, on rank 0 and on rank 0"),
        ("F0.0 B0.0\nI0.0", "I0.0 runs more than once, on rank 0 and on rank 1"),
    ],
)
def test_rejects_an_order_that_cannot_run_with_the_reason(planned, sentence):
    with pytest.raises(ScheduleError) as caught:
        simulate(drawn(planned))
    assert str(caught.value) == sentence


def test_a_action_without_a_cost_is_named():
    with pytest.raises(ScheduleError, match=r"no cost for F0\.1"):
        simulate(drawn("F0.0 F0.1"), Costs(forward={(0, 0): 1}))
    with pytest.raises(ScheduleError, match=r"no cost for F0\.1\+B0\.0"):
        simulate(drawn("F0.0 F0.1+B0.0"), Costs(forward={(0, 0): 1}, backward=1))


def test_an_empty_order_takes_no_time():
    step = simulate({0: []})
    assert (step.makespan_ns, step.busy_ns, step.own_span_ns, step.actions) == (0, {0: 0}, {0: 0}, ())
    assert (step.bubble_fraction, step.own_span_bubble_fraction) == (0.0, 0.0)


nanoseconds = st.integers(0, 20)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(forward=nanoseconds, of_input=nanoseconds, of_weight=nanoseconds, hop=nanoseconds)
def test_agrees_with_the_definition_by_relaxation(name, forward, of_input, of_weight, hop):
    planned = small(name)
    step = simulate(
        planned, Costs(forward=forward, backward_input=of_input, backward_weight=of_weight, hop=hop)
    )
    plain = slow_but_plain(
        planned, {"F": forward, "B": of_input + of_weight, "I": of_input, "W": of_weight, "hop": hop}
    )
    assert {(each.rank, str(each)): (each.start_ns, each.end_ns) for each in step.actions} == plain


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(costs=st.fixed_dictionaries(dict.fromkeys(("forward", "backward", "hop", "optimizer"), nanoseconds)))
def test_idle_and_busy_fill_the_makespan_of_every_rank(name, costs):
    step = simulate(small(name), Costs(**costs))
    assert {step.idle_ns[rank] + step.busy_ns[rank] for rank in step.order} == {step.makespan_ns}
    assert all(idle_ns >= 0 for idle_ns in step.idle_ns.values())


@pytest.mark.parametrize("name", NAMES)
def test_messages_never_shorten_a_step(name):
    planned = small(name)
    free = simulate(planned).makespan_ns
    slow = simulate(planned, Costs(hop=2)).makespan_ns
    queueing = simulate(planned, Costs(hop=2, message_bytes=3, bandwidth=1_000_000_000)).makespan_ns
    assert free <= slow <= queueing
    assert slow <= simulate(planned, Costs(hop=2, blocking=True)).makespan_ns


def in_nanoseconds(value):
    """Return a number with three decimals as an integer in thousandths."""
    return round(value * 1000)


def test_reproduces_the_worked_ledger_example():
    planned = {int(rank): [parse_action(word) for word in words] for rank, words in LEDGER["orders"].items()}
    lasting = {
        kind: {
            (action.stage, action.microbatch): in_nanoseconds(LEDGER["durations"][str(action)])
            for actions in planned.values()
            for action in actions
            if action.kind == kind
        }
        for kind in "FB"
    }
    costs = {"forward": lasting["F"], "backward": lasting["B"]}
    with_messages = simulate(planned, Costs(**costs, hop=in_nanoseconds(LEDGER["comm"])))
    assert with_messages.makespan_ns == in_nanoseconds(LEDGER["T_replay_with_comm"])
    assert simulate(planned, Costs(**costs)).makespan_ns == in_nanoseconds(LEDGER["T_no_comm"])
    assert with_messages.busy_ns == {int(rank): in_nanoseconds(ns) for rank, ns in LEDGER["busy"].items()}


PAPER_NAMES = {"1F1B": "1f1b", "ZB-H1": "zb-h1", "ZB-H2": "zb-h2", "ZB-1p": "zb-1p"}
"""ZB-2p needs the memory sizes of the paper's models as well, see test_zero_bubble_search.py."""


@pytest.mark.parametrize("row", TABLE5["rows"], ids=lambda row: f"{row['model']} p={row['p']} m={row['m']}")
@pytest.mark.parametrize("column", PAPER_NAMES)
def test_reproduces_the_zero_bubble_papers_table_5_to_four_digits(column, row):
    costs = Costs(
        forward=in_nanoseconds(row["T_F"]),
        backward_input=in_nanoseconds(row["T_B"]),
        backward_weight=in_nanoseconds(row["T_W"]),
        hop=in_nanoseconds(row["T_comm"]),
    )
    searched = {"costs": costs} if column == "ZB-1p" else {}
    planned = order(PAPER_NAMES[column], ranks=row["p"], microbatches=row["m"], **searched)
    step = simulate(planned, costs)
    assert round(step.own_span_bubble_fraction, 4) == row["paper_table5"][TABLE5["columns"].index(column)]


def test_searched_zb_v_order_is_shorter_than_torch_with_few_micro_batches():
    cases = json.loads((GOLDEN / "sailsg_zbv_greedy_zb.json").read_text(encoding="utf-8"))["cases"]
    (searched,) = (case["orders"] for case in cases if (case["pp"], case["n_mb"]) == (4, 4))
    planned = {int(rank): [parse_action(word) for word in words] for rank, words in searched.items()}
    assert simulate(planned).makespan_ns == 27
    assert simulate(order("zb-v", ranks=4, microbatches=4)).makespan_ns == 30


def test_accepts_an_order_as_text_and_reports_its_peak_memory():
    words = {
        rank: [str(action) for action in actions]
        for rank, actions in order("1f1b", ranks=3, microbatches=6).items()
    }
    step = simulate(words)
    assert step.actions == simulate(order("1f1b", ranks=3, microbatches=6)).actions
    assert step.peak_memory == {0: 3, 1: 2, 2: 1}
