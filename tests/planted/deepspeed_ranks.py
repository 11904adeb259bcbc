"""Trains with DeepSpeed's pipeline engine on CPUs. Usage: PLANT=... fork_ranks.py 4 deepspeed_ranks.py"""

from __future__ import annotations

import os
from importlib import import_module

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

from planted.plants import MICROBATCHES, REPLICAS, ROWS, STAGES, STEPS, Diary, Stage, loader


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    import_module("deepspeed.comm.torch").build_shm_op = lambda: (
        None
    )  # compiles for 40 s and is not used here
    deepspeed.init_distributed("gloo")
    replica = dist.get_rank() % REPLICAS
    layers = [LayerSpec(Stage, stage, replica) for stage in range(STAGES)]
    module = PipelineModule(
        layers=layers, num_stages=STAGES, loss_fn=nn.MSELoss(), partition_method="uniform"
    )
    weights = [weight for name, weight in module.named_parameters() if "heavy" not in name]
    engine, *_ = deepspeed.initialize(
        model=module,
        model_parameters=weights,
        config={
            "train_batch_size": REPLICAS * ROWS * MICROBATCHES,
            "train_micro_batch_size_per_gpu": ROWS,
            "gradient_accumulation_steps": MICROBATCHES,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "steps_per_print": 1000,
        },
    )
    stage = engine.stage_id
    diary = Diary(dist.get_rank(), stage, replica)
    batches = ((batch, torch.zeros_like(batch)) for batch in loader(stage, replica, parts=MICROBATCHES))
    for _ in range(STEPS):
        diary.begin()
        diary.losses.append(engine.train_batch(data_iter=batches))
        diary.pause()
    diary.write()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
