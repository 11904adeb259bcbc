"""The single recording of this process: started by hand or by the start-up hook, stopped by hand or at exit."""

from __future__ import annotations

import importlib
import itertools
import os
from typing import TYPE_CHECKING

from stagescope.record.control import COLLECTIVES, MEMORY
from stagescope.record.garbage import GarbageCollections
from stagescope.record.imports import ImportWatch
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder
from stagescope.record.retention import Kept, parse_keep
from stagescope.vocabulary.steps import StepRange, wanted_steps

if TYPE_CHECKING:
    import threading
    from types import ModuleType

OUT_VARIABLE = "STAGESCOPE_OUT"
RECORD_VARIABLE = "STAGESCOPE_RECORD"
"""The directory in which processes record themselves that `stagescope run` did not start."""

STEPS_VARIABLE = "STAGESCOPE_STEPS"
MAX_BYTES_VARIABLE = "STAGESCOPE_MAX_BYTES"
KEEP_VARIABLE = "STAGESCOPE_KEEP"
ALSO_VARIABLE = "STAGESCOPE_ALSO"
DETAIL_VARIABLE = "STAGESCOPE_DETAIL"

DEFAULT_DIRECTORY = "stagescope-recording"

PRIMUS = "primus.backends.megatron.core.pipeline_parallel"
UNRECORDED = "stagescope.record.frameworks.unrecorded"

TORCH_ITERATION = "stagescope.record.frameworks.torch_iteration"
TORCH_DISTRIBUTED = "stagescope.record.frameworks.torch_distributed"
PADDLE_DISTRIBUTED = "stagescope.record.frameworks.paddle_distributed"
PADDLE_OPTIMIZERS = "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer"
TORCH_FUNCTIONAL = "stagescope.record.frameworks.torch_functional"

