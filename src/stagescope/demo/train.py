"""Train a small model as a real pipeline on local processes: torchrun --nproc-per-node 4 train.py --schedule 1F1B.

The model learns a fixed linear map through tanh blocks. To get a textbook timeline from four stages on two cores,
each block also sleeps: in its forward pass, in the backward pass to its input, and where it computes the weight
gradient. Sleeping replaces the work of a device without using a core.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

V_SHAPED = ("ZBVZeroBubble", "DualPipeV")


class SleepOnOutput(torch.autograd.Function):
    """Identity that sleeps in the forward pass and, on every stage, in the backward pass to the input."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return grad, None


class SleepOnWeight(torch.autograd.Function):
    """Identity that sleeps where the weight gradient is computed."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return grad, None


class Block(nn.Module):
    """A linear layer with tanh that takes at least `seconds` for each of F, I and W."""

    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds = seconds

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        weight = SleepOnWeight.apply(self.linear.weight, self.seconds)
        value = SleepOnOutput.apply(nn.functional.linear(value, weight, self.linear.bias), self.seconds)
        return torch.tanh(value)  # last: torch splits the backward pass only if the output is not a view


def parse_arguments() -> argparse.Namespace:
    """Return the options of the training."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=8, help="rows of one micro-batch")
    parser.add_argument("--work-ms", type=float, default=25.0, help="sleep of a rank in each of F, I and W")
    return parser.parse_args()


def stage_indices(schedule: str, rank: int, ranks: int) -> list[int]:
    """Return the global stages of one rank: a single one, two in a loop, or two in a V."""
    if schedule in V_SHAPED:
        return [rank, 2 * ranks - 1 - rank]
    if issubclass(schedules.get_schedule_class(schedule), schedules.PipelineScheduleMulti):
        return [rank, rank + ranks]
    return [rank]


def build(options: argparse.Namespace) -> tuple[Any, list[PipelineStage], torch.optim.Optimizer]:
    """Return the schedule, the stages of this rank, and the optimizer of their weights."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    indices = stage_indices(options.schedule, rank, ranks)
    seconds = options.work_ms / 1e3 / len(indices)
    blocks = [Block(options.width, seconds) for _ in indices]
    stages = [
        PipelineStage(block, index, ranks * len(indices), torch.device("cpu"))
        for block, index in zip(blocks, indices, strict=True)
    ]
    schedule_class = schedules.get_schedule_class(options.schedule)
    is_multi = issubclass(schedule_class, schedules.PipelineScheduleMulti)
    schedule = schedule_class(
        stages if is_multi else stages[0], n_microbatches=options.microbatches, loss_fn=nn.MSELoss()
    )
    weights = [weight for block in blocks for weight in block.parameters()]
    return schedule, stages, torch.optim.SGD(weights, lr=0.5)


def train(options: argparse.Namespace) -> float | None:
    """Run the steps; return the last loss on the rank that has it, None on the others."""
    torch.manual_seed(0)
    schedule, stages, optimizer = build(options)
    batch = torch.randn(options.microbatches * options.rows, options.width)
    target = torch.tanh(batch @ torch.randn(options.width, options.width) / options.width**0.5)
    is_first = any(stage.is_first for stage in stages)
    is_last = any(stage.is_last for stage in stages)
    loss = None
    for _ in range(options.steps):
        losses: list[torch.Tensor] = []
        inputs = (batch,) if is_first else ()
        schedule.step(*inputs, **({"target": target, "losses": losses} if is_last else {}))
        optimizer.step()
        optimizer.zero_grad()
        if losses:
            loss = torch.stack(losses).mean().item()
    return loss


def main() -> None:
    """Train, and print the loss on the rank that has it."""
    options = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    loss = train(options)
    if loss is not None:
        print(f"{options.schedule}: loss {loss:.6f} after {options.steps} steps")  # noqa: T201  # the output of a script
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
