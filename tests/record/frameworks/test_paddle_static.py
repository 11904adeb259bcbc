"""Paddle's static-graph executor: real on the CPU, and a replacement for a build with CUDA."""

from __future__ import annotations

import subprocess
import types

import polars as pl
import pytest

import fake_paddle
from children import only_contents, recording_command
from peers import paddle_python, peer_variables
from places import TESTS
from stagescope import api as workflow
from stagescope.record.frameworks import paddle_static
from stagescope.record.patching import Patches
from stagescope.record.recorder import Recorder
from stagescope.vocabulary.steps import StepRange

SCRIPT = TESTS / "paddle_training" / "static_steps.py"
ORDER = [("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2), ("backward", 1), ("backward", 2)]


def run(directory, *arguments, steps=None):
    limits = ["--steps", steps] if steps else []
    return subprocess.run(
        [*recording_command(directory, *limits), str(paddle_python()), str(SCRIPT), *arguments],
        env=peer_variables(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_cpu_executor_events_become_spans(tmp_path):
    done = run(tmp_path / "rec")
    assert done.returncode == 0, done.stderr[-2000:]
    timeline = workflow.read(tmp_path / "rec")
    assert timeline.diagnostics.rows() == []
    assert timeline.steps["step"].to_list() == [0, 1, 2]
    for step in timeline.steps.iter_rows(named=True):
        # Python collects its garbage when it likes.
        jobs = timeline.spans.filter((pl.col("step") == step["step"]) & (pl.col("kind") != "other"))
        jobs = jobs.sort("start_ns")
        assert jobs.select("kind", "microbatch").rows() == [*ORDER, ("optimizer", None)]
        assert step["start_ns"] <= jobs["start_ns"].min()
        assert jobs["end_ns"].max() <= step["end_ns"]
        assert (jobs["start_ns"][1:] >= jobs["end_ns"][:-1]).all()


@pytest.mark.slow
def test_only_the_selected_steps_are_recorded_and_the_training_is_unchanged(tmp_path):
    done, plain = run(tmp_path / "rec", steps="1:2"), run(tmp_path / "all")
    assert done.stdout == plain.stdout != ""
    timeline = workflow.read(tmp_path / "rec")
    assert timeline.steps["step"].to_list() == [1]
    assert timeline.spans["step"].unique().to_list() == [1]


@pytest.mark.slow
def test_self_profiling_training_keeps_its_profile_and_its_steps_are_recorded(tmp_path):
    done = run(tmp_path / "rec", "profiled")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "events of the training's own: 21" in done.stdout
    timeline = workflow.read(tmp_path / "rec")
    assert timeline.steps.height == 3
    assert timeline.spans.filter(pl.col("kind") != "other").is_empty()  # garbage may be collected


class Plan:
    def __init__(self, *job_types):
        self._job_types = job_types

    def job_types(self):
        return set(self._job_types)

    def job_list(self):
        return [
            types.SimpleNamespace(type=lambda one=one: one, micro_batch_id=lambda: 0)
            for one in self._job_types
        ]

    def micro_batch_num(self):
        return 4


def make_executors():
    """Return paddle.base.executor of a build with CUDA, whose inner executors keep the arguments of their calls."""
    module = types.ModuleType("paddle.base.executor")
    module.core = types.SimpleNamespace(is_compiled_with_cuda=lambda: True)

    class _StandaloneExecutor:
        def __init__(self, *job_types):
            self._plan, self.asked = Plan(*job_types), []

        def run(self, feed_names, return_numpy=True, enable_job_schedule_profiler=False):  # noqa: FBT002
            del feed_names, return_numpy
            self.asked.append(enable_job_schedule_profiler)
            return ["loss"]

    class Executor:
        def __init__(self, plan=None):
            self.plan, self.enable_job_schedule_profiler = plan, False
            self.inner, self.fails = None, False

        def run(self, program=None, feed=None, fetch_list=None):
            del feed, fetch_list
            if self.fails:
                raise ZeroDivisionError
            options = getattr(program, "_pipeline_opt", None)
            types_of_jobs = self.plan.job_types() if self.plan else {"forward"} if options else {"default"}
            self.inner = self.inner or module._StandaloneExecutor(*types_of_jobs)
            return self.inner.run([], True, self.enable_job_schedule_profiler)

    module._StandaloneExecutor, module.Executor = _StandaloneExecutor, Executor
    return module


@pytest.fixture
def executors(monkeypatch):
    with fake_paddle.installed(monkeypatch) as paddle:
        paddle.get_device = lambda: "gpu:0"
        yield make_executors()


def executor_of_pipeline(executors):
    """Return an executor whose plan was set, as Paddle's engine does for PIR programs."""
    return executors.Executor(Plan("forward0", "backward_b0", "optimizer"))


def coverage_of(directory):
    return only_contents(directory).header["frameworks"]["Paddle static graph"]


def test_cuda_job_profiler_is_on_for_the_selected_steps(tmp_path, executors):
    recorder, patches = Recorder(str(tmp_path), steps=StepRange(1, 3)), Patches()
    paddle_static.instrument(executors, recorder, patches)
    executor = executor_of_pipeline(executors)
    switches = []
    for _ in range(4):
        assert executor.run() == ["loss"]
        switches.append(executor.enable_job_schedule_profiler)
    assert executor.inner.asked == [False, True, True, False]
    assert switches == [False] * 4
    patches.undo()
    recorder.stop("test")
    assert workflow.read(tmp_path).steps["step"].to_list() == [1, 2]
    assert coverage_of(tmp_path)["missing"] == []


def test_cuda_job_profiler_is_on_for_a_program_with_a_schedule(tmp_path, executors):
    recorder, patches = Recorder(str(tmp_path), steps=StepRange(0, 1)), Patches()
    paddle_static.instrument(executors, recorder, patches)
    executor = executors.Executor()
    program = types.SimpleNamespace(_pipeline_opt={"standalone_opt": {"schedule_mode": "1F1B"}})
    executor.run(program)
    executor.run(program)
    assert executor.inner.asked == [True, False]
    patches.undo()
    recorder.stop("test")


def test_arguments_of_the_inner_executor_are_never_changed(tmp_path, executors):
    recorder, patches = Recorder(str(tmp_path), steps=StepRange(0, 3)), Patches()
    paddle_static.instrument(executors, recorder, patches)
    inner = executors._StandaloneExecutor("forward", "backward")
    inner.run([])
    inner.run([], True, False)
    inner.run([], True, enable_job_schedule_profiler=True)  # requested by the training itself
    assert inner.asked == [False, False, True]
    patches.undo()
    recorder.stop("test")
    assert coverage_of(tmp_path)["missing"] == [
        "actions: the plan was not run by an Executor whose `enable_job_schedule_profiler` could be set"
    ]


def test_switch_of_the_executor_is_restored_after_a_failed_run(tmp_path, executors):
    recorder, patches = Recorder(str(tmp_path), steps=StepRange(0, 3)), Patches()
    paddle_static.instrument(executors, recorder, patches)
    executor = executor_of_pipeline(executors)
    executor.fails = True
    with pytest.raises(ZeroDivisionError):
        executor.run()
    assert executor.enable_job_schedule_profiler is False
    patches.undo()


def test_job_profiler_stays_off_without_a_step_limit(tmp_path, executors):
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_static.instrument(executors, recorder, patches)
    executor = executor_of_pipeline(executors)
    executor.run()
    executor.enable_job_schedule_profiler = True  # by the training itself
    executor.run()
    assert executor.inner.asked == [False, True]
    assert executor.enable_job_schedule_profiler is True
    patches.undo()
    recorder.stop("test")
    assert coverage_of(tmp_path)["missing"] == [
        "actions: Paddle times them only for a limited number of steps (--steps A:B)"
    ]


def test_other_programs_are_not_steps(tmp_path, executors):
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_static.instrument(executors, recorder, patches)
    for name in ("startup", "default", "optimizer"):
        executors._StandaloneExecutor(name).run([])
        executors.Executor().run()
    assert recorder.step == -1
    patches.undo()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("forward-3", ("forward", "", "3")),
        ("forward1-0", ("forward", "1", "0")),
        ("backward(chunk1)-2", ("backward", "1", "2")),
        ("backward_b0-1", ("backward_b", "0", "1")),
        ("backward_w1_reduce-7", ("backward_w", "1", "7")),
        ("optimizer-0", ("optimizer", "", "0")),
        ("send_backward-4", ("send_backward", "", "4")),
        ("forward", None),
        ("forward_hook-1", None),
        ("matmul-1", None),
    ],
)
def test_only_executor_job_names_become_spans(name, expected):
    event = types.SimpleNamespace(name=name, start_ns=1, end_ns=2, children_node=[])
    root = types.SimpleNamespace(name="root node", children_node=[event])
    assert [job for _, _, job in paddle_static.job_events(root)] == ([expected] if expected else [])
