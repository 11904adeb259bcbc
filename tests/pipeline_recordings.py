"""Recordings of a planted training: four stages, one after the other, with a slow stage for some steps."""

from __future__ import annotations

import numpy as np

from recordings import encode, recording_frames, span_record, step_record

RANKS, MICROBATCHES = 4, 3
WORK_NS, GAP_NS = 1_000_000, 20_000


def records_of_step(step, began_ns, costs_ns, generator):
    """Return the records of each rank in one step of GPipe, and when the step ended."""
    records = [[] for _ in range(RANKS)]
    free_ns = [began_ns] * RANKS
    for kind, order in (("forward", range(RANKS)), ("backward", reversed(range(RANKS)))):
        stages = list(order)
        for microbatch in range(MICROBATCHES):
            ready_ns = began_ns
            for stage in stages:
                start_ns = max(free_ns[stage], ready_ns)
                end_ns = start_ns + round(costs_ns[stage] * generator.uniform(0.99, 1.01))
                place = {"step": step, "stage": stage, "microbatch": microbatch}
                records[stage].append(span_record(kind, start_ns, end_ns, **place))
                free_ns[stage] = ready_ns = end_ns + GAP_NS
    end_ns = max(free_ns)
    for own in records:
        own.append(step_record(step, began_ns, end_ns))
    return records, end_ns


def planted_training(steps, slow_rank, slow_steps, factor, seed=1):
    """Return the records of each rank, with one list per step; `slow_rank` takes `factor` as long in `slow_steps`."""
    generator = np.random.default_rng(seed)
    by_rank = [[] for _ in range(RANKS)]
    now_ns = 10**9
    for step in range(steps):
        costs_ns = [
            WORK_NS * (factor if rank == slow_rank and step in slow_steps else 1) for rank in range(RANKS)
        ]
        records, now_ns = records_of_step(step, now_ns, costs_ns, generator)
        for rank, own in enumerate(records):
            by_rank[rank].append(own)
        now_ns += GAP_NS
    return by_rank


def write_training(directory, by_rank, *, end=True, **header):
    """Write a recording for each rank; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, steps in enumerate(by_rank):
        records = [record for step in steps for record in step]
        facts = {"rank": rank, "world_size": RANKS, "parallel": {"pp": rank, "pp_size": RANKS}, **header}
        facts["schedule"] = {"name": "GPipe", "microbatches": MICROBATCHES}
        paths.append(directory / f"rank-{rank:05}.sscope")
        paths[-1].write_bytes(encode(recording_frames(records, end=end, **facts)))
    return paths
