"""The terminal chart: one step of a pipeline in a given width of characters, one row per rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.text import Text

from stagescope.exporters.pictures.step_chart import (
    StepChart,
    chart_axis,
    chart_step,
    chart_title,
    span_rows,
)
from stagescope.model.simulated import is_simulated
from stagescope.reports.cells import EIGHTHS, IDLE, Line, covered, owners, split_cells
from stagescope.reports.sampled import chosen_ranks
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.kinds import BY_NAME, KINDS
from stagescope.vocabulary.language import localized, wrapped
from stagescope.vocabulary.palette import (
    DARK_TERMINAL_COLORS,
    INK,
    TERMINAL_COLORS,
    chunk_color,
    mix,
    text_color,
)
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stagescope.exporters.pictures.step_chart import ChartSpan
    from stagescope.model import Timeline

MOST_LINES_PER_RANK = 3
LEAST_WIDTH = 32
CELLS_PER_TICK = 9
DARKER_FRACTION = 0.16
"""How much darker every other micro-batch is drawn, to distinguish adjacent actions of one kind.

With several chunks, shades denote chunks, and a thin line at its start separates an action from the one before it.
"""
SIXTEEN = 16
DIVIDER = "▏"
BRIGHT = 8
"""The difference between a color of 16 and its bright form."""
BLACK, WHITE = "color(0)", "color(15)"

BLOCK_CHARACTERS = " ▏▎▍▌▋▊▉█"
RIGHT_CHARACTERS = "██▐▐▐▐▕▕ "
"""Cells filled from the right, by the number of empty eighths at the left.

