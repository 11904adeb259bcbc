"""CPU time of recognizing the schedule of a large run.

    python benchmarks/recognize_speed.py

The limit applies to 64 ranks with 256 micro-batches; `relative` is a multiple of the time to build the same order once.
A shuffled order is included because it fits no schedule, so every comparison is complete.
"""

from __future__ import annotations

import random

from timing import median_cpu_seconds

from stagescope.schedules import NAMES, order, recognize

ROUNDS = 3
LIMIT_SECONDS = 2.0
SIZES = {"ranks": 64, "microbatches": 256}


def main() -> None:
    """Measure every schedule, and a shuffled order."""
    print(f"{'schedule':20}{'actions':>9}{'recognize s':>13}{'limit':>7}{'relative':>10}")
    for name in NAMES:
        built = order(name, **SIZES)
        seconds = median_cpu_seconds(ROUNDS, recognize, built)
        relative = seconds / median_cpu_seconds(ROUNDS, order, name, **SIZES)
        actions = sum(map(len, built.values()))
        print(f"{name:20}{actions:9}{seconds:13.2f}{LIMIT_SECONDS:7}{relative:10.1f}")
    mixed = order("1f1b", **SIZES)
    for actions in mixed.values():
        random.Random(1).shuffle(actions)  # noqa: S311  # a repeatable order, not a secret
    seconds = median_cpu_seconds(ROUNDS, recognize, mixed)
    print(f"{'1f1b, shuffled':20}{sum(map(len, mixed.values())):9}{seconds:13.2f}{LIMIT_SECONDS:7}")


if __name__ == "__main__":
    main()
