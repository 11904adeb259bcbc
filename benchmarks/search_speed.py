"""CPU time of simulating every schedule, and of finding the best split of a model into stages.

    python benchmarks/search_speed.py

The limit for a search of all schedules on 16 ranks with 64 micro-batches is 10 CPU seconds. Times are the
median of several runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from timing import median_cpu_seconds

from stagescope.schedules.costs import Costs
from stagescope.schedules.layers import split_layers
from stagescope.schedules.search.fastest import Scope, find_fastest

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 3
SEARCH_LIMIT = 10.0
COSTS = Costs(
    forward=1_000_000, backward=2_100_000, backward_weight=900_000, overlapped=2_700_000, hop=50_000
)
UNEVEN = Costs(forward=[1_000_000 + 37_000 * (stage % 5) for stage in range(16)], hop=50_000)
LAYERS_NS = [1_000_000 + 7_919 * (layer % 13) for layer in range(256)]


def main() -> None:
    """Print one row per case."""
    chunks = Scope(chunks=(1, 2, 4, 8))
    print(f"{'':42}{'CPU s':>8}{'limit':>8}")
    rows: list[tuple[str, Callable[[], object], float | None]] = [
        ("all schedules, 16 x 64", lambda: find_fastest(COSTS, ranks=16, microbatches=64), SEARCH_LIMIT),
        (
            "all schedules, 16 x 64, uneven stages",
            lambda: find_fastest(UNEVEN, ranks=16, microbatches=64),
            SEARCH_LIMIT,
        ),
        (
            "all schedules, 16 x 64, 1, 2, 4, 8 chunks",
            lambda: find_fastest(COSTS, ranks=16, microbatches=64, scope=chunks),
            None,
        ),
        ("all schedules, 64 x 256", lambda: find_fastest(COSTS, ranks=64, microbatches=256), None),
        ("256 layers into 32 stages", lambda: split_layers(LAYERS_NS, 32), None),
    ]
    for name, work, limit in rows:
        print(f"{name:42}{median_cpu_seconds(ROUNDS, work):8.2f}{limit or '-':>8}", flush=True)


if __name__ == "__main__":
    main()
