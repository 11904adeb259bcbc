"""Jobs for Paddle's executor that compute a small product."""

import paddle
from paddle.base import core
from paddle.base.executor import _StandaloneExecutor

paddle.enable_static()
SCOPE = paddle.static.Scope()


def program_of(layers, width):
    """Return a program of some matrix products, its parameters initialized."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        value = paddle.ones([width, width], "float32")
        for _ in range(layers):
            weight = paddle.static.create_parameter([width, width], "float32")
            value = paddle.nn.functional.relu(paddle.matmul(value, weight))
        paddle.mean(value)
    executor_of([core.Job("startup")], {"startup": startup}).run([])
    return main


def executor_of(jobs, programs):
    """Return an executor that runs jobs, each the program of its type."""
    return _StandaloneExecutor(paddle.CPUPlace(), core.Plan(jobs, programs), SCOPE)


def job(job_type, microbatch):
    """Return one job."""
    made = core.Job(job_type)
    made.set_micro_batch_id(microbatch)
    return made
