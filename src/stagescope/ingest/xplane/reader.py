"""Reader of profiles of JAX and XLA (`*.xplane.pb`); see docs/xplane.md."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from stagescope.ingest.annotations.name_pattern import NamePattern
from stagescope.ingest.device_ranges.process_trace import ProcessTrace, Unmarked, counted, read_trace
from stagescope.ingest.device_ranges.timeline import timeline_of_traces
from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.processes import read_each
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.xplane.scopes import trace_of
from stagescope.ingest.xplane.xspace import read_profile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.model import Timeline

BEGINS = re.compile(
    rb"\x0a[\x80-\xff]{0,4}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12.(?:/host:|/device:)", re.DOTALL
)
"""A first plane with the name of a host or a device."""


def recognize_profile(path: Path, head: bytes) -> bool:
    """Return whether a file is a profile of XLA: by its first plane, or by its name if it is damaged."""
    return path.name.endswith((".xplane.pb", ".xplane.pb.gz")) or BEGINS.match(head) is not None


def read_profiles(paths: Sequence[Path], options: ReadOptions) -> Timeline:
    """Return the Timeline of all given profiles; they are read in parallel if they are large together.

    A profile that cannot be read becomes an error in diagnostics as long as another one is usable. Raises InputError as
    timeline_of_traces does, and if no profile is usable.
    """
    ordered = sorted(paths, key=lambda path: natural_key(str(path)))
    found, refused = read_each(
        partial(read_one, kernels=options.kernels),
        ordered,
        options.done,
        options.pattern,
        keep=partial(counted, options=options),
    )
    return timeline_of_traces(found).with_diagnostics(refused)


def read_one(
    path: Path, pattern: str | None = None, *, kernels: bool = False
) -> list[ProcessTrace] | Unmarked:
    """Return the devices of a profile that ran actions; raises InputError for a file that cannot be read."""
    trace = trace_of(path, read_profile(path), NamePattern(pattern) if pattern else None)
    return read_trace(trace, pattern, kernels=kernels)


READER = Reader(
    name="xplane",
    patterns=("*.xplane.pb", "*.xplane.pb.gz"),
    description="profiles of JAX and XLA (`xplane.pb`) with named scopes around the actions",
    recognizes=recognize_profile,
    read=read_profiles,
)
