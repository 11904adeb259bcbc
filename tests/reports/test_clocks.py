"""The report of clock alignment as text."""

from dataclasses import replace
from textwrap import dedent

from stagescope.clocks import (
    ClockAdjustment,
    ClockReport,
    ExitSkew,
    InconsistentPair,
    MachineClock,
    Observation,
    Outlier,
    clock_line,
)
from stagescope.reports.clocks import MOST_EXITS, MOST_OUTLIERS, clocks_text


def machine(
    name: str, *ranks: int, state: str = "aligned", group: str = "a/clock", **constraints: object
) -> MachineClock:
    usual = {
        "offset_ns": -31_250_000,
        "drift_ppm": -48.5,
        "error_lo_ns": -12_000,
        "error_hi_ns": 9_500,
        "unbounded_ns": 0,
        "observation_count": 640,
        "outlier_count": 2,
    }
    return MachineClock(f"{name}/clock", name, ranks, state, group, **{**usual, **constraints})


EXACT = {"offset_ns": 0, "drift_ppm": 0.0, "error_lo_ns": 0, "error_hi_ns": 0, "outlier_count": 0}
REFERENCE = machine("a", 0, 1, 2, state="reference", **EXACT)
OBSERVATION = Observation("message", "a/clock", "b/clock", 1, 3, 4, 7, 0, 0)


def paragraphs(report: ClockReport) -> list[str]:
    return clocks_text(report).split("\n\n")


def test_a_single_clock_is_one_line() -> None:
    assert clocks_text(ClockReport(())) == "All timestamps come from one clock."


def test_the_table_has_one_row_per_machine() -> None:
    report = ClockReport((REFERENCE, machine("b", 3)), max_ppm=200)
    line, table, meaning = paragraphs(report)
    assert line == clock_line(report)
    assert table == dedent("""\
        machine  ranks  state         offset       drift  guaranteed bound        observations  outliers
        a        0-2    reference       0 ns   +0.00 ppm  0 ns to 0 ns                     640         0
        b        3      aligned    -31.25 ms  -48.50 ppm  -12.00 µs to +9.500 µs           640         2""")
    assert "clocks drift by at most 200 ppm" in meaning


def test_the_estimated_error_is_a_column_where_there_is_one() -> None:
    report = ClockReport((REFERENCE, machine("b", 3, estimated_error_ns=3_100)), max_ppm=200)
    _, table, meaning = paragraphs(report)
    head, reference, other = table.splitlines()
    assert "drift  estimated error  guaranteed bound" in head
    assert "-  0 ns to 0 ns" in reference
    assert "3.100 µs  -12.00 µs to +9.500 µs" in other
    assert "99 % of all errors are smaller" in meaning


def test_a_missing_bound_is_stated_with_its_duration() -> None:
    unaligned = machine("c", 4, state="unaligned", group="c/clock", error_lo_ns=None, error_hi_ns=None)
    half = machine("d", 5, state="one-sided", group="d/clock", error_hi_ns=None)
    gap = machine("e", 6, unbounded_ns=1_500_000_000)
    _, table, groups, _ = paragraphs(ClockReport((REFERENCE, unaligned, half, gap)))
    assert [row.split("ppm  ")[1].split("   ")[0] for row in table.splitlines()[1:]] == [
        "0 ns to 0 ns",
        "not bounded",
        "-12.00 µs to not bounded",
        "-12.00 µs to +9.500 µs (not bounded for 1.500 s)",
    ]
    assert groups.splitlines() == [
        "Machines aligned to each other, but not to the other groups:",
        "  a, e",
        "  c",
        "  d",
    ]


def test_an_adjustment_names_the_time_and_every_machine_that_may_have_been_set() -> None:
    known = ClockAdjustment(
        "a/clock", 1_763_600_000_000_000_000, 1_763_600_001_500_000_000, 3_000_000, ("a/clock",)
    )
    unclear = ClockAdjustment("b/clock", 0, 1_000, -300_000, ("b/clock", "a/clock"))
    _, _, adjustments, _ = paragraphs(ClockReport((REFERENCE, machine("b", 3)), adjustments=(known, unclear)))
    assert adjustments.splitlines()[1:] == [
        "  a by +3.000 ms, between 2025-11-20T00:53:20.000000 and 2025-11-20T00:53:21.500000",
        "  b or a by -300.0 µs, between 1970-01-01T00:00:00.000000 and 1970-01-01T00:00:00.000001",
    ]


def test_inconsistent_pairs_name_the_machines_and_the_observations() -> None:
    pair = InconsistentPair(("a/clock", "b/clock"), 2_000_000, (OBSERVATION,))
    _, _, pairs, _ = paragraphs(ClockReport((REFERENCE, machine("b", 3)), inconsistent_pairs=(pair,)))
    assert pairs.splitlines()[1:] == [
        "  a and b by 2.000 ms:",
        "    message of micro-batch 7 in step 4 from rank 1 to rank 3",
    ]


def test_the_worst_outliers_are_listed_and_the_others_counted() -> None:
    outliers = tuple(Outlier(OBSERVATION, by_ns) for by_ns in range(MOST_OUTLIERS + 3, 0, -1))
    report = ClockReport((REFERENCE, machine("b", 3)), outliers=outliers, tolerated_outlier_fraction=0.021)
    _, _, listed, meaning = paragraphs(report)
    lines = listed.splitlines()
    assert lines[1] == f"  {MOST_OUTLIERS + 3} ns: {OBSERVATION}"
    assert len(lines) == MOST_OUTLIERS + 2
    assert lines[-1] == "  ... and 3 more (use --json to list all)"
    assert meaning.endswith("It also holds if up to 2.1 % of the observations are undetected outliers.")


def test_escape_sequences_in_machine_names_are_replaced() -> None:
    text = clocks_text(ClockReport((REFERENCE, machine("b\x1b[31m", 3))))
    assert "\x1b" not in text


def test_groups_whose_ranks_leave_apart_are_listed_the_farthest_first() -> None:
    together = ExitSkew("gradient reductions of stage 0", 8, 100, 400, 0, 0, is_assumed=False)
    apart = ExitSkew("gradient reductions of stage 1", 8, 100, 90_000, 2_000, 20_000, is_assumed=False)
    unknown = ExitSkew("gradient reductions of stage 2", 8, 100, 1_000, 577_000, 577_000, is_assumed=True)
    exits = (together, apart, unknown)
    _, _, listed, _ = paragraphs(ClockReport((REFERENCE, machine("b", 3)), exits=exits))
    stage_2, stage_1 = listed.splitlines()[1:]
    assert stage_2.startswith(
        "  gradient reductions of stage 2: 1.000 µs from call to call, up to 577.0 µs constant (assumed"
    )
    assert stage_1 == "  gradient reductions of stage 1: 90.00 µs from call to call, up to 20.00 µs constant"
    several = tuple(replace(apart, group=f"group {number}") for number in range(MOST_EXITS + 2))
    _, _, listed, _ = paragraphs(ClockReport((REFERENCE, machine("b", 3)), exits=several))
    assert listed.splitlines()[-1] == "  ... and 2 more (use --json to list all)"
    _, _, meaning = paragraphs(ClockReport((REFERENCE, machine("b", 3)), exits=(together,)))
    assert meaning.startswith("offset")