FRAMEWORKS: dict[str, str] = {
    "torch._dynamo": "stagescope.record.frameworks.torch_compiler",
    "torch.distributed.distributed_c10d": TORCH_DISTRIBUTED,
    "torch.nn.parallel.distributed": TORCH_DISTRIBUTED,
    "torch.distributed._functional_collectives": TORCH_FUNCTIONAL,
    "torch.distributed.tensor._collective_utils": TORCH_FUNCTIONAL,
    "torch.utils.data.dataloader": TORCH_ITERATION,
    "torch.serialization": TORCH_ITERATION,
    "torch.optim.optimizer": TORCH_ITERATION,
    "torch.distributed.checkpoint.state_dict_saver": TORCH_ITERATION,
    "torch.nn.utils.clip_grad": TORCH_ITERATION,
    "torch.optim.lr_scheduler": TORCH_ITERATION,
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": TORCH_DISTRIBUTED,
    "torch.distributed._composable.fsdp._fsdp_param_group": TORCH_DISTRIBUTED,
    "torch.cuda.graphs": "stagescope.record.devices.cuda_graphs",
    "torch.distributed.pipelining.schedules": "stagescope.record.frameworks.torch_pipelining",
    "megatron.core.pipeline_parallel.schedules": "stagescope.record.frameworks.megatron",
    "megatron.core.pipeline_parallel.combined_1f1b": "stagescope.record.frameworks.megatron",
    "megatron.core.pipeline_parallel.bridge_communicator": "stagescope.record.frameworks.megatron",
    "megatron.core.distributed.finalize_model_grads": "stagescope.record.frameworks.megatron",
    "megatron.core.distributed.distributed_data_parallel": "stagescope.record.frameworks.megatron",
    "megatron.core.distributed.grad_buffer": "stagescope.record.frameworks.megatron",
    "megatron.core.distributed.param_and_grad_buffer": "stagescope.record.frameworks.megatron",
    "megatron.core.distributed.custom_fsdp.fully_sharded_data_parallel": "stagescope.record.frameworks.megatron",
    "megatron.core.distributed.fsdp.src.megatron_fsdp.megatron_fsdp": "stagescope.record.frameworks.megatron",
    "megatron.core.distributed.torch_fully_sharded_data_parallel": "stagescope.record.frameworks.megatron",
    "megatron.core.optimizer.optimizer": "stagescope.record.frameworks.megatron",
    "megatron.core.optimizer.distrib_optimizer": "stagescope.record.frameworks.megatron",
    "megatron.core.optimizer.layer_wise_optimizer": "stagescope.record.frameworks.megatron",
    "megatron.training.training": "stagescope.record.frameworks.megatron",
    "megatron.training": "stagescope.record.frameworks.megatron",
    "deepspeed.runtime.engine": "stagescope.record.frameworks.deepspeed",
    "deepspeed.runtime.pipe.engine": "stagescope.record.frameworks.deepspeed",
    "deepspeed.runtime.pipe.dualpipev": "stagescope.record.frameworks.deepspeed",
    "paddle.distributed.fleet.meta_parallel.pipeline_parallel": "stagescope.record.frameworks.paddle_fleet",
    "paddle.distributed.fleet.meta_parallel.dualpipev": "stagescope.record.frameworks.paddle_dualpipe",
    "paddle.distributed.communication.group": PADDLE_DISTRIBUTED,
    "paddle.distributed.fleet.utils.hybrid_parallel_util": PADDLE_DISTRIBUTED,
    "paddle.distributed.fleet.utils.tensor_fusion_helper": PADDLE_DISTRIBUTED,
    "paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage2": PADDLE_DISTRIBUTED,
    "paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage3": PADDLE_DISTRIBUTED,
    "paddle.distributed.parallel": PADDLE_DISTRIBUTED,
    f"{PADDLE_OPTIMIZERS}.dygraph_sharding_optimizer": PADDLE_DISTRIBUTED,
    "paddle.base.executor": "stagescope.record.frameworks.paddle_static",
    "mindspeed.core.pipeline_parallel.dualpipev.dualpipev_schedules": "stagescope.record.frameworks.mindspeed",
    "flagscale.train.dualpipev.dualpipev_schedules": "stagescope.record.frameworks.mindspeed",
    "colossalai.pipeline.schedule": "stagescope.record.frameworks.colossalai",
    "colossalai.booster.plugin.hybrid_parallel_plugin": "stagescope.record.frameworks.colossalai_replicas",
    "colossalai.zero.low_level.low_level_optim": "stagescope.record.frameworks.colossalai_replicas",
    f"{PRIMUS}.zerobubble.runtime": "stagescope.record.frameworks.primus_zero_bubble",
    f"{PRIMUS}.primuspipe.pipeline_launcher": "stagescope.record.frameworks.primus_pipe",
    "mindspeed.core.pipeline_parallel.ripipe_schedules": UNRECORDED,
    "mindspeed.core.pipeline_parallel.flexible_schedules": UNRECORDED,
    "mindspeed.core.pipeline_parallel.multiparameter_schedules": UNRECORDED,
    "mindspeed.core.multi_modal.dist_train.dist_schedules": UNRECORDED,
    "mindspeed.multi_modal.dist_train.pipeline_parallel.dist_schedules": UNRECORDED,
    "mindspeed.core.transformer.moe.moe_feature.fb_overlap.no_pipelining_schedules": UNRECORDED,
    "mindspeed.core.transformer.moe.moe_feature.fb_overlap.vpp_schedules": UNRECORDED,
    "mindspeed.core.pipeline_parallel.fb_overlap.vpp_schedules": UNRECORDED,
    "mindspeed.core.tensor_parallel.tp_2d.schedules_2d": UNRECORDED,
    "mindspeed.core.performance.auto_pipeline_perf.schedules": UNRECORDED,
    "mindspeed.mindspore.core.pipeline_parallel.schedules": UNRECORDED,
    "mindspeed.mindspore.core.pipeline_parallel.seq1f1b.schedules": UNRECORDED,
    "mindspeed.mindspore.core.pipeline_parallel.dualpipev.dualpipev_schedules": UNRECORDED,
}
"""Framework module to watch for, and the module in this package that instruments it right after its import."""


