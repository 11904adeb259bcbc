"""A real training with and without recording, in pairs: its steps take as long, and its losses are the same.

    python benchmarks/paired_training.py [--pairs 7] [--steps 60] [--stages 2] [--width 256] [--rows 64]
    python benchmarks/paired_training.py --device cuda --width 8192 --rows 2048 --steps 40

One process per stage trains with 1F1B of torch.distributed.pipelining: on CPUs over gloo, or one stage on a GPU, with
NCCL, since NCCL refuses two ranks on one GPU. In each pair, the training runs once as it is and once under
`stagescope run`, always on, bounded (`--keep`) and with a request of `stagescope control` in its directory that its
processes look at twice a second; which of the two comes first alternates. Printed are the median step of each run, and
the difference of the pairs with its 95 % confidence interval. `--recording DIR` keeps the last recording.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scipy.stats import t as student

from stagescope import api
from stagescope.record.requests import new_request, send

MICROBATCHES, WARM_UP = 4, 10
TRAINING = f"""
import json, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
torch.set_num_threads(1)
torch.manual_seed(7)
kind, width, rows = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
device = torch.device(kind)
dist.init_process_group("nccl" if kind == "cuda" else "gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
number = torch.bfloat16 if kind == "cuda" else torch.float32
wait = torch.cuda.synchronize if kind == "cuda" else lambda: None
layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]).to(device, number)
stage = PipelineStage(layers, rank, ranks, device)
schedule = Schedule1F1B(stage, {MICROBATCHES}, loss_fn=nn.MSELoss())
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
batch = torch.randn(rows * {MICROBATCHES}, width).to(device, number)
target = torch.zeros_like(batch)
times, losses = [], []
for step in range(int(sys.argv[1])):
    began = time.perf_counter()
    optimizer.zero_grad()
    parts = []
    inputs = (batch,) if rank == 0 else ()
    outputs = {{"target": target, "losses": parts}} if rank == ranks - 1 else {{}}
    schedule.step(*inputs, **outputs)
    optimizer.step()
    wait()
    times.append(time.perf_counter() - began)
    losses.append([part.item() for part in parts])
if rank == ranks - 1:
    print(json.dumps({{"times": times, "losses": losses}}))
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def train(asked: argparse.Namespace, directory: Path | None) -> dict[str, list]:
    """Run the training once, recorded into `directory` if there is one; return the steps of its last rank."""
    facts = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(asked.stages)}
    work = [str(asked.steps), asked.device, str(asked.width), str(asked.rows)]
    prefix = []
    if directory is not None:
        own = ["--keep", "30m", "--join", "-o", str(directory), "--"]
        prefix = [sys.executable, "-m", "stagescope", "run", *own]
    processes = [
        subprocess.Popen(
            [*prefix, sys.executable, "-c", TRAINING, *work],
            env={**os.environ, **facts, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(asked.stages)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"a training failed: {[process.returncode for process in processes]}")
    return json.loads(outputs[-1])


def recorded(asked: argparse.Namespace) -> dict[str, list]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "recording"
        directory.mkdir()
        send(directory, new_request(0, details=[]))
        found = train(asked, directory)
        timeline = api.read(directory)
        found["spans"] = [timeline.spans.height]
        if set(timeline.steps["step"]) != set(range(asked.steps)):
            raise SystemExit("not every step was recorded")
        if asked.recording is not None:
            shutil.rmtree(asked.recording, ignore_errors=True)
            shutil.copytree(directory, asked.recording)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stages", type=int, help="processes; omit for 2, or 1 with --device cuda")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--width", type=int, default=256, help="of the layers")
    parser.add_argument("--rows", type=int, default=64, help="of each micro-batch")
    parser.add_argument(
        "--recording", type=Path, metavar="DIR", help="keep the last recording in DIR, replacing it"
    )
    asked = parser.parse_args()
    asked.stages = asked.stages or (1 if asked.device == "cuda" else 2)
    differences, are_equal = [], True
    for pair in range(asked.pairs):
        ways = [lambda: train(asked, None), lambda: recorded(asked)]
        first, second = (way() for way in (ways if pair % 2 == 0 else ways[::-1]))
        plain, own = (first, second) if pair % 2 == 0 else (second, first)
        medians = [1e3 * statistics.median(one["times"][WARM_UP:]) for one in (plain, own)]
        differences.append(100 * (medians[1] / medians[0] - 1))
        is_equal = plain["losses"] == own["losses"]
        are_equal = are_equal and is_equal
        print(
            f"pair {pair + 1}: median step {medians[0]:.2f} ms, recorded {medians[1]:.2f} ms, {differences[-1]:+.2f} %",
            f"{own['spans'][0]} spans, losses {'equal to the bit' if is_equal else 'DIFFER'}", sep=", ", flush=True,
        )  # fmt: skip
    mean, count = statistics.mean(differences), len(differences)
    half = student.ppf(0.975, count - 1) * statistics.stdev(differences) / count**0.5
    print(f"difference {mean:+.2f} %, 95 % CI {mean - half:+.2f} to {mean + half:+.2f} % (n = {count})")
    print(f"losses of all pairs equal: {are_equal}")


if __name__ == "__main__":
    main()
