"""The counters table of recordings: COUNTERS records with the name, unit and device of each counter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.recording.pipelines import is_of_pipeline
from stagescope.ingest.recording.values import nullable, texts
from stagescope.model import COUNTERS
from stagescope.vocabulary.counters import COUNTER_OF_NAME

if TYPE_CHECKING:
    from stagescope.ingest.recording.process import Process


def counters_of(process: Process, label: str | None, offset_ns: int) -> pl.DataFrame:
    """Return the counters of one process: those of pipeline `label` and those outside of every step.

    A counter that vocabulary/counters.py does not declare has neither unit nor device.
    """
    records = process.contents.counters
    if not len(records):
        return COUNTERS.empty()
    records = records[is_of_pipeline(process, records["step"], label)]
    names = texts([(records["name"], process.contents.names)])
    device = str(process.contents.header.get("device") or "") or None
    known = {name: COUNTER_OF_NAME[name] for name in names.unique().drop_nulls() if name in COUNTER_OF_NAME}
    units = {name: counter.unit or None for name, counter in known.items()}
    devices = {name: device if counter.of_device else None for name, counter in known.items()}
    columns = {
        "rank": pl.repeat(process.rank, len(records), dtype=pl.Int32, eager=True),
        "name": names.fill_null("unnamed"),
        "time_ns": pl.Series(records["time_ns"] + offset_ns),
        "value": pl.Series(records["value"]),
        "unit": _of_name(names, units),
        "device": _of_name(names, devices),
        **{name: nullable(records[name]) for name in ("step", "stage", "microbatch")},
    }
    return pl.DataFrame({c.name: columns[c.name].cast(c.dtype) for c in COUNTERS.columns})


def _of_name(names: pl.Series, values: dict[str, str | None]) -> pl.Series:
    found: pl.Series = names.replace_strict(values, default=None, return_dtype=pl.String)
    return found
