# noqa: INP001 - a script, not a package
"""Regenerate the generated parts of the documents: write_docs.py [--check].

A generated part is enclosed by two HTML comments, ``<!-- begin NAME ... -->`` and ``<!-- end NAME -->``; the
rest of a document is written by hand. With --check nothing is written, and the exit status is 1 if a part
is out of date.
"""

from __future__ import annotations

import io
import json
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis import build_report, to_json
from stagescope.api import READERS
from stagescope.cli import COMMANDS
from stagescope.cli.fail_if import QUANTITIES
from stagescope.model import SPANS, TABLES, Column, Table, empty_timeline
from stagescope.model.validate import conform
from stagescope.record.format import (
    ANCHOR,
    ANCHOR_FIELDS,
    DEVICE_ANCHOR,
    DEVICE_ANCHOR_FIELDS,
    SPAN,
    SPAN_FIELDS,
)
from stagescope.schedules import SCHEDULES
from stagescope.vocabulary.kinds import KINDS, LANE_CODES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagescope.schedules.registry import Schedule

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "docs/analysis-tables.md",
    "docs/formats.md",
    "docs/reading.md",
    "docs/report.md",
    "docs/schedules.md",
)
BLOCK = re.compile(r"(<!-- begin (?P<name>[\w-]+)[^>]*-->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)

RECORD_MEANINGS = {
    "bytes": "Size of the transfer in bytes.",
    "step": "Training step, counted from 0.",
    "name": "Number of an entry of the string table; 0: no name.",
    "thread": "Thread that recorded the span, counted from 0 in the order of their first spans.",
    "kind": "Code of the kind, see below; 0 marks a training step.",
    "lane": "Code of the lane: " + ", ".join(f"{code} {lane}" for lane, code in LANE_CODES.items()) + ".",
    "reserved": "Zero.",
    "monotonic_ns": "`CLOCK_MONOTONIC`, the middle of two readings.",
    "realtime_ns": "The wall clock, read between those two: nanoseconds since the Unix epoch.",
    "width_ns": "Time between the two readings.",
}
"""Descriptions of record fields that are not columns of the spans table."""

DEVICE_MEANINGS = {
    "device_ns": "The device's clock, counted from the first anchor.",
    "monotonic_ns": "`CLOCK_MONOTONIC`, the midpoint of the interval that contains the reading.",
    "width_ns": "Width of that interval.",
    "error_ns": "Error bound of timestamps between the previous anchor and this one; 0 for the first anchor.",
}


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    cells = [list(head), *map(list, rows)]
    cells.insert(1, ["---"] * len(cells[0]))
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


def declared_tables() -> str:
    """Return every declared table with its columns."""
    return "\n\n".join(_declared_table(table) for table in TABLES)


def analysis_tables() -> str:
    """Return every table that an analysis produces, with its columns and the module that builds it."""
    return "\n\n".join(
        f"{_declared_table(table)}\n\nMade in `{module}`." for module, table in sorted_tables()
    )


def sorted_tables() -> list[tuple[str, Table]]:
    """Return the declared tables of all analyses with their modules, by name."""
    found = []
    package = ROOT / "src/stagescope"
    for path in sorted((package / "analysis").rglob("[!_]*.py")):
        name_in_package = path.relative_to(package).as_posix()
        module = import_module(f"stagescope.{name_in_package.removesuffix('.py').replace('/', '.')}")
        own = re.findall(r"^([A-Z_]+) = Table\(", path.read_text("utf-8"), re.MULTILINE)
        found += [(name_in_package, getattr(module, name)) for name in own]
    return sorted(found, key=lambda each: each[1].name)


def conditions() -> str:
    """Return the figures that a condition of --fail-if may name."""
    return markdown_table(
        ("figure", "meaning"), ([f"`{name}`", each.meaning] for name, each in QUANTITIES.items())
    )


def _declared_table(table: Table) -> str:
    rows = ([f"`{c.name}`", _type(c), c.unit, "yes" if c.nullable else "", c.meaning] for c in table.columns)
    order = ", ".join(f"`{name}`" for name in table.order)
    sorting = f", sorted by {order}" if order else ""
    row = textwrap.fill(f"One row per {table.row.removeprefix('one ')}{sorting}.", 118)
    columns = markdown_table(("column", "type", "unit", "may be null", "meaning"), rows)
    return f"### `{table.name}`\n\n{row}\n\n{columns}"


def _type(column: Column) -> str:
    """Return the spelling of a Polars type, an enumeration without its members."""
    return str(column.dtype).split("(")[0]


def kinds() -> str:
    """Return the table of kinds."""
    rows = ([str(kind.code), f"`{kind.name}`", f"`{kind.letter}`", kind.lane, kind.meaning] for kind in KINDS)
    return markdown_table(("code", "kind", "letter", "lane", "meaning"), rows)


def span_record() -> str:
    """Return the layout of one record of a SPANS frame."""
    return _record(SPAN_FIELDS, SPAN.size)


def anchor_record() -> str:
    """Return the layout of one record of a CLOCK frame."""
    return _record(ANCHOR_FIELDS, ANCHOR.size)


def device_anchor_record() -> str:
    """Return the layout of one record of a DEVICE_CLOCK frame."""
    return _record(DEVICE_ANCHOR_FIELDS, DEVICE_ANCHOR.size, DEVICE_MEANINGS)


def _record(fields: Iterable[tuple[str, str]], size_bytes: int, special: dict[str, str] | None = None) -> str:
    layout = np.dtype(list(fields))
    if layout.itemsize != size_bytes:
        raise ValueError(f"the fields take {layout.itemsize} bytes, the record {size_bytes}")
    meanings = {column.name: column.meaning for column in SPANS.columns} | RECORD_MEANINGS | (special or {})
    rows = (
        [
            str(layout.fields[name][1]),
            str(layout.fields[name][0].itemsize),
            f"`{dtype}`",
            f"`{name}`",
            meanings[name],
        ]
        for name, dtype in fields
    )
    return f"{size_bytes} bytes a record.\n\n" + markdown_table(
        ("offset", "size", "type", "field", "meaning"), rows
    )


def report_example() -> str:
    """Return the report, as JSON, on the spans of the CSV example in docs/formats.md."""
    formats = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    spans = pl.read_csv(io.StringIO(re.findall(r"^```csv\n(.*?)^```$", formats, re.DOTALL | re.MULTILINE)[0]))
    report = build_report(empty_timeline().with_spans(conform(spans, SPANS)))
    return f"```json\n{json.dumps(to_json(report), indent=2)}\n```"


def commands() -> str:
    """Return the table of commands."""
    return markdown_table(
        ("command", "does"), ([f"`stagescope {command.name}`", command.summary] for command in COMMANDS)
    )


def readers() -> str:
    """Return the table of readers."""
    rows = ([each.name, each.description, ", ".join(f"`{p}`" for p in each.patterns)] for each in READERS)
    return markdown_table(("format", "what it is", "names looked for in directories"), rows)


def schedules() -> str:
    """Return the catalog of schedules."""
    return markdown_table(
        ("name", "schedule", "placement", "chunks per rank", "peak memory", "source"),
        (
            [f"`{each.name}`", each.title, each.placement, _chunks(each), each.peak_memory, each.source]
            for each in SCHEDULES
        ),
    )


def _chunks(schedule: Schedule) -> str:
    least = schedule.least_chunks
    return str(schedule.chunks) if least is None else f"{least} or more ({schedule.chunks})"


def schedule_options() -> str:
    """Return the options of every schedule."""
    rows = ((each, option) for each in SCHEDULES for option in each.options)
    return markdown_table(
        ("schedule", "option", "default", "meaning"),
        (
            [f"`{each.name}`", f"`{option.name}`", f"`{option.default}`", option.meaning]
            for each, option in rows
        ),
    )


def schedule_constraints() -> str:
    """Return what every schedule needs."""
    rows = ((each, constraint) for each in SCHEDULES for constraint in each.constraints)
    return markdown_table(
        ("schedule", "needs", "source"),
        ([f"`{each.name}`", constraint.needs, constraint.source] for each, constraint in rows),
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "analysis-tables": analysis_tables,
    "anchor-record": anchor_record,
    "commands": commands,
    "conditions": conditions,
    "readers": readers,
    "declared-tables": declared_tables,
    "device-anchor-record": device_anchor_record,
    "kinds": kinds,
    "report-example": report_example,
    "schedule-constraints": schedule_constraints,
    "schedule-options": schedule_options,
    "schedules": schedules,
    "span-record": span_record,
}


def refreshed(document: str) -> str:
    """Return a document with its generated parts refreshed. Raises KeyError for an unknown part."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block['name']]()}\n\n{block[3]}", document)


def main(arguments: list[str]) -> int:
    """Refresh or check every document, print which ones changed, and return the exit status."""
    stale = 0
    for name in DOCUMENTS:
        path = ROOT / name
        found = path.read_text(encoding="utf-8")
        wanted = refreshed(found)
        if found == wanted:
            continue
        stale += 1
        if "--check" not in arguments:
            path.write_text(wanted, encoding="utf-8")
        sys.stdout.write(f"{name}: {'out of date, run make docs' if '--check' in arguments else 'written'}\n")
    return int(stale > 0 and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
