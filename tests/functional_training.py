"""Two ranks whose functional collectives are differentiated, and which send and receive in compiled code.

Usage: fork_ranks.py 2 functional_training.py CALLS [compiled]. Rank 1 comes late to the backward. Prints what each
rank has computed.
"""

from __future__ import annotations

import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from stagescope import record

WIDTH, LATE_S = 8, 0.1
WORLD = 2


def total(value, group):
    """Use every functional collective that can be differentiated; torch before 2.11 has three of them."""
    gathered = functional.all_gather_tensor_autograd(value, 0, group)
    parts = functional.reduce_scatter_tensor_autograd(gathered * 2, "sum", 0, group)
    half = WIDTH // WORLD
    swapped = functional.all_to_all_single_autograd(parts, [half] * WORLD, [half] * WORLD, group)
    return (functional.all_gather_tensor_autograd(swapped * 3, 0, group) ** 2).sum()


def exchange(value, rank):
    """Send both ways at once, and then from rank 0 to rank 1."""
    received = torch.empty_like(value)
    pair = [dist.P2POp(dist.isend, value, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    last = torch.zeros_like(value)
    if rank:
        dist.irecv(last, 0).wait()
    else:
        dist.isend(received, 1).wait()
    return received + last


def main():
    calls = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    warnings.simplefilter("ignore", FutureWarning)
    rank, group = dist.get_rank(), dist.group.WORLD
    compute = exchange
    if sys.argv[2:] == ["compiled"]:
        torch._dynamo.config.enable_p2p_compilation = True
        compute = torch.compile(exchange, backend="aot_eager", fullgraph=True)
    results = []
    for number in range(calls):
        with record.step():
            value = (torch.arange(WIDTH, dtype=torch.float32) + rank + number).requires_grad_()
            loss = total(value, group)
            time.sleep(LATE_S * rank)
            loss.backward()
            with torch.no_grad():
                results.append([float(loss), value.grad.tolist(), compute(value.detach(), rank).tolist()])
    print(f"{rank} {results}\n", end="", flush=True)  # one write: the ranks share a pipe
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
