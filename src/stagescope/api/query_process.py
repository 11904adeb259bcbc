"""One query in a process of its own, which can be ended and has bounded memory: the local server runs this file.

It imports nothing of this package, because the page waits for it.

The tables are Arrow files in a folder, and the query is the first line of the standard input, as JSON. The output is
the result as JSON, or the reason why there is none. The process ends when its input does, with the server at the
latest.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PanicException, PolarsError

MOST_ROWS = 1000
"""Rows of one answer: the page lists no more."""

MOST_CELL = 500
"""Characters of one cell."""

MOST_BYTES = 4 << 30
"""Memory of the process: address space on top of what it has at its start, where the system can bound it."""


def main() -> None:
    """Run the query of the standard input over the tables in the folder that the command line names."""
    folder = Path(sys.argv[-1])
    frames = {path.stem: pl.read_ipc(path) for path in sorted(folder.glob("*.arrow"))}
    query = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    _bound_memory()
    try:
        answer = answer_of(pl.SQLContext(frames, eager=True).execute(query))
    except (PolarsError, PanicException) as error:
        answer = {"error": str(error).splitlines()[0] if str(error) else type(error).__name__}
    except UnicodeEncodeError:
        answer = {"error": "it is not valid Unicode text"}
    except MemoryError:
        answer = {"error": "it needs too much memory"}
    sys.stdout.buffer.write(json.dumps(answer, allow_nan=False).encode() + b"\n")
    sys.stdout.flush()
    os._exit(0)  # a thread waits for the input


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def answer_of(result: pl.DataFrame) -> dict[str, Any]:
    """Return the columns, the first rows and the number of all rows. Integers are text: they may exceed 2^53."""
    shown = result.head(MOST_ROWS)
    columns = [
        {"name": name, "type": "number" if dtype.is_numeric() else "text"}
        for name, dtype in result.schema.items()
    ]
    return {
        "columns": columns,
        "rows": [[_cell(value) for value in row] for row in shown.iter_rows()],
        "count": result.height,
    }


def _cell(value: object) -> str | None:
    return None if value is None else str(value)[:MOST_CELL]


def _bound_memory() -> None:
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 - not on Windows

    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        most = pages * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (OSError, ValueError):
        return


if __name__ == "__main__":
    main()
