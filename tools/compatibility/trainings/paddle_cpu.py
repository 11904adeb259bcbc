"""What Paddle's pipeline needs of a device, replaced for processes on a CPU.

Transfers and collectives pass through local sockets: Paddle's own group for CPUs, over gloo, numbers all operations of
a process in one sequence, so that two ranks with different numbers of operations wait for each other forever. Schedules
and the code that decides what is sent to whom are Paddle's own.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client, Listener

import numpy as np
import paddle
from paddle import distributed
from paddle.distributed import collective, parallel
from paddle.distributed.fleet.meta_parallel.pp_utils import p2p_communication

REDUCTIONS = {"SUM": np.add, "MAX": np.maximum, "MIN": np.minimum}


class Task:
    """The handle of a transfer."""

    def __init__(self, future):
        self.future = future

    def wait(self, *_):
        self.future.result()
        return True

    synchronize = wait

    def is_completed(self):
        return self.future.done()


class Done:
    """The handle of a collective that has completed."""

    @staticmethod
    def wait(*_):
        return True

    is_completed = synchronize = wait


class Sockets:
    """The connections of a rank, one per direction and peer, each served by a thread in the order of the calls."""

    def __init__(self, rank, run):
        self.rank, self.run = rank, run
        self.listener = Listener(self._address(rank), "AF_UNIX", backlog=32)
        self.incoming, self.is_ready = {}, threading.Condition()
        self.outgoing, self.threads = {}, {}
        threading.Thread(target=self._accept, daemon=True).start()

    def _address(self, rank):
        """Return an address without a file."""
        return f"\0paddle-pipeline-{self.run}-{rank}"

    def _accept(self):
        while True:
            connection = self.listener.accept()
            with self.is_ready:
                self.incoming[connection.recv()] = connection
                self.is_ready.notify_all()

    def _connect(self, peer):
        """Return a connection to a peer, which may not listen yet."""
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                connection = Client(self._address(peer), "AF_UNIX")
                connection.send(self.rank)
                return connection
            time.sleep(0.05)

    def send(self, tensor, peer):
        """Start to send a tensor."""
        return self._start("send", peer, self._send, tensor.numpy().copy())

    def receive(self, tensor, peer):
        """Start to receive into a tensor."""
        return self._start("receive", peer, self._receive, tensor)

    def _start(self, direction, peer, transfer, value):
        thread = self.threads.setdefault((direction, peer), ThreadPoolExecutor(1))
        return Task(thread.submit(transfer, value, peer))

    def _send(self, array, peer):
        if peer not in self.outgoing:
            self.outgoing[peer] = self._connect(peer)
        self.outgoing[peer].send(array)

    def _receive(self, tensor, peer):
        with self.is_ready:
            self.is_ready.wait_for(lambda: peer in self.incoming)
        set_value(tensor, self.incoming[peer].recv())

    def close(self):
        """Wait until all ranks have trained and everything is sent."""
        distributed.barrier()
        for thread in self.threads.values():
            thread.shutdown(wait=True)


class Group:
    """A process group over sockets."""

    def __init__(self, ranks, index, sockets):
        self.ranks, self.index, self.sockets = ranks, index, sockets

    def rank(self):
        return self.index

    def size(self):
        return len(self.ranks)

    def name(self):
        return "GLOO"

    def get_stream(self, _):
        return None

    def set_outer_wait(self, _):
        return None

    def broadcast(self, tensor, source, *_, **__):
        others = [rank for rank in self.ranks if rank != self.ranks[source]]
        if self.index == source:
            for task in [self.sockets.send(tensor, rank) for rank in others]:
                task.wait()
        else:
            self.sockets.receive(tensor, self.ranks[source]).wait()
        return Done

    def all_reduce(self, tensor, operation=None, *_, **__):
        if self.index == 0:
            reduce = REDUCTIONS[str(operation).rpartition(".")[2] if operation is not None else "SUM"]
            total = tensor.numpy()
            for rank in self.ranks[1:]:
                other = tensor.clone()
                self.sockets.receive(other, rank).wait()
                total = reduce(total, other.numpy())
            set_value(tensor, np.asarray(total))
        else:
            self.sockets.send(tensor, self.ranks[0]).wait()
        return self.broadcast(tensor, 0)

    broadcast_on_calc_stream, all_reduce_on_calc_stream = broadcast, all_reduce

    def barrier(self, *_):
        return self.all_reduce(paddle.zeros([1]))


def set_value(tensor, array):
    """Copy an array into a tensor."""
    tensor.get_tensor().set(array.reshape(tensor.shape), paddle.CPUPlace())


def replace_device(rank, count, run):
    """Replace what needs a device; return the sockets, which the end of a training closes."""
    paddle.set_device("cpu")
    distributed.parallel.ParallelEnv._device_id = 0  # missing in a CPU process
    sockets = Sockets(rank, run)
    _replace_synchronize()
    _replace_groups(count, sockets)
    _replace_transfers(sockets)
    with contextlib.suppress(ImportError):
        _replace_streams()
    return sockets


def _replace_synchronize():
    """Wait for a device only where there is one."""
    synchronize = paddle.device.synchronize

    def where_there_is_one(*arguments):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            synchronize(*arguments)

    paddle.device.synchronize = where_there_is_one


def _replace_groups(count, sockets):
    """Make every process group one over sockets. Only the function that requests a group knows all of its ranks."""
    new_group = collective.new_group
    requested = []

    def request(ranks=None, *arguments, **named):
        requested.append(sorted(ranks) if ranks is not None else list(range(count)))
        try:
            return new_group(ranks, *arguments, **named)
        finally:
            requested.pop()

    def make(_backend, _store, index, *_, **__):
        return Group(requested[-1] if requested else list(range(count)), index, sockets)

    collective._new_process_group_impl = parallel._new_process_group_impl = make
    collective.new_group = distributed.new_group = request


def _replace_transfers(sockets):
    """Transfer through the sockets."""

    def isend(tensor, dst=0, group=None):
        del group
        return sockets.send(tensor, dst)

    def irecv(tensor, src=0, group=None):
        del group
        return sockets.receive(tensor, src)

    def send(tensor, dst=0, group=None, sync_op=True):  # noqa: FBT002  # the signature is Paddle's
        del sync_op
        return isend(tensor, dst, group)

    def recv(tensor, src=0, group=None, sync_op=True):  # noqa: FBT002
        task = irecv(tensor, src, group)
        if sync_op:
            task.wait()
        return task

    def exchange(operations):
        """Start all transfers of a batch, then wait for the receives."""
        sends = [each for each in operations if each.op is p2p_communication._send_on_calc_stream]
        receives = [each for each in operations if each not in sends]
        for each in sends:
            sockets.send(each.tensor, each.peer)
        for task in [sockets.receive(each.tensor, each.peer) for each in receives]:
            task.wait()

    distributed.isend, distributed.irecv, distributed.send, distributed.recv = isend, irecv, send, recv
    if hasattr(p2p_communication, "batch_send_recv_on_calc_stream"):
        p2p_communication.batch_send_recv_on_calc_stream = exchange
    batches = sys.modules["paddle.distributed.communication.batch_isend_irecv"]
    batches._coalescing_manager = lambda *_: contextlib.nullcontext()


def _replace_streams():
    """Give DualPipeV a stream to name. Raises ImportError where Paddle does not have it (before 3.1)."""
    from paddle.distributed.fleet.meta_parallel import dualpipev  # noqa: PLC0415

    class Stream:
        stream_base = None

    class Events:
        get_event_from_custom_stream = staticmethod(lambda _: None)

    paddle.device.current_stream = lambda *_: Stream
    if getattr(dualpipev, "deep_ep", Events) is None:  # 3.2 and newer
        dualpipev.deep_ep = Events
