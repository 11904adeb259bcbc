"""CPU time of building and validating large orders.

    python benchmarks/schedule_order_speed.py

The limit applies to interleaved 1F1B on 64 ranks with 512 micro-batches and 4 chunks; the others are for comparison.
Times are the median of several runs.
"""

from __future__ import annotations

from timing import median_cpu_seconds

from stagescope.schedules import order, validate

ROUNDS = 5
LIMIT_SECONDS = 1.0
CASES = {
    "interleaved": {"chunks": 4},
    "interleaved-zb": {"chunks": 4},
    "looped-bfs": {"chunks": 4},
    "1f1b": {},
    "zb-h2": {},
    "zb-v": {},
    "chimera": {},
    "dualpipe": {},
    "dualpipev": {},
}


def main() -> None:
    """Measure every case on 64 ranks with 512 micro-batches."""
    print(f"{'schedule':16}{'actions':>9}{'order s':>9}{'limit':>7}{'validate s':>12}")
    for name, options in CASES.items():
        sizes = {"ranks": 64, "microbatches": 512, **options}
        built = order(name, **sizes)
        limit = LIMIT_SECONDS if name == "interleaved" else "-"
        print(
            f"{name:16}{sum(map(len, built.values())):9}{median_cpu_seconds(ROUNDS, order, name, **sizes):9.3f}"
            f"{limit:>7}{median_cpu_seconds(ROUNDS, validate, built):12.3f}"
        )


if __name__ == "__main__":
    main()
