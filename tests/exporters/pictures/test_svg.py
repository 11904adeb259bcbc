import re
from pathlib import Path
from xml.etree import ElementTree as ET

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import timeline_from_text
from machines import on_machines
from stagescope.exporters.pictures.canvas import SECTION_HEIGHT
from stagescope.exporters.pictures.drawing import MOST_TITLED_SPANS, _xml, draw_picture
from stagescope.exporters.pictures.figure import Figure
from stagescope.exporters.pictures.step_chart import UNALIGNED
from stagescope.exporters.pictures.svg import WRITER, write_svg
from stagescope.model import Timeline, empty_timeline
from stagescope.viewer.analysis_data import gather_layers
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.language import CHINESE, speaking
from synthetic import Shape, pipeline_timeline

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = """
    F0 F1 F2 .  B0 -  B1 -  B2 -  O0
    .  F0 B0 -  F1 B1 -  F2 B2 -  O0
"""


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def block_tips(svg: str) -> list[str]:
    return [
        rect.findtext(f"{SVG}title")
        for rect in parsed(svg).iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    ]


def numbers(svg: str) -> list[str]:
    groups = [group for group in parsed(svg).iter(f"{SVG}g") if group.get("class") == "texts"]
    return [text.text for group in groups for text in group]


def named(timeline: Timeline, name: str) -> Timeline:
    """Return the timeline with `name` wherever a table takes free text."""
    spans = timeline.spans.with_columns(pl.lit(name).alias("name"))
    ranks = timeline.ranks.with_columns(
        pl.lit(name).alias(column) for column in ("schedule", "machine", "host", "device")
    )
    return Timeline(spans, ranks, timeline.steps, timeline.clocks, timeline.diagnostics)


def test_every_action_is_a_span_with_a_tooltip() -> None:
    timeline = timeline_from_text(DRAWN, step=5)
    tips = block_tips(draw_picture(timeline).svg)
    assert len(tips) == timeline.spans.height
    assert "B1.2 backward\nrank 1, stage 1, micro-batch 2, step 5\nstarts at 8.000 µs, lasts 2.000 µs" in tips


def test_spans_carry_their_micro_batch() -> None:
    found = numbers(draw_picture(timeline_from_text("F0 F1 . B0 - B1 -\n. F0 F1 B0 - B1 -")).svg)
    assert sorted(found) == sorted("0101" * 2)


def test_numbers_are_omitted_where_most_do_not_fit() -> None:
    many = " ".join(f"F{m}" for m in range(400))
    assert numbers(draw_picture(timeline_from_text(many)).svg) == []


def test_title_and_description_describe_the_picture() -> None:
    root = parsed(draw_picture(timeline_from_text(DRAWN)).svg)
    assert root.findtext(f"{SVG}title") == "Pipeline · 2 ranks · 3 micro-batches · step 0 · bubble 10.0 %"
    assert "one row per rank" in root.findtext(f"{SVG}desc")
    assert (root.get("role"), root.get("aria-label")) == ("img", root.findtext(f"{SVG}title"))


def test_only_the_chosen_step_is_drawn() -> None:
    timeline = pipeline_timeline(Shape(steps=3))
    svg = draw_picture(timeline, Figure(2)).svg
    assert all("step 2" in tip for tip in block_tips(svg))
    assert "The picture shows step 2; other steps are not drawn (2)." in parsed(svg).findtext(f"{SVG}desc")


def test_a_step_that_was_not_recorded_is_an_error() -> None:
    with pytest.raises(InputError, match="step 9 was not recorded"):
        draw_picture(timeline_from_text(DRAWN), Figure(9))


def test_waits_lie_behind_the_spans() -> None:
    svg = draw_picture(pipeline_timeline(Shape(ranks=2, microbatches=2, steps=1))).svg
    row = next(
        group for group in parsed(svg).iter(f"{SVG}g") if group.find(f"{SVG}path[@class='wait']") is not None
    )
    classes = [element.get("class") for element in row]
    assert classes.index("wait") < classes.index("spans")


def test_overlapped_actions_share_the_height_of_their_row() -> None:
    timeline = timeline_from_text("F0 F1 -\nB5 B6 -")
    overlapped = timeline.with_spans(
        timeline.spans.with_columns(rank=pl.lit(0, pl.Int32), pair=pl.lit(1, pl.Int32))
    )
    rects = [
        rect
        for rect in parsed(draw_picture(overlapped).svg).iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    ]
    tops = {rect.get("class"): float(rect.get("y", "0")) for rect in rects}
    heights = {float(rect.get("height")) for rect in rects}
    assert tops["F0"] == 0
    assert tops["B0"] == heights.pop()


