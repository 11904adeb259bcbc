"""Instruments Paddle's static-graph pipeline, whose executor runs a list of jobs in C++ and can time them itself.

The observed method is ``_StandaloneExecutor.run`` in paddle/base/executor.py, Paddle 2.6.2 to 3.3.1. A run of a plan
with forward jobs is a training step. How the jobs inside are timed depends on the build:

* With CUDA, the executor's own job profiler is turned on for the recorded steps. It prints the device times of the jobs
  on stderr after each step. They are not redirected: they stay in the worker's log, from which
  ``stagescope show LOG_DIR`` reads them. Because they are many lines, this requires a limited number of steps
  (``--steps A:B``). The recording contains the steps. The profiler is turned on as users do it, with the public
  attribute ``enable_job_schedule_profiler`` of the ``Executor``, which is restored after its ``run``. This is the only
  place where the recorder changes an object of a training, and only because ``--steps`` asks for it.
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
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.paddle import STATIC
from stagescope.vocabulary.kinds import BY_NAME
from stagescope.vocabulary.steps import EVERY_STEP_STOP

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, None]

CPU_EVENTS = 1
"""The bit of ProfilerOptions.trace_switch for the host tracer."""

SWITCH = "enable_job_schedule_profiler"
"""Attribute of the public ``Executor``, and argument of ``_StandaloneExecutor.run``, to which it is passed."""

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
    """Observe `executors`, the imported module paddle.base.executor."""
    hooks = Instrumentation(recorder, patches)
    hooks.learn(executors)
    Installation(recorder, patches).install(STATIC, hooks, modules_by_name(executors))


class Instrumentation:
    """The observers of the executors, and what is known about the build."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        del patches
        self.recorder = recorder
        self._core: Any = None
        self._is_device_build = False
        self._described = False

    def learn(self, executors: Any) -> None:
        """Read which kind of build this is."""
        self._core = getattr(executors, "core", None)
        self._is_device_build = bool(self._core.is_compiled_with_cuda()) if self._core else False

    def request(self, call: Call) -> Observation:
        """Observe the public ``Executor.run``: turn the executor's own profiler on for a recorded step."""
        executor = call.owner
        is_wanted = self._is_device_build and self.recorder.steps.stop != EVERY_STEP_STOP
        if (
            not is_wanted
            or not self._is_next_recorded()
            or not is_pipeline_run(executor, call.get("program"))
        ):
            return
        asked = getattr(executor, SWITCH)
        if asked:
            return
        setattr(executor, SWITCH, True)
        try:
            yield
        finally:
            setattr(executor, SWITCH, asked)

    def _is_next_recorded(self) -> bool:
        """Return whether the step that a run would begin is recorded."""
        recorder = self.recorder
        return recorder.enabled if recorder.step_is_given else recorder.step + 1 in recorder.steps

    def run(self, call: Call) -> Observation:
        """Observe one run of a plan, a training step if it contains forward jobs."""
        executor = call.owner
        if not has_forward_jobs(executor):
            return
        start_ns = self.recorder.begin_step()
        if not self.recorder.enabled:
            return
        if self._is_device_build:
            self._describe(executor, is_timed=bool(call.get(SWITCH)))
            yield
        else:
            yield from self._observe_jobs(executor)
        self.recorder.end_step(start_ns)

    def _observe_jobs(self, executor: Any) -> Observation:
        """Observe one recorded step with Paddle's host tracer."""
        profiler = self._start_tracer()
        self._describe(executor, is_timed=profiler is not None)
        try:
            yield
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
        result = profiler.stop()  # keeps the result of `get_data` alive
        anchor = read_anchor()
        behind_ns = anchor.realtime_ns - anchor.monotonic_ns
        found = [event for root in result.get_data().values() for event in job_events(root)]
        for start_ns, end_ns, job in sorted(found):
            self._emit(start_ns - behind_ns, end_ns - behind_ns, job)

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

    def _describe(self, executor: Any, *, is_timed: bool) -> None:
        if not is_timed:
            self.recorder.coverage.installed(STATIC.framework, None, [self._reason()])
        if not self._described:
            self._described = True
            with suppress(Exception):  # another version with other names
                self.recorder.describe(**plan_facts(executor, self._source(is_timed=is_timed)))

    def _source(self, *, is_timed: bool) -> str:
        if not is_timed:
            return "not recorded"
        return "in the worker's log" if self._is_device_build else "from Paddle's host tracer"

    def _reason(self) -> str:
        if not self._is_device_build:
            return "actions, while the training uses a profiler of its own"
        if self.recorder.steps.stop == EVERY_STEP_STOP:
            return "actions: Paddle times them only for a limited number of steps (--steps A:B)"
        return f"actions: the plan was not run by an Executor whose `{SWITCH}` could be set"


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


def plan_facts(executor: Any, source: str) -> dict[str, object]:
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
            "jobs": source,
            "actions": [f"{job.type()}-{job.micro_batch_id()}" for job in plan.job_list()],
        },
    }


def has_forward_jobs(executor: Any) -> bool:
    """Return whether an executor runs a pipeline, as opposed to a start-up program or a single program."""
    try:
        return any(job_type.startswith("forward") for job_type in executor._plan.job_types())  # noqa: SLF001  # same
    except Exception:  # noqa: BLE001  # another version, about which nothing is known: nothing is recorded
        return False


def is_pipeline_run(executor: Any, program: Any) -> bool:
    """Return whether ``Executor.run`` would run a pipeline.

    Its plan is made of the program's options (``_pipeline_opt``) or, with Paddle's newer programs (PIR), was set on
    the executor.
    """
    plan = getattr(executor, "plan", None)
    if plan is not None:
        return any(job_type.startswith("forward") for job_type in plan.job_types())
    options = getattr(program, "_pipeline_opt", None)
    return isinstance(options, dict) and "standalone_opt" in options
