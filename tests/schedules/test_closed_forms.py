from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from places import DATA, DOCS
from stagescope.schedules import NAMES, order
from stagescope.schedules.closed_forms import (
    CLOSED_FORMS,
    IDLE,
    LARGEST_PEAK,
    MAKESPAN,
    OWN_SPAN_IDLE,
    PEAK,
    QUANTITIES,
    letters,
    predict,
)
from stagescope.schedules.costs import Costs
from stagescope.schedules.memory import peak_in_flight
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import ScheduleError

FORMS = [form for form in CLOSED_FORMS if form.schedule in NAMES]
by_form = pytest.mark.parametrize(
    "form", FORMS, ids=lambda form: f"{form.schedule}: {form.quantity} = {form.formula}"
)
COSTS = (
    Costs(),
    Costs(forward=2, backward_input=3, backward_weight=1),
    Costs(forward=3, backward_input=3, backward_weight=2, overlapped=7),
    Costs(forward=5, backward_input=2, backward_weight=2, overlapped=6),
    Costs(forward=4, backward_input=5, backward_weight=2, overlapped=11),
    Costs(forward=10, backward=20, hop=1),
    Costs(forward=10, backward=6, hop=6),
    Costs(forward=1, backward=2, hop=30),
)
CHUNKS = {
    "interleaved": (2, 3),
    "interleaved-overlap": (2, 3),
    "interleaved-zb": (2, 3),
    "looped-bfs": (2, 3),
}


def orders_of(form, rank_counts, microbatch_counts):
    """Yield (ranks, microbatches, chunks, order) of every valid size."""
    for ranks, microbatches, chunks in product(
        rank_counts, microbatch_counts, CHUNKS.get(form.schedule, (None,))
    ):
        try:
            built = order(
                form.schedule, ranks=ranks, microbatches=microbatches, chunks=chunks, **form.options
            )
        except ScheduleError:
            continue
        yield ranks, microbatches, chunks or 1, built


def simulated(form, built, costs):
    """Return the quantity of a form by simulation, per rank."""
    if form.quantity == PEAK:
        return peak_in_flight(built)
    if form.quantity == LARGEST_PEAK:
        return dict.fromkeys(built, max(peak_in_flight(built).values()))
    step = simulate(built, costs)
    if form.quantity == MAKESPAN:
        return dict.fromkeys(built, step.makespan_ns)
    if form.quantity == OWN_SPAN_IDLE:
        return dict.fromkeys(built, max(step.own_span_ns.values()) - max(step.busy_ns.values()))
    assert form.quantity == IDLE
    return dict.fromkeys(built, max(step.idle_ns.values()))


def claimed(form, setting, ranks):
    return {rank: form.value(setting._replace(r=rank)) for rank in ranks}


@by_form
def test_closed_forms_equal_the_simulation_where_they_hold(form):
    compared = 0
    for ranks, microbatches, chunks, built in orders_of(form, (1, 2, 3, 4, 6), (1, 2, 4, 6, 9, 12)):
        for costs in COSTS:
            setting = letters(ranks, microbatches, chunks, costs)
            if form.holds(setting):
                compared += 1
                assert claimed(form, setting, built) == simulated(form, built, costs), setting
    assert compared >= 10


small = st.integers(0, 12)


@by_form
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_closed_forms_equal_the_simulation_for_random_costs(form, data):
    ranks = data.draw(st.sampled_from((2, 3, 4)))
    microbatches = data.draw(st.sampled_from((ranks, 2 * ranks, 3 * ranks, 3 * ranks + 1)))
    sizes = list(orders_of(form, (ranks,), (microbatches,)))
    assume(sizes)
    _, _, chunks, built = sizes[0]
    forward, of_input, of_weight = data.draw(st.tuples(small, small, small))
    costs = Costs(
        forward=forward,
        backward_input=of_input,
        backward_weight=of_weight,
        overlapped=data.draw(st.none() | st.integers(0, 36)),
        hop=data.draw(st.sampled_from((0, 0, 1, 5))),
    )
    setting = letters(ranks, microbatches, chunks, costs)
    if form.holds(setting):
        assert claimed(form, setting, built) == simulated(form, built, costs)


def test_every_closed_form_has_a_known_quantity():
    assert {form.quantity for form in CLOSED_FORMS} <= set(QUANTITIES)


def test_predict_distinguishes_forms_by_option():
    setting = letters(4, 10)
    assert predict("dualpipev", IDLE, setting) == 3 * (3 + 1 - 2)
    assert predict("dualpipev", IDLE, setting, split_cooldown=False) == 3 * (3 + 1)


def test_predict_returns_none_outside_the_conditions():
    assert (
        predict("zb-h1", IDLE, letters(4, 8, costs=Costs(forward=1, backward_input=1, backward_weight=2)))
        is None
    )
    assert predict("no such schedule", IDLE, letters(4, 8)) is None


def test_predict_uses_the_form_with_messages_if_there_are_any():
    costs = Costs(forward=10, backward=20, hop=1)
    assert predict("interleaved", IDLE, letters(4, 8, 2, costs)) == 3 * 30 + 2 * (4 * 2 - 1)


def test_rejects_costs_per_stage():
    with pytest.raises(ScheduleError, match="one number per cost"):
        letters(2, 4, costs=Costs(forward=[1, 2]))


def test_document_lists_every_closed_form():
    document = DOCS / "theory.md"
    lines = document.read_text(encoding="utf-8").splitlines()
    listed = [
        line for line in lines if line.startswith("| `") and line.split("`")[3:4] in [[q] for q in QUANTITIES]
    ]
    expected = []
    for form in CLOSED_FORMS:
        options = "".join(f" {name}={value}" for name, value in form.options.items())
        cells = (
            f"`{form.schedule}`{options}",
            f"`{form.quantity}`",
            form.formula,
            form.condition,
            form.source,
        )
        expected.append(f"| {' | '.join(cells)} |")
    assert listed == expected


PAPER = json.loads((DATA / "golden" / "zb_paper_table5.json").read_text("utf-8"))


@pytest.mark.parametrize("row", PAPER["rows"], ids=lambda row: f"{row['model']} p={row['p']} m={row['m']}")
def test_interleaved_cost_of_the_zero_bubble_paper_lacks_p_messages(row):
    ranks, microbatches, chunks = row["p"], row["m"], row["v_1F1B_I"]
    per_chunk = {name: round(row[name] * 1_000_000) // chunks for name in ("T_F", "T_B", "T_W")}
    hop_ns = round(row["T_comm"] * 1_000_000)
    costs = Costs(
        forward=per_chunk["T_F"],
        backward_input=per_chunk["T_B"],
        backward_weight=per_chunk["T_W"],
        hop=hop_ns,
    )
    step = simulate(order("interleaved", ranks=ranks, microbatches=microbatches, chunks=chunks), costs)
    work_ns = step.busy_ns[0]
    paper_ns = step.own_span_ns[0] - ranks * hop_ns
    column = PAPER["columns"].index("1F1B-I")
    assert step.idle_ns[0] == predict("interleaved", IDLE, letters(ranks, microbatches, chunks, costs))
    assert round(1 - work_ns / paper_ns, 4) == row["paper_table5"][column]
