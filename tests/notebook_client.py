"""Runs cells in a real Jupyter kernel and prints what each of them has returned, as JSON.

Usage: python notebook_client.py DIRECTORY, with a Python that has ipykernel and jupyter_client. The kernel records
three sessions into DIRECTORY: one that ends, one that is interrupted, and one whose kernel is killed. It also records
two processes that a cell forks, into DIRECTORY-forked.
"""

from __future__ import annotations

import json
import sys
import time

from jupyter_client.manager import start_new_kernel

DIRECTORY = sys.argv[1]
TIMEOUT_S = 120
INTERRUPTED_AFTER_S = 3
TRAIN = """
import torch, torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B

def train(steps, rank=0, ranks=1, store=None):
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store or dist.HashStore(), rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    stage = PipelineStage(model, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.MSELoss())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        inputs = (torch.ones(8, 8),) if rank == 0 else ()
        schedule.step(*inputs, target=torch.zeros(8, 8), losses=losses)
        optimizer.step()
        optimizer.zero_grad()
    return [float(loss.detach()) for loss in losses]
"""
FORK = """
def work(rank, directory, port):
    import stagescope.record as record
    record.start(directory)
    train(3, rank, 2, dist.TCPStore("127.0.0.1", port, 2, is_master=rank == 0))
    dist.destroy_process_group()

import socket
from torch.multiprocessing import start_processes
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
start_processes(work, args=(DIRECTORY, port), nprocs=2, start_method="fork")
"""


class Notebook:
    """A kernel and the cells that run in it."""

    def __init__(self):
        self.manager, self.client = start_new_kernel(startup_timeout=TIMEOUT_S)
        self.outputs = {}

    def run(self, name, code):
        """Keep what a cell prints, returns or raises under a name."""
        self.outputs[name] = found = []

        def keep(message):
            content, kind = message["content"], message["msg_type"]
            if kind == "stream":
                found.append(content["text"])
            elif kind == "execute_result":
                found.append(content["data"])
            elif kind == "error":
                found.append(f"{content['ename']}: {content['evalue']}")

        self.client.execute_interactive(code, timeout=TIMEOUT_S, output_hook=keep)

    def interrupt(self, code):
        """Interrupt a cell while it runs; return how it ended."""
        self.client.execute(f"print('running')\n{code}")
        while self.client.get_iopub_msg(timeout=TIMEOUT_S)["msg_type"] != "stream":
            pass  # a signal between two cells interrupts none
        time.sleep(INTERRUPTED_AFTER_S)
        self.manager.interrupt_kernel()
        return self.client.get_shell_msg(timeout=TIMEOUT_S)["content"]["status"]

    def restart(self):
        self.manager.restart_kernel(now=True)
        self.client.wait_for_ready(timeout=TIMEOUT_S)


def main():
    notebook = Notebook()
    start = f"import stagescope.record as record; record.start({DIRECTORY!r})"
    notebook.run("plain", f"{TRAIN}\ntrain(3)")
    notebook.run("start", start)
    notebook.run("recorded", "train(3)")
    notebook.run("stop", "record.stop()")
    notebook.run("timeline", f"import stagescope\ntimeline = stagescope.read({DIRECTORY!r})\ntimeline")
    notebook.run("report", "stagescope.analyze(timeline)")
    notebook.run("start again", start)
    notebook.outputs["interrupted"] = notebook.interrupt("train(10**6)")
    notebook.run("stop again", "record.stop()")
    notebook.run("start a third time", f"{start}\ntrain(3)\nimport time\ntime.sleep(2)")
    notebook.restart()
    notebook.run("forked", f"DIRECTORY = {DIRECTORY + '-forked'!r}\n{TRAIN}\n{FORK}")
    notebook.client.stop_channels()
    notebook.manager.shutdown_kernel(now=True)
    print(json.dumps(notebook.outputs))


main()
