"""A training with one of DeepSpeed's pipeline engines on CPUs that logs what it computes when.

Feature 0 of every activation carries the micro-batch's number through all stages. Usage: DS_ACCELERATOR=cpu
deepspeed_training.py OUT [dualpipev]. Started by hand, it imports DeepSpeed once and forks its four ranks.
"""

from __future__ import annotations

import itertools
import os
import sys
from importlib import import_module
from pathlib import Path

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

import fork_ranks
from probes import ProbeOutput, finish

RANKS = 4
MICROBATCHES = 8
STEPS = 3
ROWS, WIDTH = 2, 16


class Block(nn.Module):
    def __init__(self, stage):
        super().__init__()
        self.linear = nn.Linear(WIDTH - 1, WIDTH - 1)
        self.stage = stage

    def forward(self, value):
        out = ProbeOutput.apply(torch.tanh(self.linear(value[:, 1:])), self.stage, round(float(value[0, 0])))
        return torch.cat([value[:, :1], out], dim=1)


def batches():
    """The same micro-batches for every step."""
    values = torch.randn(MICROBATCHES, ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    values[..., 0] = torch.arange(float(MICROBATCHES)).view(-1, 1)
    return itertools.cycle([(value, torch.zeros_like(value)) for value in values])


def build(*, dualpipev):
    """Return the model: one stage per rank, in DualPipeV two."""
    stages = 2 * RANKS if dualpipev else RANKS
    layers = [LayerSpec(Block, stage) for stage in range(stages)]
    module = deepspeed.DualPipeVModule if dualpipev else PipelineModule
    return module(layers=layers, num_stages=RANKS, loss_fn=nn.MSELoss(), partition_method="uniform")


def train(*, dualpipev):
    # Otherwise DeepSpeed compiles for 40 s an operator that pipelines do not use. (`deepspeed.comm.torch` as an
    # attribute is torch itself.)
    import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed("gloo")
    model = build(dualpipev=dualpipev)
    config = {
        "train_batch_size": ROWS * MICROBATCHES,
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": MICROBATCHES,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
    losses = []
    for step in range(STEPS):
        losses.append(float(engine.train_batch(data_iter=batches())))
        if step == 0:
            engine.eval_batch(data_iter=batches())
    return losses


def main():
    out = Path(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    losses = train(dualpipev="dualpipev" in sys.argv[2:])
    finish(out, losses)


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "RANK" in os.environ:
        main()
    else:
        sys.argv = ["fork_ranks.py", str(RANKS), *sys.argv]
        fork_ranks.main()
