"""Starts a training script as local ranks quickly: imports torch once, then forks.

Usage: fork_ranks.py RANKS SCRIPT [ARGUMENT]...
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import sys

import torch
import torch.distributed
import torch.distributed.pipelining  # noqa: F401  # imported before the fork, once for all ranks


def run_rank(rank: int, ranks: int, port: int, arguments: list[str]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main() -> None:
    ranks = int(sys.argv[1])
    port = free_port()
    fork = multiprocessing.get_context("fork")
    processes = [
        fork.Process(target=run_rank, args=(rank, ranks, port, sys.argv[2:])) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    sys.exit(next((code if code > 0 else 128 - code for code in codes if code), 0))


if __name__ == "__main__":
    main()
