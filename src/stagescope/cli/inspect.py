"""``stagescope inspect``: what is in a trace of another tool, and how its slices could be mapped to actions."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from stagescope.cli.console import echo, echo_data
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.json_file import STANDARD_OUTPUT, json_options, json_text, write_json
from stagescope.cli.run_paths import RUN_PATH
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.language import cell_width, localized, padded
from stagescope.vocabulary.limits import BY_NAME, parse_limits
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stagescope.api.inspection import Inspection
    from stagescope.ingest.mapping.contents import TraceContents

WIDEST = 60
EXIT_PARTIAL = 1


@click.command(
    "inspect",
    epilog="""
    \b
    Examples:
      stagescope inspect trace.json
      stagescope inspect trace.json.gz --rows 100
      stagescope inspect trace.pftrace
      stagescope inspect trace.json --toml > mapping.toml
      stagescope report trace.json --mapping mapping.toml
      stagescope inspect trace.json --json - | jq .arguments
    """,
)
@click.argument("path", metavar="FILE", type=RUN_PATH)
@click.option(
    "--rows", metavar="N", type=click.IntRange(min=1), default=15, show_default=True, help="Rows per list."
)
@click.option("--toml", is_flag=True, help="Print only the proposed mapping, as a TOML file to complete.")
@json_options("the contents")
@click.option(
    "--limit",
    "limits",
    metavar="NAME=VALUE",
    multiple=True,
    help=f"Change a limit on what files may contain: {', '.join(BY_NAME)}; may be repeated.",
)
def command(
    path: Path, rows: int, json_path: Path | None, limits: Sequence[str], *, toml: bool, force: bool
) -> int:
    """List what is in a Chrome or Perfetto trace or one of torch.profiler, and propose how to read it.

    FILE is a trace in JSON or a .pftrace, compressed or not. Prints names of slices, processes, threads, categories,
    and keys of arguments with examples, and the options of other commands that map them to pipeline actions.
    """
    from stagescope import api

    inspection = api.inspect(path, limits=parse_limits(limits) or None)
    if toml:
        echo_data(inspection.proposal.toml, nl=False)
    elif json_path == STANDARD_OUTPUT:
        echo_data(json_text(api.inspection_json(inspection)), nl=False)
    else:
        for line in _lines(inspection, path, rows):
            echo(line)
        print_diagnostics(inspection.diagnostics)
    if json_path is not None and json_path != STANDARD_OUTPUT:
        write_json(api.inspection_json(inspection), json_path, force=force)
    return EXIT_PARTIAL if any(each.severity == "error" for each in inspection.diagnostics) else 0


def _lines(inspection: Inspection, path: Path, rows: int) -> Iterator[str]:
    contents = inspection.contents
    yield _summary(contents)
    names = [(name, f"{count:,}") for name, count in contents.names.of.most_common()]
    yield from _table("names", names, rows, contents.names.others)
    processes = [
        (contents.process_names.get(pid) or "-", f"pid {pid}", f"{count:,}")
        for pid, count in contents.processes.of.most_common()
    ]
    yield from _table("processes", processes, rows, contents.processes.others)
    threads = [
        (contents.thread_names.get(key) or "-", f"pid {key[0]}, tid {key[1]}", f"{count:,}")
        for key, count in contents.threads.of.most_common()
    ]
    yield from _table("threads", threads, rows, contents.threads.others)
    categories = [(name, f"{count:,}") for name, count in contents.categories.of.most_common()]
    yield from _table("categories", categories, rows, contents.categories.others)
    arguments = [
        (key, f"{facts.count:,}", localized("such as ") + ", ".join(facts.examples))
        for key, facts in sorted(contents.arguments.items(), key=lambda each: -each[1].count)
    ]
    yield from _table("arguments", arguments, rows, contents.other_keys)
    yield ""
    yield from _proposal_lines(inspection, path)


def _summary(contents: TraceContents) -> str:
    phases = ", ".join(
        f"{count:,} {phase or '(no phase)'}" for phase, count in contents.phases.of.most_common(8)
    )
    first, last = contents.first_us, contents.last_us
    over = ""
    if first is not None and last is not None and 0 <= last - first < 9e15:  # noqa: PLR2004 - fits 64 bits in ns
        over = f" over {duration_text(round((last - first) * 1000))}"
    return printable(f"{contents.source}: {contents.events:,} events{over} ({phases})")


def _table(title: str, rows: Sequence[tuple[str, ...]], most: int, others: int) -> Iterator[str]:
    """Yield a list with its title and aligned columns, at most `most` rows of it; nothing if it is empty."""
    if not rows:
        return
    yield ""
    yield f"{title} ({len(rows):,}{f', and others in {others:,} events' if others else ''})"
    cells = [[printable(cell)[:WIDEST] for cell in row] for row in rows[:most]]
    widths = [max(map(cell_width, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        aligned = (
            cell.rjust(width) if cell.replace(",", "").isdigit() else padded(cell, width)
            for cell, width in zip(row, widths, strict=True)
        )
        yield f"  {'  '.join(aligned)}".rstrip()
    if len(rows) > most:
        yield f"  ... and {len(rows) - most:,} more (--rows)"


def _proposal_lines(inspection: Inspection, path: Path) -> Iterator[str]:
    proposal = inspection.proposal
    file = shlex.quote(str(path))
    if proposal.shipped is not None:
        yield f"read with the shipped mapping {proposal.shipped}, which is recognized:"
        yield f"  stagescope report {file}"
        return
    if inspection.reader is not None:
        yield f"the reader {inspection.reader} needs no mapping where actions are annotated or can be inferred:"
        yield f"  stagescope report {file}"
    if proposal.is_enough:
        yield "proposed:"
        yield "  " + " ".join(["stagescope report", file, *proposal.options])
        if "microbatch" not in proposal.stated:
            yield "  (no argument seems to state the micro-batch: add --map microbatch=...)"
    else:
        known = ", ".join(f"{field} = {expression}" for field, expression in proposal.fields.items())
        yield "no names of forwards and backwards were recognized" + (
            f"; arguments may state {known}" if known else ""
        )
        yield "  state them in a mapping (docs/mapping.md), beginning with:"
        yield f"  stagescope inspect {file} --toml > mapping.toml"
