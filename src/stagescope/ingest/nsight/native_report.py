"""Export a `.nsys-rep`, which is NVIDIA's own format, with the program nsys.

The export goes into a temporary directory that only this user can read, and is removed after reading.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = ".nsys-rep"
PROGRAM = "nsys"
EXPORT_SECONDS = 900.0
"""Exporting a report of 1 GB takes a few minutes."""

MOST_OUTPUT = 300


@contextmanager
def exported(path: Path) -> Iterator[Path]:
    """Yield the SQLite export of a `.nsys-rep`, until the block ends.

    Raises InputError if nsys is not installed, fails, or takes longer than EXPORT_SECONDS.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise InputError(
            f"{path}: a {SUFFIX} file is NVIDIA's own format, and the program {PROGRAM} that can export it is not "
            "installed here",
            "export it where Nsight Systems is installed, and read the result: "
            f"{PROGRAM} export --type sqlite {path.name}",
        )
    with tempfile.TemporaryDirectory(prefix="stagescope-nsys-") as folder:
        export = Path(folder, f"{path.name.removesuffix(SUFFIX)}.sqlite")
        # A list of arguments and absolute paths: no shell reads the name, and no name is taken for an option.
        _run([program, "export", "--type", "sqlite", "--output", str(export), str(path.absolute())], path)
        if not export.is_file():
            raise InputError.damaged(path, f"{PROGRAM} export ended without an error and wrote nothing")
        yield export


def _run(command: list[str], path: Path) -> None:
    """Run nsys; raises InputError with the end of what it printed if it fails."""
    with tempfile.TemporaryFile() as output:
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=EXPORT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            text = f"{PROGRAM} export was stopped after {EXPORT_SECONDS:.0f} s"
            raise InputError.damaged(path, text) from None
        except OSError as reason:
            raise InputError.damaged(path, f"{PROGRAM} cannot be started: {reason.strerror}") from None
        if ended.returncode:
            raise InputError.damaged(path, f"{PROGRAM} export failed ({_end_of(output)})")


def _end_of(output: BinaryIO) -> str:
    """Return the end of what a program printed, as one line of printable text."""
    size = output.seek(0, 2)
    output.seek(max(0, size - MOST_OUTPUT))
    text = " ".join(output.read().decode("utf-8", "replace").split())
    return "".join(character for character in text if character.isprintable()) or "it printed nothing"
