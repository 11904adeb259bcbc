from dataclasses import replace

import pytest

from stagescope.clocks.report import (
    ClockAdjustment,
    ClockReport,
    InconsistentPair,
    MachineClock,
    Observation,
    Outlier,
)
from stagescope.clocks.report_text import clock_line, diagnostics_of

OBSERVATION = Observation("message", "a/wall", "b/wall", 0, 1, 3, 4, 1_000, 900)


def machine(name, state="aligned", low=-20_000, high=30_000):
    return MachineClock(f"{name}/wall", name, (0,), state, "a/wall", 0, 0.0, low, high, 0, 10, 0)


A, B = machine("a", "reference", -1_000, 1_000), machine("b")
C = machine("c", "unaligned", None, None)
REPORT = ClockReport((A, B))


def test_a_single_clock_has_a_line_of_its_own():
    assert clock_line(ClockReport(())) == "All timestamps come from one clock."


def test_the_line_states_the_number_of_machines_and_the_maximum_error():
    assert clock_line(REPORT) == "Clocks of 2 machines aligned; maximum error 30.00 µs."


def test_the_line_states_the_estimated_error_beside_the_bound():
    known = replace(B, estimated_error_ns=3_000)
    assert clock_line(ClockReport((A, known))) == (
        "Clocks of 2 machines aligned; maximum error estimated 3.000 µs, guaranteed 30.00 µs."
    )
    # A machine without an estimate may be worse.
    assert "estimated" not in clock_line(ClockReport((A, known, B)))


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("unaligned", "no messages to or from the other machines"),
        ("one-sided", "messages go one way only, so the offset is bounded on one side"),
        ("inconsistent", "inconsistent observations"),
    ],
)
def test_an_unaligned_machine_is_named_with_the_reason(state, why):
    unaligned = replace(C, state=state)
    assert clock_line(ClockReport((A, B, unaligned))).endswith(f"; not aligned: c ({why}).")


def test_the_line_states_that_no_machine_could_be_aligned():
    line = clock_line(ClockReport((A, C)))
    assert line == "Clocks of 2 machines could not be aligned: c (no messages to or from the other machines)."


def test_at_most_five_machines_are_named_and_the_others_counted():
    many = tuple(machine(f"n{number}", "unaligned", None, None) for number in range(9))
    line = clock_line(ClockReport((A, *many)))
    assert "n0, n1, n2, n3, n4 and 4 more (no messages to or from the other machines)" in line


def test_an_unaligned_machine_with_messages_is_not_reported_as_one_without():
    pair = InconsistentPair(("b/wall", "c/wall"), 7_000, (OBSERVATION, OBSERVATION))
    own = replace(C, group="c/wall", has_link=True)
    disputed = clock_line(ClockReport((A, B, own), inconsistent_pairs=(pair,)))
    assert "c (inconsistent observations between it and the other machines)" in disputed
    assert "c (too few consistent observations)" in clock_line(ClockReport((A, B, own)))


def test_an_adjustment_names_every_machine_that_may_have_been_set():
    adjustment = ClockAdjustment("b/wall", 5, 9, -300_000, ("b/wall", "a/wall"))
    report = replace(REPORT, adjustments=(adjustment,))
    assert "1 clock adjustment detected (b or a by -300.0 µs)" in clock_line(report)
    (_, row) = diagnostics_of(report)
    assert (row.severity, row.code) == ("warning", "clock.adjusted")
    assert row.message == "the clock of b or a was set by -300.0 µs during the run"


def test_the_summary_is_an_info_and_a_warning_where_a_machine_is_unaligned():
    (summary,) = diagnostics_of(REPORT)
    assert (summary.severity, summary.code, summary.count) == ("info", "clock.aligned", 2)
    summary = next(diagnostics_of(ClockReport((A, B, C))))
    assert (summary.severity, summary.code) == ("warning", "clock.unaligned")


def test_outliers_are_counted_and_the_worst_is_named():
    report = replace(REPORT, outliers=(Outlier(OBSERVATION, 5_000_000), Outlier(OBSERVATION, 10)))
    assert "2 inconsistent observations excluded" in clock_line(report)
    *_, row = diagnostics_of(report)
    assert (row.code, row.count) == ("clock.outliers", 2)
    assert row.message.endswith(f"off by at least 5.000 ms: {OBSERVATION}")


def test_an_inconsistent_pair_is_reported_with_both_machines_and_observations():
    pair = InconsistentPair(("a/wall", "b/wall"), 7_000, (OBSERVATION, OBSERVATION))
    _, row = diagnostics_of(replace(REPORT, inconsistent_pairs=(pair,)))
    assert (row.severity, row.code) == ("warning", "clock.inconsistent")
    assert row.message.startswith("the clocks of a and b were not compared")
    assert row.message.endswith(f"contradict each other by 7.000 µs ({OBSERVATION} and {OBSERVATION})")


def test_a_part_of_the_run_without_bounds_is_an_exception_to_the_maximum_error():
    report = ClockReport((A, replace(B, unbounded_ns=1_500_000_000)))
    assert clock_line(report) == (
        "Clocks of 2 machines aligned; maximum error 30.00 µs (not bounded for up to 1.500 s on b)."
    )
    assert next(diagnostics_of(report)).severity == "warning"
