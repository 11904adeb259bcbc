"""What a reader is: the one shape that every input format takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagescope.timeline import Timeline

HEAD_BYTES = 64
"""How much of a file's beginning `Reader.recognizes` is shown."""


@dataclass(frozen=True)
class Reader:
    """One input format: how its files are found, recognized and read.

    `suffixes` only narrow the search through a directory; whether a file belongs to the format is decided by
    `recognizes(path, head)`, from the first `HEAD_BYTES` bytes of its content. `read` gets every recognized
    file of one call at once, so that a reader can join what a run spread over several files.
    """

    name: str
    suffixes: tuple[str, ...]
    description: str
    recognizes: Callable[[Path, bytes], bool]
    read: Callable[[Sequence[Path]], Timeline]
