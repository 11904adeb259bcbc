"""``make fuzz``: mutate samples of all formats until the time is up, and print a table of the outcomes.

    make fuzz SECONDS=600 SEED=7
    make fuzz FORMAT=nsight COUNT=1000
    make fuzz FORMAT=nsight SEED=7 ONLY=123      repeat one mutation and print its outcome

The exit code is 1 if there was a failure. Its mutated files are kept in the folder `fuzz-failures`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

from fuzz.campaign import Plan, run
from fuzz.formats import BY_NAME

MOST_CHARACTERS = 200
MOST_EXAMPLES = 3


def main() -> int:
    """Run the campaign that the arguments describe."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--count", type=int, default=None, help="mutations per format")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--format", action="append", choices=list(BY_NAME))
    parser.add_argument("--only", type=int, default=None, help="number of the only mutation to run")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    seconds = 60.0 if given.seconds is None and given.count is None else given.seconds
    formats = given.format or list(BY_NAME)
    workers = 1 if given.only is not None else given.workers
    print(f"seed {seed}", file=sys.stderr)
    plan = Plan(formats, seed, given.count, seconds, workers, given.only)
    summary = run(plan, given.keep, shows_progress=given.only is None)
    print(summary.table())
    if given.only is not None:
        for name, own in summary.results.items():
            print(
                f"{name} {own[0].number}: {own[0].kind} after {' '.join(own[0].mutators)}\n{own[0].details}"
            )
    for kind, found in summary.groups():
        print(f"{len(found)} x {kind[:MOST_CHARACTERS]}")
        for name, one in found[:MOST_EXAMPLES]:
            print(f"    {name} {one.number} after {' '.join(one.mutators)}")
    return 1 if summary.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
