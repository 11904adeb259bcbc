"""Run under real Paddle: three steps of a list of micro-batch jobs under its executor. Arguments: [profiled]"""

import sys

import paddle
from paddle.base import core
from paddle.base.executor import _StandaloneExecutor

STEPS, WIDTH = 3, 16
ORDER = [("forward", 0), ("forward", 1), ("backward", 0), ("forward", 2), ("backward", 1), ("backward", 2)]


def program_of(layers):
    """Return a program of some matrix products, its parameters initialized."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        value = paddle.ones([WIDTH, WIDTH], "float32")
        for _ in range(layers):
            weight = paddle.static.create_parameter([WIDTH, WIDTH], "float32")
            value = paddle.nn.functional.relu(paddle.matmul(value, weight))
        paddle.mean(value)
    executor_of([core.Job("startup")], {"startup": startup}).run([])
    return main


def executor_of(jobs, programs):
    return _StandaloneExecutor(paddle.CPUPlace(), core.Plan(jobs, programs), SCOPE)


def job(job_type, microbatch):
    made = core.Job(job_type)
    made.set_micro_batch_id(microbatch)
    return made


def events_in(node):
    named = node.name.rpartition("-")[0] in {"forward", "backward", "optimizer"}
    return named + sum(map(events_in, node.children_node))


paddle.enable_static()
SCOPE = paddle.static.Scope()
programs = {"forward": program_of(2), "backward": program_of(3), "optimizer": program_of(1)}
executor = executor_of([job(*one) for one in [*ORDER, ("optimizer", 0)]], programs)
profiler = None
if "profiled" in sys.argv:
    options = core.ProfilerOptions()
    options.trace_switch = 1
    profiler = core._Profiler.create(options, [])
    profiler.prepare()
    profiler.start()
for step in range(STEPS):
    print("step", step, executor.run([]))
if profiler:
    result = profiler.stop()
    print("events of the training's own:", sum(map(events_in, result.get_data().values())))
