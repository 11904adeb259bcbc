"""A pipeline training that logs inside the model what it computes when: the truth for a recording.

Column 0 of every activation carries the micro-batch's number through all stages, so the autograd functions below know
their micro-batch, whatever the schedule is. Usage: fork_ranks.py 4 probed_training.py SCHEDULE OUT [STEPS]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from probes import ProbeOutput, finish, log_work

MICROBATCHES = 8
ROWS = 2
WIDTH = 8
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


class ProbeWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight, stage, microbatch):
        ctx.action = (stage, microbatch)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, grad):
        log_work("weight gradient", *ctx.action)
        return grad, None, None


class Block(nn.Module):
    def __init__(self, stage):
        super().__init__()
        self.linear = nn.Linear(WIDTH - 1, WIDTH - 1)
        self.stage = stage

    def forward(self, value):
        # Shapes are inferred with meta tensors or with uninitialized ones.
        number = -1.0 if value.is_meta else float(value[0, 0].detach())
        microbatch = round(number) if 0 <= number < MICROBATCHES else -1
        weight = ProbeWeight.apply(self.linear.weight, self.stage, microbatch)
        out = nn.functional.linear(value[:, 1:], weight, self.linear.bias)
        out = ProbeOutput.apply(out, self.stage, microbatch, "input gradient")
        return torch.cat([value[:, :1], torch.tanh(out)], dim=1)


def build_stages(name, rank, ranks):
    schedule_class = schedules.get_schedule_class(name)
    if name in V_SHAPED:
        indices = [rank, 2 * ranks - 1 - rank]
    elif issubclass(schedule_class, schedules.PipelineScheduleMulti):
        indices = [rank, rank + ranks]
    else:
        indices = [rank]
    stages = [
        PipelineStage(Block(index), index, ranks * len(indices), torch.device("cpu")) for index in indices
    ]
    return schedule_class, stages


def join_pipeline(name, loss_fn=None):
    """Return the schedule, its stages and their weights, in the process group of all ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    schedule_class, stages = build_stages(name, dist.get_rank(), dist.get_world_size())
    many = issubclass(schedule_class, schedules.PipelineScheduleMulti)
    schedule = schedule_class(stages if many else stages[0], MICROBATCHES, loss_fn=loss_fn or nn.MSELoss())
    return schedule, stages, [weight for stage in stages for weight in stage.submod.parameters()]


def make_batch():
    batch = torch.randn(MICROBATCHES * ROWS, WIDTH)
    batch[:, 0] = torch.arange(MICROBATCHES).repeat_interleave(ROWS)
    return batch


def main():
    name, out, steps = sys.argv[1], Path(sys.argv[2]), int((*sys.argv[3:], "3")[0])
    schedule, stages, weights = join_pipeline(name)
    optimizer = torch.optim.SGD(weights, lr=0.1)
    batch = make_batch()
    losses_seen = []
    for _ in range(steps):
        losses = []
        last = any(stage.is_last for stage in stages)
        inputs = (batch,) if any(stage.is_first for stage in stages) else ()
        schedule.step(*inputs, **({"target": torch.zeros_like(batch), "losses": losses} if last else {}))
        optimizer.step()
        optimizer.zero_grad()
        losses_seen += [float(torch.stack(losses).mean().detach())] if losses else []
    finish(out, losses_seen)


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
