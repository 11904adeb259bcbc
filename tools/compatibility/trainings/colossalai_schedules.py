"""Trains with a pipeline schedule of ColossalAI, over gloo on CPUs.

Usage: colossalai_schedules.py 1f1b|interleaved|zbv

Packages that ColossalAI imports for models and data are replaced; see empty_packages.py.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import warnings

import ranks
import torch
import torch._dynamo  # before the replacements below, which it would take for the real packages
import torch.distributed as dist
from empty_packages import replace_packages
from torch import nn

warnings.simplefilter("ignore")

replace_packages()
if not hasattr(dist, "is_hccl_available"):
    dist.is_hccl_available = lambda: False  # in a fork of torch for another device

import colossalai  # noqa: E402
from colossalai.cluster import ProcessGroupMesh  # noqa: E402
from colossalai.interface import OptimizerWrapper  # noqa: E402
from colossalai.pipeline import schedule as schedules  # noqa: E402
from colossalai.pipeline.schedule.v_schedule import PipelineGraph  # noqa: E402
from colossalai.pipeline.stage_manager import PipelineStageManager  # noqa: E402
from colossalai.pipeline.weight_grad_store import WeightGradStore  # noqa: E402

RANKS, MICROBATCHES, STEPS = 4, 8, 3
ROWS, WIDTH = 2, 16
BACKWARD = {"1f1b": "full", "interleaved": "full", "zbv": "split"}


class Again(dist.Work):
    """A handle that can be waited for again, like those of NCCL: the V schedule waits for earlier ones too."""

    def __init__(self, work):
        super().__init__()
        self.work = work

    def wait(self, *arguments):
        if self.work is not None:
            self.work.wait(*arguments)
            self.work = None
        return True

    def is_completed(self):
        return self.work is None or self.work.is_completed()


KEPT: list[tuple] = []


def keep_until_sent():
    """Send a copy of every tensor, and keep it with its handle until the step ends.

    ColossalAI frees what it sends and drops the handles. NCCL keeps both; gloo would send freed memory, or nothing.
    """
    issue = dist.batch_isend_irecv

    def kept(operations):
        for each in operations:
            if each.op is dist.isend:
                each.tensor = each.tensor.clone()
        works = [Again(work) for work in issue(operations)]
        KEPT.append((operations, works))
        return works

    dist.batch_isend_irecv = kept


class SplitLinear(torch.autograd.Function):
    """A linear map whose weight gradient is stored for later, as in ColossalAI's own layers."""

    @staticmethod
    def forward(ctx, value, weight):
        ctx.save_for_backward(value)
        ctx.weight = weight
        return value @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        (value,) = ctx.saved_tensors

        def weight_gradient(value, grad, total=None):
            product = grad.t() @ value
            return product if total is None else total.add_(product)

        WeightGradStore.put(value.detach(), grad.detach(), ctx.weight, weight_gradient)
        return grad @ ctx.weight, None


class Chunk(nn.Module):
    """One model chunk with the inputs and outputs of a sharded model; the last one returns its result as it is."""

    def __init__(self, schedule, *, is_last):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.is_split, self.is_last = schedule == "zbv", is_last

    def forward(self, data=None, hidden_states=None, **_):
        value = torch.tanh(data if hidden_states is None else hidden_states)
        # The linear map is last, because the schedule frees the output while tanh would need it.
        value = SplitLinear.apply(value, self.linear.weight) if self.is_split else self.linear(value)
        return value if self.is_last else {"hidden_states": value}


class Both(nn.ModuleList):
    """Both chunks of a rank in a V: this schedule calls the model with the index of the chunk."""

    no_sync = staticmethod(contextlib.nullcontext)

    def forward(self, *arguments, stage_index=None, **named):
        return self[stage_index[0]](*arguments, **named)


def mean_square(output, _):
    """Return the loss of a micro-batch."""
    return (output if torch.is_tensor(output) else output["hidden_states"]).pow(2).mean()


def make_stages(schedule, chunks):
    """Return ColossalAI's description of the stages, without a sharding policy, which would set the indices."""
    options = {"enable_interleave": chunks > 1, "num_model_chunks": chunks, "use_zbv": schedule == "zbv"}
    known = inspect.signature(PipelineStageManager).parameters
    mesh = ProcessGroupMesh(1, 1, RANKS, 1)
    manager = PipelineStageManager(mesh, 2, **{name: options[name] for name in options if name in known})
    manager.stage_indices = [(chunk, chunk + 1) for chunk in range(chunks)]
    return manager


def make_schedule(name, manager):
    """Return the schedule."""
    if name == "1f1b":
        return schedules.OneForwardOneBackwardSchedule(manager, num_microbatches=MICROBATCHES)
    sizes = {"num_model_chunks": 2, "num_microbatch": MICROBATCHES, "overlap_p2p": True}
    if name == "interleaved":
        return schedules.InterleavedSchedule(manager, **sizes)
    costs = {"f_cost": 6, "b_cost": 6, "w_cost": 6, "c_cost": 6, "f_mem": 4, "b_mem": -2, "w_mem": -2}
    graph = PipelineGraph(n_stage=RANKS, n_micro=MICROBATCHES, **costs)
    return schedules.ZeroBubbleVPipeScheduler(schedule=graph.get_v_schedule(), stage_manager=manager, **sizes)


def train(rank, name):
    """Train as one of the ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    second = {"1f1b": [], "interleaved": [rank + RANKS], "zbv": [2 * RANKS - 1 - rank]}
    own = [rank, *second[name]]
    ranks.plan(rank, own, MICROBATCHES, steps=STEPS, backward=BACKWARD[name])
    count = RANKS * len(own)
    chunks = [Chunk(name, is_last=stage == count - 1) for stage in range(count)]
    both = Both if name == "zbv" else nn.ModuleList
    model = both([chunks[stage] for stage in own]) if len(own) > 1 else chunks[rank]
    schedule = make_schedule(name, make_stages(name, len(own)))
    optimizer = OptimizerWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    inputs = torch.randn(MICROBATCHES * ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    for step in range(STEPS):
        result = schedule.forward_backward_step(
            model, iter([{"data": inputs}]), mean_square, optimizer, return_loss=True, return_outputs=False
        )
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        KEPT.clear()
        ranks.value(rank, step, result.get("loss"), (each.detach().numpy() for each in model.parameters()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("schedule", choices=tuple(BACKWARD))
    arguments = parser.parse_args()
    keep_until_sent()
    ranks.versions("colossalai", colossalai.__version__, "torch", torch.__version__)
    ranks.start(RANKS, lambda rank: train(rank, arguments.schedule))
