"""Machine names and clocks of a run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model import CLOCKS
from stagescope.model.validate import conform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.ingest.ascend.metadata import Facts

METHOD = "wall clock, not aligned"
ID_LETTERS = 8


def machines_of(facts: Sequence[Facts]) -> dict[str | None, str]:
    """Return the display name of every machine: its host name, with the start of its id where hosts share a name."""
    # Machines are identified by the id of HOST_INFO: several can have the same host name.
    hosts = {each.machine: each.host or each.machine for each in facts if each.machine}
    counts = Counter(hosts.values())
    return {
        machine: str(host) if counts[host] == 1 else f"{host} ({str(machine)[:ID_LETTERS]})"
        for machine, host in hosts.items()
    }


def clocks_table(facts: Sequence[Facts]) -> pl.DataFrame:
    """Return the clocks table: one wall clock per machine, offset 0 until the clocks are aligned."""
    machines = machines_of(facts)
    clocks = {each.clock: machines[each.machine] for each in facts if each.clock}
    rows = [
        {"clock": clock, "machine": machine, "offset_ns": 0, "method": METHOD}
        for clock, machine in clocks.items()
    ]
    schema = {name: CLOCKS.schema[name] for name in ("clock", "machine", "offset_ns", "method")}
    return conform(pl.DataFrame(rows, schema=schema), CLOCKS)
