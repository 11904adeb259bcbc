"""Closed forms: idle time and peak memory of schedules as formulas, with the conditions under which they hold.

Each entry of `CLOSED_FORMS` equals the results of `simulate` and `peak_in_flight` exactly wherever its condition
holds; the tests compare them over grids and random costs. If a published formula holds in fewer cases than its source
claims, the entry has the narrower condition, and docs/theory.md has counterexamples.

Letters, all costs in nanoseconds and per chunk, equal on all stages:

    p ranks   m micro-batches   v chunks per rank   r rank
    F forward   B full backward   I, W its input and weight part   FB overlapped pair   c hop
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.costs import Costs, action_costs
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

IDLE = "idle_ns"
"""The largest idle time of a rank within the makespan."""

OWN_SPAN_IDLE = "own_span_idle_ns"
"""The longest own span of any rank minus the work of a rank: the bubble of the Zero Bubble papers."""

MAKESPAN = "makespan_ns"
"""The step time, used where overlapped pairs make some ranks busier than others."""

PEAK = "peak_chunks"
"""The most chunk activations that rank r keeps at one time."""

LARGEST_PEAK = "largest_peak_chunks"
"""The most chunk activations that any rank keeps at one time, used where no simple rule gives the peak per rank."""

QUANTITIES = (IDLE, OWN_SPAN_IDLE, MAKESPAN, PEAK, LARGEST_PEAK)
UNIT_COSTS = Costs()


class Letters(NamedTuple):
    """The sizes and costs of a pipeline, in the letters of the papers."""

    p: int
    m: int
    v: int
    r: int
    F: int
    B: int
    I: int  # noqa: E741  # the letter of the papers
    W: int
    FB: int
    c: int


def letters(
    ranks: int, microbatches: int, chunks: int = 1, costs: Costs = UNIT_COSTS, *, rank: int = 0
) -> Letters:
    """Return sizes and costs in letters; raises ScheduleError for costs that differ between stages."""
    given = (
        costs.forward,
        costs.backward,
        costs.backward_input,
        costs.backward_weight,
        costs.overlapped,
        costs.hop,
    )
    if not all(cost is None or isinstance(cost, int) for cost in given):
        raise ScheduleError.uneven_costs()
    forward, backward, of_input, of_weight, pair = (cells[0] or 0 for cells in action_costs(costs, 1, 1))
    hop = costs.hop if isinstance(costs.hop, int) else 0
    # The cost of a pair defaults to the sum of its parts, as in the simulation.
    if costs.overlapped is None:
        pair = forward + backward
    return Letters(ranks, microbatches, chunks, rank, forward, backward, of_input, of_weight, pair, hop)


@dataclass(frozen=True)
class ClosedForm:
    """A formula for one quantity of one schedule.

    `formula` and `condition` are the readable forms of what `value` and `holds` compute. `options` are the options of
    the schedule to which the formula applies.
    """

    schedule: str
    quantity: str
    formula: str
    condition: str
    source: str
    value: Callable[[Letters], int]
    holds: Callable[[Letters], bool]
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


def predict(schedule: str, quantity: str, setting: Letters, **options: object) -> int | None:
    """Return the value of a closed form for a schedule and quantity (see QUANTITIES), None if no condition holds.

    >>> from stagescope.schedules.closed_forms import IDLE, letters
    >>> predict("1f1b", IDLE, letters(ranks=4, microbatches=8, costs=Costs(forward=10, backward=20)))
    90
    """
    for form in CLOSED_FORMS:
        named = (form.schedule, form.quantity) == (schedule, quantity)
        if named and dict(form.options) == options and form.holds(setting):
            return form.value(setting)
    return None


def _always(_: Letters) -> bool:
    return True


def _split_fits(x: Letters) -> bool:
    return min(x.F, x.I) >= x.W


def _no_messages(x: Letters) -> bool:
    return x.c == 0


def _even_parts(x: Letters) -> bool:
    return x.c == 0 and x.F == x.I == x.W


def _groups_are_whole(x: Letters) -> bool:
    return x.m % x.p == 0


def _one_f_one_b_messages(x: Letters) -> int:
    """Return the number of message latencies on the longest path of 1F1B."""
    return 2 * (x.p - 1 + x.m - 1 - -(-(x.m - 1) // x.p))


def _pairs_fit(x: Letters, turns: int) -> bool:
    """Return whether pairs set the pace, and the input gradients of `turns` ranks are hidden by forwards."""
    whole = x.B == x.I + x.W and max(x.F, x.B) <= x.FB <= x.F + x.B
    return x.c == 0 and whole and turns * (x.I - x.F) <= x.F


MEGATRON = "arXiv 2104.04473, section 2.2"
ZERO_BUBBLE = "arXiv 2401.10241, section 2 and table 2"
ZERO_BUBBLE_V = "arXiv 2401.10241, section 6"
CONTROLLABLE = "arXiv 2405.15362; values as in its authors' published example"
DUALPIPE = "deepseek-ai/DualPipe README, corrected"
SIMULATED = "found with the simulator"
NOT_SPLIT: Mapping[str, object] = MappingProxyType({"split_cooldown": False})

CLOSED_FORMS: tuple[ClosedForm, ...] = (
    ClosedForm(
        "gpipe", IDLE, "(p-1)(F+B) + 2(p-1)c", "any", "arXiv 1811.06965; messages: " + SIMULATED,
        lambda x: (x.p - 1) * (x.F + x.B + 2 * x.c),
        _always,
    ),
    ClosedForm("gpipe", PEAK, "m", "any", "arXiv 1811.06965", lambda x: x.m, _always),
    ClosedForm(
        "1f1b", IDLE, "(p-1)(F+B) + 2c(p-1 + m-1 - ceil((m-1)/p))", "any", MEGATRON + "; messages: " + SIMULATED,
        lambda x: (x.p - 1) * (x.F + x.B) + x.c * _one_f_one_b_messages(x),
        _always,
    ),
    ClosedForm("1f1b", PEAK, "min(m, p-r)", "any", MEGATRON, lambda x: min(x.m, x.p - x.r), _always),
    ClosedForm(
        "eager-1f1b", IDLE, "(p-1)(F+B) + 2(p-1)c", "2c <= F+B", "arXiv 2211.05322; messages: " + SIMULATED,
        lambda x: (x.p - 1) * (x.F + x.B + 2 * x.c),
        lambda x: 2 * x.c <= x.F + x.B,
    ),
    ClosedForm(
        "eager-1f1b", PEAK, "min(m, 2(p-r)-1)", "any", "arXiv 2211.05322",
        lambda x: min(x.m, 2 * (x.p - x.r) - 1),
        _always,
    ),
    ClosedForm(
        "1f1b-overlap", MAKESPAN, "p(F+B) + (m-1)FB", "c = 0, FB >= max(F, B)", SIMULATED,
        lambda x: x.p * (x.F + x.B) + (x.m - 1) * x.FB,
        lambda x: x.c == 0 and max(x.F, x.B) <= x.FB,
    ),
    ClosedForm(
        "1f1b-overlap", PEAK, "min(m, 2(p-r))", "any", SIMULATED,
        lambda x: min(x.m, 2 * (x.p - x.r)),
        _always,
    ),
    ClosedForm(
        "interleaved", IDLE, "(p-1)(F+B) + max(0, p-m)(v-1)(F+B)", "c = 0", MEGATRON + "; m < p: " + SIMULATED,
        lambda x: (x.p - 1 + max(0, x.p - x.m) * (x.v - 1)) * (x.F + x.B),
        _no_messages,
    ),
    ClosedForm(
        "interleaved", IDLE, "(p-1)(F+B) + 2(pv-1)c", "p >= 2, p divides m, m >= 2p, c <= min(F, B)", SIMULATED,
        lambda x: (x.p - 1) * (x.F + x.B) + 2 * (x.p * x.v - 1) * x.c,
        lambda x: x.p > 1 and _groups_are_whole(x) and x.m >= 2 * x.p and x.c <= min(x.F, x.B),
    ),
    ClosedForm(
        "interleaved", PEAK, "min(mv, (v-1)p + 2(p-r-1) + 1)", "p divides m", MEGATRON,
        lambda x: min(x.m * x.v, (x.v - 1) * x.p + 2 * (x.p - x.r - 1) + 1),
        _groups_are_whole,
    ),
    ClosedForm(
        "interleaved-overlap", MAKESPAN, "(p-1)(F+B) + ((v-1)p+1)(F+B) + (mv-(v-1)p-1)FB",
        "c = 0, p divides m, FB >= max(F, B)", SIMULATED,
        lambda x: (x.p * x.v) * (x.F + x.B) + (x.m * x.v - (x.v - 1) * x.p - 1) * x.FB,
        lambda x: x.c == 0 and _groups_are_whole(x) and max(x.F, x.B) <= x.FB,
    ),
    ClosedForm(
        "interleaved-overlap", PEAK, "min(mv, (v-1)p + 2(p-r-1) + 2)", "p divides m", SIMULATED,
        lambda x: min(x.m * x.v, (x.v - 1) * x.p + 2 * (x.p - x.r - 1) + 2),
        _groups_are_whole,
    ),
    ClosedForm(
        "looped-bfs", IDLE, "(p-1)(F+B) + max(0, p-m)(v-1)(F+B)", "c = 0", "arXiv 2211.05953; m < p: " + SIMULATED,
        lambda x: (x.p - 1 + max(0, x.p - x.m) * (x.v - 1)) * (x.F + x.B),
        _no_messages,
    ),
    ClosedForm("looped-bfs", PEAK, "mv", "any", "arXiv 2211.05953", lambda x: x.m * x.v, _always),
    ClosedForm(
        "zb-h1", IDLE, "(p-1)(F+I-W)", "c = 0, m >= p, W <= min(F, I)", ZERO_BUBBLE,
        lambda x: (x.p - 1) * (x.F + x.I - x.W),
        lambda x: x.c == 0 and x.m >= x.p and _split_fits(x),
    ),
    ClosedForm("zb-h1", PEAK, "min(m, p)", "any", ZERO_BUBBLE, lambda x: min(x.m, x.p), _always),
    ClosedForm(
        "zb-h2", OWN_SPAN_IDLE, "max(0, (p-1)(F+I-2W))", "c = 0, m >= 2p-1, W <= F", ZERO_BUBBLE,
        lambda x: max(0, (x.p - 1) * (x.F + x.I - 2 * x.W)),
        lambda x: x.c == 0 and x.m >= 2 * x.p - 1 and x.W <= x.F,
    ),
    ClosedForm(
        "zb-h2", IDLE, "(p-1)F", "c = 0, m >= 2p-1, F = I = W", SIMULATED,
        lambda x: (x.p - 1) * x.F,
        lambda x: _even_parts(x) and x.m >= 2 * x.p - 1,
    ),
    ClosedForm("zb-h2", PEAK, "min(m, 2p-1)", "any", ZERO_BUBBLE, lambda x: min(x.m, 2 * x.p - 1), _always),
    ClosedForm(
        "interleaved-zb", IDLE, "(p-1)(F+I-W)", "c = 0, m >= p, W <= min(F, I)", SIMULATED,
        lambda x: (x.p - 1) * (x.F + x.I - x.W),
        lambda x: x.c == 0 and x.m >= x.p and _split_fits(x),
    ),
    ClosedForm("interleaved-zb", PEAK, "pv", "p divides m", SIMULATED, lambda x: x.p * x.v, _groups_are_whole),
    ClosedForm(
        "zb-v", OWN_SPAN_IDLE, "0", "c = 0, m >= 2p-1, F = I = W", ZERO_BUBBLE_V,
        lambda _: 0,
        lambda x: _even_parts(x) and x.m >= 2 * x.p - 1,
    ),
    ClosedForm(
        "zb-v", IDLE, "(p-1)F", "c = 0, m >= 2p-1, F = I = W", SIMULATED,
        lambda x: (x.p - 1) * x.F,
        lambda x: _even_parts(x) and x.m >= 2 * x.p - 1,
    ),
    ClosedForm("zb-v", PEAK, "2p", "m >= 2p-1", ZERO_BUBBLE_V, lambda x: 2 * x.p, lambda x: x.m >= 2 * x.p - 1),
    ClosedForm(
        "v-half", LARGEST_PEAK, "2 floor((p+2)/2)", "m >= 2p", CONTROLLABLE,
        lambda x: (x.p + 2) // 2 * 2,
        lambda x: x.m >= 2 * x.p,
    ),
    ClosedForm(
        "v-min", LARGEST_PEAK, "2 floor((p+4)/3)", "m >= 2p", CONTROLLABLE,
        lambda x: (x.p + 4) // 3 * 2,
        lambda x: x.m >= 2 * x.p,
    ),
    ClosedForm(
        "1f1b-v", LARGEST_PEAK, "2 floor(2p/3) + 2", "m >= 2p", SIMULATED,
        lambda x: 2 * x.p // 3 * 2 + 2,
        lambda x: x.m >= 2 * x.p,
    ),
    ClosedForm(
        "chimera", LARGEST_PEAK, "p", "any", "arXiv 2107.06925, table 2", lambda x: x.p, _always,
    ),
    ClosedForm(
        "chimera", IDLE, "(p-2)B + (m/p-1)(p-2)(B-F)", "c = 0, F <= B", SIMULATED + "; arXiv 2107.06925 has m = p",
        lambda x: (x.p - 2) * x.B + (x.m // x.p - 1) * (x.p - 2) * (x.B - x.F),
        lambda x: x.c == 0 and x.F <= x.B,
    ),
    ClosedForm(
        "dualpipe", IDLE, "(p/2-1)(FB+F-2W)",
        "c = 0, B = I+W, max(F, B) <= FB <= F+B, W <= min(F, I), (p/2-1)(I-F) <= F", DUALPIPE,
        lambda x: (x.p // 2 - 1) * (x.FB + x.F - 2 * x.W),
        lambda x: _pairs_fit(x, x.p // 2 - 1) and _split_fits(x),
    ),
    ClosedForm("dualpipe", PEAK, "p+1", "any", "deepseek-ai/DualPipe README", lambda x: x.p + 1, _always),
    ClosedForm(
        "dualpipev", IDLE, "(p-1)(FB+F-2W)",
        "c = 0, B = I+W, max(F, B) <= FB <= F+B, W <= min(F, I), (p-1)(I-F) <= F", DUALPIPE,
        lambda x: (x.p - 1) * (x.FB + x.F - 2 * x.W),
        lambda x: _pairs_fit(x, x.p - 1) and _split_fits(x),
    ),
    ClosedForm(
        "dualpipev", IDLE, "(p-1)(FB+F)",
        "c = 0, B = I+W, max(F, B) <= FB <= F+B, (p-1)(I-F) <= F", SIMULATED,
        lambda x: (x.p - 1) * (x.FB + x.F),
        lambda x: _pairs_fit(x, x.p - 1),
        NOT_SPLIT,
    ),
    ClosedForm("dualpipev", PEAK, "2p+1", "any", "deepseek-ai/DualPipe README", lambda x: 2 * x.p + 1, _always),
)  # fmt: skip
"""Every closed form; `predict` uses the first one that applies."""
