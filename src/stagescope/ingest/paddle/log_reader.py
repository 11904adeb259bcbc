"""Reader of Paddle's worker logs (`workerlog.N`, one per device), with the job lines of its static graph's profiler.

This module recognizes the files and assigns their ranks; log_timeline.py reads them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.paddle.log_scan import has_profiler_line
from stagescope.ingest.paddle.log_timeline import read_worker_logs
from stagescope.ingest.paddle.worker_logs import device_of, number_ranks
from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.streams import open_stream
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.model import Timeline


def is_worker_log(path: Path, _: bytes = b"") -> bool:
    """Return whether a file is named workerlog.N, or has a line of Paddle's profilers anywhere.

    A log without such a line is one too: it shows that its rank was not profiled.
    """
    if device_of(path) is not None:
        return True
    with open_stream(path) as stream:
        return has_profiler_line(stream)


def read_logs(paths: Sequence[Path], options: ReadOptions | None = None) -> Timeline:
    """Return the Timeline of worker logs; the logs of each directory are one machine. See `read_worker_logs`.

    A log of another name is taken for the next device of its machine, in natural order, with a warning.
    """
    by_folder: dict[Path, list[tuple[int, Path]]] = defaultdict(list)
    unnumbered: list[Path] = []
    for path in sorted(paths, key=lambda path: natural_key(str(path))):
        device = device_of(path)
        if device is None:
            unnumbered.append(path)
        else:
            by_folder[path.parent].append((device, path))
    for path in unnumbered:
        # After all numbered logs, so that no number is used twice.
        taken = [device for device, _ in by_folder[path.parent]]
        by_folder[path.parent].append((max(taken, default=-1) + 1, path))
    logs = number_ranks(by_folder, multi_machine=len(by_folder) > 1)
    timeline = read_worker_logs(logs, options or ReadOptions())
    if not unnumbered:
        return timeline
    text = "logs are not named workerlog.N: their ranks are taken from the order of their names"
    guessed = Diagnostic(
        "warning", text, str(unnumbered[0]), count=len(unnumbered), code="rank.by_file_order"
    )
    return timeline.with_diagnostics([guessed])


READER = Reader(
    name="paddle log",
    patterns=("workerlog.*",),
    description="Paddle's worker logs with the job lines of its profiler",
    recognizes=is_worker_log,
    read=read_logs,
)