Unicode has only the half and the eighth of these; reversed video would be exact, but web logs do not show it.
"""

DIM = Style(dim=True)


class Glyphs(NamedTuple):
    """The characters that depend on the encoding of a terminal."""

    wait: str
    fill: str
    corner: str
    rule: str
    tick: str
    between: str
    cut: str


UNICODE = Glyphs("·", "─", "└", "─", "┴", " · ", "…")
ASCII = Glyphs(".", "-", "+", "-", "+", ", ", "...")


class Look(NamedTuple):
    """The look of a span: its kind, its model chunk, and whether it is the darker of two neighbors."""

    kind: str
    chunk: int
    darker: bool


@dataclass(frozen=True)
class Screen:
    """The settings that all lines of a chart share: width in characters, glyphs, and whether kinds are colors.

    `color` is SIXTEEN if the terminal has no other colors.
    """

    chart: StepChart
    width: int
    ascii_only: bool
    color: bool | int

    @property
    def has_sixteen_colors(self) -> bool:
        """Whether kinds have colors of TERMINAL_COLORS."""
        return self.color == SIXTEEN

    @property
    def label_width(self) -> int:
        """Width of the rank labels, including the space after them."""
        return 1 + max(4, *(len(str(rank)) for rank in self.chart.ranks), 0)

    @property
    def cell_count(self) -> int:
        """Number of time cells in a line."""
        return self.width - self.label_width

    @property
    def glyphs(self) -> Glyphs:
        """The characters for this terminal."""
        return ASCII if self.ascii_only else UNICODE

    def cells(self, times_ns: pl.Series) -> NDArray[np.float64]:
        """Return times as distances from the left edge, in cells."""
        return (times_ns.to_numpy() - self.chart.start_ns) * (self.cell_count / self.chart.length_ns)

    def style(self, look: Look) -> Style:
        """Return the text and background color of a look, an empty style without color."""
        if not self.color:
            return Style.null()
        color = self.fill(look)
        if self.has_sixteen_colors:
            is_dark = TERMINAL_COLORS[look.kind] in DARK_TERMINAL_COLORS and not self._is_bright(look)
            return Style(color=WHITE if is_dark else BLACK, bgcolor=color)
        return Style(color=text_color(color), bgcolor=color)

    def fill(self, look: Look) -> str:
        """Return the color of a look."""
        if self.has_sixteen_colors:
            number = TERMINAL_COLORS[look.kind]
            return f"color({number | BRIGHT if self._is_bright(look) else number})"
        color = chunk_color(look.kind, look.chunk, self.chart.chunk_count)
        return mix(color, INK, DARKER_FRACTION) if look.darker else color

    def _is_bright(self, look: Look) -> bool:
        """Return whether a look has the other one of the two shades of its color, of 16."""
        return look.darker or look.chunk > 0


def draw_step(
    timeline: Timeline,
    step: int | None = None,
    *,
    width: int = 80,
    ascii_only: bool = False,
    color: bool | int = True,
) -> Text:
    """Return the chart of `step`, or of the typical step if it is None; no line is wider than `width`.

    With color, spans are drawn to an eighth of a character and show their micro-batch; without color, or with
    `ascii_only`, every span begins with the letter of its kind. Overlapping actions of a rank are drawn on separate
    lines. `color` is 16 if the terminal has no other colors. The least width is 32. Raises InputError if the
    step was not recorded.
    """
    screen = Screen(chart_step(timeline, step), max(width, LEAST_WIDTH), ascii_only, color)
    rows = chosen_ranks(len(screen.chart.ranks), is_simulated=is_simulated(timeline))
    lines = [_title(screen), *_rank_lines(screen, rows), *_axis_lines(screen), *_legend_lines(screen)]
    notes = [line for note in _notes(screen, rows) for line in wrapped(printable(note), screen.width)]
    lines += [Text(note, style=DIM if color else "") for note in notes]
    text = Text("\n", no_wrap=True, overflow="crop").join(lines)
    return text if color else Text(text.plain, no_wrap=True, overflow="crop")


def _title(screen: Screen) -> Text:
    parts = map(localized, chart_title(screen.chart).split(" · "))
    title = _shown(screen, screen.glyphs.between.join(parts))
    if cell_len(title) > screen.width:
        title = set_cell_size(title, screen.width - len(screen.glyphs.cut)) + screen.glyphs.cut
    return Text(title, style="bold" if screen.color else "")


def _rank_lines(screen: Screen, rows: list[int]) -> Iterator[Text]:
    """Yield the lines of every shown rank, under the heading of its section if ranks do not share a clock."""
    spans = screen.chart.spans.partition_by("row", as_dict=True)
    waits = screen.chart.waits.partition_by("row", as_dict=True)
    sections = list(screen.chart.sections)
    for row in rows:
        begun = [section for section in sections if section.row <= row]
        if begun:
            yield _section_line(screen, begun[-1].title)
            del sections[: len(begun)]
        lines = _lines_of_row(spans.get((row,), screen.chart.spans.clear()))
        for number, line in enumerate(lines):
            name = str(screen.chart.ranks[row]) if number == 0 else ""
            own_waits = waits.get((row,), screen.chart.waits.clear())
            is_wait = _is_wait(screen, own_waits if number == 0 else own_waits.clear())
            draw = _draw_letters if screen.ascii_only or not screen.color else _draw_spans
            drawn = draw(screen, line, is_wait)
            if number == 0 or drawn.plain:
                yield Text.assemble(name.rjust(screen.label_width - 1) + " ", drawn)


def _section_line(screen: Screen, title: str) -> Text:
    """Return a horizontal rule with the title of a section."""
    head = screen.glyphs.rule * 2 + " " + _shown(screen, title) + " "
    if cell_len(head) > screen.width:
        head = set_cell_size(head, screen.width - len(screen.glyphs.cut)) + screen.glyphs.cut
    return Text(head + screen.glyphs.rule * (screen.width - cell_len(head)), DIM if screen.color else "")


def _shown(screen: Screen, text: str) -> str:
    """Return text in the characters that this terminal can show."""
    text = localized(printable(text))
    return text.encode("ascii", "replace").decode() if screen.ascii_only else text


def _lines_of_row(spans: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the spans of a rank by line: one per lane, and one for spans that run concurrently with actions.

    A span that overlaps actions for less than half of its time is drawn between them, without the overlapping part.
    """
    actions, strips = spans.filter(~pl.col("strip")), spans.filter("strip")
    reach_ns = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(actions["end_ns"].to_numpy())])
    next_ns = np.append(actions["start_ns"].to_numpy(), np.iinfo(np.int64).max)
    before = np.searchsorted(actions["start_ns"], strips["start_ns"], side="right")
    free = strips.with_columns(
        pl.max_horizontal("start_ns", pl.Series(reach_ns[before])).alias("start_ns"),
        pl.min_horizontal("end_ns", pl.Series(next_ns[before])).alias("end_ns"),
    )
    fits = 2 * (free["end_ns"] - free["start_ns"]) >= strips["end_ns"] - strips["start_ns"]
    among = pl.concat([actions, free.filter(fits)]).sort("start_ns")
    lanes = [among.filter(pl.col("lane") == lane) for lane in range(MOST_LINES_PER_RANK)]
    below = [frame for frame in (*lanes[1:], strips.filter(~fits)) if frame.height]
    return [lanes[0], *below]


