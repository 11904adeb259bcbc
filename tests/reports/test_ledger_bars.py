"""Idle time by cause as bars."""

from drawing import timeline_from_text
from explained_runs import explained
from stagescope.analysis import build_explained_report
from stagescope.model import empty_timeline
from stagescope.reports.ledger_bars import ledger_bars
from stagescope.vocabulary.causes import ALWAYS_SHOWN, CAUSE_COLUMNS, CAUSES

CELLS = {" ": 0, "▏": 1, "▎": 2, "▍": 3, "▌": 4, "▋": 5, "▊": 6, "▉": 7, "█": 8}


def lost_time(**options):
    return explained(**options).explanation.lost_time


def eighths(line):
    return sum(CELLS.get(character, 0) for character in line)


def test_has_a_line_per_cause_and_one_for_their_sum():
    lines = ledger_bars(lost_time(hop_ns=500_000))
    assert [line.split("  ")[0] for line in lines[1:]] == [
        *(cause.label for cause in CAUSES if cause.column in ALWAYS_SHOWN),
        "total lost",
    ]
    assert "27.3 %" in ledger_bars(lost_time())[1]
    assert "of iteration" in lines[0]


def test_time_outside_the_windows_has_lines_for_what_was_recorded():
    lost = lost_time()
    causes_ns = lost.causes_ns | {"data_parallel_wait_ns": lost.rows * 5_000_000}
    lines = ledger_bars(lost._replace(causes_ns=causes_ns))
    assert any(line.startswith("data-parallel wait") and "5.000 ms" in line for line in lines)
    assert not any(line.startswith("optimizer") for line in lines)


def test_a_single_step_is_divided_by_its_window():
    lines = ledger_bars(
        build_explained_report(timeline_from_text("F0 - B0\n. F0 B0 .")).explanation.lost_time
    )
    assert "of window" in lines[0]
    assert lines[-1].startswith("total idle")


def test_the_length_of_a_bar_is_proportional_to_its_fraction():
    lost = lost_time(slower={1: 1.5}, hop_ns=2_000_000)
    fractions = [lost.fraction(name) for name in CAUSE_COLUMNS if name in ALWAYS_SHOWN]
    lines = ledger_bars(lost, width=100)[1:]
    whole = eighths(lines[-1])
    for line, fraction in zip(lines[:-1], fractions, strict=True):
        assert abs(eighths(line) - max(fraction, 0) / lost.lost_fraction * whole) <= 1


def test_no_line_exceeds_the_width():
    lost = lost_time(slower={1: 1.5})
    for width in (72, 80, 120):
        assert max(map(len, ledger_bars(lost, width=width))) <= width


def test_ascii_bars_are_number_signs():
    assert all(line.replace("µ", "u").isascii() for line in ledger_bars(lost_time(), ascii_only=True))


def test_a_run_without_idle_time_has_no_bars():
    lines = ledger_bars(build_explained_report(timeline_from_text("F0 B0")).explanation.lost_time)
    assert sum(map(eighths, lines)) == 0


def test_without_steps_there_are_no_lines():
    assert ledger_bars(build_explained_report(empty_timeline()).explanation.lost_time) == []
