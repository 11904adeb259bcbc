from dataclasses import replace

import pytest

from stagescope.clocks.report import (
    ClockReport,
    ContradictoryPair,
    MachineClock,
    Rejected,
    StepFound,
    Witness,
)
from stagescope.clocks.sentences import clock_line, diagnostics_of

WITNESS = Witness("message", "a/wall", "b/wall", 0, 1, 3, 4, 1_000, 900)


def machine(name, state="aligned", low=-20_000, high=30_000):
    return MachineClock(f"{name}/wall", name, (0,), state, "a/wall", 0, 0.0, low, high, 0, 10, 0)


A, B = machine("a", "reference", -1_000, 1_000), machine("b")
C = machine("c", "apart", None, None)
REPORT = ClockReport((A, B))


def test_one_clock_is_said_to_be_one():
    assert clock_line(ClockReport(())) == "All stamps are of one clock."


def test_the_line_says_how_far_stamps_can_be_off():
    assert clock_line(REPORT) == "2 machines on one clock; no stamp off by more than 30.00 µs."


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("apart", "nothing joins them to the others"),
        ("one-sided", "only one side is bounded"),
        ("withheld", "their evidence contradicts itself"),
    ],
)
def test_a_machine_that_is_left_out_is_named_with_the_reason(state, why):
    left_out = replace(C, state=state)
    assert clock_line(ClockReport((A, B, left_out))).endswith(f"; not placed: c ({why}).")


def test_machines_that_cannot_be_aligned_at_all_are_said_to_be_so_plainly():
    line = clock_line(ClockReport((A, C)))
    assert line == "2 machines could not be brought to one clock: c (nothing joins them to the others)."


def test_of_many_machines_some_are_named_and_the_rest_counted():
    many = tuple(machine(f"n{number}", "apart", None, None) for number in range(9))
    assert "n0, n1, n2, n3, n4 and 4 more (nothing joins them to the others)" in clock_line(
        ClockReport((A, *many))
    )


def test_a_machine_whose_evidence_was_refused_is_not_said_to_be_without_any():
    pair = ContradictoryPair(("b/wall", "c/wall"), 7_000, (WITNESS, WITNESS))
    own = replace(C, group="c/wall", linked=True)
    disputed = clock_line(ClockReport((A, B, own), contradictions=(pair,)))
    assert "c (what was observed between them and the others contradicts itself)" in disputed
    assert "c (too few observations bear each other out)" in clock_line(ClockReport((A, B, own)))


def test_a_step_names_every_machine_that_it_may_have_been():
    step = StepFound("b/wall", 5, 9, -300_000, ("b/wall", "a/wall"))
    line = clock_line(replace(REPORT, steps=(step,)))
    assert "1 clock step found (b or a by -300.0 µs)" in line
    (_, row) = diagnostics_of(replace(REPORT, steps=(step,)))
    assert row.severity == "warning"
    assert row.message == "a clock was set by -300.0 µs during the run: b or a"


def test_all_is_well_is_an_info_and_a_machine_left_out_a_warning():
    (well,) = diagnostics_of(REPORT)
    assert (well.severity, well.count) == ("info", 2)
    assert next(diagnostics_of(ClockReport((A, B, C)))).severity == "warning"


def test_what_was_rejected_is_counted_with_the_worst_of_it():
    report = replace(REPORT, rejected=(Rejected(WITNESS, 5_000_000), Rejected(WITNESS, 10)))
    assert "2 observations proved false" in clock_line(report)
    *_, row = diagnostics_of(report)
    assert row.count == 2
    assert "5.000 ms" in row.message
    assert str(WITNESS) in row.message


def test_a_contradiction_names_both_machines_and_the_witnesses():
    report = replace(
        REPORT, contradictions=(ContradictoryPair(("a/wall", "b/wall"), 7_000, (WITNESS, WITNESS)),)
    )
    _, row = diagnostics_of(report)
    assert row.severity == "warning"
    assert "a and b contradict each other by 7.000 µs" in row.message
    assert row.message.endswith(f"were not compared: {WITNESS} and {WITNESS}")


def test_a_stretch_of_a_machine_in_which_nothing_bounds_its_stamps_is_never_claimed_to_be_known():
    open_end = replace(B, unbounded_ns=1_500_000_000)
    line = clock_line(ClockReport((A, open_end)))
    assert line == (
        "2 machines on one clock; no stamp off by more than 30.00 µs, but for up to 1.500 s of b, where nothing tells."
    )
    assert next(diagnostics_of(ClockReport((A, open_end)))).severity == "warning"
