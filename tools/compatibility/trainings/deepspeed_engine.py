"""Trains with the pipeline engine of DeepSpeed, over gloo on CPUs.

Usage: deepspeed_engine.py [--dualpipev]
"""

from __future__ import annotations

import argparse
import itertools
import os
import warnings
from importlib import import_module

warnings.simplefilter("ignore")
os.environ.update(DS_ACCELERATOR="cpu", DS_SKIP_CUDA_CHECK="1")

import deepspeed  # noqa: E402  # reads the variables above
import ranks  # noqa: E402
import torch  # noqa: E402
from deepspeed.pipe import LayerSpec, PipelineModule  # noqa: E402
from torch import nn  # noqa: E402

RANKS, MICROBATCHES, STEPS = 4, 8, 3
ROWS, WIDTH = 2, 16


class Block(nn.Module):
    """A linear layer with tanh."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        return torch.tanh(self.linear(value))


def settings():
    """Return the configuration of the engine."""
    return {
        "train_batch_size": ROWS * MICROBATCHES,
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": MICROBATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }


def train(rank, *, is_v_shaped):
    """Train as one of the ranks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    backend = import_module("deepspeed.comm.torch")
    if hasattr(backend, "build_shm_op"):
        backend.build_shm_op = lambda: None  # compiles an all-reduce over shared memory, which takes a minute
    deepspeed.init_distributed("gloo")
    own = [rank, 2 * RANKS - 1 - rank] if is_v_shaped else [rank]
    ranks.plan(rank, own, MICROBATCHES, steps=STEPS, backward="full")
    kind = deepspeed.DualPipeVModule if is_v_shaped else PipelineModule
    model = kind(
        layers=[LayerSpec(Block) for _ in range(RANKS * 2)], num_stages=RANKS, loss_fn=nn.MSELoss(),
        partition_method="uniform",
    )  # fmt: skip
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=settings()
    )
    values = torch.randn(MICROBATCHES, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    for step in range(STEPS):
        batches = itertools.cycle([(each, torch.zeros_like(each)) for each in values])
        loss = engine.train_batch(data_iter=batches)
        ranks.value(rank, step, float(loss), (each.detach().numpy() for each in model.parameters()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dualpipev", action="store_true", help="two stages per rank in a V")
    arguments = parser.parse_args()
    ranks.versions("deepspeed", deepspeed.__version__, "torch", torch.__version__)
    ranks.start(RANKS, lambda rank: train(rank, is_v_shaped=arguments.dualpipev))
