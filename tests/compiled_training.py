"""Two ranks whose compiled function communicates with functional collectives.

Usage: fork_ranks.py 2 compiled_training.py BACKEND [CALLS]. Prints what each rank has computed; rank 1 comes late.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from stagescope import record

WIDTH, LATE_S = 8, 0.1


def main():
    backend, calls = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank, model = dist.get_rank(), torch.nn.Linear(WIDTH, WIDTH)

    @torch.compile(backend=backend, fullgraph=True)
    def compute(x):
        total = functional.all_reduce(model(x), "sum", dist.group.WORLD)
        parts = functional.reduce_scatter_tensor(total.sum(0), "sum", 0, dist.group.WORLD)
        first, second = functional.all_reduce_coalesced([parts, parts * 2], "sum", dist.group.WORLD)
        return functional.all_gather_tensor(first + second, 0, dist.group.WORLD)

    results = []
    for number in range(calls):
        with record.step():
            if number:  # the first call compiles
                time.sleep(LATE_S * rank)
            with torch.no_grad():
                results.append(compute(torch.ones(WIDTH, WIDTH) * (rank + 1)).tolist())
            dist.all_reduce(torch.ones(1))
    print(f"{rank} {results}\n", end="", flush=True)  # one write: the ranks share a pipe
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
