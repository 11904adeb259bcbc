"""CPU time of the simulation of a large run, and of the results derived from it.

    python benchmarks/simulate_speed.py

The order is interleaved 1F1B on 64 ranks with 512 micro-batches and 4 chunks, 262,144 actions; the limit for
its simulation is 2 CPU seconds. Times are the median of several runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timing import median_cpu_seconds

from stagescope.schedules import order
from stagescope.schedules.bounds import lower_bound
from stagescope.schedules.costs import Costs
from stagescope.schedules.memory import in_flight, peak_in_flight
from stagescope.schedules.simulator import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
SIMULATE_LIMIT = 2.0
COSTS = Costs(forward=1_000_000, backward=2_000_000, hop=10_000)
QUEUEING = Costs(
    forward=1_000_000, backward=2_000_000, hop=10_000, bandwidth=25_000_000_000, message_bytes=1 << 20
)


def main() -> None:
    """Print one row per function."""
    actions = order("interleaved", ranks=64, microbatches=512, chunks=4)
    step = simulate(actions, COSTS)
    print(f"{sum(map(len, actions.values())):,} actions")
    print(f"{'':28}{'CPU s':>8}{'limit':>8}")
    rows: list[tuple[str, Callable[[], object], float | None]] = [
        ("simulate", lambda: simulate(actions, COSTS), SIMULATE_LIMIT),
        ("simulate, queueing links", lambda: simulate(actions, QUEUEING), SIMULATE_LIMIT),
        ("simulate, list of actions", lambda: simulate(actions, COSTS).actions, SIMULATE_LIMIT),
        ("lower bound", lambda: lower_bound(actions, COSTS), None),
        ("peak memory", lambda: peak_in_flight(actions), None),
        ("memory over time", lambda: in_flight(step), None),
        ("transfers", lambda: sum(1 for _ in step.transfers()), None),
    ]
    for name, work, limit in rows:
        print(f"{name:28}{median_cpu_seconds(ROUNDS, work):8.2f}{limit or '-':>8}")


if __name__ == "__main__":
    main()
