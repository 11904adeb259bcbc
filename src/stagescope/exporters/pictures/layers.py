"""Layers around the spans of an SVG picture, as in the viewer: waits, idle time by wait, the critical path."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from stagescope.exporters.pictures.canvas import Box, number, path_data
from stagescope.exporters.pictures.legend import TEXTURES, LegendEntry
from stagescope.vocabulary.language import localized
from stagescope.vocabulary.palette import WAIT_SWATCHES, wait_swatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from stagescope.exporters.pictures.canvas import Canvas
    from stagescope.exporters.pictures.step_chart import StepChart

LEAST_IDLE_WIDTH = 1.0
LEAST_HATCHED_HEIGHT = 14.0
"""Lower rows are tinted instead of hatched. This and the opacities are those of web/src/draw/overlays.ts."""

HATCH_OPACITY, TINT_OPACITY = ".6", ".28"
OVERLAP = 3.0
"""An action that starts up to this many pixels before the end of the previous one continues its path."""

WAIT_HEIGHT = 2.5

PATH_STYLE = """\
.stagescope .critical{stroke:#b34700;stroke-width:2;stroke-linejoin:round;fill:none}
@media(prefers-color-scheme:dark){.stagescope .critical{stroke:#ffb469}}
"""


def waits_of(chart: StepChart) -> list[str]:
    """Return what the drawn ranks wait for, in the order of the vocabulary, unknown names last."""
    present = set() if chart.idle is None else set(chart.idle["waiting_for"].unique())
    known = [wait for wait in WAIT_SWATCHES if wait in present]
    return known + sorted(present.difference(known))


def layer_rules(canvas: Canvas) -> str:
    """Return the style rules: `gap0` is the idle time of the first wait, `key0` its legend entry."""
    hatched = canvas.row_height >= LEAST_HATCHED_HEIGHT
    rules = [] if canvas.chart.critical_path is None else [PATH_STYLE]
    for place, wait in enumerate(waits_of(canvas.chart)):
        color, hatch = wait_swatch(wait).color, f"url(#stagescope-gap{place})"
        fill, opacity = (hatch, HATCH_OPACITY) if hatched else (color, TINT_OPACITY)
        rules.append(f".stagescope .gap{place}{{fill:{fill};fill-opacity:{opacity}}}\n")
        rules.append(f".stagescope .key{place}{{fill:{hatch};stroke:{color};stroke-width:.8}}\n")
    return "".join(rules)


def hatches(chart: StepChart) -> Iterator[str]:
    """Yield the pattern of each wait."""
    for place, wait in enumerate(waits_of(chart)):
        color, texture = wait_swatch(wait)
        yield (
            f'<pattern id="stagescope-gap{place}" width="6" height="6" patternUnits="userSpaceOnUse">'
            f'<g stroke="{color}" fill="none">{TEXTURES[texture]}</g></pattern>'
        )


def layer_entries(chart: StepChart) -> Iterator[LegendEntry]:
    """Yield the entries of the legend."""
    for place, wait in enumerate(waits_of(chart)):
        yield LegendEntry(localized(f"idle: {wait.replace('_', ' ')}"), (f"key{place}",))
    if chart.critical_path is not None and chart.critical_path.height:
        yield LegendEntry(localized("critical path"), ("critical",), swatch_height=10)


def draw_waits(canvas: Canvas, waits: pl.DataFrame) -> Iterator[str]:
    """Yield the times that a rank's host was blocked on transfers as one thin path below its row."""
    height = round(min(WAIT_HEIGHT, canvas.pitch - canvas.row_height), 1)
    boxes = [
        Box(canvas.x(start_ns), canvas.row_height, canvas.x(end_ns) - canvas.x(start_ns), height)
        for start_ns, end_ns in waits.select("start_ns", "end_ns").iter_rows()
    ]
    if boxes:
        yield f'<path class="wait" d="{path_data(box for box in boxes if box.width > 0)}"/>'


def draw_idle(canvas: Canvas, idle: pl.DataFrame) -> Iterator[str]:
    """Yield the idle time of one row, one path per wait."""
    places = {wait: place for place, wait in enumerate(waits_of(canvas.chart))}
    boxes: dict[int, list[Box]] = defaultdict(list)
    for start_ns, end_ns, wait in idle.select("start_ns", "end_ns", "waiting_for").iter_rows():
        left, right = canvas.x(start_ns), canvas.x(end_ns)
        if right - left >= LEAST_IDLE_WIDTH:
            boxes[places[wait]].append(Box(left, 0.0, right - left, canvas.row_height))
    for place, own in sorted(boxes.items()):
        yield f'<path class="gap{place}" d="{path_data(own)}"/>'


def draw_critical_path(canvas: Canvas) -> Iterator[str]:
    """Yield frames around the actions of the critical path and lines from each to the next."""
    path = canvas.chart.critical_path
    if path is None or path.is_empty():
        return
    parts: list[str] = []
    before: tuple[float, float] | None = None
    for row, start_ns, end_ns in path.select("row", "start_ns", "end_ns").iter_rows():
        if row is None:
            before = None
            continue
        left, right = (canvas.left + canvas.x(time_ns) for time_ns in (start_ns, end_ns))
        top, middle = canvas.row_top(row), canvas.row_top(row) + canvas.row_height / 2
        parts.append(path_data([Box(left, top, max(right - left, 0.4), canvas.row_height)]))
        if before is not None and left >= before[0] - OVERLAP:
            parts.append(f"M{number(before[0])} {number(before[1])}L{number(left)} {number(middle)}")
        before = (right, middle)
    if parts:
        yield f'<path class="critical" d="{"".join(parts)}"/>'
