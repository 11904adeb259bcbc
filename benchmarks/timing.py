"""How the benchmarks take time: CPU seconds of this process, the median of a few rounds."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def median_cpu_seconds(
    rounds: int, work: Callable[..., object], *arguments: object, **options: object
) -> float:
    """Return the median CPU seconds of calling `work` with these arguments."""
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        work(*arguments, **options)
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)
