"""The input and output formats that stagescope has built in: one tuple of readers, one of writers.

A format is added to stagescope by one line here; its reader or writer knows nothing of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.exporters import Writer, chrome, tables
from stagescope.exporters.originals import archive, merged_chrome, merged_pftrace
from stagescope.exporters.perfetto import pftrace
from stagescope.exporters.pictures import pdf, png, svg
from stagescope.ingest.ascend import reader as ascend
from stagescope.ingest.chrome import reader as chrome_pattern
from stagescope.ingest.kineto import reader as kineto
from stagescope.ingest.nsight import reader as nsight
from stagescope.ingest.otlp import reader as otlp
from stagescope.ingest.paddle import fleet_reader as paddle_fleet
from stagescope.ingest.paddle import log_reader as paddle_log
from stagescope.ingest.paddle import profiler_reader as paddle_profiler
from stagescope.ingest.perfetto import reader as perfetto
from stagescope.ingest.primus import reader as primus
from stagescope.ingest.recording import reader as recording
from stagescope.ingest.rocprof import reader as rocprof
from stagescope.ingest.stored_run import reader as stored_run
from stagescope.ingest.table import reader as table
from stagescope.ingest.xplane import reader as xplane
from stagescope.viewer import page
from stagescope.vocabulary.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.ingest import Reader

READERS: tuple[Reader, ...] = (
    recording.READER,
    stored_run.READER,
    ascend.READER,
    nsight.READER,
    rocprof.READER,
    xplane.READER,
    table.PARQUET,
    paddle_fleet.READER,
    paddle_profiler.READER,
    primus.READER,
    otlp.READER,
    kineto.READER,
    chrome_pattern.READER,
    table.CSV,
    perfetto.READER,
    paddle_log.READER,
)
"""The built-in readers, in the order in which they are asked whether they recognize a file.

Formats with a signature in their first bytes come first. The reader of Paddle's logs is last, because it may have
to search a whole file for a line that it recognizes.
"""

MAPPED_READERS: tuple[Reader, ...] = (chrome_pattern.MAPPED_READER,)
"""The readers that come first if a call states how slices are spans: they read traces of torch.profiler too."""

WRITERS: tuple[Writer, ...] = (
    chrome.WRITER,
    pftrace.WRITER,
    svg.WRITER,
    png.WRITER,
    pdf.WRITER,
    page.WRITER,
    tables.CSV,
    tables.PARQUET,
    archive.WRITER,
    merged_chrome.writer(chrome.event_lines, chrome.first_free_id),
    merged_pftrace.writer(pftrace.write_layout),
)
"""The built-in export formats."""

ALIASES = {"perfetto": "pftrace"}
"""Alternative names of export formats."""


def writer_for(path: Path, format_name: str | None) -> Writer:
    """Return the writer named `format_name`, or if that is None the one for the suffix of `path`.

    Raises OutputError for an unknown format.
    """
    for writer in WRITERS:
        if format_name is None and path.suffix.lower() == writer.suffix:
            return writer
        if format_name is not None and ALIASES.get(format_name, format_name) == writer.name:
            return writer
    known = (writer.name for writer in WRITERS)
    raise OutputError.unknown_format(path.suffix if format_name is None else format_name, known)
