"""Layers around the spans of a picture: idle time by cause, the critical path, waits."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import polars as pl
import pytest

import places
from stagescope.exporters.pictures import layers as picture_layers
from stagescope.exporters.pictures.drawing import draw_picture
from stagescope.exporters.pictures.figure import Figure, Size, chart_figure
from stagescope.exporters.pictures.step_chart import chart_step
from stagescope.viewer.analysis_data import gather_layers
from stagescope.vocabulary.palette import WAIT_SWATCHES, wait_swatch
from synthetic import Shape, pipeline_timeline

SVG = "{http://www.w3.org/2000/svg}"
TIMELINE = pipeline_timeline(Shape(ranks=4, microbatches=8, steps=3))
EXTRAS = gather_layers(TIMELINE)
WEB = places.WEB / "src"
BOX = re.compile(r"M([\d.-]+) ([\d.-]+)h([\d.]+)v([\d.]+)h")


def drawn(**choices):
    return ET.fromstring(draw_picture(TIMELINE, Figure(extras=EXTRAS, **choices)).svg)


def rows_of(svg):
    """Return for each row its place (left, top) and its group."""
    groups = [
        (re.match(r"translate\((\S+) (\S+)\)", each.get("transform") or ""), each)
        for each in svg.iter(f"{SVG}g")
    ]
    return [(float(at[1]), float(at[2]), group) for at, group in groups if at]


def frames(svg):
    data = next(path.get("d") for path in svg.iter(f"{SVG}path") if path.get("class") == "critical")
    return [tuple(map(float, found)) for found in BOX.findall(data)], data.count("L")


def test_the_hatched_time_of_every_row_is_its_idle_time():
    svg = drawn(size=Size(2000))
    chart = chart_figure(TIMELINE, Figure(extras=EXTRAS))
    left = rows_of(svg)[0][0]
    per_ns = (2000 - left - 24) / chart.length_ns
    for row, (_, _, group) in enumerate(rows_of(svg)):
        paths = [path for path in group.iter(f"{SVG}path") if (path.get("class") or "").startswith("gap")]
        boxes = [box for path in paths for box in BOX.findall(path.get("d"))]
        idle = chart.idle.filter(row=row).select(pl.col("end_ns") - pl.col("start_ns")).to_series()
        wide = [each * per_ns for each in idle if each * per_ns >= picture_layers.LEAST_IDLE_WIDTH]
        assert len(boxes) >= len(wide) > 0
        assert sum(float(width) for _, _, width, _ in boxes) == pytest.approx(
            sum(wide), abs=0.1 * len(boxes) + 1.2
        )


def test_the_critical_path_frames_spans_and_connects_them():
    svg = drawn()
    outlines = {
        (round(left + float(rect.get("x", 0)), 1), round(top, 1), float(rect.get("width")))
        for left, top, group in rows_of(svg)
        for rect in group.iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    }
    boxes, joints = frames(svg)
    step = chart_step(TIMELINE).step
    in_step = TIMELINE.spans[EXTRAS.critical_path["row"]].filter(pl.col("step") == step)
    assert len(boxes) == in_step.height > 10
    assert joints == len(boxes) - 1
    assert {(x, y, width) for x, y, width, _ in boxes} <= outlines


def test_a_path_is_not_joined_across_ranks_that_are_not_drawn():
    boxes, joints = frames(drawn(ranks=(0, 3)))
    whole, _ = frames(drawn())
    assert 0 < len(boxes) < len(whole)
    assert joints < len(boxes) - 1
    chart = chart_figure(TIMELINE, Figure(ranks=(0, 3), extras=EXTRAS))
    assert set(chart.idle["row"]) == {0, 1}


def test_low_rows_are_tinted_instead_of_hatched():
    high, low = (drawn(size=Size(900, height)).findtext(f"{SVG}style") for height in (400, 170))
    assert ".gap0{fill:url(#stagescope-gap0);fill-opacity:.6}" in high
    assert ".gap0{fill:#56b4e9;fill-opacity:.28}" in low


def test_legend_names_every_wait_and_the_path():
    words = [text.text for text in drawn().iter(f"{SVG}text")]
    assert [word for word in words if word and word.startswith("idle: ")] == [
        "idle: compute", "idle: transfer", "idle: launch"
    ]  # fmt: skip
    assert "critical path" in words


def test_without_what_analysis_found_there_is_neither():
    svg = draw_picture(TIMELINE).svg
    assert "idle:" not in svg
    assert "critical" not in svg


def test_a_wait_is_drawn_below_its_row():
    for _, _, group in rows_of(drawn()):
        height = float(group.find(f"{SVG}rect").get("height"))
        waits = [path for path in group.iter(f"{SVG}path") if path.get("class") == "wait"]
        assert all(float(y) >= height for path in waits for _, y, _, _ in BOX.findall(path.get("d")))


def test_another_step_has_its_own_layers():
    extras = gather_layers(TIMELINE, 2)
    svg = ET.fromstring(draw_picture(TIMELINE, Figure(2, extras=extras)).svg)
    boxes, _ = frames(svg)
    assert len(boxes) > 10
    assert not gather_layers(TIMELINE, 2).idle.filter(pl.col("step") != 2).height


def test_unknown_wait_is_drawn_and_named_without_underscores():
    idle = EXTRAS.idle.with_columns(waiting_for=pl.lit("moon_phase"))
    svg = draw_picture(TIMELINE, Figure(extras=replace(EXTRAS, idle=idle))).svg
    assert "idle: moon phase" in svg
    assert wait_swatch("moon_phase") == WAIT_SWATCHES["unknown"]


def test_rows_are_hatched_from_the_same_height_as_in_the_viewer():
    overlays = (WEB / "draw" / "overlays.ts").read_text(encoding="utf-8")
    least = float(re.search(r"LEAST_HATCHED_HEIGHT = (\d+)", overlays)[1])
    assert least == picture_layers.LEAST_HATCHED_HEIGHT
