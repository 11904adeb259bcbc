from itertools import pairwise

import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.exporters.pictures.canvas import Box, Canvas, number, path_data
from stagescope.exporters.pictures.step_chart import chart_step, span_rows
from stagescope.model import empty_timeline


def canvas(text: str) -> Canvas:
    return Canvas(chart_step(timeline_from_text(text)), left=70, top=76)


def test_neighbors_touch_and_the_last_span_ends_at_the_right_edge() -> None:
    plot = canvas("F0 F1 F2 B0 - - B1")
    boxes = [plot.box(span) for span in span_rows(plot.chart.spans)]
    for before, after in pairwise(boxes):
        assert before.x + before.width == pytest.approx(after.x)
    assert boxes[-1].x + boxes[-1].width == pytest.approx(plot.plot_width)


def test_a_action_of_no_length_is_still_seen() -> None:
    timeline = timeline_from_text("F0 B0")
    timeline = timeline.with_spans(
        timeline.spans.with_columns(end_ns=pl.max_horizontal("start_ns", pl.col("end_ns") - 1_000))
    )
    plot = Canvas(chart_step(timeline), left=0, top=0)
    assert all(plot.box(span).width > 0 for span in span_rows(plot.chart.spans))


def test_rows_get_lower_the_more_there_are() -> None:
    few, many = canvas("F0\n" * 4), canvas("F0\n" * 64)
    assert few.row_height > many.row_height
    assert many.height < 64 * few.pitch


def test_the_picture_grows_with_the_actions_but_not_without_limit() -> None:
    short, long, huge = (canvas(" ".join(f"F{m}" for m in range(count))) for count in (4, 80, 800))
    assert short.width < long.width < huge.width < 1800


def test_an_empty_picture_has_a_size() -> None:
    plot = Canvas(chart_step(empty_timeline()), left=70, top=76)
    assert (plot.width, plot.bottom) == (914, 76)


def test_numbers_are_short() -> None:
    assert [number(value) for value in (12.0, 12.34, 0.0, -1.0)] == ["12", "12.3", "0", "-1"]
    assert path_data([Box(1, 2.5, 3, 4), Box(9, 0, 1, 1)]) == "M1 2.5h3v4h-3zM9 0h1v1h-1z"