def _is_wait(screen: Screen, waits: pl.DataFrame) -> NDArray[np.bool_]:
    """Return which cells were blocked by a receive for at least half of their time."""
    edges = np.arange(screen.cell_count + 1, dtype=np.float64)
    return covered(screen.cells(waits["start_ns"]), screen.cells(waits["end_ns"]), edges) >= 0.5  # noqa: PLR2004


def _line(screen: Screen, spans: list[ChartSpan], frame: pl.DataFrame) -> tuple[Line, list[Look]]:
    """Return the spans of a line in cells, and their looks."""
    looks: dict[Look, int] = {}
    look_of_span = []
    for span in spans:
        is_other = screen.chart.chunk_count == 1 and bool((span.microbatch or 0) % 2)
        look = Look(span.kind, span.shade, is_other)
        look_of_span.append(looks.setdefault(look, len(looks)))
    kinds = [BY_NAME[look.kind].code for look in looks]
    start, end = screen.cells(frame["start_ns"]), screen.cells(frame["end_ns"])
    return Line(start, end, np.array(look_of_span, dtype=np.int64), np.array(kinds, dtype=np.int64)), list(
        looks
    )


def _draw_spans(screen: Screen, frame: pl.DataFrame, is_wait: NDArray[np.bool_]) -> Text:
    """Return a line of colored spans, with micro-batch numbers where they fit."""
    spans = span_rows(frame)
    line, looks = _line(screen, spans, frame)
    cells = split_cells(line, screen.cell_count)
    characters, styles = [], []
    for place, (left, right, eighths) in enumerate(zip(*(column.tolist() for column in cells), strict=True)):
        character, style = _cell_character(screen, looks, (left, right, eighths))
        characters.append(screen.glyphs.wait if left == right == IDLE and is_wait[place] else character)
        styles.append(DIM if left == right == IDLE else style)
    # A number is centered in the span as drawn: its edges are rounded to an eighth, as in split_cells.
    starts, ends = (np.round(edge * EIGHTHS) / EIGHTHS for edge in (line.start, line.end))
    for number in np.flatnonzero(np.floor(ends) - np.ceil(starts) >= 1):
        look = int(line.look_of_span[number])
        first, last = int(np.ceil(starts[number])), int(np.floor(ends[number]))
        text = str(spans[number].microbatch if spans[number].microbatch is not None else "")
        place = first + (last - first - len(text)) // 2
        whole = (cells.left[first:last] == look).all() and (cells.right[first:last] == look).all()
        if whole and screen.chart.chunk_count > 1:
            characters[first], styles[first] = DIVIDER, screen.style(looks[look])
        if len(text) <= last - first and whole:
            characters[place : place + len(text)] = text
            styles[place : place + len(text)] = [screen.style(looks[look])] * len(text)
    return _styled(characters, styles)


def _cell_character(screen: Screen, looks: list[Look], cell: tuple[int, int, int]) -> tuple[str, Style]:
    """Return the character and style of one cell, given as left look, right look and the eighths of the left one."""
    left, right, eighths = cell
    if left == right == IDLE:
        return " ", Style.null()
    if left == right:
        return BLOCK_CHARACTERS[EIGHTHS], Style(color=screen.fill(looks[left]))
    if right == IDLE:
        return BLOCK_CHARACTERS[eighths], Style(color=screen.fill(looks[left]))
    if left == IDLE:
        return RIGHT_CHARACTERS[eighths], Style(color=screen.fill(looks[right]))
    return BLOCK_CHARACTERS[eighths], Style(color=screen.fill(looks[left]), bgcolor=screen.fill(looks[right]))


