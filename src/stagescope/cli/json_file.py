"""Write a result as JSON to standard output or to a file, which appears only when it is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagescope.exporters.new_files import new_file

if TYPE_CHECKING:
    from collections.abc import Callable

STANDARD_OUTPUT = Path("-")


def json_options(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add to a command `--json FILE` (`json_path`) and `--force`; `what` names the result in the help text."""
    to_file = click.option(
        "--json",
        "json_path",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help=f"Write {what} as JSON; - writes it to standard output instead of the text.",
    )
    force = click.option("--force", is_flag=True, help="Replace files that exist.")
    return lambda function: to_file(force(function))


def json_text(data: object) -> str:
    """Return plain data as indented JSON in printable ASCII with a final newline.

    Raises ValueError for NaN and infinity.
    """
    # json escapes all other control characters, and whatever is not ASCII.
    return json.dumps(data, indent=2, allow_nan=False).replace("\x7f", "\\u007f") + "\n"


def write_json(data: object, path: Path, *, force: bool = False) -> None:
    """Write plain data as JSON to a file.

    Raises OutputError if the file exists and `force` is not set, and if it cannot be written.
    """
    content = json_text(data).encode()  # as bytes, because text has other line ends on Windows
    with new_file(path, force=force) as unfinished:
        unfinished.write_bytes(content)
