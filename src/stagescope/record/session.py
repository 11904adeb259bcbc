"""The one recording of this process: begun by hand or by the start-up hook, ended by hand or at exit."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from stagescope.record.imports import ImportWatch
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder
from stagescope.record.segments import DEFAULT_MAX_BYTES, parse_bound
from stagescope.vocabulary.steps import StepRange, parse_step_range

if TYPE_CHECKING:
    import threading
    from types import ModuleType

OUT_VARIABLE = "STAGESCOPE_OUT"
STEPS_VARIABLE = "STAGESCOPE_STEPS"
RUN_VARIABLE = "STAGESCOPE_RUN"
MAX_BYTES_VARIABLE = "STAGESCOPE_MAX_BYTES"
ALSO_VARIABLE = "STAGESCOPE_ALSO"
DEFAULT_DIRECTORY = "stagescope-recording"

FRAMEWORKS: dict[str, str] = {
    "torch.cuda.graphs": "stagescope.record.devices.cuda_graphs",
    "torch.distributed.pipelining.schedules": "stagescope.record.frameworks.torch_pipelining",
    "megatron.core.pipeline_parallel.schedules": "stagescope.record.frameworks.megatron",
    "megatron.core.distributed.finalize_model_grads": "stagescope.record.frameworks.megatron",
    "megatron.core.distributed.distributed_data_parallel": "stagescope.record.frameworks.megatron",
    "megatron.core.optimizer.optimizer": "stagescope.record.frameworks.megatron",
    "megatron.training.training": "stagescope.record.frameworks.megatron",
    "deepspeed.runtime.pipe.engine": "stagescope.record.frameworks.deepspeed",
    "paddle.distributed.fleet.meta_parallel.pipeline_parallel": "stagescope.record.frameworks.paddle_fleet",
    "paddle.base.executor": "stagescope.record.frameworks.paddle_static",
    "mindspeed.core.pipeline_parallel.dualpipev.dualpipev_schedules": "stagescope.record.frameworks.mindspeed",
    "colossalai.pipeline.schedule": "stagescope.record.frameworks.colossalai",
}
"""The framework's module, and the module here that instruments it as soon as the training imports it."""


class Session:
    """A recorder, what it has wrapped, and the imports it still waits for."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.patches = Patches()
        self._watch = ImportWatch(dict.fromkeys(FRAMEWORKS, self._instrument))

    def begin(self) -> None:
        """Instrument the frameworks that are imported, and the others when they are."""
        also = os.environ.get(ALSO_VARIABLE)
        if also:
            from stagescope.record import mirrors  # few runs ask for it

            mirrors.install(mirrors.parse_profilers(also), self.recorder, self.patches)
        self._watch.install()

    def end(self, reason: str) -> None:
        """Undo every wrapping and store the recording."""
        self._watch.remove()
        self.patches.undo()
        self.recorder.stop(reason)

    def _instrument(self, module: ModuleType) -> None:
        instrumentation = importlib.import_module(FRAMEWORKS[module.__name__])
        instrumentation.instrument(module, self.recorder, self.patches)


_session: Session | None = None

recorder: Recorder | None = None
"""The recorder of this process, None where nothing is recorded."""


class Nowhere:
    """Stands for the storage of every thread while nothing is recorded."""

    buffer = None


here: threading.local | Nowhere = Nowhere()
plain_middle: bytes | None = None
"""The recorder's `local` while it is enabled, and its `plain_middle`: what a span would have to look for elsewhere."""


def start(
    out: str | os.PathLike[str] | None = None,
    *,
    steps: str | StepRange | None = None,
    max_bytes: int | str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
) -> None:
    """Begin to record this process; does nothing if it is being recorded already.

    `out` is the directory for the recording, by default what `stagescope run` has set or
    ``stagescope-recording``. `steps` limits the recording, as ``"2:5"`` or as a StepRange. `max_bytes` bounds what
    this process keeps on disk, as a number or as ``"512MiB"``, 1 GiB unless given: the oldest spans are let go
    then, with a count; 0 is no bound.
    `rank` and `world_size` are found from torch.distributed or the launcher's environment where they are not given.
    Raises UsageError for steps that are no range and for a bound below 1 MiB; nothing else.
    """
    global _session, recorder  # noqa: PLW0603  # there is one recording per process
    if _session is not None:
        return
    wanted = parse_step_range(steps) if isinstance(steps, str) else steps
    given = max_bytes if max_bytes is not None else os.environ.get(MAX_BYTES_VARIABLE) or DEFAULT_MAX_BYTES
    bound = parse_bound(given)
    directory = os.fspath(out) if out is not None else os.environ.get(OUT_VARIABLE) or DEFAULT_DIRECTORY
    recorder = Recorder(_absolute(directory), steps=wanted, max_bytes=bound)
    told = {"rank": rank, "world_size": world_size}
    recorder.describe(**{name: value for name, value in told.items() if value is not None})
    if wanted is not None:
        recorder.describe(steps=str(wanted))
    recorder.on_change = _follow
    _follow()
    _session = Session(recorder)
    _session.begin()


def _follow() -> None:
    """Bring what spans look at up to date with the recorder."""
    global here, plain_middle  # noqa: PLW0603  # as in start
    following = recorder
    if following is None or not following.enabled:
        here = Nowhere()
    else:
        here, plain_middle = following.local, following.plain_middle


def _absolute(directory: str) -> str:
    """Return the path as it has to be spelled once the action has changed its directory."""
    try:
        return os.path.abspath(directory)  # pathlib costs import time in every process
    except FileNotFoundError:  # the current directory has been deleted
        return directory


def stop() -> None:
    """Store the recording and leave the training as it was before `start`; does nothing if nothing runs."""
    global _session, recorder  # as in start
    session, _session, recorder = _session, None, None
    _follow()
    if session:
        session.end("stop")
