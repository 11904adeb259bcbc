"""SVG: one step of a pipeline as drawn in papers, one row per rank, one rectangle per span.

The picture needs no script and no embedded font, opens in browsers, Inkscape and LaTeX tool chains, follows the
reader's dark mode, and is readable in grayscale: every kind has a texture in addition to its color.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from stagescope.exporters.pictures.canvas import SECTION_HEIGHT, Box, Canvas, number, path_data
from stagescope.exporters.pictures.figure import Figure, chart_figure
from stagescope.exporters.pictures.layers import (
    draw_critical_path,
    draw_idle,
    draw_waits,
    hatches,
    layer_rules,
)
from stagescope.exporters.pictures.layout import lay_out, require_size
from stagescope.exporters.pictures.legend import (
    class_name,
    class_rules,
    draw_legend,
    patterns,
)
from stagescope.exporters.pictures.step_chart import (
    UNALIGNED,
    ChartSpan,
    StepChart,
    chart_axis,
    chart_title,
    span_rows,
    time_text,
)
from stagescope.model.clock_groups import clock_notes
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.kinds import BY_NAME, label
from stagescope.vocabulary.language import cell_width, localized
from stagescope.vocabulary.palette import chunk_color, text_color

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from stagescope.model import Timeline

MOST_TITLED_SPANS = 5000
"""Above this many spans a picture has one path per kind, chunk and rank: a small file, but no tooltips."""

FONT_SIZE = 12.0
LEAST_FONT_SIZE = 7.0
DIGIT_WIDTH_EM = 0.6
TITLE_SIZE = 16.0
TITLE_WIDTH_EM = 0.58
"""The approximate width of a letter of the title; in a narrow picture the title is smaller."""

FONTS = "system-ui,'Helvetica Neue',Arial,sans-serif"

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

STYLE = """\
.stagescope{font-family:FONTS;font-variant-numeric:tabular-nums}
.stagescope .paper{fill:#fff}.stagescope .ink{fill:#1a1a1a}.stagescope .quiet{fill:#5f6368}
.stagescope .track{fill:#f2f3f5}.stagescope .grid{stroke:#e0e2e6;fill:none}
.stagescope .wait{fill:#4a9ad0}
.stagescope .pair{stroke:#1a1a1a;stroke-width:1.2;fill:none}
.stagescope .spans{stroke:#fff}.stagescope .texts{pointer-events:none;text-anchor:middle}
@media(prefers-color-scheme:dark){
.stagescope .paper{fill:#15171b}.stagescope .ink{fill:#ececec}.stagescope .quiet{fill:#a4a9b1}
.stagescope .track{fill:#22252b}.stagescope .grid{stroke:#31353c}.stagescope .wait{fill:#56b4e9}
.stagescope .spans{stroke:#15171b}.stagescope .pair{stroke:#ececec}}
""".replace("FONTS", FONTS)


class Drawing(NamedTuple):
    """What every row needs to know about the whole picture."""

    canvas: Canvas
    text_kinds: frozenset[str]


class Picture(NamedTuple):
    """One drawn step: SVG text, its width in pixels, its title as XML text, spans, tracks, and what is not shown."""

    svg: str
    width: float
    title: str
    span_count: int
    track_names: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...]


def draw_picture(timeline: Timeline, figure: Figure | None = None) -> Picture:
    """Return the picture of one step, the typical one by default, with its contents and what is omitted.

    Raises InputError if the step or a rank was not recorded, UsageError if the size is too small for them.
    """
    figure = figure or Figure()
    chart = chart_figure(timeline, figure)
    return Picture(
        svg=_draw(chart, timeline, figure),
        width=lay_out(chart, figure).canvas.width * figure.pixels_per_unit,
        title=_xml(_title_words(chart)),
        span_count=chart.spans.height,
        track_names=tuple(f"rank {rank}" for rank in chart.ranks),
        diagnostics=tuple(_diagnostics(chart)),
    )


def _diagnostics(chart: StepChart) -> Iterator[Diagnostic]:
    """Yield what the picture omits, or shows differently than recorded."""
    others = len(chart.recorded_steps) - 1
    if chart.step is not None and others > 0:
        message = f"the picture shows step {chart.step}; other steps are not drawn"
        yield Diagnostic("info", message, count=others, code="picture.one_step")
    if count := chart.other_rank_count:
        yield Diagnostic("info", "only the selected ranks are drawn", count=count, code="picture.some_ranks")
    if count := chart.not_drawn_count:
        message = "transfers, host spans and receives that did not block are not drawn"
        yield Diagnostic("info", message, count=count, code="picture.not_drawn")
    if count := chart.reversed_count:
        message = "spans that end before they start are drawn as points"
        yield Diagnostic("warning", message, count=count, code="spans.reversed_drawn")


def _draw(chart: StepChart, timeline: Timeline, figure: Figure) -> str:
    require_size(chart, figure)
    layout = lay_out(chart, figure)
    canvas = layout.canvas
    width, height = number(canvas.width), number(canvas.height)
    shown = [number(side * figure.pixels_per_unit) for side in (canvas.width, canvas.height)]
    title = _xml(_title_words(chart))
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="stagescope" viewBox="0 0 {width} {height}" '
            f'width="{shown[0]}" height="{shown[1]}" style="max-width:100%;height:auto" '
            f'font-size="{number(FONT_SIZE)}" role="img" aria-label="{title}">'
        ),
        f"<title>{title}</title>",
        f"<desc>{_xml(_description(chart))}</desc>",
        f"<style>\n{STYLE}{class_rules(chart)}{layer_rules(canvas)}</style>",
        f"<defs>{''.join((*patterns(chart), *hatches(chart)))}</defs>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        *_title(canvas, _title_words(chart) if figure.look.title is None else figure.look.title),
        *draw_legend(layout.legend, canvas.left, layout.legend_top),
        *_axis(canvas),
        *_section_titles(canvas),
        *_rows(canvas, timeline),
        *draw_critical_path(canvas),
        "</svg>\n",
    ]
    return "\n".join(parts)


def _title_words(chart: StepChart) -> str:
    return " · ".join(map(localized, chart_title(chart).split(" · ")))


def _title(canvas: Canvas, title: str) -> Iterator[str]:
    """Yield the title, smaller where it would not fit; nothing for an empty one."""
    if title:
        size = min(TITLE_SIZE, (canvas.width - canvas.left) / (TITLE_WIDTH_EM * cell_width(title)))
        place = f'x="{number(canvas.left)}" y="28" font-size="{number(size)}" font-weight="600"'
        yield f'<text class="ink" {place}>{_xml(title)}</text>'


def _description(chart: StepChart) -> str:
    count = counted(chart.spans.height, "span")
    sentences = [
        f"Gantt chart of one training step of a pipeline: one row per rank, time to the right, {count}.",
        "The number in a span is its micro-batch.",
    ]
    if chart.spans["fused"].any():
        sentences.append(
            "A framed span is an overlapped pair: its numbers are those of a forward and of a backward."
        )
    if chart.idle is not None:
        sentences.append("Hatched time is idle, by what the rank waited for.")
    if chart.critical_path is not None:
        sentences.append("Framed and joined spans are the critical path of the step.")
    if chart.sections:
        sentences.append(
            "The clocks of machines under different titles are not aligned: compare times only under one title."
        )
    if chart.spans.is_empty():
        sentences.append("No actions were recorded.")
    if chart.bubble_fraction is not None:
        sentences.append(
            "The bubble is the idle share of all ranks between the first and the last pipeline action."
        )
    if chart.spans.height > MOST_TITLED_SPANS:
        sentences.append(
            "Because there are so many spans, those of one kind and rank are one shape, without tooltips."
        )
    sentences += [f"{row.message[0].upper()}{row.message[1:]} ({row.count})." for row in _diagnostics(chart)]
    return " ".join(map(localized, sentences))


def _axis(canvas: Canvas) -> Iterator[str]:
    """Yield grid lines, their times and the label of the axis."""
    axis = chart_axis(canvas.chart, most=int(canvas.plot_width // 80))
    start = "the start of the step on that clock" if canvas.chart.sections else "the start of the step"
    words = localized(f"time since {start} ({axis.unit})" if axis.unit else "time in units of cost")
    marks = [(number(canvas.left + canvas.x(tick.time_ns)), tick.text) for tick in axis.ticks]
    top, bottom = canvas.top - 4, canvas.bottom
    lines = "".join(f"M{x} {number(top)}V{number(bottom + 4)}" for x, _ in marks)
    yield f'<path class="grid" d="{lines}"/>'
    if canvas.chart.spans.is_empty():
        nothing = localized("no actions recorded")
        yield f'<text class="quiet" x="{number(canvas.left)}" y="{number(top - 4)}">{nothing}</text>'
    texts = "".join(f'<text x="{x}" y="{number(bottom + 19)}">{text}</text>' for x, text in marks)
    yield f'<g class="quiet" text-anchor="middle" font-size="11">{texts}</g>'
    yield (
        f'<text class="quiet" x="{number(canvas.left + canvas.plot_width / 2)}" y="{number(bottom + 38)}" '
        f'text-anchor="middle">{words}</text>'
    )


def _section_titles(canvas: Canvas) -> Iterator[str]:
    """Yield the titles of unaligned machines; each interrupts the grid, so that rows are not compared across them."""
    for section in canvas.chart.sections:
        top = canvas.row_top(section.row) - SECTION_HEIGHT
        place = f'x="{number(canvas.left)}" y="{number(top)}"'
        size = f'width="{number(canvas.plot_width)}" height="{number(SECTION_HEIGHT)}"'
        yield f'<rect class="paper" {place} {size}/>'
        yield f'<path class="grid" stroke-dasharray="6 4" d="M0 {number(top + 4)}H{number(canvas.width)}"/>'
        text = f'x="{number(canvas.left)}" y="{number(top + 19)}" font-size="11"'
        title = f"{section.title.removesuffix(UNALIGNED)}{localized(UNALIGNED)}"
        yield f'<text class="quiet" {text}>{_xml(title)}</text>'


def _rows(canvas: Canvas, timeline: Timeline) -> Iterator[str]:
    """Yield every rank's row: track, waits, spans, numbers."""
    chart = canvas.chart
    drawn = chart.spans.partition_by("row", as_dict=True)
    waits = chart.waits.partition_by("row", as_dict=True)
    idle = {} if chart.idle is None else chart.idle.partition_by("row", as_dict=True)
    clocks = clock_notes(timeline)
    facts = {
        row["rank"]: row | {"clock": clocks.get(row["rank"])} for row in timeline.ranks.iter_rows(named=True)
    }
    drawing = Drawing(canvas, _text_kinds(canvas))
    size = f'width="{number(canvas.plot_width)}" height="{number(canvas.row_height)}"'
    label_every = max(1, -int(-11 // canvas.pitch))
    for row, rank in enumerate(chart.ranks):
        own = drawn.get((row,), chart.spans.clear())
        yield f'<g transform="translate({number(canvas.left)} {number(canvas.row_top(row))})">'
        yield f'<rect class="track" {size}/>'
        if row % label_every == 0:
            at = f'x="-8" y="{number(canvas.row_height / 2)}" dy=".35em" text-anchor="end"'
            tip = _xml(_rank_tip(rank, facts.get(rank, {}), own))
            yield f'<text class="ink" {at}>rank {rank}<title>{tip}</title></text>'
        if (row,) in idle:
            yield from draw_idle(canvas, idle[row,])
        yield from draw_waits(canvas, waits.get((row,), chart.waits.clear()))
        yield from _drawn_spans(drawing, rank, span_rows(own))
        yield "</g>"


def _rank_tip(rank: int, facts: dict[str, object], drawn: pl.DataFrame) -> str:
    stages = drawn["stage"].drop_nulls().unique().sort().to_list()
    words = [f"rank {rank}", *(str(facts[name]) for name in ("machine", "host", "device") if facts.get(name))]
    if stages:
        words.append(localized(f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"))
    clock = f"\n{localized('clock')}: {localized(str(facts['clock']))}" if facts.get("clock") else ""
    return ", ".join(words) + clock


def _drawn_spans(drawing: Drawing, rank: int, drawn: list[ChartSpan]) -> Iterator[str]:
    """Yield a rank's spans: rectangles with tooltips, or paths where the picture has too many."""
    chart = drawing.canvas.chart
    boxes = [drawing.canvas.box(span) for span in drawn]
    # An edge in the background color separates neighbors, but would hide spans that are a few pixels wide.
    edge = min(0.8, round(sum(box.width for box in boxes) / max(len(boxes), 1) / 12, 1))
    if chart.spans.height > MOST_TITLED_SPANS:
        boxes_by_name: dict[str, list[Box]] = defaultdict(list)
        for span, box in zip(drawn, boxes, strict=True):
            boxes_by_name[class_name(span.kind, span.shade)].append(box)
        shapes = [f'<path class="{name}" d="{path_data(own)}"/>' for name, own in boxes_by_name.items()]
    else:
        shapes = [_titled(span, box, rank, chart) for span, box in zip(drawn, boxes, strict=True)]
    yield f'<g class="spans" stroke-width="{number(edge)}">'
    yield from shapes
    yield "</g>"
    pairs = [drawing.canvas.pair_box(span) for span in drawn if span.fused and span.lane == 0]
    if pairs:
        yield f'<path class="pair" d="{path_data(pairs)}"/>'
    yield from _texts(drawing, drawn, boxes)


def _titled(span: ChartSpan, box: Box, rank: int, chart: StepChart) -> str:
    x, y, width, height = map(number, box)
    at = f'x="{x}" y="{y}"' if box.y else f'x="{x}"'
    tip = _xml(_block_tip(span, rank, chart))
    name = class_name(span.kind, span.shade)
    return f'<rect class="{name}" {at} width="{width}" height="{height}"><title>{tip}</title></rect>'


def _block_tip(span: ChartSpan, rank: int, chart: StepChart) -> str:
    named = span.stage is not None and span.microbatch is not None
    notation = label(span.kind, span.stage, span.microbatch) if named else ""
    kind = localized(span.kind.replace("_", " "))
    words = " ".join(filter(None, (notation, kind, (span.name or "")[:120])))
    facts = (("rank", rank), ("stage", span.stage), ("micro-batch", span.microbatch), ("step", chart.step))
    where = ", ".join(localized(f"{name} {value}") for name, value in facts if value is not None)
    length = time_text(chart, span.end_ns - span.start_ns)
    return f"{words}\n{where}\n{localized(f'starts at {time_text(chart, span.start_ns)}, lasts {length}')}"


def _text_kinds(canvas: Canvas) -> frozenset[str]:
    """Return the kinds with enough space for the text of most spans: a row with gaps in its numbers would mislead."""
    fitting: dict[str, list[bool]] = defaultdict(list)
    for span in span_rows(canvas.chart.spans):
        fitting[span.kind].append(_fits(_span_text(span), canvas.box(span)))
    return frozenset(kind for kind, fits in fitting.items() if 2 * sum(fits) > len(fits))


def _span_text(span: ChartSpan) -> str:
    return localized(span.kind.replace("_", " ")) if span.microbatch is None else str(span.microbatch)


def _font_size(box: Box) -> float:
    return round(min(FONT_SIZE, box.height * 0.72), 1)


def _fits(text: str, box: Box) -> bool:
    size = _font_size(box)
    return size >= LEAST_FONT_SIZE and DIGIT_WIDTH_EM * size * cell_width(text) + 2 <= box.width


def _texts(drawing: Drawing, drawn: list[ChartSpan], boxes: list[Box]) -> Iterator[str]:
    """Yield the micro-batch numbers that fit into their spans, grouped by color and size."""
    groups: dict[tuple[str, float], list[str]] = defaultdict(list)
    halves: list[tuple[ChartSpan, Box]] = []
    for span, box in zip(drawn, boxes, strict=True):
        if span.fused:
            halves.append((span, box))
            continue
        text = _span_text(span)
        if span.kind in drawing.text_kinds and _fits(text, box):
            groups[_ink(drawing, span), _font_size(box)].append(_text(text, box))
    # The two halves of a pair have equal times, so they are adjacent.
    for half, other in zip(halves[::2], halves[1::2], strict=True):
        (upper, box), lower = sorted((half, other), key=lambda each: each[0].lane)
        groups[_ink(drawing, upper), _font_size(box)] += _pair_text(drawing, (upper, box), lower)
    for (ink, size), texts in groups.items():
        yield f'<g class="texts" fill="{ink}" font-size="{number(size)}">{"".join(texts)}</g>'


def _pair_text(drawing: Drawing, upper: tuple[ChartSpan, Box], lower: tuple[ChartSpan, Box]) -> Iterator[str]:
    """Yield the label of an overlapped pair, such as 7F+13B in two lines, or only the numbers if space is tight."""
    drawn, boxes = (upper[0], lower[0]), (upper[1], lower[1])
    if None in (each.microbatch for each in drawn):
        return
    letters = tuple(f"{each.microbatch}{BY_NAME[each.kind].letter}" for each in drawn)
    for first, second in ((letters[0], f"+{letters[1]}"), (_span_text(drawn[0]), _span_text(drawn[1]))):
        if _fits(first, boxes[0]) and _fits(second, boxes[1]):
            x, drop = number(boxes[1].x + boxes[1].width / 2), number(boxes[1].y - boxes[0].y)
            ink = _ink(drawing, drawn[1])
            yield _text(f'{first}<tspan x="{x}" dy="{drop}" fill="{ink}">{second}</tspan>', boxes[0])
            return


def _text(text: str, box: Box) -> str:
    x, y = number(box.x + box.width / 2), number(box.y + box.height / 2)
    return f'<text x="{x}" y="{y}" dy=".36em">{text}</text>'


def _ink(drawing: Drawing, span: ChartSpan) -> str:
    return text_color(chunk_color(span.kind, span.shade, drawing.canvas.chart.chunk_count))


def _xml(text: str) -> str:
    """Return text for an XML element or attribute; characters that XML forbids become U+FFFD."""
    text = NOT_XML.sub("\ufffd", text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace('"', "&quot;")
