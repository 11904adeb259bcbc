"""Trains with Megatron-core's 1F1B on CPUs. Usage: PLANT=... fork_ranks.py 4 megatron_ranks.py"""

from __future__ import annotations

import os
from importlib import import_module

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

from cpu_for_cuda import CpuForCuda, pretend_a_gpu
from planted.plants import MICROBATCHES, ROWS, STAGES, STEPS, WIDTH, Diary, Stage, loader

pretend_a_gpu()
# It accepts gradients on GPUs only. The norm, which all ranks reduce, has been computed before.
import_module("megatron.core.optimizer.optimizer").clip_grad_by_total_norm_fp32 = lambda *_, **__: None


class Model(nn.Module):
    """A stage with what the schedule asks of a model."""

    def __init__(self, config, stage, replica):
        super().__init__()
        self.layers = Stage(stage, replica)
        self.config = config
        self.model_type = ModelType.encoder_or_decoder
        self.vp_stage = None
        self.pre_process, self.post_process = stage == 0, stage == STAGES - 1
        self.share_embeddings_and_output_weights = False
        self.received = None

    def set_input_tensor(self, tensor):
        self.received = tensor[0] if isinstance(tensor, (list, tuple)) else tensor

    def forward(self, batch):
        return self.layers(batch if self.received is None else self.received)


def forward_step(batches, model):
    def loss(out):
        value = out.pow(2).mean()
        return value, {"loss": value.detach()}

    return model(next(batches).view(1, ROWS, WIDTH)), loss


def make(stage, replica):
    """Return the model, its optimizer and the configuration of the run."""
    sizes = {"pipeline_model_parallel_size": STAGES}
    config = TransformerConfig(
        num_layers=STAGES, hidden_size=WIDTH, num_attention_heads=1, pipeline_dtype=torch.float32,
        batch_p2p_sync=False, use_cpu_initialization=True, deallocate_pipeline_outputs=True, **sizes,
    )  # fmt: skip
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), Model(config, stage, replica))
    config.finalize_model_grads_func = finalize_model_grads
    settings = OptimizerConfig(optimizer="sgd", lr=0.1, clip_grad=1.0, use_distributed_optimizer=False)
    return model, get_megatron_optimizer(settings, [model], use_gloo_process_groups=False)


def train():
    parallel_state.initialize_model_parallel(
        create_gloo_process_groups=False, pipeline_model_parallel_size=STAGES
    )
    stage = parallel_state.get_pipeline_model_parallel_rank()
    replica = parallel_state.get_data_parallel_rank()
    model, optimizer = make(stage, replica)
    run = get_forward_backward_func()
    diary = Diary(dist.get_rank(), stage, replica)
    batches = iter(loader(stage, replica, parts=MICROBATCHES))
    for _ in range(STEPS):
        diary.begin()
        model.zero_grad_buffer()
        optimizer.zero_grad()
        reduced = run(
            forward_step_func=forward_step, data_iterator=batches, model=model,
            num_microbatches=MICROBATCHES, seq_length=1, micro_batch_size=ROWS, forward_only=False,
        )  # fmt: skip
        diary.losses += [one["loss"] for one in reduced]
        diary.pause()
        optimizer.step()
    return diary


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    with CpuForCuda():
        diary = train()
    diary.write()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
