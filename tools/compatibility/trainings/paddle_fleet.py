"""Trains with the dynamic-graph pipeline of Paddle's fleet on CPUs.

Usage: paddle_fleet.py [--ranks N] [--microbatches N] [--chunks 2 | --dualpipev]

Paddle is imported by the ranks alone, because a process that has imported it cannot be forked safely.
"""

from __future__ import annotations

import argparse
import os

import ranks


def run(rank, options, ports):
    """Train as one of the ranks, with the variables that paddle.distributed.launch sets."""
    ends = [f"127.0.0.1:{port}" for port in ports]
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank), PADDLE_LOCAL_RANK=str(rank), PADDLE_RANK_IN_NODE=str(rank),
        PADDLE_GLOBAL_RANK=str(rank), PADDLE_TRAINERS_NUM=str(options.ranks), PADDLE_LOCAL_SIZE=str(options.ranks),
        PADDLE_GLOBAL_SIZE=str(options.ranks), PADDLE_NNODES="1", PADDLE_MASTER=ends[-1],
        PADDLE_TRAINER_ENDPOINTS=",".join(ends[:-1]), PADDLE_CURRENT_ENDPOINT=ends[rank],
        PADDLE_DISTRI_BACKEND="gloo",
    )  # fmt: skip
    from paddle_training import train  # noqa: PLC0415  # imports Paddle

    train(rank, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--chunks", type=int, default=1, help="model chunks per rank")
    parser.add_argument("--dualpipev", action="store_true", help="two stages per rank in a V")
    arguments = parser.parse_args()
    free = [ranks.free_port() for _ in range(arguments.ranks + 1)]
    ranks.start(arguments.ranks, lambda rank: run(rank, arguments, free))
