"""Three changes that let Paddle 3.3.1 train a pipeline on a CPU, in places that expect a device.

They are applied from outside; the schedule and its profiler are Paddle's own.
"""

import contextlib

import paddle
from paddle import distributed
from paddle.base import core
from paddle.distributed.fleet.meta_parallel.pp_utils import p2p_communication
from paddle.distributed.fleet.meta_parallel.sharding.group_sharded_storage import ParamStorage


def mend():
    """Let fleet's pipeline train on CPU processes over gloo."""
    paddle.set_device("cpu")
    distributed.parallel.ParallelEnv._device_id = 0  # missing in a CPU process
    mend_synchronize()
    p2p_communication.batch_send_recv_on_calc_stream = exchange


def mend_synchronize():
    """Take timestamps without waiting for a device."""
    synchronize = paddle.device.synchronize

    def where_there_is_one(*arguments):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            synchronize(*arguments)

    paddle.device.synchronize = where_there_is_one


def exchange(operations):
    """Send and receive through gloo, which has no calculation stream and blocks: even ranks send first."""

    def is_send(one):
        return one.op is p2p_communication._send_on_calc_stream

    even = distributed.get_rank() % 2 == 0
    for one in sorted(operations, key=lambda one: is_send(one) != even):
        group, peer = one.group.process_group, one.group.get_group_rank(one.peer)
        transfer = group.send if is_send(one) else group.recv
        transfer(one.tensor, peer, True).wait()


@contextlib.contextmanager
def sharding_on_a_cpu():
    """Let the optimizer of sharding stage 2 be constructed on a CPU, where no parameter has to leave the host."""
    add = ParamStorage.add_rank_params
    before = core.is_compiled_with_cuda, paddle.get_device
    core.is_compiled_with_cuda, paddle.get_device = (lambda: True), (lambda: "cpu:0")
    ParamStorage.add_rank_params = lambda self, parameters, aligned, **_: add(
        self, parameters, aligned, convert_gpu=False
    )
    try:
        yield
    finally:
        core.is_compiled_with_cuda, paddle.get_device = before
        ParamStorage.add_rank_params = add
