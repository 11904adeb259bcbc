# noqa: INP001 - a script, not a package
"""Regenerate the generated parts of the documents: write_docs.py [--check].

A generated part is enclosed by two HTML comments, ``<!-- begin NAME ... -->`` and ``<!-- end NAME -->``; the
rest of a document is written by hand. With --check nothing is written, and the exit status is 1 if a part
is out of date.
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import sys
import textwrap
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, is_typeddict

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

import numpy as np
import polars as pl

import stagescope.api
import stagescope.record
import stagescope.schedules
from stagescope.analysis import build_report, to_json
from stagescope.api import READERS
from stagescope.cli import COMMANDS
from stagescope.cli.fail_if import QUANTITIES
from stagescope.model import SPANS, TABLES, Column, Table, empty_timeline
from stagescope.model.validate import conform
from stagescope.record.format import (
    ANCHOR,
    ANCHOR_FIELDS,
    COUNTER,
    COUNTER_FIELDS,
    DEVICE_ANCHOR,
    DEVICE_ANCHOR_FIELDS,
    RAW_ANCHOR,
    RAW_ANCHOR_FIELDS,
    SPAN,
    SPAN_FIELDS,
)
from stagescope.schedules import SCHEDULES
from stagescope.vocabulary.codes import CODES
from stagescope.vocabulary.counters import COUNTERS
from stagescope.vocabulary.kinds import KINDS, LANE_CODES
from stagescope.vocabulary.limits import LIMITS, limit_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from stagescope.schedules.registry import Schedule

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "docs/api.md",
    "docs/analysis-tables.md",
    "docs/compatibility.md",
    "docs/diagnostics.md",
    "docs/formats.md",
    "docs/reading.md",
    "docs/reliability.md",
    "docs/report.md",
    "docs/schedules.md",
)
BLOCK = re.compile(r"(<!-- begin (?P<name>[\w-]+)[^>]*-->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)

WIDEST_SIGNATURE = 100
QUOTED = re.compile(r"(: |-> )'([^']*)'")
"""Annotations, which are text in modules with postponed evaluation."""

RECORD_MEANINGS = {
    "bytes": "Size of the transfer in bytes.",
    "step": "Training step, counted from 0.",
    "name": "Number of an entry of the string table; 0: no name.",
    "thread": "Thread that recorded the span, counted from 0 in the order of their first spans.",
    "kind": "Code of the kind, see below; 0 marks a training step.",
    "lane": "Code of the lane: " + ", ".join(f"{code} {lane}" for lane, code in LANE_CODES.items()) + ".",
    "reserved": "Zero.",
    "monotonic_ns": "`CLOCK_MONOTONIC`, the middle of two readings.",
    "raw_ns": "`CLOCK_MONOTONIC_RAW`, read between those two.",
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

COUNTER_MEANINGS = {
    "time_ns": "`CLOCK_MONOTONIC`, when the counter was read.",
    "value": "Its value, a finite number.",
    "step": "Training step that was running.",
    "stage": "Stage of the action that the value belongs to.",
    "microbatch": "Micro-batch that the value belongs to.",
    "name": "Number of an entry of the string table: the name of the counter, see below.",
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


def diagnostic_codes() -> str:
    """Return every code of a diagnostic with its meaning."""
    return markdown_table(("code", "meaning"), ([f"`{code.name}`", code.meaning] for code in CODES))


def compatibility() -> str:
    """Return what is recorded of each framework, by version and schedule."""
    path = ROOT / "tests/data/compatibility/coverage.toml"
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get("row", [])
    parts = []
    for framework in dict.fromkeys(row["framework"] for row in rows):
        own = [row for row in rows if row["framework"] == framework]
        head = ("versions", "schedule", "recorded", "evidence", "not recorded")
        parts.append(f"## {framework}\n\n{markdown_table(head, map(_compatibility_row, own))}")
    return "\n\n".join(parts)


def _compatibility_row(row: dict[str, object]) -> list[str]:
    ran = ", ".join(str(version) for version in row.get("ran", ()))  # type: ignore[attr-defined]  # a list of texts
    evidence = f"{row['evidence']} ({ran})" if ran else str(row["evidence"])
    schedule = ", ".join(f"`{name.strip()}`" for name in str(row["schedule"]).split(","))
    if row.get("when"):
        schedule += f": {row['when']}"
    return [str(row["versions"]), schedule, str(row["recorded"]), evidence, str(row.get("missing", ""))]


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
        ("quantity", "meaning"), ([f"`{name}`", each.meaning] for name, each in QUANTITIES.items())
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


def raw_anchor_record() -> str:
    """Return the layout of one record of a RAW_CLOCK frame."""
    return _record(RAW_ANCHOR_FIELDS, RAW_ANCHOR.size)


def device_anchor_record() -> str:
    """Return the layout of one record of a DEVICE_CLOCK frame."""
    return _record(DEVICE_ANCHOR_FIELDS, DEVICE_ANCHOR.size, DEVICE_MEANINGS)


def counter_record() -> str:
    """Return the layout of one record of a COUNTERS frame."""
    return _record(COUNTER_FIELDS, COUNTER.size, COUNTER_MEANINGS)


def counters() -> str:
    """Return the table of the recorder's counters."""
    rows = (
        [f"`{each.name}`", each.unit, "device" if each.of_device else "", each.meaning] for each in COUNTERS
    )
    return markdown_table(("counter", "unit", "of the", "meaning"), rows)


