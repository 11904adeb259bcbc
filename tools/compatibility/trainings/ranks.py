"""What the trainings share: they fork their ranks and print results that can be compared to the bit.

A training prints three kinds of line: VERSIONS with what it imported, PLAN once per rank with what the rank executes,
and VALUE once per rank and step with the loss and a digest of all parameters.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import socket
import sys
import traceback
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def start(ranks: int, train: Callable[[int], None]) -> None:
    """Fork a process for each rank that calls `train` with its rank, and exit with 1 if one of them fails."""
    os.environ.update(
        WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()),
        GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
    )  # fmt: skip
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_run, args=(rank, train)) for rank in range(ranks)]
    for process in processes:
        process.start()
    running = list(processes)
    while running and not any(process.exitcode for process in processes):
        wait([process.sentinel for process in running])
        running = [process for process in running if process.is_alive()]
    for process in running:  # they wait for a rank that has failed
        process.kill()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))


def _run(rank: int, train: Callable[[int], None]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    try:
        train(rank)
    except BaseException:  # noqa: BLE001  # reported with the rank, whatever it is
        lines = traceback.format_exc().splitlines()
        sys.stderr.write("".join(f"[rank {rank}] {line}\n" for line in lines))
        raise SystemExit(1) from None


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def versions(*names: str) -> None:
    """Print names and versions."""
    _print("VERSIONS", *names)


def plan(rank: int, stages: Sequence[int], microbatches: int, *, steps: int, backward: str) -> None:
    """Print what a rank executes: its stages, and if it splits backward passes ("full", "split" or "mixed")."""
    listed = ",".join(map(str, stages))
    _print(
        f"PLAN rank={rank} stages={listed} microbatches={microbatches} steps={steps} backward={backward}",
    )


def value(rank: int, step: int, loss: float | None, parameters: Iterable) -> None:
    """Print the loss (None where it is not known) and a digest of all parameters, which are numpy arrays."""
    text = "-" if loss is None else float(loss).hex()
    digest = hashlib.sha256(b"".join(array.tobytes() for array in parameters)).hexdigest()
    _print(f"VALUE rank={rank} step={step} loss={text} parameters={digest[:16]}")


def _print(*words: str) -> None:
    """Write a line at once, so that lines of several ranks do not mix."""
    os.write(1, (" ".join(words) + "\n").encode())
