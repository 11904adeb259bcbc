from drawing import timeline_from_text
from stagescope.exporters.pictures.legend import (
    class_rules,
    draw_legend,
    legend_entries,
    legend_lines,
    patterns,
)
from stagescope.exporters.pictures.step_chart import chart_step


def words(text: str) -> list[str]:
    return [entry.words for entry in legend_entries(chart_step(timeline_from_text(text)))]


def test_the_legend_holds_only_what_occurs() -> None:
    assert words("F0 I0 W0 O0") == ["forward", "backward input", "backward weight", "optimizer"]


def test_chunks_are_explained_where_there_are_some() -> None:
    timeline = timeline_from_text("F0.0 F2.0\nF1.0 F3.0")
    timeline = timeline.with_spans(timeline.spans.with_columns(chunk=timeline.spans["stage"] // 2))
    entries = legend_entries(chart_step(timeline))
    assert [(entry.words, entry.classes) for entry in entries] == [
        ("forward", ("F0", "F1")),
        ("chunks 0 to 1: dark to light", ()),
    ]


def test_a_long_legend_is_broken_into_lines_that_fit() -> None:
    entries = legend_entries(chart_step(timeline_from_text("F0 B0 I0 W0 O0 L0")))
    lines = legend_lines(entries, 300)
    assert [entry for line in lines for entry in line] == entries
    assert len(lines) > 1
    assert all(sum(entry.width for entry in line) <= 300 for line in lines)


def test_every_class_has_a_fill_and_every_texture_is_defined() -> None:
    chart = chart_step(timeline_from_text("F0 B0 I0 W0 O0 L0"))
    rules, drawn = class_rules(chart), "".join(patterns(chart))
    assert ".stagescope .F0{fill:#0072b2}" in rules
    for name in ("B0", "I0", "W0", "O0"):
        assert f"fill:url(#stagescope-{name})" in rules
        assert f'id="stagescope-{name}"' in drawn


def test_a_legend_without_entries_is_empty() -> None:
    assert list(draw_legend(legend_lines([], 300), 0, 44)) == []
