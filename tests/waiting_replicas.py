"""Two replicas, of which the second enters a backward after the first has waited for it: waiting_replicas.py DIRECTORY.

Each writes what `stagescope hang` would read of it: while the first waits, and after the step.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stagescope import record
from stagescope.record import session
from stagescope.record.process_state import process_state

STEPS, LAST, LIMIT_S = 3, 2, 60


def write(path):
    path.with_suffix(".part").write_text(json.dumps(process_state(session._session.recorder)))
    path.with_suffix(".part").rename(path)


def look(path):
    """Write the state of this process as soon as it has a call in progress below the hooked ones."""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        calls = process_state(session._session.recorder).get("calls")
        if calls and calls[0]["call"] == "wait":
            break
        time.sleep(0.01)
    write(path)


def wait_for(path):
    until_s = time.monotonic() + 2 * LIMIT_S
    while not path.exists() and time.monotonic() < until_s:
        time.sleep(0.01)


def main(directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, first = dist.get_rank(), directory / "waiting-0.json"
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    looking = threading.Thread(target=look, args=(first,))
    for step in range(STEPS):
        with record.step():
            with record.forward(microbatch=0, stage=0):
                loss = model(torch.ones(2, 4)).sum()
            if step == LAST and rank == 0:
                looking.start()
            elif step == LAST:
                wait_for(first)
                write(directory / "waiting-1.json")
            with record.backward(microbatch=0, stage=0):
                loss.backward()
    write(directory / f"after-{rank}.json")
    if rank == 0:
        looking.join()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(Path(sys.argv[1]))