def limits() -> str:
    """Return the limits on what reading may take."""
    rows = (
        [f"`{each.name}`", limit_text(each.name, each.default), f"{each.what.rstrip(',')}", each.reason]
        for each in LIMITS
    )
    return markdown_table(("limit", "default", "limits", "reason"), rows)


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


def api() -> str:
    """Return the names of `stagescope` itself."""
    names = [name for name in stagescope.__all__ if name not in ("record", "schedules", "__version__")]
    return _reference(stagescope, names)


def api_functions() -> str:
    """Return the names of `stagescope.api` that `stagescope` does not export."""
    return _reference(
        stagescope.api, [name for name in stagescope.api.__all__ if name not in stagescope.__all__]
    )


def api_record() -> str:
    """Return the names of `stagescope.record`."""
    return _reference(stagescope.record, stagescope.record.__all__)


def api_schedules() -> str:
    """Return the names of `stagescope.schedules`."""
    return _reference(stagescope.schedules, stagescope.schedules.__all__)


def _reference(module: ModuleType, names: Iterable[str]) -> str:
    """Return the documentation of names of a module: a heading, the signature, the docstring and the members."""
    sections = []
    for name in sorted(names, key=str.lower):
        value = getattr(module, name)
        heading = f"### `{module.__name__}.{name}`"
        is_alias = isinstance(value, GenericAlias)  # which is a class for Python 3.10
        if (inspect.isclass(value) and not is_alias) or inspect.isfunction(value):
            sections.append(
                "\n\n".join(
                    [
                        heading,
                        _fenced("python", QUOTED.sub(r"\1\2", _signature(name, value))),
                        _doc(value),
                        *_members(value),
                    ]
                )
            )
        else:
            sections.append(f"{heading}\n\n{_constant(module, name)}")
    return "\n\n".join(sections)


def _signature(name: str, value: Callable[..., object]) -> str:
    """Return the signature, with one parameter per line if it is long."""
    if is_typeddict(value):
        return "\n".join([f"class {name}(TypedDict)", *(f"    {key}" for key in value.__annotations__)])
    signature = inspect.signature(value)
    if inspect.isclass(value):
        if issubclass(value, Exception):
            return f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
        shown = [each for each in signature.parameters.values() if not each.name.startswith("_")]
        signature = signature.replace(parameters=shown, return_annotation=inspect.Signature.empty)
    text = f"{name}{signature}"
    if len(text) <= WIDEST_SIGNATURE:
        return text
    lines = [f"    {each}," for each in _with_star(signature.parameters.values())]
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {returned}"
    return "\n".join([f"{name}(", *lines, f"){arrow}"])


def _with_star(parameters: Iterable[inspect.Parameter]) -> Iterator[inspect.Parameter | str]:
    """Yield parameters, with the star that begins keyword-only ones."""
    kinds = set()
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not kinds & {each.KEYWORD_ONLY, each.VAR_POSITIONAL}:
            yield "*"
        kinds.add(each.kind)
        yield each


def _doc(value: object) -> str:
    return _fenced("text", inspect.getdoc(value) or "")


def _fenced(language: str, text: str) -> str:
    """Return text in a fence; the blank line before the end keeps the fence out of the output of an example."""
    end = "\n" if ">>>" in text else ""
    return f"```{language}\n{text}\n{end}```"


def _members(value: object) -> list[str]:
    """Return the table of documented public members of a class of our own, an empty list without any."""
    if not inspect.isclass(value) or issubclass(value, Exception):
        return []
    own = {name: member for name, member in vars(value).items() if not name.startswith("_")}
    documented = {name: inspect.getdoc(member) for name, member in own.items() if _is_method(member)}
    rows = [
        (
            f"`{name}`" if not _is_function(own[name]) else f"`{name}()`",
            text.partition("\n\n")[0].replace("\n", " "),
        )
        for name, text in documented.items()
        if text
    ]
    return [markdown_table(("member", "meaning"), rows)] if rows else []


def _is_method(member: object) -> bool:
    return isinstance(member, (property, cached_property, classmethod)) or inspect.isfunction(member)


def _is_function(member: object) -> bool:
    return isinstance(member, classmethod) or inspect.isfunction(member)


def _constant(module: ModuleType, name: str) -> str:
    """Return the docstring below the assignment of a constant, which Python itself does not keep."""
    for path in sorted(Path(module.__file__ or "").parent.rglob("*.py")):
        body = ast.parse(path.read_text("utf-8")).body
        for statement, following in pairwise(body):
            if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                if [ast.unparse(target) for target in targets] == [name]:
                    return _fenced("text", inspect.cleandoc(ast.literal_eval(following.value)))
    raise LookupError(f"{module.__name__}.{name} has no docstring")


BLOCKS: dict[str, Callable[[], str]] = {
    "analysis-tables": analysis_tables,
    "compatibility": compatibility,
    "diagnostic-codes": diagnostic_codes,
    "api": api,
    "api-functions": api_functions,
    "api-record": api_record,
    "api-schedules": api_schedules,
    "anchor-record": anchor_record,
    "commands": commands,
    "conditions": conditions,
    "raw-anchor-record": raw_anchor_record,
    "readers": readers,
    "counter-record": counter_record,
    "counters": counters,
    "declared-tables": declared_tables,
    "device-anchor-record": device_anchor_record,
    "kinds": kinds,
    "limits": limits,
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
