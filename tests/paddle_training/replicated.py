"""Run under real Paddle: replicas of one stage, whose gradients Paddle itself reduces, with marked actions.

    python -m paddle.distributed.launch --nproc_per_node 2 --backend gloo replicated.py OUT WAY STEPS

WAY is replicated (``paddle.DataParallel``), unused (the same, with parameters that get no gradient), watched (the same
as unused, where the first rank writes its state while it waits), sharded (sharding stage 2), direct (the same without
buffers) or sliced (sharding stage 3, of the weights without the biases). The last rank comes late to each backward.
"""

import json
import sys
import threading
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
from stagescope.record import session
from stagescope.record.process_state import process_state

OUT, WAY, STEPS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
WIDTH, LAYERS, MICROBATCHES, LATE_S = 16, 4, 2, 0.1
UNUSED = {"unused", "watched"}
STATE, LIMIT_S = OUT / "state.json", 60


class Net(nn.Layer):
    """Linear layers, and one that is not used if the way asks for it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        self.unused = nn.Linear(WIDTH, WIDTH) if WAY in UNUSED else None

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
    if WAY == "replicated" or WAY in UNUSED:
        return paddle.DataParallel(model, find_unused_parameters=WAY in UNUSED), optimizer
    if WAY == "sliced":
        with mends.sharding_on_a_cpu():
            return group_sharded_stage3.GroupShardedStage3(
                model, optimizer, group=distributed.new_group([0, 1]), device="cpu", segment_size=WIDTH
            ), optimizer
    return sharded(model, optimizer)


def look():
    """Write the state of this process as soon as it waits below the hooked calls."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        state = process_state(session._session.recorder)
        if state["calls"] and state["calls"][0]["call"] == "wait":
            break
        time.sleep(0.01)
    STATE.with_suffix(".part").write_text(json.dumps(state), encoding="utf-8")
    STATE.with_suffix(".part").rename(STATE)


def come_late(rank, *, is_last):
    """Delay the backward of the last rank, to the state of the first one if that is watched."""
    until_s = time.monotonic() + 2 * LIMIT_S
    while WAY == "watched" and rank and is_last and not STATE.exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    time.sleep(LATE_S * rank)


def main():
    mends.mend()
    distributed.init_parallel_env()
    rank = distributed.get_rank()
    paddle.seed(1)
    model = Net()
    optimizer = paddle.optimizer.AdamW(0.01, parameters=model.parameters())
    model, optimizer = wrapped(model, optimizer)
    losses = []
    OUT.mkdir(parents=True, exist_ok=True)
    if WAY == "watched" and rank == 0:
        threading.Thread(target=look).start()
    for _ in range(STEPS):
        with record.step():
            for microbatch in range(MICROBATCHES):
                inputs = paddle.ones([4, WIDTH]) * (rank + 1 + microbatch)
                with record.forward(microbatch=microbatch, stage=0):
                    loss = forward(model, inputs, is_last=microbatch == MICROBATCHES - 1)
                come_late(rank, is_last=microbatch == MICROBATCHES - 1)
                with record.backward(microbatch=microbatch, stage=0):
                    loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.clear_grad()
    (OUT / f"rank{rank}.json").write_text(json.dumps(losses), encoding="utf-8")


def forward(model, inputs, *, is_last):
    if not is_last and isinstance(model, paddle.DataParallel):
        with model.no_sync():
            return model(inputs).square().mean()
    return model(inputs).square().mean()


main()
