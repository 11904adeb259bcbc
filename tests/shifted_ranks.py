"""Runs a training on four ranks, two of which record with a shifted clock, as if on a different machine.

Offset and drift are planted exactly: `unshifted_ns` reverts `shifted_ns` to the nanosecond. The recorder's wall clock
is shifted together with its monotonic clock, and the boot id differs, so only the messages of the run show the offset
between the two machines. Usage: shifted_ranks.py ZERO_NS SCRIPT [ARGUMENT]...
"""

from __future__ import annotations

import runpy
import sys
import time
from types import SimpleNamespace

from fork_ranks import start_ranks
from stagescope.record import clock, process_facts

RANKS, SHIFTED = 4, (2, 3)
SHIFT_NS = 30_000_000
DRIFT_ONE_IN = 20_000
"""One additional nanosecond per this many: 50 ppm."""

OTHER_BOOT = "another-boot"


def shifted_ns(true_ns, zero_ns):
    """Return the reading of the clock at a true time: it is ahead, and runs fast from `zero_ns` on."""
    return true_ns + SHIFT_NS + (true_ns - zero_ns) // DRIFT_ONE_IN


def unshifted_ns(shown_ns, zero_ns):
    """Return the true time at which the clock shows `shown_ns` (a number or an array)."""
    since_ns = shown_ns - SHIFT_NS - zero_ns
    return zero_ns - (-since_ns * DRIFT_ONE_IN // (DRIFT_ONE_IN + 1))


def shift_recorder(zero_ns: int) -> None:
    """Let the recorder of this process read the shifted clock; called before the training imports a framework."""

    def monotonic_ns() -> int:
        return shifted_ns(time.monotonic_ns(), zero_ns)

    def time_ns() -> int:
        true_ns = time.monotonic_ns()
        return time.time_ns() + shifted_ns(true_ns, zero_ns) - true_ns

    for name, module in list(sys.modules.items()):
        if name.startswith("stagescope.record") and hasattr(module, "now_ns"):
            module.now_ns = monotonic_ns
    clock.time = SimpleNamespace(monotonic_ns=monotonic_ns, time_ns=time_ns)
    process_facts.boot_id = lambda: OTHER_BOOT


def run_rank(rank: int, arguments: list[str]) -> None:
    if rank in SHIFTED:
        shift_recorder(int(arguments[0]))
    sys.argv = arguments[1:]
    runpy.run_path(arguments[1], run_name="__main__")


if __name__ == "__main__":
    sys.exit(start_ranks(RANKS, run_rank, sys.argv[1:]))
