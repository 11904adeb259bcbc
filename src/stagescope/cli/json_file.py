"""Write a result as JSON: to standard output, or to a file that is whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagescope.vocabulary.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable

STANDARD_OUTPUT = Path("-")


def json_options(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add to a command `--json FILE` (`json_path`) and `--force`; `what` is what is written."""
    to_file = click.option(
        "--json",
        "json_path",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help=f"Write {what} as JSON; - writes that, and nothing else, to standard output.",
    )
    force = click.option("--force", is_flag=True, help="Replace files that exist.")
    return lambda function: to_file(force(function))


def json_text(data: object) -> str:
    """Return plain data as indented JSON with a line end; what is not a number raises ValueError."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write_json(data: object, path: Path, *, force: bool = False) -> None:
    """Write plain data as JSON to a file.

    Raises OutputError when it exists and `force` is not given, and when the system refuses to write.
    """
    if path.exists() and not force:
        raise OutputError.exists(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(json_text(data), encoding="utf-8")
        unfinished.replace(path)
    except OSError as reason:
        raise OutputError.cannot_write(path, reason) from None
    finally:
        unfinished.unlink(missing_ok=True)
