"""A training with four stages that is disturbed by hand: torchrun --nproc-per-node 4 train.py CONTROL.

It trains until the file CONTROL has the word `stop`. While the file has `slow N`, each forward of rank N takes twice as
long; with `hang N`, rank N does not go on in its next forward until the file changes. The script does not use
stagescope.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MICROBATCHES, WIDTH, WORK_S = 6, 8, 0.006
LOOK_S = 0.1


class Stage(nn.Module):
    """A layer whose forward takes as long as the control file wants it to."""

    def __init__(self, rank: int, control: Path) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.rank = rank
        self.control = control

    def wanted(self) -> list[str]:
        """Return the words of the control file."""
        return self.control.read_text(encoding="utf-8").split() if self.control.exists() else []

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the values of the layer, after some time."""
        words = self.wanted()
        own = words[1:] == [str(self.rank)]
        time.sleep(2 * WORK_S if own and words[0] == "slow" else WORK_S)
        while own and words[0] == "hang" and self.wanted() == words:
            time.sleep(LOOK_S)
        return self.layer(values)


def main(control: Path) -> None:
    """Train until the control file has the word stop."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    module = Stage(rank, control)
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    batch = torch.ones(2 * MICROBATCHES, WIDTH)
    is_over = torch.zeros(1)
    while not is_over:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(**({"target": torch.zeros_like(batch)} if rank == ranks - 1 else {}))
        optimizer.step()
        # All ranks have to end with the same step.
        is_over = torch.tensor([float(module.wanted() == ["stop"])])
        dist.all_reduce(is_over)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
