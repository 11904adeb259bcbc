"""The structure of megatron/core/pipeline_parallel/p2p_communication.py."""

from __future__ import annotations

WAITED: list[str] = []


class Tensor:
    """Four elements of two bytes."""

    requires_grad = True
    nbytes = 8

    def numel(self):
        return 4

    def element_size(self):
        return 2


class Work:
    def __init__(self, name):
        self.name = name

    def wait(self):
        WAITED.append(self.name)
        return True

    def is_completed(self):
        return "asked"


class Group:
    def __init__(self, rank, size):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


def _present(tensors):
    return [name.removeprefix("tensor_") for name, tensor in tensors.items() if tensor is not None]


def _batched_p2p_ops(
    *,
    tensor_send_prev,
    tensor_recv_prev,
    tensor_send_next,
    tensor_recv_next,
    group,
    prev_pipeline_rank,
    next_pipeline_rank,
):
    del group, prev_pipeline_rank, next_pipeline_rank
    names = _present({
        "tensor_send_prev": tensor_send_prev, "tensor_recv_prev": tensor_recv_prev,
        "tensor_send_next": tensor_send_next, "tensor_recv_next": tensor_recv_next,
    })  # fmt: skip
    return [Work("+".join(names))] if names else []  # like NCCL: one handle for the whole batch


def _p2p_ops(
    *,
    tensor_send_prev,
    tensor_recv_prev,
    tensor_send_next,
    tensor_recv_next,
    group,
    prev_pipeline_rank,
    next_pipeline_rank,
):
    del group, prev_pipeline_rank, next_pipeline_rank
    names = _present({
        "tensor_send_prev": tensor_send_prev, "tensor_recv_prev": tensor_recv_prev,
        "tensor_send_next": tensor_send_next, "tensor_recv_next": tensor_recv_next,
    })  # fmt: skip
    return {name: Work(name) for name in names}


class P2PCommunicator:
    def __init__(self, rank, size):
        self.pp_group = Group(rank, size)
        self.prev_rank, self.next_rank = 10 * ((rank - 1) % size), 10 * ((rank + 1) % size)

    def communicate(
        self, *, batched, send_next=None, send_prev=None, recv_prev=False, recv_next=False, wait=True
    ):
        received = [Tensor() if wanted else None for wanted in (recv_prev, recv_next)]
        handles = (_batched_p2p_ops if batched else _p2p_ops)(
            tensor_send_prev=send_prev,
            tensor_recv_prev=received[0],
            tensor_send_next=send_next,
            tensor_recv_next=received[1],
            group=self.pp_group,
            prev_pipeline_rank=self.prev_rank,
            next_pipeline_rank=self.next_rank,
        )
        if wait:
            for handle in handles if isinstance(handles, list) else handles.values():
                handle.wait()
        return (*received, handles)
