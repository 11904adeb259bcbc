"""The cost of starting: CPU time of a new interpreter that imports stagescope or prints its help."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

ROUNDS = 15
CASES = (
    ("import stagescope", ("-c", "import stagescope"), 0.030),
    ("import stagescope.record", ("-c", "import stagescope.record"), 0.060),
    ("stagescope --help", ("-m", "stagescope", "--help"), 0.25),
)
BARE = ("-c", "pass")


def cpu_seconds(arguments: tuple[str, ...]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    cpu_seconds(BARE)
    for _, arguments, _ in CASES:
        cpu_seconds(arguments)
    bare, costs = [], {name: [] for name, _, _ in CASES}
    for _ in range(ROUNDS):
        bare.append(cpu_seconds(BARE))
        for name, arguments, _ in CASES:
            costs[name].append(cpu_seconds(arguments))
    base = statistics.median(bare)
    print(f"bare interpreter: {base:.3f} CPU s")
    for name, _, limit in CASES:
        whole = statistics.median(costs[name])
        shown = whole if "--help" in name else whole - base
        scope = "total" if "--help" in name else "above bare Python"
        print(f"{name:28}{shown * 1e3:7.1f} ms {scope:17} limit {limit * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
