"""Run under real Paddle: replicas of one stage, whose gradients Paddle itself reduces, with marked actions.

    python -m paddle.distributed.launch --nproc_per_node 2 --backend gloo replicated.py OUT WAY STEPS

WAY is replicated (``paddle.DataParallel``), unused (the same, with parameters that get no gradient), sharded (sharding
stage 2), direct (the same without buffers) or sliced (sharding stage 3, of the weights without the biases). The last
rank comes late to each backward.
"""

import json
import sys
import time
from pathlib import Path

import mends
import paddle
from paddle import distributed, nn
from paddle.distributed.fleet.meta_parallel.sharding import (
    group_sharded_optimizer_stage2,
    group_sharded_stage2,
    group_sharded_stage3,
)

from stagescope import record

OUT, WAY, STEPS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
WIDTH, LAYERS, MICROBATCHES, LATE_S = 16, 4, 2, 0.1


class Net(nn.Layer):
    """Linear layers, and one that is not used if the way asks for it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        self.unused = nn.Linear(WIDTH, WIDTH) if WAY == "unused" else None

    def forward(self, value):
        return self.layers(value)


def sharded(model, optimizer):
    with mends.sharding_on_a_cpu():
        shards = group_sharded_optimizer_stage2.GroupShardedOptimizerStage2(
            params=model.parameters(), optim=optimizer, group=distributed.new_group([0, 1]), device="cpu"
        )
    size = 0 if WAY == "direct" else 2**23
    return group_sharded_stage2.GroupShardedStage2(
        model, shards, group=shards._group, device="cpu", buffer_max_size=size
    ), shards


def wrapped(model, optimizer):
    if WAY in {"replicated", "unused"}:
        return paddle.DataParallel(model, find_unused_parameters=WAY == "unused"), optimizer
    if WAY == "sliced":
        with mends.sharding_on_a_cpu():
            return group_sharded_stage3.GroupShardedStage3(
                model, optimizer, group=distributed.new_group([0, 1]), device="cpu", segment_size=WIDTH
            ), optimizer
    return sharded(model, optimizer)


def main():
    mends.mend()
    distributed.init_parallel_env()
    rank = distributed.get_rank()
    paddle.seed(1)
    model = Net()
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    model, optimizer = wrapped(model, optimizer)
    losses = []
    for _ in range(STEPS):
        with record.step():
            for microbatch in range(MICROBATCHES):
                inputs = paddle.ones([4, WIDTH]) * (rank + 1 + microbatch)
                with record.forward(microbatch=microbatch, stage=0):
                    loss = forward(model, inputs, is_last=microbatch == MICROBATCHES - 1)
                time.sleep(LATE_S * rank)
                with record.backward(microbatch=microbatch, stage=0):
                    loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.clear_grad()
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"rank{rank}.json").write_text(json.dumps(losses), encoding="utf-8")


def forward(model, inputs, *, is_last):
    if not is_last and isinstance(model, paddle.DataParallel):
        with model.no_sync():
            return model(inputs).square().mean()
    return model(inputs).square().mean()


main()
