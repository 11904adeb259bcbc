"""Files that a command has written: the line that reports them, and a file on standard output."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from stagescope.cli.console import print_file
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.exporters import Writer, Written

TEXT_SUFFIXES = (".csv", ".json", ".svg", ".html")
"""Of formats that a terminal can show."""


def written_text(written: Written) -> str:
    """Return what was written, in one line."""
    flows = f", {counted(written.flow_count, 'flow')}" if written.flow_count else ""
    return f"wrote {written.path}: {counted(written.slice_count, written.unit)}{flows}, {written.size_bytes} bytes"


def require_no_terminal(writer: Writer) -> None:
    """Raise UsageError if standard output is a terminal, and the format is not text."""
    if writer.suffix not in TEXT_SUFFIXES and sys.stdout.isatty():
        raise UsageError(
            f"{writer.name} is not text: redirect standard output to a file or a program, or name a file with -o"
        )


@contextmanager
def standard_output() -> Iterator[Path]:
    """Yield a path whose file is copied to standard output when the block ends without an exception."""
    with TemporaryDirectory(prefix="stagescope-") as folder:
        path = Path(folder) / "output"
        yield path
        print_file(path)
