"""A training with Megatron-core that logs inside the model what it computes when.

It runs on CPUs with gloo, for which three places in Megatron-core 0.16.1 that name "cuda" are changed to "cpu".
Feature 0 of every activation carries the micro-batch's number through all stages. Usage: megatron_training.py OUT
CHUNKS. Started by hand, it imports Megatron once and forks its four ranks.

Outputs are kept alive for interleaved chunks: Megatron frees their memory while gloo is still sending them, and the
received data then varies from run to run.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.enums import ModelType
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

import fork_ranks
from cpu_for_cuda import CpuForCuda, pretend_a_gpu
from probes import ProbeOutput, finish

RANKS = 4
MICROBATCHES = 8
STEPS = 3
LENGTH, ROWS, WIDTH = 4, 2, 16

pretend_a_gpu()


class Block(nn.Module):
    """One model chunk; its stage is its position in the loop around all ranks."""

    def __init__(self, config, chunk, chunks):
        super().__init__()
        self.linear = nn.Linear(WIDTH - 1, WIDTH - 1)
        self.config = config
        self.model_type = ModelType.encoder_or_decoder
        self.vp_stage = chunk if chunks > 1 else None
        self.stage = chunk * RANKS + dist.get_rank()
        self.pre_process, self.post_process = self.stage == 0, self.stage == chunks * RANKS - 1
        self.share_embeddings_and_output_weights = False
        self.received = None

    def set_input_tensor(self, tensor):
        self.received = tensor[0] if isinstance(tensor, (list, tuple)) else tensor

    def forward(self, batch):
        value = batch if self.received is None else self.received
        out = ProbeOutput.apply(
            torch.tanh(self.linear(value[..., 1:])), self.stage, round(float(value[0, 0, 0]))
        )
        return torch.cat([value[..., :1], out], dim=-1)


def forward_step(batches, model):
    def loss(out):
        value = out[..., 1:].pow(2).mean()
        return value, {"loss": float(value.detach())}

    return model(next(batches)), loss


def batches_of(chunks):
    """The same batches for every step. Each chunk has its own iterator, and only stage 0 reads it."""
    batches = torch.randn(MICROBATCHES, LENGTH, ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    batches[..., 0] = torch.arange(float(MICROBATCHES)).view(-1, 1, 1)
    iterators = [itertools.cycle(batches) for _ in range(chunks)]
    return iterators if chunks > 1 else iterators[0]


def train(chunks):
    sizes = {"pipeline_model_parallel_size": RANKS}
    if chunks > 1:
        sizes["virtual_pipeline_model_parallel_size"] = chunks
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False, **sizes)
    config = TransformerConfig(
        num_layers=RANKS * chunks, hidden_size=WIDTH, num_attention_heads=1, pipeline_dtype=torch.float32,
        batch_p2p_sync=False, use_cpu_initialization=True, deallocate_pipeline_outputs=chunks == 1,
        overlap_p2p_comm=chunks > 1, batch_p2p_comm=chunks == 1, **sizes,
    )  # fmt: skip
    models = [Block(config, chunk, chunks) for chunk in range(chunks)]
    models = [DistributedDataParallel(config, DistributedDataParallelConfig(), model) for model in models]
    config.finalize_model_grads_func = finalize_model_grads
    settings = OptimizerConfig(optimizer="sgd", lr=0.1, clip_grad=0.0, use_distributed_optimizer=False)
    optimizer = get_megatron_optimizer(settings, models, use_gloo_process_groups=False)
    run = get_forward_backward_func()
    losses = []
    for step in range(STEPS):
        arguments = {
            "forward_step_func": forward_step, "data_iterator": batches_of(chunks),
            "model": models if chunks > 1 else models[0], "num_microbatches": MICROBATCHES,
            "seq_length": LENGTH, "micro_batch_size": ROWS,
        }  # fmt: skip
        for model in models:
            model.zero_grad_buffer()
        optimizer.zero_grad()
        losses += [one["loss"] for one in run(**arguments, forward_only=False)]
        optimizer.step()
        if step == 0:
            with torch.no_grad():
                run(**arguments, forward_only=True)
    return losses


def main():
    out, chunks = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    with CpuForCuda():
        losses = train(chunks)
    finish(out, losses)


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if "RANK" in os.environ:
        main()
    else:
        sys.argv = ["fork_ranks.py", str(RANKS), *sys.argv]
        fork_ranks.main()
