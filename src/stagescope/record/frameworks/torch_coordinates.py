"""The coordinates of this rank in the data-, tensor-, context- and expert-parallel groups of a training with torch.

They are read from what torch keeps in this process: the process groups, which DeviceMesh describes by the names of its
dimensions ("mesh_dp"), and the groups of DDP and FSDP. No collective is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

DIMENSIONS = {
    "dp": ("dp", "data", "data_parallel", "batch", "ddp"),
    "tp": ("tp", "tensor", "tensor_parallel"),
    "cp": ("cp", "context", "context_parallel"),
    "ep": ("ep", "expert", "expert_parallel"),
}
"""The coordinates, and the names of dimensions that trainings give them, such as torchtitan."""

REPLICATED = ("dp_replicate", "replicate")
SHARDED = ("dp_shard", "shard", "fsdp", "hsdp")
"""The two dimensions of hybrid sharding: together they are the data-parallel one, with the replicas outside."""

MESH = "mesh_"
"""What DeviceMesh puts before the name of a dimension (torch/distributed/device_mesh.py, `_init_one_process_group`)."""

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")


class Group(NamedTuple):
    """A process group of this rank: its members, and the position of this rank among them."""

    ranks: Sequence[int]
    position: int


def find_coordinates(stages: Iterable[Any], pipeline: Sequence[int]) -> dict[str, int]:
    """Return the known ones of dp, tp, cp and ep. `pipeline` has the ranks of this rank's pipeline."""
    named = dict(_named_groups())
    found = {name: _position(named, names) for name, names in DIMENSIONS.items()}
    if found["dp"] is None:
        found["dp"] = _hybrid(named)
    if found["dp"] is None:
        others = [name for name, position in found.items() if position is not None]
        group = _group_of_wrapper(stages, pipeline) or (None if others else _group_across(pipeline))
        found["dp"] = group and group.position
    return {name: position for name, position in found.items() if position is not None}


def _named_groups() -> Iterator[tuple[str, Group]]:
    """Yield the process groups of this rank that have a description, the latest first."""
    for group, members in reversed(_groups()):
        description = str(getattr(group, "group_desc", "") or "")
        yield description.removeprefix(MESH).lower(), members


def _groups() -> list[tuple[Any, Group]]:
    """Return all process groups of this rank."""
    import torch.distributed as dist  # already imported by the training

    world = dist.distributed_c10d._world  # noqa: SLF001  # no public list of groups
    own = dist.get_rank()
    return [
        (group, Group(list(positions), positions[own]))
        for group, positions in world.pg_group_ranks.items()
        if own in positions
    ]


def _position(named: dict[str, Group], names: Iterable[str]) -> int | None:
    return next((named[name].position for name in names if name in named), None)


def _hybrid(named: dict[str, Group]) -> int | None:
    """Return the position in the two groups of hybrid sharding together, or in the one that exists."""
    replica, shard = _position(named, REPLICATED), _position(named, SHARDED)
    if replica is None or shard is None:
        return shard if replica is None else replica
    size = next(len(named[name].ranks) for name in SHARDED if name in named)
    return replica * size + shard


def _group_of_wrapper(stages: Iterable[Any], pipeline: Sequence[int]) -> Group | None:
    """Return the group over which DDP or FSDP reduces the gradients of a stage, None if it is the pipeline's."""
    for stage in stages:
        for module in stage.submod.modules():
            classes = {base.__name__ for base in type(module).__mro__}
            if classes.intersection(WRAPPERS):
                group = module.process_group
            elif "FSDPModule" in classes:
                group = _group_of_mesh(module)
            else:
                continue
            members: Group | None = dict(_groups()).get(group)
            if members is not None and _crosses(members, pipeline):
                return members
    return None


def _group_of_mesh(module: Any) -> Any:
    """Return the process group of the mesh on which FSDP2 has put the parameters of a module, None if it has none."""
    meshes = (getattr(parameter, "device_mesh", None) for parameter in module.parameters())
    mesh = next((mesh for mesh in meshes if mesh is not None), None)
    return mesh.get_group() if mesh is not None and mesh.ndim == 1 else None


def _group_across(pipeline: Sequence[int]) -> Group | None:
    """Return the group of the ranks with this place in every pipeline of the run, if the training made one."""
    import torch.distributed as dist  # as above

    pipelines = dist.get_world_size() // max(1, len(pipeline))
    across = (members for _, members in _groups() if _crosses(members, pipeline))
    return next((members for members in across if len(members.ranks) == pipelines > 1), None)


def _crosses(members: Group, pipeline: Sequence[int]) -> bool:
    """Return whether a group has one rank of this pipeline only."""
    return len(set(members.ranks).intersection(pipeline)) == 1
