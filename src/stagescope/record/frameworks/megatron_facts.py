"""Header facts of a training with Megatron: its schedule, and the coordinates of this rank."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stagescope.record.format import NONE
from stagescope.record.installation import version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.record.calls import Call
    from stagescope.record.recorder import Recorder

PARALLEL_STATE = "megatron.core.parallel_state"
COORDINATES = {
    "pp": "get_pipeline_model_parallel_rank",
    "dp": "get_data_parallel_rank",
    "tp": "get_tensor_model_parallel_rank",
    "cp": "get_context_parallel_rank",
    "ep": "get_expert_model_parallel_rank",
}
"""The header's names of a rank's coordinates, and the functions of parallel_state that return them."""


def pipeline_place(schedule: str, call: Call) -> tuple[int, int]:
    """Return this rank's position in its pipeline and the pipeline's length, `NONE` if unknown.

    The communicator passed to the schedule takes precedence: a training with its own process groups may not
    initialize parallel_state.
    """
    if schedule == "forward_backward_no_pipelining":
        return 0, 1
    group = getattr(call.get("p2p_communicator"), "pp_group", None)
    if group is not None:
        return group.rank(), group.size()
    if call.get("p2p_communicator") is not None:  # of several modules, each with a pipeline of its own
        rank, size = (
            getattr(call.get("p2p_communicator"), name, None) for name in ("current_stage", "total_stages")
        )
        return (rank, size) if isinstance(rank, int) and isinstance(size, int) else (NONE, NONE)
    rank = ask("get_pipeline_model_parallel_rank")
    size = ask("get_pipeline_model_parallel_world_size")
    return (rank, size) if isinstance(rank, int) and isinstance(size, int) else (NONE, NONE)


def describe_run(recorder: Recorder, schedule: str, facts: tuple[Any, ...], models: Sequence[Any]) -> None:
    """Describe a run in the header.

    `facts` contains function, micro-batches, chunks, pipeline rank and pipeline size.
    """
    import torch.distributed as dist  # already imported by the training

    function, microbatches, chunks, pp_rank, pp_size = facts
    stages = chunks * pp_size if pp_size != NONE else None
    local = [chunk * pp_size + pp_rank for chunk in range(chunks)] if stages else None
    device = _device(models[0])
    if device is not None:
        recorder.timer.set_tensor_device(device)
    recorder.describe(
        framework={"name": "megatron-core", "version": version_of("megatron-core") or "unknown"},
        device=device,
        parallel=_coordinates() | ({"pp": pp_rank, "pp_size": pp_size} if stages else {}),
        schedule={
            "name": schedule,
            "class": function,
            "microbatches": microbatches,
            "stages": stages,
            "local_stages": local,
        },
    )
    if dist.is_initialized():
        recorder.describe(rank=dist.get_rank(), world_size=dist.get_world_size())


def _coordinates() -> dict[str, object]:
    """Return this rank's coordinates and the ranks of its pipeline, as far as parallel_state has them."""
    import torch.distributed as dist  # as above

    coordinates: dict[str, object] = {name: ask(function) for name, function in COORDINATES.items()}
    group = ask("get_pipeline_model_parallel_group")
    if group is not None and not isinstance(group, list):
        coordinates["pp_ranks"] = dist.get_process_group_ranks(group)
    return {name: value for name, value in coordinates.items() if value is not None}


def ask(function: str) -> Any:
    """Return the result of a function of parallel_state, None if it fails."""
    try:
        return getattr(sys.modules.get(PARALLEL_STATE), function)()
    except Exception:  # noqa: BLE001  # it asserts that groups exist, and versions differ
        return None


def unrecorded(models: Sequence[Any]) -> list[str]:
    """Return what is not recorded of a run because of the training's configuration."""
    module: Any = models[0] if models else None
    while not hasattr(module, "config") and hasattr(module, "module"):  # wrappers such as DDP
        module = module.module
    config, missing = getattr(module, "config", None), []
    if getattr(config, "use_ring_exchange_p2p", False) is True:
        missing.append("transfers with use_ring_exchange_p2p")
    if isinstance(ask("get_pipeline_model_parallel_group"), list):  # megatron-core 0.9 to 0.13
        missing.append("micro-batches of receives from several pipeline groups (their sum is computed)")
    return missing


def _device(model: Any) -> str | None:
    """Return the device of the first parameter of a chunk, None without parameters."""
    parameter = next(iter(model.parameters()), None)
    return None if parameter is None else str(parameter.device)
