"""Idle time by cause as bars."""

from drawing import timeline_from_text
from explained_runs import explained
from stagescope.analysis import build_explained_report
from stagescope.model import empty_timeline
from stagescope.reports.ledger_bars import ledger_bars
from stagescope.vocabulary.causes import CAUSES

CELLS = {" ": 0, "▏": 1, "▎": 2, "▍": 3, "▌": 4, "▋": 5, "▊": 6, "▉": 7, "█": 8}


def eighths(line):
    return sum(CELLS.get(character, 0) for character in line)


def test_has_a_line_per_cause_and_one_for_their_sum():
    lines = ledger_bars(explained(hop_ns=500_000).explanation)
    assert [line.split("  ")[0] for line in lines[1:]] == [
        *(cause.label for cause in CAUSES),
        "total idle",
    ]
    assert "27.3 %" in ledger_bars(explained().explanation)[1]


def test_the_length_of_a_bar_is_proportional_to_its_fraction():
    explanation = explained(slower={1: 1.5}, hop_ns=2_000_000).explanation
    fractions = list(explanation.idle_fractions().values())
    lines = ledger_bars(explanation, width=100)[1:]
    whole = eighths(lines[-1])
    for line, fraction in zip(lines[:-1], fractions[1:], strict=True):
        assert abs(eighths(line) - max(fraction, 0) / fractions[0] * whole) <= 1


def test_no_line_exceeds_the_width():
    explanation = explained(slower={1: 1.5}).explanation
    for width in (72, 80, 120):
        assert max(map(len, ledger_bars(explanation, width=width))) <= width


def test_ascii_bars_are_number_signs():
    assert all(line.isascii() for line in ledger_bars(explained().explanation, ascii_only=True))


def test_a_run_without_idle_time_has_no_bars():
    lines = ledger_bars(build_explained_report(timeline_from_text("F0 B0")).explanation)
    assert sum(map(eighths, lines)) == 0


def test_without_steps_there_are_no_lines():
    assert ledger_bars(build_explained_report(empty_timeline()).explanation) == []
