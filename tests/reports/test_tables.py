from textwrap import dedent

import polars as pl

from drawing import timeline_from_text
from stagescope.analysis import Bubble, Report, build_report
from stagescope.analysis.intermediates import intermediates_of
from stagescope.analysis.totals import REPORT_RANKS, REPORT_STEPS
from stagescope.model import empty_timeline
from stagescope.reports.tables import step_and_rank_tables
from stagescope.vocabulary.ratios import percent_text
from synthetic import Shape, pipeline_timeline, slowed_step


def report(ranks: int, steps: int, machine: str = "node-a", *, in_totals: bool = True) -> Report:
    window_ns, fraction = 4_000_000, 0.25
    rank_times_ns = (3_000_000, 1_000_000, 500_000, 200_000)
    return Report(
        pl.DataFrame(
            [(step, 0, window_ns, window_ns, fraction, in_totals or step > 0) for step in range(steps)],
            schema=dict(REPORT_STEPS.schema),
            orient="row",
        ),
        pl.DataFrame(
            [
                (rank, machine, [rank, rank + ranks], *rank_times_ns, window_ns, fraction)
                for rank in range(ranks)
            ],
            schema=dict(REPORT_RANKS.schema),
            orient="row",
        ),
        Bubble(
            fraction,
            dict.fromkeys(range(ranks), fraction),
            "window",
            tuple(range(steps)),
            per_step=dict.fromkeys(range(steps), fraction),
        ),
        (),
        empty_timeline(),
        intermediates_of(empty_timeline()),
    )


def test_the_tables_of_a_small_run() -> None:
    assert "\n" + step_and_rank_tables(report(2, 2, in_totals=False)) + "\n" == dedent("""
        step    length  bubble
           0  4.000 ms  25.0 %  not in totals
           1  4.000 ms  25.0 %

        rank  stages      busy      idle  bubble  receive wait  send wait  machine
           0  0, 2    3.000 ms  1.000 ms  25.0 %      500.0 µs   200.0 µs  node-a
           1  1, 3    3.000 ms  1.000 ms  25.0 %      500.0 µs   200.0 µs  node-a
         all          6.000 ms  2.000 ms  25.0 %      1.000 ms   400.0 µs
        """)


def test_shows_the_values_of_the_report() -> None:
    table = step_and_rank_tables(build_report(timeline_from_text("F0 F1 . . B0 - B1 -\n. F0 F1 B0 - B1 - .")))
    assert "   0  8.000 µs  25.0 %" in table
    assert " all          12.00 µs  4.000 µs  25.0 %             -          -" in table


def test_a_single_rank_has_no_sum() -> None:
    assert "all" not in step_and_rank_tables(report(1, 1))


def test_shows_some_of_many_steps_and_ranks_and_counts_the_others() -> None:
    lines = step_and_rank_tables(report(100, 50)).splitlines()
    assert lines[11] == "... 30 steps not shown"
    assert lines[10].split()[0] == "9"
    assert lines[12].split()[0] == "40"
    assert lines[-1] == "60 ranks not shown"


def test_an_empty_report_is_two_sentences() -> None:
    table = step_and_rank_tables(build_report(empty_timeline()))
    assert table.splitlines() == ["no steps to measure", "", "no ranks to measure"]


def test_no_line_exceeds_the_width() -> None:
    table = step_and_rank_tables(report(2, 2, machine="机" * 60), width=80)
    assert max(len(line.encode("utf-16-le")) // 2 for line in table.splitlines()) <= 80


def test_machine_names_cannot_write_to_the_terminal() -> None:
    assert "\x1b" not in step_and_rank_tables(report(1, 1, machine="\x1b[31mred\nline"))


def test_ascii_only_is_ascii() -> None:
    run = build_report(pipeline_timeline(Shape(ranks=2, microbatches=2)))
    assert step_and_rank_tables(run, ascii_only=True).isascii()
    assert step_and_rank_tables(report(1, 1, machine="knoten-ä"), ascii_only=True).isascii()


def test_percent_text() -> None:
    assert [percent_text(fraction) for fraction in (0.0, 3 / 11, 1.0, None)] == [
        "0.0 %",
        "27.3 %",
        "100.0 %",
        "-",
    ]


def test_lists_the_slowest_steps_of_a_long_run_and_marks_outliers() -> None:
    run = slowed_step(pipeline_timeline(Shape(ranks=2, microbatches=3, steps=30)), 14)
    lines = step_and_rank_tables(build_report(run)).splitlines()
    slowest = lines.index(next(line for line in lines if line.startswith("slowest steps")))
    assert lines[slowest + 1].split()[0] == "14"
    assert lines[slowest + 1].endswith(" longer than usual")
    assert lines[slowest + 6] == ""  # five steps
    assert not any("longer than usual" in line for line in lines[:slowest])  # step 14 is not shown there
