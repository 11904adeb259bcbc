"""A training with three stages of which rank 1 leaves in step STEP of its first attempt.

Usage: restarting_training.py HOW STEP. HOW is `exit` (sys.exit), `leave` (os._exit), `kill` (SIGKILL).
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MICROBATCHES, WIDTH, STEPS, BAD_RANK, STATUS = 4, 8, 30, 1, 3


def leave(how):
    if how == "exit":
        sys.exit(STATUS)
    elif how == "leave":
        os._exit(STATUS)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def main(how, bad_step):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    stage = PipelineStage(nn.Linear(WIDTH, WIDTH), rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
    batch = torch.ones(2 * MICROBATCHES, WIDTH)
    for step in range(STEPS):
        time.sleep(0.1)
        if is_first and rank == BAD_RANK and step == bad_step:
            leave(how)
        if stage.is_first:
            schedule.step(batch)
        else:
            schedule.step(**({"target": torch.zeros_like(batch)} if stage.is_last else {}))
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
