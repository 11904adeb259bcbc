"""Starts a training script as local ranks quickly: imports torch once, then forks.

Usage: fork_ranks.py RANKS SCRIPT [ARGUMENT]...
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import socket
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def run_rank(rank: int, arguments: list[str]) -> None:
    del rank
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")


def start_ranks(ranks: int, run: Callable[[int, list[str]], None], arguments: list[str]) -> int:
    """Fork the ranks of a training, let each `run` the arguments, and return the first exit code that is not 0."""
    os.environ.update(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
    fork = multiprocessing.get_context("fork")

    def start(rank: int) -> None:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        run(rank, arguments)

    processes = [fork.Process(target=start, args=(rank,)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    codes = [process.exitcode for process in processes]
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main() -> None:
    import torch.distributed.pipelining  # noqa: F401, PLC0415  # before the fork, once for all ranks

    sys.exit(start_ranks(int(sys.argv[1]), run_rank, sys.argv[2:]))


if __name__ == "__main__":
    main()
