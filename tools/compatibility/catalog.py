"""The sources that the table covers: packages on an index, and repositories at a pinned commit."""

from __future__ import annotations

from typing import NamedTuple

from .declared import declared_names
from .registry import version_key


class Source(NamedTuple):
    """One package or repository, and what is read of it.

    `packages` are its top-level packages: the declared points below them are looked up in it. Only files below
    `folders` are read. `schedules_in` are those of the folders whose modules are listed: a release that adds a module
    may add a schedule. `bases` are the classes whose subclasses are schedules, `functions` is a pattern of the names
    of functions that are schedules, and `actions` an enum whose members are the actions of schedules. A source without
    `oldest` is not on an index: `commit` pins it.
    """

    name: str
    packages: tuple[str, ...]
    folders: tuple[str, ...]
    schedules_in: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    functions: str = ""
    actions: str = ""
    oldest: str = ""
    platform: str | None = None
    repository: str = ""
    commit: str = ""

    @property
    def points(self) -> list[str]:
        """Return what is looked up in each release: declared points, and the modules that trigger a part."""
        return declared_names(self.packages)

    @property
    def pinned(self) -> str:
        """Return the name of the pinned commit in the table, empty for a source on an index."""
        return self.commit[:12]

    def reads(self, name: str) -> bool:
        """Return whether the module of a point, or a module, is in a file that is read."""
        path = name.partition(":")[0].replace(".", "/")
        return (
            f"{path}.pyi" in self.folders
            or f"{path}.py".startswith(self.folders)
            or f"{path}/__init__.py".startswith(self.folders)
        )

    def covers(self, version: str) -> bool:
        """Return whether a release is recent enough for the table."""
        return version_key(version) >= version_key(self.oldest)


PASSES = r"(?!_|get_|send_)\w*(forward_backward|1f1b)\w*"
"""Functions of Megatron that run the forwards and backwards of a step."""

MEGATRON_FOLDERS = (
    "megatron/core/pipeline_parallel/",
    "megatron/core/distributed/",
    "megatron/core/optimizer/",
    "megatron/core/parallel_state.py",
    "megatron/training/__init__.py",
    "megatron/training/training.py",
)

SOURCES = (
    Source(
        "torch",
        ("torch",),
        (
            "torch/distributed/pipelining/",
            "torch/__init__.py",
            "torch/_C/_distributed_c10d.pyi",
            "torch/cuda/graphs.py",
            "torch/distributed/_composable/fsdp/",
            "torch/distributed/_functional_collectives.py",
            "torch/distributed/checkpoint/__init__.py",
            "torch/distributed/checkpoint/state_dict_saver.py",
            "torch/distributed/distributed_c10d.py",
            "torch/distributed/fsdp/_fully_shard/",
            "torch/distributed/tensor/_collective_utils.py",
            "torch/nn/parallel/distributed.py",
            "torch/nn/utils/__init__.py",
            "torch/nn/utils/clip_grad.py",
            "torch/optim/lr_scheduler.py",
            "torch/serialization.py",
            "torch/utils/data/dataloader.py",
            "torch/optim/optimizer.py",
            "torch/profiler/profiler.py",
        ),
        ("torch/distributed/pipelining/",),
        bases=("_PipelineSchedule", "_PipelineStageBase"),
        actions="torch.distributed.pipelining.schedules:_ComputationType",
        oldest="2.5",
        platform="macos",
    ),
    Source(
        "megatron-core",
        ("megatron",),
        MEGATRON_FOLDERS,
        ("megatron/core/pipeline_parallel/",),
        functions=PASSES,
        oldest="0.5",  # pip can install 0.4.0 nowhere: it has no wheel, and its source archive is incomplete
        platform="linux",
    ),
    Source(
        "megatron-lm",
        ("megatron",),
        MEGATRON_FOLDERS,
        ("megatron/core/pipeline_parallel/",),
        functions=PASSES,
        repository="NVIDIA/Megatron-LM",
        commit="d98e8a64ddf34856e74b24714e3bedb2f5a39553",
    ),
    Source(
        "deepspeed",
        ("deepspeed",),
        ("deepspeed/runtime/pipe/", "deepspeed/runtime/engine.py", "deepspeed/comm/"),
        ("deepspeed/runtime/pipe/",),
        bases=("PipeSchedule", "PipeInstruction", "PipelineEngine"),
        oldest="0.14",
    ),
    Source(
        "colossalai",
        ("colossalai",),
        (
            "colossalai/pipeline/",
            "colossalai/booster/plugin/hybrid_parallel_plugin.py",
            "colossalai/zero/low_level/low_level_optim.py",
        ),
        ("colossalai/pipeline/",),
        bases=("PipelineSchedule",),
        oldest="0.3.9",
    ),
    Source(
        "paddlepaddle",
        ("paddle",),
        (
            "paddle/distributed/fleet/meta_parallel/",
            "paddle/distributed/fleet/meta_optimizers/dygraph_optimizer/",
            "paddle/distributed/passes/pipeline_scheduler_pass/",
            "paddle/autograd/__init__.py",
            "paddle/base/executor.py",
            "paddle/base/libpaddle.pyi",
            "paddle/distributed/communication/group.py",
            "paddle/distributed/parallel.py",
            "paddle/distributed/fleet/utils/hybrid_parallel_util.py",
            "paddle/distributed/fleet/utils/tensor_fusion_helper.py",
        ),
        ("paddle/distributed/fleet/meta_parallel/p", "paddle/distributed/fleet/meta_parallel/dualpipev.py"),
        bases=("MetaParallelBase", "PipelinePassBase"),
        actions="paddle.distributed.fleet.meta_parallel.pipeline_parallel:PipelineParallelMicroStepLocations",
        oldest="2.6",
        platform="macos",
    ),
    Source(
        "mindspeed",
        ("mindspeed",),
        (
            "mindspeed/core/",
            "mindspeed/mindspore/core/pipeline_parallel/",
            "mindspeed/multi_modal/dist_train/",
        ),
        functions=r"(?!_|get_)\w*forward_backward_\w*pipelining\w*",
        repository="Ascend/MindSpeed",
        commit="028de58ca629d035185b00ff7d1eb7eff4f7fd48",
    ),
    Source(
        "flagscale",
        ("flagscale",),
        ("flagscale/train/",),
        functions=r"forward_backward_\w*pipelining\w*",
        repository="FlagOpen/FlagScale",
        commit="da4935ec60193e735bc70b81e259ed04eefd0132",
    ),
    Source(
        "primus",
        ("primus",),
        (
            "primus/backends/megatron/",
            "primus/core/pipeline_parallel/",
            "primus/backends/torchtitan/patches/",
        ),
        bases=("PipelineScheduleAlgo",),
        functions=r"get_\w*(zero_bubble_forward|fwd)_backward_func",
        repository="AMD-AGI/Primus",
        commit="fd1eeabbad15135e3702094087e96142b4b4eacb",
    ),
)
