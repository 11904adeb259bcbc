"""Header facts about a pipeline of Paddle fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.format import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.record.recorder import Recorder


class OwnStage:
    """The stage of this rank, `NONE` if it has several; the hooks of the pipeline set it."""

    def __init__(self) -> None:
        self.stage = NONE


def describe_device(recorder: Recorder) -> str:
    """Describe the device of this process in the header, prepare its clock, and return its name."""
    import paddle  # already imported by the training

    device = str(paddle.get_device())
    recorder.timer.set_tensor_device(device)
    if not device.startswith("cpu") and recorder.timer.device is None:
        recorder.warn(f"Paddle's passes on {device} are recorded with their launch times on the host")
        recorder.describe(clock_of_actions="host launches")
    recorder.describe(device=device)
    return device


def pipeline_facts(
    pipeline: Any, schedule: str | None, stages: Sequence[int], count: int
) -> dict[str, object]:
    """Return the facts about a pipeline: its order, its sizes, and the coordinates of this rank.

    `stages` are those of this rank, of `count` in total.
    """
    groups = pipeline._hcg  # noqa: SLF001  # no public name
    sharded = (
        groups.get_sharding_parallel_world_size()
    )  # its ranks are replicas, each with a part of the optimizer state
    return {
        **process_facts(),
        "parallel": {
            "pp": pipeline.stage_id,
            "pp_size": pipeline.num_stages,
            "dp": groups.get_data_parallel_rank() * sharded + groups.get_sharding_parallel_rank(),
            "dp_size": groups.get_data_parallel_world_size() * sharded,
            "tp": groups.get_model_parallel_rank(),
            "tp_size": groups.get_model_parallel_world_size(),
            "pp_ranks": list(groups.get_pipe_parallel_group().ranks),
        },
        "schedule": schedule_facts(pipeline, schedule, stages, count),
    }


def process_facts() -> dict[str, object]:
    """Return the facts about Paddle in this process."""
    import paddle  # already imported by the training
    from paddle import distributed  # same

    return {
        "framework": {"name": "paddle", "version": paddle.__version__},
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
    }


def schedule_facts(
    pipeline: Any, schedule: str | None, stages: Sequence[int], count: int
) -> dict[str, object]:
    """Return the facts about the order of a pipeline."""
    return {
        "name": schedule,
        "class": type(pipeline).__name__,
        "microbatches": pipeline.accumulate_steps,
        "stages": count,
        "local_stages": list(stages),
    }
