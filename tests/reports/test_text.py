"""The report as one screen."""

import pytest

from drawing import timeline_from_text
from explained_runs import explained
from stagescope.analysis import build_explained_report, build_report
from stagescope.model import empty_timeline
from stagescope.reports.text import bubble_sentence, report_text


def test_prints_verdict_bubble_bars_and_stages_in_this_order():
    lines = report_text(explained()).splitlines()
    assert lines[0].startswith("1f1b, 4 stages x 8 micro-batches: 27.3 % of the iteration (330.0 ms) is not")
    places = [
        next(place for place, line in enumerate(lines) if line.startswith(start))
        for start in (
            "With more memory: ",
            "The bubble is",
            "The bubble divides",
            "cause of lost time",
            "per micro-batch",
        )
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("width", [60, 80, 132])
def test_fits_one_screen(width):
    text = report_text(explained(slower={1: 1.3}, hop_ns=800_000), "Clocks: one.", width=width)
    assert max(map(len, text.splitlines())) <= width
    assert len(text.splitlines()) <= 40


def test_contains_the_line_about_the_clocks():
    assert "Clocks of 2 machines." in report_text(explained(), "Clocks of 2 machines.").splitlines()


def test_ascii_only_is_ascii():
    assert report_text(explained(slower={1: 1.01}), ascii_only=True).isascii()


def test_without_steps_the_report_is_one_sentence():
    text = report_text(build_explained_report(empty_timeline()))
    assert " ".join(text.split()) == bubble_sentence(build_report(empty_timeline()))


def test_names_the_rank_with_the_largest_bubble():
    report = build_report(timeline_from_text("F0 F1 B0 B1\nF0 . . B0"))
    assert bubble_sentence(report).endswith(
        "idle for 1.000 µs per step; rank 1 has the largest bubble, 50.0 % of its window."
    )


def test_lists_steps_as_ranges():
    timeline = timeline_from_text("F0 B0", step=3)
    other = timeline_from_text("F0 B0", step=4, origin_ns=9_000)
    report = build_report(timeline.with_spans(timeline.spans.vstack(other.spans)))
    assert "over 2 steps (3-4)" in bubble_sentence(report)


def test_without_steps_the_bubble_is_unknown():
    report = build_report(empty_timeline())
    because = "no step with a forward or backward action was recorded"
    assert bubble_sentence(report) == f"The bubble is unknown: {because}."
