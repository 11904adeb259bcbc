"""CPU time and memory to align the clocks of pipelines on two machines each, whose replicas reduce gradients.

    python benchmarks/align_pipelines.py [--machines 1250]

Messages go both ways between the two machines of a pipeline, 32 per step, of which half of the receives wait;
reductions of 16 stages connect the pipelines. Messages are thinned as the parts of a run are; the limits of the rest
are 30 CPU seconds and 1 GB for 1,250 machines.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stagescope.clocks import Observed, clocks_of_run, solve_clocks
from stagescope.clocks.collectives import calls_of
from stagescope.clocks.exits import OF_EXITS
from stagescope.clocks.observations import OBSERVATION_SCHEMA
from stagescope.clocks.thinning import most_of_pair, thinned
from stagescope.model import RANKS, empty_timeline
from stagescope.model.validate import conform

STEPS, STEP_NS, STAGES, PER_STEP = 100, 1_700_000_000, 16, 32
RANKS_PER_MACHINE = STAGES // 2
PIPELINES_AT_ONCE = 20
ORIGIN_NS = 10**15


@dataclass(frozen=True)
class Clocks:
    """The offset and the rate of every machine."""

    offset_ns: np.ndarray
    rate: np.ndarray

    def read(self, clock: np.ndarray | int, true_ns: np.ndarray) -> np.ndarray:
        """Return what clocks show at some moments."""
        shown_ns = true_ns + self.offset_ns[clock] + self.rate[clock] * true_ns
        return np.rint(shown_ns).astype(np.int64) + ORIGIN_NS


def main() -> None:
    """Print the time and memory of both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=1_250)
    machines = parser.parse_args().machines
    rng = np.random.default_rng(1)
    clocks = Clocks(rng.integers(-(10**6), 10**6, machines), rng.uniform(-20e-6, 20e-6, machines))
    parts = [_messages(clocks, pipeline, rng) for pipeline in range(machines // 2)]
    count = sum(part.height for part in parts)
    began = time.process_time()
    messages = [
        thinned(pl.concat(parts[first : first + PIPELINES_AT_ONCE]), most_of_pair(machines))
        for first in range(0, len(parts), PIPELINES_AT_ONCE)
    ]
    seconds = time.process_time() - began
    left = sum(part.height for part in messages)
    print(
        f"thinning {count} messages to {left}: {seconds:.1f} CPU s, {seconds / count * 1e6:.1f} us per message"
    )
    del parts
    ranks = range(machines * RANKS_PER_MACHINE)
    names = [f"node-{rank // RANKS_PER_MACHINE:05}" for rank in ranks]
    table = conform(pl.DataFrame({"rank": ranks, "machine": names, "clock": names}), RANKS)
    run = clocks_of_run(replace(empty_timeline(), ranks=table), table.select("rank"))
    nothing, calls = pl.DataFrame(schema=OBSERVATION_SCHEMA), calls_of(empty_timeline().spans)
    reductions = _reductions(clocks, machines // 2, rng)
    observed = [Observed(part, nothing, calls, reductions.clear()) for part in messages]
    observed.append(Observed(nothing, nothing, calls, reductions))
    began = time.process_time()
    solved = solve_clocks(run, observed, [_extents(clocks, machines)], lambda _: {})
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    states = {machine.state for machine in solved.report.machines}
    print(f"{machines} machines: {seconds:.1f} CPU s, {peak / 1e9:.2f} GB; {', '.join(sorted(states))}")


def _messages(clocks: Clocks, pipeline: int, rng: np.random.Generator) -> pl.DataFrame:
    ways = []
    count = STEPS * PER_STEP
    for source, target in ((2 * pipeline, 2 * pipeline + 1), (2 * pipeline + 1, 2 * pipeline)):
        sent_ns = np.sort(rng.uniform(0, STEPS * STEP_NS, count))
        waited = rng.random(count) < 0.5
        late_ns = np.where(waited, 0.0, rng.exponential(3e6, count))
        received_ns = sent_ns + 180_000 + rng.exponential(20_000, count) + late_ns
        ways.append(
            {
                "kind": "message",
                "source": source,
                "target": target,
                "source_rank": source * RANKS_PER_MACHINE,
                "target_rank": target * RANKS_PER_MACHINE,
                "step": (sent_ns / STEP_NS).astype(int),
                "microbatch": np.arange(count) % PER_STEP,
                "sent_ns": clocks.read(source, sent_ns),
                "received_ns": clocks.read(target, received_ns),
                "waited": waited,
                **dict.fromkeys(("stay_ns", "by_exit", *OF_EXITS)),
            }
        )
    return pl.concat(pl.DataFrame(way, schema=OBSERVATION_SCHEMA) for way in ways)


def _reductions(clocks: Clocks, pipelines: int, rng: np.random.Generator) -> pl.DataFrame:
    step, stage, pipeline = (axis.ravel() for axis in np.indices((STEPS, STAGES, pipelines)))
    machine = 2 * pipeline + stage // RANKS_PER_MACHINE
    entered_ns = (step + 0.9) * STEP_NS + rng.normal(0, 3e6, len(step))
    last_ns = entered_ns.reshape(-1, pipelines).max(axis=1).repeat(pipelines)
    left_ns = last_ns + 1e6 + rng.uniform(0, 20_000, len(step))
    return pl.DataFrame(
        {
            "rank": machine * RANKS_PER_MACHINE + stage % RANKS_PER_MACHINE,
            "start_ns": clocks.read(machine, entered_ns),
            "end_ns": clocks.read(machine, left_ns),
            "step": step,
            "stage": stage,
        }
    ).with_columns(
        pl.col("rank", "step", "stage").cast(pl.Int32),
        tp=pl.lit(None, pl.Int32),
        cp=pl.lit(None, pl.Int32),
        occurrence=pl.lit(0, pl.Int32),
        times=pl.lit(1, pl.UInt32),
    )


def _extents(clocks: Clocks, machines: int) -> pl.DataFrame:
    every = np.arange(machines)
    first_ns, last_ns = (
        clocks.read(every, np.array(0.0)),
        clocks.read(every, np.array(float(STEPS * STEP_NS))),
    )
    ends = {"start_ns": first_ns, "end_ns": last_ns, "first_ns": first_ns, "last_ns": last_ns}
    return pl.DataFrame({"clock": every, **ends}).with_columns(pl.col("clock").cast(pl.Int32))


if __name__ == "__main__":
    main()
