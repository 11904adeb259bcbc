"""Run a training as one rank whose recorder reads a clock that is off, as on a machine of its own.

The shift and its drift are planted exactly: `shifted_ns` is undone by `unshifted_ns` to the nanosecond. The wall clock
of the recorder goes off with its monotonic clock, and the boot id is another, so that only the messages of the run tell
how far the two machines are apart. Usage: shifted_rank.py ZERO_NS SCRIPT [ARGUMENT]...
"""

from __future__ import annotations

import runpy
import sys
import time
from types import SimpleNamespace

from stagescope.record import clock, process_facts

SHIFT_NS = 30_000_000
DRIFT_ONE_IN = 20_000
"""A nanosecond more in so many: 50 ppm."""

OTHER_BOOT = "another-boot"


def shifted_ns(true_ns, zero_ns):
    """Return what the clock shows at a true time: it is ahead, and runs fast from `zero_ns` on."""
    return true_ns + SHIFT_NS + (true_ns - zero_ns) // DRIFT_ONE_IN


def unshifted_ns(shown_ns, zero_ns):
    """Return the one true time at which the clock shows `shown_ns` (a number, or an array of them)."""
    since_ns = shown_ns - SHIFT_NS - zero_ns
    return zero_ns - (-since_ns * DRIFT_ONE_IN // (DRIFT_ONE_IN + 1))


def shift_recorder(zero_ns: int) -> None:
    """Let the recorder of this process read the shifted clock; before the training imports a framework."""

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


def main() -> None:
    zero_ns, script = int(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    shift_recorder(zero_ns)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
