"""Paddle's static-graph executor: real on the CPU, and a replacement for a build with CUDA."""

from __future__ import annotations

import subprocess
import sys
import types

import polars as pl
import pytest

import fake_paddle
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
    command = [
        sys.executable,
        "-m",
        "stagescope",
        "run",
        *limits,
        "-o",
        str(directory),
        "--",
        str(paddle_python()),
    ]
    return subprocess.run(
        [*command, str(SCRIPT), *arguments],
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
    assert timeline.diagnostics.is_empty()
    assert timeline.steps["step"].to_list() == [0, 1, 2]
    for step in timeline.steps.iter_rows(named=True):
        jobs = timeline.spans.filter(pl.col("step") == step["step"]).sort("start_ns")
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
    assert timeline.spans.is_empty()


class Executor:
    """paddle.base.executor._StandaloneExecutor of a build with CUDA; keeps the arguments of its calls."""

    def __init__(self, *job_types):
        self.asked = []
        jobs = [
            types.SimpleNamespace(type=lambda name=name: name, micro_batch_id=lambda: 0) for name in job_types
        ]
        self._plan = types.SimpleNamespace(
            job_types=lambda: set(job_types), job_list=lambda: jobs, micro_batch_num=lambda: 4
        )

    def run(self, feed_names, return_numpy=True, enable_job_schedule_profiler=False):  # noqa: FBT002
        del feed_names, return_numpy
        self.asked.append(enable_job_schedule_profiler)
        return ["loss"]


@pytest.fixture
def executors(monkeypatch):
    with fake_paddle.installed(monkeypatch) as paddle:
        paddle.get_device = lambda: "gpu:0"
        module = types.ModuleType("paddle.base.executor")
        module.core = types.SimpleNamespace(is_compiled_with_cuda=lambda: True)
        module._StandaloneExecutor = type("_StandaloneExecutor", (Executor,), {"run": Executor.run})
        yield module


def test_cuda_job_profiler_is_on_for_the_selected_steps(tmp_path, executors):
    recorder, patches = Recorder(str(tmp_path), steps=StepRange(1, 3)), Patches()
    paddle_static.instrument(executors, recorder, patches)
    executor = executors._StandaloneExecutor("forward0", "backward_b0", "optimizer")
    assert [executor.run([]) for _ in range(4)] == [["loss"]] * 4
    assert executor.asked == [False, True, True, False]
    patches.undo()
    recorder.stop("test")
    assert workflow.read(tmp_path).steps["step"].to_list() == [1, 2]


def test_job_profiler_stays_off_without_a_step_limit(tmp_path, executors):
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_static.instrument(executors, recorder, patches)
    executor = executors._StandaloneExecutor("forward", "backward")
    executor.run([])
    executor.run([], True, True)  # requested by the training itself
    assert executor.asked == [False, True]
    patches.undo()
    recorder.stop("test")


def test_other_programs_are_not_steps(tmp_path, executors):
    recorder, patches = Recorder(str(tmp_path)), Patches()
    paddle_static.instrument(executors, recorder, patches)
    for name in ("startup", "default", "optimizer"):
        executors._StandaloneExecutor(name).run([])
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