def _draw_letters(screen: Screen, frame: pl.DataFrame, is_wait: NDArray[np.bool_]) -> Text:
    """Return a line in which every span begins with the letter of its kind."""
    spans = span_rows(frame)
    line, looks = _line(screen, spans, frame)
    owner = owners(line, screen.cell_count)
    characters = [screen.glyphs.wait if wait else " " for wait in is_wait]
    styles = [Style.null()] * screen.cell_count
    begins = np.flatnonzero(np.diff(owner, prepend=IDLE - 1))
    for first, last in zip(begins, [*begins[1:], screen.cell_count], strict=True):
        if owner[first] != IDLE:
            span, length = spans[owner[first]], int(last - first)
            letter = BY_NAME[span.kind].letter
            text = letter if span.microbatch is None else f"{letter}{span.microbatch}"
            text = text if len(text) <= length else letter
            characters[first:last] = text.ljust(length, screen.glyphs.fill)
            styles[first:last] = [screen.style(looks[line.look_of_span[owner[first]]])] * length
    return _styled(characters, styles)


def _styled(characters: list[str], styles: list[Style]) -> Text:
    text = Text()
    for character, style in zip(characters, styles, strict=True):
        text.append(character, style)
    text.rstrip()
    return text


def _axis_lines(screen: Screen) -> Iterator[Text]:
    """Yield the axis and its times; the unit follows the zero."""
    axis = chart_axis(screen.chart, most=max(1, screen.cell_count // CELLS_PER_TICK))
    rule = [screen.glyphs.rule] * screen.cell_count
    texts = [" "] * screen.width
    unit = axis.unit.replace("µ", "u") if screen.ascii_only else axis.unit
    free_from = 0
    for tick in axis.ticks:
        place = int((tick.time_ns - screen.chart.start_ns) * screen.cell_count / screen.chart.length_ns)
        place = min(place, screen.cell_count - 1)
        rule[place] = screen.glyphs.tick if place else screen.glyphs.corner
        text = f"0 {unit}".rstrip() if tick.time_ns == 0 else tick.text
        shift = 0 if tick.time_ns == 0 else len(text) // 2
        first = min(screen.label_width + place - shift, screen.width - len(text))
        if first >= free_from:
            texts[first : first + len(text)] = text
            free_from = first + len(text) + 1
    style = DIM if screen.color else Style.null()
    yield Text.assemble("rank".rjust(screen.label_width - 1) + " ", ("".join(rule), style))
    yield Text("".join(texts).rstrip(), style)


def _legend_lines(screen: Screen) -> Iterator[Text]:
    """Yield the legend of colors, letters and dots, with as many entries per line as fit."""
    present = set(screen.chart.spans["kind"].unique())
    entries = [_legend_entry(screen, kind.name) for kind in KINDS if kind.name in present]
    if screen.chart.waits.height:
        entries.append(Text(f"{screen.glyphs.wait} {localized('waiting for a transfer')}"))
    if screen.chart.chunk_count > 1 and screen.color:
        last = screen.chart.chunk_count - 1
        shades = (
            "bright: chunks from 1" if screen.has_sixteen_colors else f"dark to light: chunks 0 to {last}"
        )
        entries.append(Text(localized(shades)))
    line = Text()
    for entry in entries:
        if len(line) and line.cell_len + 2 + entry.cell_len > screen.width:
            yield line
            line = Text()
        line = Text.assemble(line, "  ", entry) if len(line) else entry
    if len(line):
        yield line


def _legend_entry(screen: Screen, kind: str) -> Text:
    letters = screen.ascii_only or not screen.color
    mark = BY_NAME[kind].letter if letters else "  "
    label = " " + localized(kind.replace("_", " "))
    return Text().append(mark, screen.style(Look(kind, 0, darker=False))).append(label)


def _notes(screen: Screen, rows: list[int]) -> Iterator[str]:
    """Yield what the chart does not show."""
    chart = screen.chart
    if chart.spans.is_empty():
        yield "no actions recorded"
    if chart.sections:
        yield "0 is the start of the step on each clock; compare only times of ranks in one section"
    hidden = len(chart.ranks) - len(rows)
    if hidden:
        yield f"{counted(hidden, 'rank')} not shown"
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    narrow = chart.spans.filter(
        (length_ns * screen.cell_count < chart.length_ns) & pl.col("row").is_in(rows)
    ).height
    if narrow:
        yield f"{counted(narrow, 'span')} narrower than a character"
    crowded = chart.spans.filter(pl.col("lane") >= MOST_LINES_PER_RANK).height
    if crowded:
        yield f"{counted(crowded, 'overlapping span')} not shown"
