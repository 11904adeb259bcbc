"""The counters of a trace: micro-batches in flight, computed from the spans, and the counters of the timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.exporters.inflight import COUNTER_NAME, count_in_flight

if TYPE_CHECKING:
    from stagescope.model import Timeline


class CounterTracks(NamedTuple):
    """The values of all counters as rank, name, time_ns and value, and the unit of each counter by name."""

    values: pl.DataFrame
    units: dict[str, str]

    @property
    def names(self) -> list[str]:
        """The counters in the order of their tracks: those of the timeline follow in the order of their names."""
        every = set(self.values["name"].unique())
        return [COUNTER_NAME, *sorted(every - {COUNTER_NAME})]


def find_counters(timeline: Timeline, spans: pl.DataFrame) -> CounterTracks:
    """Return the counters of a timeline whose repaired spans are `spans`.

    If the unit of a counter differs from rank to rank, it is not stated.
    """
    columns = ["rank", "name", "time_ns", "value"]
    in_flight = count_in_flight(spans).with_columns(
        pl.col("value").cast(pl.Float64), name=pl.lit(COUNTER_NAME)
    )
    units = timeline.counters.group_by("name").agg(pl.col("unit").unique())
    return CounterTracks(
        pl.concat([in_flight.select(columns), timeline.counters.select(columns)]),
        {name: found[0] or "" for name, found in units.iter_rows() if len(found) == 1},
    )