def paired(forward: int, backward: int, *, length_ns: int = 40_000) -> Timeline:
    timeline = timeline_from_text(f"F{forward}\nB{backward}", cell_ns=length_ns)
    return timeline.with_spans(
        timeline.spans.with_columns(rank=pl.lit(0, pl.Int32), pair=pl.lit(0, pl.Int32))
    )


def test_an_overlapped_pair_is_one_framed_span_with_one_label() -> None:
    root = parsed(draw_picture(paired(7, 13)).svg)
    labels = [
        "".join(text.itertext()) for text in root.iter(f"{SVG}text") if text.find(f"{SVG}tspan") is not None
    ]
    assert labels == ["7F+13B"]
    frames = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("class") == "pair"]
    (height,) = {rect.get("height") for rect in root.iter(f"{SVG}rect") if rect.get("class") == "track"}
    assert len(frames) == 1
    assert f"v{height}" in frames[0]
    assert "overlapped pair" in [text.text for text in root.iter(f"{SVG}text")]


def test_a_tight_pair_shows_its_numbers_alone_and_a_tighter_one_none() -> None:
    rest = timeline_from_text(" ".join(["F1"] * 34)).spans

    def labels(length_ns: int) -> list[str]:
        pair = paired(7, 13, length_ns=length_ns).spans
        later = rest.with_columns(pl.col("start_ns", "end_ns") + length_ns)
        root = parsed(draw_picture(empty_timeline().with_spans(pl.concat([pair, later]))).svg)
        return [
            "".join(text.itertext())
            for text in root.iter(f"{SVG}text")
            if text.find(f"{SVG}tspan") is not None
        ]

    assert [labels(length_ns) for length_ns in (2_000, 900, 300)] == [["7F+13B"], ["713"], []]


def test_a_picture_of_a_recorded_pair_that_ran_in_turn_has_no_frame() -> None:
    timeline = timeline_from_text("F7 B3")
    apart = timeline.with_spans(timeline.spans.with_columns(pair=pl.lit(0, pl.Int32)))
    assert not [
        path for path in parsed(draw_picture(apart).svg).iter(f"{SVG}path") if path.get("class") == "pair"
    ]


def test_above_the_limit_there_is_one_path_per_kind_and_rank() -> None:
    shape = Shape(ranks=2, microbatches=MOST_TITLED_SPANS // 4 + 1, steps=1)
    root = parsed(draw_picture(pipeline_timeline(shape)).svg)
    paths = [path for path in root.iter(f"{SVG}path") if path.get("class") in ("F0", "B0")]
    assert len(paths) == 4
    assert all(path.get("d").count("M") == shape.microbatches for path in paths)
    assert "without tooltips" in root.findtext(f"{SVG}desc")
    assert not block_tips(ET.tostring(root, encoding="unicode"))


def test_a_timeline_without_actions_has_a_picture_with_a_note() -> None:
    root = parsed(draw_picture(empty_timeline()).svg)
    assert "no actions recorded" in [text.text for text in root.iter(f"{SVG}text")]


def test_the_picture_follows_the_dark_mode_of_its_reader() -> None:
    assert "@media(prefers-color-scheme:dark)" in parsed(
        draw_picture(timeline_from_text(DRAWN)).svg
    ).findtext(f"{SVG}style")


def test_every_class_and_fill_that_is_used_is_defined() -> None:
    svg = draw_picture(timeline_from_text(DRAWN)).svg
    style = parsed(svg).findtext(f"{SVG}style")
    used = {element.get("class") for element in parsed(svg).iter() if element.get("class")} - {"stagescope"}
    assert all(f".stagescope .{name}{{" in style for name in used)
    assert set(re.findall(r"url\(#([\w-]+)\)", svg)) <= set(re.findall(r'id="([\w-]+)"', svg))


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "a&b", "\"'>", "]]>", "\x00\x1b[31m", "\ufffe\uffff", "\u202e"]
)
def test_hostile_names_leave_the_picture_well_formed(name: str) -> None:
    root = parsed(draw_picture(named(timeline_from_text(DRAWN), name)).svg)
    assert not list(root.iter(f"{SVG}script"))


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=30))
def test_any_name_leaves_the_picture_well_formed(name: str) -> None:
    parsed(draw_picture(named(timeline_from_text("F0 B0"), name)).svg)


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=20))
def test_any_text_with_lone_surrogates_too_becomes_well_formed_xml(text: str) -> None:
    data = f'<a b="{_xml(text)}">{_xml(text)}</a>'.encode()
    assert ET.fromstring(data).tag == "a"


