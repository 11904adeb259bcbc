"""Diagnostics as lines of text."""

from stagescope.cli.diagnostics import MOST_LINES, diagnostic_lines, print_diagnostics
from stagescope.model.diagnostics import Diagnostic


def test_a_line_says_what_where_and_how_often():
    row = Diagnostic("error", "spans lost", "a.sscope", 3, "byte 7", 12)
    assert list(diagnostic_lines([row])) == ["error: spans lost [a.sscope, rank 3, byte 7, count 12]"]


def test_what_is_not_known_or_was_said_already_is_not_said():
    rows = [Diagnostic("info", "all well"), Diagnostic("warning", "not read: a.csv: no", "a.csv")]
    assert list(diagnostic_lines(rows)) == ["info: all well", "warning: not read: a.csv: no"]


def test_of_many_the_first_are_said_and_how_many_are_not():
    lines = list(diagnostic_lines([Diagnostic("info", str(number)) for number in range(MOST_LINES + 5)]))
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "... and 5 more; stagescope report --json lists them all"


def test_nothing_to_say_prints_nothing(capsys):
    print_diagnostics([])
    assert capsys.readouterr().out == ""
