"""The contents of a figure, and its size."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import timeline_from_text
from machines import on_machines
from stagescope.exporters.pictures.drawing import draw_picture
from stagescope.exporters.pictures.figure import Figure, Size, chart_figure
from stagescope.exporters.pictures.step_chart import chart_step, chart_title
from stagescope.model import empty_timeline
from stagescope.vocabulary.errors import InputError, UsageError
from synthetic import Shape, pipeline_timeline

TIMELINE = pipeline_timeline(Shape(ranks=6, microbatches=4, steps=3))


def test_without_choices_a_figure_is_the_chart_of_the_typical_step():
    chart, plain = chart_figure(TIMELINE, Figure()), chart_step(TIMELINE)
    assert chart.spans.equals(plain.spans)
    assert chart_title(chart) == chart_title(plain)


def test_selected_ranks_are_drawn_at_the_times_of_the_whole_step():
    whole, chart = chart_step(TIMELINE, 1), chart_figure(TIMELINE, Figure(1, (4, 1)))
    assert (chart.ranks, chart.other_rank_count) == ((1, 4), 4)
    assert (chart.start_ns, chart.end_ns) == (whole.start_ns, whole.end_ns)
    for row, old in ((0, 1), (1, 4)):
        for name in ("spans", "waits"):
            mine, all_of_it = (getattr(each, name) for each in (chart, whole))
            assert mine.filter(row=row).drop("row").equals(all_of_it.filter(row=old).drop("row"))


def test_the_bubble_covers_all_ranks_and_the_title_states_how_many_are_drawn():
    whole, chart = chart_step(TIMELINE), chart_figure(TIMELINE, Figure(ranks=(0,)))
    assert chart.bubble_fraction == whole.bubble_fraction
    assert chart_title(chart) == chart_title(whole).replace("6 ranks", "1 of 6 ranks")


def test_omitted_ranks_are_counted():
    picture = draw_picture(TIMELINE, Figure(ranks=(0, 5)))
    assert picture.track_names == ("rank 0", "rank 5")
    assert [row.count for row in picture.diagnostics if row.code == "picture.some_ranks"] == [4]


def test_a_rank_that_was_not_recorded_is_an_error():
    with pytest.raises(InputError, match="rank 6 was not recorded"):
        chart_figure(TIMELINE, Figure(ranks=(0, 6)))


def test_an_unaligned_machine_keeps_its_title_if_any_of_its_ranks_is_drawn():
    timeline = timeline_from_text("F0 B0\nF0 B0\nF0 B0\nF0 B0")
    unaligned = on_machines(timeline, {0: "a", 1: "a", 2: "b", 3: "b"}, {"a": (0, 0), "b": None})
    both = chart_figure(unaligned, Figure(ranks=(1, 3)))
    assert [(section.row, section.title[0]) for section in both.sections] == [(0, "a"), (1, "b")]
    assert [section.title[0] for section in chart_figure(unaligned, Figure(ranks=(3,))).sections] == ["b"]


@given(st.integers(320, 3000), st.none() | st.integers(240, 2000), st.sets(st.integers(0, 5)))
@settings(max_examples=25, deadline=None)
def test_a_picture_has_the_requested_size_with_everything_inside(width, height, ranks):
    svg = ET.fromstring(draw_picture(TIMELINE, Figure(0, tuple(ranks), Size(width, height))).svg)
    assert float(svg.get("width")) == width
    assert height is None or float(svg.get("height")) == height
    for group in svg.iter("{http://www.w3.org/2000/svg}g"):
        moved = re.match(r"translate\((\S+) (\S+)\)", group.get("transform") or "")
        if not moved:
            continue
        left, top = map(float, moved.groups())
        for rect in group.iter("{http://www.w3.org/2000/svg}rect"):
            x, y, wide, high = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
            assert 0 <= left + x <= left + x + wide <= width
            assert 0 <= top + y <= top + y + high <= float(svg.get("height"))


@pytest.mark.parametrize(("size", "pixels"), [(Size(100), 1), (Size(2000, 50), 1), (Size(300, 300), 2)])
def test_a_size_that_is_too_small_is_an_error_with_the_least_size(size, pixels):
    with pytest.raises(UsageError) as raised:
        draw_picture(TIMELINE, Figure(size=size, pixels_per_unit=pixels))
    message = re.fullmatch(
        rf"a picture of {size} is too small for 6 ranks, which need (\d+)x(\d+)", str(raised.value)
    )
    needed = Size(int(message[1]), int(message[2]))
    draw_picture(TIMELINE, Figure(size=needed, pixels_per_unit=pixels))


def test_a_run_without_spans_has_a_picture_of_any_size():
    svg = ET.fromstring(draw_picture(empty_timeline(), Figure(size=Size(400, 300))).svg)
    assert (svg.get("width"), svg.get("height")) == ("400", "300")
