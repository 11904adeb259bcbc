"""Instruments Paddle's static-graph pipeline, whose executor runs a list of jobs in C++ and can time them itself.

The wrapped method is ``_StandaloneExecutor.run`` in paddle/base/executor.py, Paddle 3.3.1. A run of a plan with
forward jobs is a training step. How the jobs inside are timed depends on the build:

* With CUDA, the executor's own job profiler is turned on for the recorded steps, with the argument that
  ``job_schedule_profiler_range`` sets. It prints the device times of the jobs on stderr after each step. They are not
  redirected: they stay in the worker's log, from which ``stagescope show LOG_DIR`` reads them. Because they are many
  lines, this requires a limited number of steps (``--steps A:B``). The recording contains the steps.
* On a CPU that profiler is not built in. The executor also reports each job to Paddle's host tracer, and a CPU job
  runs where it is reported, so those events become spans. While the training uses a profiler of its own, the tracer
  is not available and only the steps are recorded.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stagescope.record.clock import read_anchor
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import BY_NAME
from stagescope.vocabulary.steps import EVERY_STEP_STOP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

CPU_EVENTS = 1
"""The bit of ProfilerOptions.trace_switch for the host tracer."""

_JOB = re.compile(
    r"(forward|backward_b|backward_w|backward|optimizer|optimize|recv_forward|send_backward)\(?(?:chunk)?(\d*)\)?"
    r"(?:_reduce)?(?:-(\d+))?$"
)
_KINDS = {
    "backward_b": "backward_input",
    "backward_w": "backward_weight",
    "optimize": "optimizer",
}


def instrument(executors: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Wrap `executors`, the imported module paddle.base.executor."""
    Instrumentation(recorder, executors.core).install(executors, patches)


class Instrumentation:
    """The wrapper of the executor's ``run``, and what is known about the build."""

    def __init__(self, recorder: Recorder, core: Any) -> None:
        self.recorder = recorder
        self._core = core
        self._is_device_build = bool(core.is_compiled_with_cuda())
        self._described = False

    def install(self, executors: ModuleType, patches: Patches) -> None:
        """Replace a class attribute; `patches` can restore it."""
        patches.wrap(executors._StandaloneExecutor, "run", self._run)  # noqa: SLF001  # no public name

    def _run(self, original: Function) -> Function:
        def run(
            executor: Any,
            feed_names: Any,
            return_numpy: Any = True,  # noqa: FBT002  # Paddle's signature
            enable_job_schedule_profiler: Any = False,  # noqa: FBT002  # same
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            def call(*, profiled: bool = False) -> Any:
                asked = enable_job_schedule_profiler or profiled
                return original(executor, feed_names, return_numpy, asked, *args, **kwargs)

            if not _is_pipeline(executor):
                return call()
            start_ns = self.recorder.begin_step()
            if not self.recorder.enabled:
                return call()
            self._describe(executor)
            result = self._step(call)
            self.recorder.end_step(start_ns)
            return result

        return run

    def _step(self, call: Callable[..., Any]) -> Any:
        """Run one recorded step with the profiler that this build has for its jobs."""
        if self._is_device_build:
            return call(profiled=self.recorder.steps.stop != EVERY_STEP_STOP)
        profiler = self._start_tracer()
        try:
            return call()
        finally:
            if profiler is not None:
                self._record_events(profiler)

    def _start_tracer(self) -> Any:
        """Return Paddle's host tracer, started; None while the training uses it."""
        with suppress(Exception):  # another version of a private interface; the step is recorded in any case
            options = self._core.ProfilerOptions()
            options.trace_switch = CPU_EVENTS
            profiler = self._core._Profiler.create(options, [])  # noqa: SLF001  # no public name
            if profiler is not None:
                profiler.prepare()
                profiler.start()
                return profiler
        return None

    def _record_events(self, profiler: Any) -> None:
        try:
            result = profiler.stop()  # keeps the result of `get_data` alive
            anchor = read_anchor()
            behind_ns = anchor.realtime_ns - anchor.monotonic_ns
            found = [event for root in result.get_data().values() for event in job_events(root)]
            for start_ns, end_ns, job in sorted(found):
                self._emit(start_ns - behind_ns, end_ns - behind_ns, job)
        except Exception as error:  # noqa: BLE001  # as above
            self.recorder.warn(f"cannot read the events of Paddle's executor: {error!r}")

    def _emit(self, start_ns: int, end_ns: int, job: tuple[str, str, str]) -> None:
        kind, chunk, microbatch = job
        of_microbatch = kind != "optimizer" and microbatch != ""
        self.recorder.emit(
            BY_NAME[_KINDS.get(kind, kind)].code,
            start_ns,
            end_ns,
            NONE,
            int(microbatch) if of_microbatch else NONE,
            int(chunk) if chunk else NONE,
        )

    def _describe(self, executor: Any) -> None:
        if self._described:
            return
        self._described = True
        with suppress(Exception):  # another version with other names
            self.recorder.describe(**plan_facts(executor, is_device_build=self._is_device_build))


def job_events(root: Any) -> Iterator[tuple[int, int, tuple[str, str, str]]]:
    """Yield the jobs in one thread's tree of host events: start, end, (kind, chunk, micro-batch) as strings."""
    below = [root]
    while below:
        event = below.pop()
        found = _JOB.match(event.name)
        if found and found[3]:  # only the executor appends a number
            yield event.start_ns, event.end_ns, (found[1], found[2], found[3])
        else:
            below += event.children_node


def plan_facts(executor: Any, *, is_device_build: bool) -> dict[str, object]:
    """Return the header facts about an executor: its plan, and where the times of its jobs are."""
    import paddle  # already imported by the training
    from paddle import distributed  # same

    plan = executor._plan  # noqa: SLF001  # no public name
    return {
        "framework": {"name": "paddle", "version": paddle.__version__},
        "device": paddle.get_device(),
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
        "schedule": {
            "microbatches": plan.micro_batch_num(),
            "jobs": "in the worker's log" if is_device_build else "from Paddle's host tracer",
            "actions": [f"{job.type()}-{job.micro_batch_id()}" for job in plan.job_list()],
        },
    }


def _is_pipeline(executor: Any) -> bool:
    """Return whether an executor runs a pipeline, as opposed to a start-up program or a single program."""
    try:
        return any(job_type.startswith("forward") for job_type in executor._plan.job_types())  # noqa: SLF001  # same
    except Exception:  # noqa: BLE001  # another version, about which nothing is known: nothing is recorded
        return False