class Session:
    """A recorder, the functions it has wrapped, and the imports it is waiting for."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.patches = Patches()
        self._watch = ImportWatch(dict.fromkeys(FRAMEWORKS, self._instrument))
        self._garbage = GarbageCollections(recorder)

    def begin(self) -> None:
        """Instrument frameworks that are already imported, and watch for the import of the others."""
        also = os.environ.get(ALSO_VARIABLE)
        if also:
            from stagescope.record import mirrors  # rarely used, so not imported in every process

            mirrors.install(mirrors.parse_profilers(also), self.recorder, self.patches)
        self._watch.install()
        self._garbage.watch()

    def end(self, reason: str) -> None:
        """Restore all wrapped functions and finish the recording."""
        self._watch.remove()
        self._garbage.ignore()
        self.patches.undo()
        self.recorder.stop(reason)

    def _instrument(self, module: ModuleType) -> None:
        """Install the hooks of a framework, all of them or none. A failure is reported, also in the recording."""
        instrumentation = importlib.import_module(FRAMEWORKS[module.__name__])
        try:
            with self.patches.all_or_none():
                instrumentation.instrument(module, self.recorder, self.patches)
        except Exception as error:  # noqa: BLE001  # an unknown version must not stop the training
            self.recorder.coverage.refused(module.__name__, None, [f"cannot be observed: {error!r}"])


_session: Session | None = None
_numbers = itertools.count()

recorder: Recorder | None = None
"""The recorder of this process, None while it is not recording."""


class NotRecording:
    """Replaces the thread-local storage while the process is not recording."""

    buffer = None


storage: threading.local | NotRecording = NotRecording()
plain_middle: bytes | None = None
"""Copies of the recorder's `local` while it is enabled and of its `plain_middle`: a span finds them without going
through the recorder.
"""


def start(
    out: str | os.PathLike[str] | None = None,
    *,
    steps: str | StepRange | None = None,
    keep: str | None = None,
    max_bytes: int | str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> None:
    """Start recording this process. Has no effect if it is already being recorded.

    `out` is the output directory (default: the one set by `stagescope run` or by STAGESCOPE_RECORD, else
    ``stagescope-recording``). `steps`
    limits the recording to a range such as ``"2:5"`` or a StepRange. `keep` bounds what is on disk for this process, as
    ``"500MB"``, ``"30m"``, ``"200steps"`` or several of them, such as ``"1GB,30m"``; the oldest spans are discarded and
    counted. `max_bytes` is the same for a size, as a number or as ``"512MiB"``; without a size, the limit is 1 GiB,
    with 0 or ``keep="all"`` there is none. `rank` and `world_size` default to the values of torch.distributed or of the
    launcher's environment.

    Raises UsageError for an invalid step range, for malformed bounds, two sizes, and a limit below 1 MiB or 10 seconds.
    """
    global _session, recorder  # noqa: PLW0603  # one recording per process
    if _session is not None:
        return
    wanted = wanted_steps(steps)
    kept = parse_keep(keep, max_bytes) or _bounds_of_environment()
    directory = os.fspath(out) if out is not None else directory_of_environment() or DEFAULT_DIRECTORY
    recorder = Recorder(
        _absolute(directory), steps=wanted, max_bytes=kept.max_bytes, retention=kept.retention
    )
    given_ranks = {"rank": rank, "world_size": world_size}
    details = os.environ.get(DETAIL_VARIABLE, "").split(",")
    recorder.is_detailed, recorder.details_memory = COLLECTIVES in details, MEMORY in details
    recorder.describe(session=next(_numbers))
    recorder.describe(**{name: value for name, value in given_ranks.items() if value is not None})
    if wanted is not None:
        recorder.describe(steps=str(wanted))
    recorder.on_change = _follow
    _follow()
    _session = Session(recorder)
    _session.begin()


def directory_of_environment() -> str | None:
    """Return the directory that `stagescope run` or the user's environment states, if any."""
    return os.environ.get(OUT_VARIABLE) or os.environ.get(RECORD_VARIABLE)


def _bounds_of_environment() -> Kept:
    """Return what the environment states to keep, otherwise the default."""
    found = parse_keep(os.environ.get(KEEP_VARIABLE) or None, os.environ.get(MAX_BYTES_VARIABLE) or None)
    return found or Kept()


def _follow() -> None:
    """Update the module attributes that spans read directly."""
    global storage, plain_middle  # noqa: PLW0603  # as in start
    following = recorder
    if following is None or not following.enabled:
        storage = NotRecording()
    else:
        storage, plain_middle = following.local, following.plain_middle


def _absolute(directory: str) -> str:
    """Return an absolute path, which stays valid when the training changes its working directory."""
    try:
        return os.path.abspath(directory)  # importing pathlib would cost every process start-up time
    except FileNotFoundError:  # the working directory has been deleted
        return directory


def stop() -> None:
    """Finish the recording and restore all wrapped functions. Has no effect if nothing is being recorded."""
    global _session, recorder  # as in start
    session, _session, recorder = _session, None, None
    _follow()
    if session:
        session.end("stop")
