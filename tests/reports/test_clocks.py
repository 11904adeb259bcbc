"""The story of an alignment as text."""

from textwrap import dedent

from stagescope.clocks import (
    ClockReport,
    ContradictoryPair,
    MachineClock,
    Rejected,
    StepFound,
    Witness,
    clock_line,
)
from stagescope.reports.clocks import MOST_REJECTED, clock_story


def machine(
    name: str, *ranks: int, state: str = "aligned", group: str = "a/clock", **facts: object
) -> MachineClock:
    usual = {
        "offset_ns": -31_250_000,
        "drift_ppm": -48.5,
        "error_lo_ns": -12_000,
        "error_hi_ns": 9_500,
        "unbounded_ns": 0,
        "evidence_count": 640,
        "rejected_count": 2,
    }
    return MachineClock(f"{name}/clock", name, ranks, state, group, **{**usual, **facts})


EXACT = {"offset_ns": 0, "drift_ppm": 0.0, "error_lo_ns": 0, "error_hi_ns": 0, "rejected_count": 0}
REFERENCE = machine("a", 0, 1, 2, state="reference", **EXACT)
WITNESS = Witness("message", "a/clock", "b/clock", 1, 3, 4, 7, 0, 0)


def paragraphs(report: ClockReport) -> list[str]:
    return clock_story(report).split("\n\n")


def test_one_clock_is_one_line() -> None:
    assert clock_story(ClockReport(())) == "All stamps are of one clock."


def test_every_machine_has_its_row_below_the_line() -> None:
    report = ClockReport((REFERENCE, machine("b", 3)), max_ppm=200)
    line, table, meaning = paragraphs(report)
    assert line == clock_line(report)
    assert table == dedent("""\
        machine  ranks  state         offset       drift  interval                observations  rejected
        a        0-2    reference       0 ns   +0.00 ppm  0 ns to 0 ns                     640         0
        b        3      aligned    -31.25 ms  -48.50 ppm  -12.00 µs to +9.500 µs           640         2""")
    assert "no clock drifts by more than 200 ppm" in meaning


def test_what_is_not_bounded_is_said_and_how_long_a_bound_is_missing() -> None:
    apart = machine("c", 4, state="apart", group="c/clock", error_lo_ns=None, error_hi_ns=None)
    half = machine("d", 5, state="one-sided", group="d/clock", error_hi_ns=None)
    gap = machine("e", 6, unbounded_ns=1_500_000_000)
    _, table, groups, _ = paragraphs(ClockReport((REFERENCE, apart, half, gap)))
    assert [row.split("ppm  ")[1].split("   ")[0] for row in table.splitlines()[1:]] == [
        "0 ns to 0 ns",
        "not bounded",
        "-12.00 µs to not bounded",
        "-12.00 µs to +9.500 µs, for 1.500 s not at all",
    ]
    assert groups.splitlines() == [
        "On one clock with each other, and not with the rest:",
        "  a, e",
        "  c",
        "  d",
    ]


def test_a_step_names_every_machine_that_it_could_have_been_and_when() -> None:
    known = StepFound(
        "a/clock", 1_763_600_000_000_000_000, 1_763_600_001_500_000_000, 3_000_000, ("a/clock",)
    )
    unclear = StepFound("b/clock", 0, 1_000, -300_000, ("b/clock", "a/clock"))
    _, _, steps, _ = paragraphs(ClockReport((REFERENCE, machine("b", 3)), steps=(known, unclear)))
    assert steps.splitlines()[1:] == [
        "  a by +3.000 ms, between 2025-11-20T00:53:20.000000 and 2025-11-20T00:53:21.500000",
        "  b or a by -300.0 µs, between 1970-01-01T00:00:00.000000 and 1970-01-01T00:00:00.000001",
    ]


def test_contradictions_name_the_machines_and_their_witnesses() -> None:
    pair = ContradictoryPair(("a/clock", "b/clock"), 2_000_000, (WITNESS,))
    _, _, told, _ = paragraphs(ClockReport((REFERENCE, machine("b", 3)), contradictions=(pair,)))
    assert told.splitlines()[1:] == [
        "  a and b by 2.000 ms:",
        "    message of micro-batch 7 in step 4 from rank 1 to rank 3",
    ]


def test_of_many_rejected_observations_the_first_are_shown_and_the_others_counted() -> None:
    rejected = tuple(Rejected(WITNESS, by_ns) for by_ns in range(MOST_REJECTED + 3, 0, -1))
    report = ClockReport((REFERENCE, machine("b", 3)), rejected=rejected, false_share=0.021)
    _, _, told, meaning = paragraphs(report)
    lines = told.splitlines()
    assert lines[1] == f"  {MOST_REJECTED + 3} ns: {WITNESS}"
    assert len(lines) == MOST_REJECTED + 2
    assert lines[-1] == "  ... and 3 more; --json lists them all"
    assert meaning.endswith("It holds with up to 2.1 % false observations, rejected ones among them.")


def test_a_hostile_name_does_not_reach_the_terminal() -> None:
    story = clock_story(ClockReport((REFERENCE, machine("b\x1b[31m", 3))))
    assert "\x1b" not in story
