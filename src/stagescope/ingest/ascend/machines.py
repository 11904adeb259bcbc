"""The machines of a run and their clocks."""

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
    """Return the shown name of every machine: its host's, with the beginning of its id where several are called so."""
    hosts = {each.machine: each.host or each.machine for each in facts if each.machine}
    counts = Counter(hosts.values())
    return {
        machine: str(host) if counts[host] == 1 else f"{host} ({str(machine)[:ID_LETTERS]})"
        for machine, host in hosts.items()
    }


def clocks_table(facts: Sequence[Facts]) -> pl.DataFrame:
    """Return the clocks table: one wall clock per machine, how far from the others nobody knows."""
    machines = machines_of(facts)
    clocks = {each.clock: machines[each.machine] for each in facts if each.clock}
    rows = [
        {"clock": clock, "machine": machine, "offset_ns": 0, "method": METHOD}
        for clock, machine in clocks.items()
    ]
    schema = {name: CLOCKS.schema[name] for name in ("clock", "machine", "offset_ns", "method")}
    return conform(pl.DataFrame(rows, schema=schema), CLOCKS)
