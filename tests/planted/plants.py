"""What is planted in the real trainings of this folder, and the models and data that all of them share.

Every training has two pipelines (replicas) of two stages. Work is sleep, which needs no processor: four ranks have the
times of a textbook on any machine. What is planted is not sleep where the real thing can be had: the reduction is slow
because a stage has more gradients, and the garbage collector is what pauses a forward.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLANT = os.environ.get("PLANT", "none")
"""What is planted in this training: none, reduction, late, loader or pause."""

STAGES, REPLICAS = 2, 2
MICROBATCHES, ROWS, WIDTH, STEPS = 4, 2, 16, 8
FORWARD_S, BACKWARD_S = 0.01, 0.02
LATE_S, LOADING_S, PAUSE_S = 0.08, 0.08, 0.1
HEAVY_WEIGHTS = 12_000_000
PAUSES_NS: list[int] = []
"""How long the garbage collections took that this rank was made to do."""

PLACES = {"reduction": (1, None), "late": (0, 1), "loader": (0, 1), "pause": (1, 0)}
"""The stage and the replica of what is planted; None is both replicas."""


def is_here(plant: str, stage: int, replica: int) -> bool:
    """Return whether this is what is planted, and where."""
    planted_stage, planted_replica = PLACES[plant]
    return plant == PLANT and stage == planted_stage and planted_replica in (None, replica)


class Work(torch.autograd.Function):
    """Sleeps in the forward and in the backward of an activation."""

    @staticmethod
    def forward(ctx, value):  # noqa: ARG004
        time.sleep(FORWARD_S)
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):  # noqa: ARG004
        time.sleep(BACKWARD_S)
        return gradient


class Heavy(torch.autograd.Function):
    """Passes a value through; `weights` have a gradient in the last backward of a step."""

    @staticmethod
    def forward(ctx, value, weights, backwards):
        ctx.weights, ctx.backwards = weights, backwards
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.backwards.append(None)
        is_last = len(ctx.backwards) % MICROBATCHES == 0
        return gradient, torch.zeros_like(ctx.weights) if is_last else None, None


class Cycle:
    """Garbage that takes its time."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        time.sleep(PAUSE_S)


class Stage(nn.Module):
    """The layers of one stage."""

    def __init__(self, stage, replica):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.has_pause = is_here("pause", stage, replica)
        self.is_heavy = is_here("reduction", stage, replica)
        if self.is_heavy:
            self.heavy = nn.Parameter(torch.zeros(HEAVY_WEIGHTS))
        self.forwards, self.backwards = 0, []

    def forward(self, value):
        value = torch.tanh(self.linear(value))
        self.forwards += 1
        if self.has_pause and self.forwards % MICROBATCHES == 3:
            Cycle()
            start_ns = time.monotonic_ns()
            gc.collect()
            PAUSES_NS.append(time.monotonic_ns() - start_ns)
        if self.is_heavy:
            value = Heavy.apply(value, self.heavy, self.backwards)
        return Work.apply(value)


class Batches(Dataset):
    """Batches, each of which takes a while to load."""

    def __init__(self, count, rows, seconds):
        self.count, self.rows, self.seconds = count, rows, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.randn(self.rows, WIDTH, generator=torch.Generator().manual_seed(index))


def loader(stage, replica, *, parts=1):
    """Return a DataLoader of batches, or of the `parts` of each batch."""
    seconds = LOADING_S if is_here("loader", stage, replica) else 0
    return DataLoader(
        Batches((STEPS + 1) * parts, MICROBATCHES * ROWS // parts, seconds / parts), batch_size=None
    )


class Diary:
    """When the steps of a rank began, and its losses."""

    def __init__(self, rank, stage, replica):
        self.rank, self.stage, self.replica = int(rank), int(stage), int(replica)
        self.starts_ns, self.losses = [], []

    def begin(self):
        self.starts_ns.append(time.monotonic_ns())

    def pause(self):
        """Sleep between the gradients and the optimizer, if this rank is the late one."""
        if is_here("late", self.stage, self.replica):
            time.sleep(LATE_S)

    def write(self):
        """Print all in one write, because all ranks write to one pipe."""
        losses = [float(loss.detach()) for loss in self.losses]
        facts = {**vars(self), "losses": losses, "pauses_ns": PAUSES_NS}
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
