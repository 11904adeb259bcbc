"""What the header of a recording states about a training with DeepSpeed's pipeline engine."""

from __future__ import annotations

import sys
from typing import Any

SCHEDULES = {
    "TrainSchedule": "1f1b",
    "DataParallelSchedule": "no-pipelining",
    "DualPipeVSchedule": "dualpipev",
}
"""DeepSpeed's schedule classes and the schedules they implement. InferenceSchedule is missing, as it only has forwards.
"""


def stage_of(engine: Any, phase: int) -> int:
    """Return the global stage of a phase: in DualPipeV a rank has a stage on the way out and one on the way back."""
    stage: int = engine.stage_id
    return 2 * engine.num_stages - 1 - stage if phase else stage


def engine_facts(engine: Any, schedule_class: str) -> dict[str, object]:
    """Return the header facts about an engine: its schedule, sizes, and the coordinates of this rank."""
    import torch.distributed as dist  # already imported by the training

    coordinates = engine.grid.topology().get_coord(engine.global_rank)._asdict()
    names = {"pp": "pipe", "dp": "data", "tp": "model"}
    phases = (0, 1) if schedule_class == "DualPipeVSchedule" else (0,)
    return {
        "framework": {
            "name": "deepspeed",
            "version": getattr(sys.modules.get("deepspeed"), "__version__", None),
        },
        "device": str(engine.device),
        "rank": engine.global_rank,
        "world_size": dist.get_world_size(),
        "parallel": {
            **{ours: coordinates[theirs] for ours, theirs in names.items() if theirs in coordinates},
            "pp_size": engine.num_stages,
            "pp_ranks": [engine.grid.stage_to_global(stage_id=stage) for stage in range(engine.num_stages)],
        },
        "schedule": {
            "name": SCHEDULES.get(schedule_class, schedule_class),
            "class": schedule_class,
            "microbatches": engine.micro_batches,
            "stages": engine.num_stages * len(phases),
            "local_stages": [stage_of(engine, phase) for phase in phases],
        },
    }