def test_the_written_file_is_counted_as_its_reader_would(tmp_path: Path) -> None:
    timeline = pipeline_timeline(Shape(ranks=3, microbatches=2, steps=2))
    written = WRITER.write(timeline, tmp_path / "run.svg")
    svg = (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert written.size_bytes == (tmp_path / "run.svg").stat().st_size
    assert written.slice_count == len(block_tips(svg))
    assert written.track_names == ("rank 0", "rank 1", "rank 2")
    assert [row.message for row in written.diagnostics] == [
        "the picture shows step 0; other steps are not drawn",
        "transfers, host spans and receives that did not block are not drawn",
    ]


def test_a_step_can_be_chosen_for_the_file(tmp_path: Path) -> None:
    write_svg(pipeline_timeline(Shape(steps=2)), tmp_path / "run.svg", Figure(1))
    assert "step 1" in (tmp_path / "run.svg").read_text(encoding="utf-8")


def test_spans_that_end_before_they_start_are_reported(tmp_path: Path) -> None:
    timeline = timeline_from_text("F0 B0")
    reversed_spans = timeline.spans.with_columns(end_ns=pl.col("start_ns") - 1)
    written = write_svg(timeline.with_spans(reversed_spans), tmp_path / "run.svg")
    assert [(row.severity, row.count) for row in written.diagnostics] == [("warning", 2)]


def test_a_picture_of_a_small_run_is_small() -> None:
    assert len(draw_picture(pipeline_timeline(Shape(ranks=4, microbatches=8, steps=1))).svg) < 25_000


def test_unaligned_machines_have_titles_that_interrupt_the_grid() -> None:
    timeline = timeline_from_text("F0 B0\nF0 B0\nF0 B0")
    machines = {0: "a", 1: "a", 2: "<b>"}
    svg = draw_picture(on_machines(timeline, machines, {"a": (0, 0), "<b>": None})).svg
    whole = draw_picture(on_machines(timeline, machines, {"a": (0, 0), "<b>": (-5, 5)})).svg
    texts = [text.text for text in parsed(svg).iter(f"{SVG}text") if text.text and UNALIGNED in text.text]
    assert texts == [f"a: {UNALIGNED}", f"<b>: {UNALIGNED}"]
    assert UNALIGNED not in whole
    assert "time since the start of the step on that clock (" in svg
    assert "time since the start of the step (" in whole
    assert "are not aligned" in parsed(svg).find(f"{SVG}desc").text
    tops = [float(y) for y in re.findall(r'<g transform="translate\(\S+ (\S+)\)">', svg)]
    assert tops[2] - tops[1] == tops[1] - tops[0] + SECTION_HEIGHT
    heights = [float(parsed(one).attrib["height"]) for one in (svg, whole)]
    assert heights[0] == heights[1] + 2 * SECTION_HEIGHT


def test_the_label_of_a_rank_states_how_well_its_clock_is_aligned() -> None:
    timeline = on_machines(timeline_from_text("F0\nF0"), {0: "a", 1: "b"}, {"a": (0, 0), "b": (-5, 7)})
    assert "clock: aligned, error between -5 ns and +7 ns" in draw_picture(timeline).svg
    assert "clock:" not in draw_picture(timeline_from_text("F0\nF0")).svg


def test_picture_in_chinese_has_no_english_text():
    timeline = pipeline_timeline(Shape(ranks=2, microbatches=3, steps=2))
    with speaking(CHINESE):
        picture = draw_picture(timeline, Figure(extras=gather_layers(timeline)))
    root = parsed(picture.svg)
    # A title within a text is a tooltip.
    texts = [
        text for name in ("text", "title", "desc") for one in root.iter(SVG + name) for text in one.itertext()
    ]
    assert {"前向", "反向", "关键路径", "等待传输", "距该步开始的时间（ms）"} <= set(texts)
    kept = re.compile(r"rank|span|ms|µs|us|ns|node-\d+|gpu|cpu|Pipeline")
    for text in texts:
        assert not re.search("[A-Za-z]{2,}", kept.sub("", text)), text
    assert "前向" not in draw_picture(timeline).svg
