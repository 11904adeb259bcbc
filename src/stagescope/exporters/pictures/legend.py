"""The look of spans in an SVG picture, and its legend."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from stagescope.exporters.pictures.canvas import number
from stagescope.exporters.pictures.step_chart import StepChart, span_rows
from stagescope.vocabulary.kinds import BY_NAME, KINDS
from stagescope.vocabulary.language import cell_width, localized
from stagescope.vocabulary.palette import INK, PAPER, SWATCHES, chunk_color, contrast

if TYPE_CHECKING:
    from collections.abc import Iterator

LEGEND_PITCH = 19.0
SWATCH_WIDTH = 20.0
LIGHT_BELOW_CONTRAST = 3.0
"""Fills with less contrast to white get dark strokes: white ones would be invisible."""

# The strokes of each texture, drawn over a 6 x 6 tile of the span's color.
TEXTURES = {
    "rising": '<path d="M-1 1l2-2M0 6l6-6M5 7l2-2"/>',
    "falling": '<path d="M-1 5l2 2M0 0l6 6M5-1l2 2"/>',
    "dots": '<path d="M1.5 1.5h.01M4.5 4.5h.01" stroke-width="1.6" stroke-linecap="round"/>',
    "cross": '<path d="M0 0l6 6M0 6l6-6"/>',
    "bars": '<path d="M1.5 0v6M4.5 0v6"/>',
}


class LegendEntry(NamedTuple):
    """One swatch, in one or more shades, and its label."""

    words: str
    classes: tuple[str, ...]
    swatch_height: float = 13.0

    @property
    def width(self) -> float:
        """The width of the entry in pixels."""
        return (46.0 if self.classes else 20.0) + 6.5 * cell_width(self.words)


def styles(chart: StepChart) -> list[tuple[str, int]]:
    """Return the kinds and chunks that occur, in the order of the vocabulary."""
    present = {(span.kind, span.shade) for span in span_rows(chart.spans.unique(["kind", "chunk"]))}
    order = {kind.name: place for place, kind in enumerate(KINDS)}
    return sorted(present, key=lambda style: (order[style[0]], style[1]))


def class_name(kind: str, chunk: int) -> str:
    """Return the class of the spans of one kind and chunk."""
    return f"{BY_NAME[kind].letter}{chunk}"


def class_rules(chart: StepChart) -> str:
    """Return the style rules that give every class its fill."""
    rules = []
    for kind, chunk in styles(chart):
        name, plain = class_name(kind, chunk), SWATCHES[kind].texture == "plain"
        fill = chunk_color(kind, chunk, chart.chunk_count) if plain else f"url(#stagescope-{name})"
        rules.append(f".stagescope .{name}{{fill:{fill}}}\n")
    return "".join(rules)


def patterns(chart: StepChart) -> Iterator[str]:
    """Yield the textured fills; strokes are faint, so that numbers on them are readable."""
    for kind, chunk in styles(chart):
        strokes = TEXTURES.get(SWATCHES[kind].texture)
        if strokes:
            color = chunk_color(kind, chunk, chart.chunk_count)
            is_light = contrast(color, PAPER) < LIGHT_BELOW_CONTRAST
            stroke, opacity = (INK, ".25") if is_light else (PAPER, ".34")
            yield (
                f'<pattern id="stagescope-{class_name(kind, chunk)}" width="6" height="6" '
                f'patternUnits="userSpaceOnUse"><rect width="6" height="6" fill="{color}"/>'
                f'<g stroke="{stroke}" stroke-opacity="{opacity}" fill="none">{strokes}</g></pattern>'
            )


def legend_entries(chart: StepChart) -> list[LegendEntry]:
    """Return one entry per kind that occurs, with the shades of its chunks, then all other entries."""
    classes: dict[str, list[str]] = defaultdict(list)
    for kind, chunk in styles(chart):
        classes[kind].append(class_name(kind, chunk))
    entries = [
        LegendEntry(localized(kind.replace("_", " ")), tuple(names)) for kind, names in classes.items()
    ]
    if chart.spans["fused"].any():
        entries.append(LegendEntry(localized("overlapped pair"), ("pair",)))
    if chart.waits.height:
        entries.append(LegendEntry(localized("waits for a transfer"), ("wait",), swatch_height=5))
    if chart.chunk_count > 1:
        entries.append(LegendEntry(localized(f"chunks 0 to {chart.chunk_count - 1}: dark to light"), ()))
    return entries


def legend_lines(entries: list[LegendEntry], width: float) -> list[list[LegendEntry]]:
    """Return the entries broken into lines of at most `width` pixels."""
    lines: list[list[LegendEntry]] = [[]]
    for entry in entries:
        if lines[-1] and sum(other.width for other in lines[-1]) + entry.width > width:
            lines.append([])
        lines[-1].append(entry)
    return lines


def draw_legend(lines: list[list[LegendEntry]], left: float, top: float) -> Iterator[str]:
    """Yield the legend's swatches and words."""
    for line, entries in enumerate(lines):
        x, baseline = left, top + LEGEND_PITCH * line + 11
        for entry in entries:
            shade_width = SWATCH_WIDTH / max(len(entry.classes), 1)
            y, height = number(baseline - 4.5 - entry.swatch_height / 2), number(entry.swatch_height)
            for place, name in enumerate(entry.classes):
                at = f'x="{number(x + place * shade_width)}" y="{y}"'
                yield f'<rect class="{name}" {at} width="{number(shade_width)}" height="{height}"/>'
            text_x = x + (SWATCH_WIDTH + 6 if entry.classes else 0)
            yield f'<text class="ink" x="{number(text_x)}" y="{number(baseline)}">{entry.words}</text>'
            x += entry.width
