"""Runs of several machines: recordings whose clocks are off by a planted amount, and timelines with clocks."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from planted_clocks import Plan, Planted, plant
from recordings import span_record, write_recording
from stagescope.model import CLOCKS
from stagescope.model.validate import conform

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

    from stagescope.model import Timeline

ALIGNED = Plan(ranks=4, ranks_per_machine=2, microbatches=4, steps=6, seed=7)
FIELDS = ("step", "stage", "chunk", "microbatch", "peer", "bytes", "wait_start_ns", "wait_end_ns")


def record_machines(directory: Path, plan: Plan = ALIGNED) -> Planted:
    """Write one recording per rank of a planted run to `directory`; return the run and its truth."""
    planted = plant(plan)
    write_machines(directory, planted.timeline)
    return planted


def record_strangers(directory: Path, host: str = "node") -> None:
    """Write recordings of two machines without any dependency: each runs stages 0 and 1 on its own."""
    timeline = plant(ALIGNED).timeline
    actions = timeline.spans.filter(pl.col("lane") == "compute")
    renamed = timeline.ranks.with_columns(pl.col("machine").str.replace("node", host, literal=True))
    alone = actions.with_columns(stage=pl.col("rank") % 2)
    write_machines(directory, replace(timeline, ranks=renamed).with_spans(alone))


def write_machines(directory: Path, timeline: Timeline) -> None:
    """Write one recording per rank; ranks of one machine share host and boot."""
    machines = dict(timeline.ranks.select("rank", "machine").iter_rows())
    for (rank,), spans in timeline.spans.group_by("rank"):
        records = [
            span_record(
                row["kind"],
                row["start_ns"],
                row["end_ns"],
                **{name: row[name] for name in FIELDS if row[name] is not None},
            )
            for row in spans.iter_rows(named=True)
        ]
        write_recording(
            directory / f"rank-{rank:05}.sscope",
            records,
            rank=rank,
            world_size=len(machines),
            host=machines[rank],
            boot=f"boot-of-{machines[rank]}",
            parallel={},
        )


def move_traces(source: Path, directory: Path, ranks: Container[int], ahead_ns: int) -> None:
    """Write traces of torch.profiler as if some of their ranks had run on another host, with a clock that is ahead."""
    for path in source.glob("rank*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        if trace["distributedInfo"]["rank"] in ranks:
            trace["host_name"] = "another-host"
            trace["baseTimeNanoseconds"] += ahead_ns
        (directory / path.stem).write_text(json.dumps(trace))


def on_machines(
    timeline: Timeline,
    machines: Mapping[int, str],
    errors_ns: Mapping[str, tuple[int, int] | None] | None = None,
) -> Timeline:
    """Return a timeline whose ranks are on machines, each with a clock.

    `errors_ns` are what alignment is to have found for each machine, None for one that it could not place; without
    them the clocks are as they were read.
    """
    names = list(dict.fromkeys(machines.values()))
    of_rank = pl.col("rank").replace_strict(dict(machines), return_dtype=pl.String)
    found = [(errors_ns or {}).get(name) or (None, None) for name in names]
    clocks = pl.DataFrame(
        {
            "clock": [f"{name}/clock" for name in names],
            "machine": names,
            "offset_ns": [0] * len(names),
            "drift_ppm": [None if errors_ns is None else 0.0] * len(names),
            "error_lo_ns": [low for low, _ in found],
            "error_hi_ns": [high for _, high in found],
            "method": ["planted"] * len(names),
        },
        schema_overrides={"drift_ppm": pl.Float64},
    )
    ranks = timeline.ranks.with_columns(machine=of_rank, clock=of_rank + "/clock")
    return replace(timeline, ranks=ranks, clocks=conform(clocks, CLOCKS))
