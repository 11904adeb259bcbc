"""Trains with a schedule of torch.distributed.pipelining, over gloo on CPUs.

Usage: torch_pipelining.py SCHEDULE [--per-edge]
"""

from __future__ import annotations

import argparse

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

RANKS, MICROBATCHES, STEPS = 4, 8, 3
ROWS, WIDTH = 2, 16
V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
BACKWARD = {"InterleavedZeroBubble": "split", "ZBVZeroBubble": "split", "DualPipeV": "mixed"}


class Joined(dist.Work):
    """One handle for a batch of transfers, as NCCL returns for a coalesced batch."""

    def __init__(self, works):
        super().__init__()
        self.works = works

    def wait(self, *arguments):
        done = [work.wait(*arguments) for work in self.works]  # all of them, even after a False
        return all(done)

    def is_completed(self):
        return all(work.is_completed() for work in self.works)


class FromItself(dist.Work):
    """A receive from the rank itself, which NCCL supports and gloo does not."""

    sent: list[torch.Tensor] = []  # noqa: RUF012  # one process is one rank

    def __init__(self, tensor):
        super().__init__()
        self.tensor, self.is_done = tensor, False
        self.receive()

    def receive(self):
        if not self.is_done and self.sent:
            self.tensor.detach().copy_(self.sent.pop(0))
            self.is_done = True

    def wait(self, *_):
        self.receive()
        return self.is_done

    def is_completed(self):
        return self.is_done


def join_batches():
    """Return one handle per batch of transfers, and let a rank send to itself.

    The schedules of torch up to 2.7 keep only the last handle of a batch: correct with NCCL, which returns a single
    one, but gloo returns one per transfer and may cancel those whose handle is dropped. The V schedule of these
    releases also sends from a rank to itself.
    """
    issue = dist.batch_isend_irecv

    def joined(operations):
        own = [operation for operation in operations if operation.peer == dist.get_rank()]
        others = [operation for operation in operations if operation.peer != dist.get_rank()]
        FromItself.sent += [each.tensor.detach().clone() for each in own if each.op is dist.isend]
        received = [FromItself(each.tensor) for each in own if each.op is not dist.isend]
        return [Joined(received + (issue(others) if others else []))]

    dist.batch_isend_irecv = joined


def stages_of(rank, schedule):
    """Return the stages of a rank: one, two in a V, or two in a loop around the ranks."""
    if not issubclass(schedule, schedules.PipelineScheduleMulti):
        return [rank]
    return [rank, 2 * RANKS - 1 - rank if schedule.__name__ in V_SHAPED else rank + RANKS]


def train(rank, options):
    """Train as one of the ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    if options.per_edge:
        import torch.distributed.config as settings  # noqa: PLC0415  # torch 2.14 and newer

        settings.pipeline_per_edge_p2p = True
    schedule = schedules.get_schedule_class(options.schedule)
    own = stages_of(rank, schedule)
    count = RANKS * len(own)
    ranks.plan(rank, own, MICROBATCHES, steps=STEPS, backward=BACKWARD.get(options.schedule, "full"))
    model = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]
    stages = [PipelineStage(model[stage], stage, count, torch.device("cpu")) for stage in own]
    pipeline = schedule(stages if len(own) > 1 else stages[0], MICROBATCHES, loss_fn=nn.MSELoss())
    parameters = [parameter for stage in own for parameter in model[stage].parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    inputs, target = torch.randn(2, MICROBATCHES * ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    for step in range(STEPS):
        losses = []
        optimizer.zero_grad()
        pipeline.step(
            *([inputs] if 0 in own else []),
            **({"target": target, "losses": losses} if count - 1 in own else {}),
        )
        optimizer.step()
        loss = float(sum(losses) / len(losses)) if losses else None
        ranks.value(rank, step, loss, (each.detach().numpy() for each in parameters))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("schedule")
    parser.add_argument("--per-edge", action="store_true", help="a process group per pair of ranks")
    arguments = parser.parse_args()
    if tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 7):
        join_batches()
    ranks.versions("torch", torch.__version__)
    ranks.start(RANKS, lambda rank: train(rank, arguments))
