"""How messages name what rocprofv3 writes, and the clock that it reads."""

from __future__ import annotations

from stagescope.ingest.device_ranges.trace import Wording

WORDING = Wording(
    ranges="roctx ranges",
    file="trace",
    no_ranges="put \"with torch.cuda.nvtx.range(f'F{stage}.{microbatch}'):\" around each forward (B around each "
    "backward), which is roctx on AMD, and record with rocprofv3 --kernel-trace --hip-runtime-trace --marker-trace; "
    "or describe action names with --pattern",
    no_kernels="record with: rocprofv3 --kernel-trace --hip-runtime-trace --marker-trace",
    example="rank0_results.db, rank1_results.db",
    clock_method="time since boot of each machine, which rocprofv3 records",
)


def clock_of(host: str | None) -> str | None:
    """Return the clock of a trace: all processes of a machine read its time since boot (CLOCK_BOOTTIME)."""
    return f"{host}/time since boot" if host else None
