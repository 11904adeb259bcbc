"""How much longer a training step of about a second on a GPU takes with recording.

    python benchmarks/gpu_steps.py [--pairs 40] [--microbatches 333] [--width 8192] [--rows 1400]

One process trains one stage with Schedule1F1B of torch.distributed.pipelining on its GPU. Steps with the hooks and
steps without them alternate, in random order within each pair, so that both see the same clock rates. The time of a
step ends when the GPU has completed it: the host launches work ahead of the GPU, so its time counts only where the GPU
waits for it. Printed are the median step, the number of records, and the mean difference of the pairs with its 95 %
confidence interval, without the largest and the smallest tenth, in which steps were interrupted. `--device cpu` shows
that the script works.
"""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from recorded_steps import Hooks

import stagescope.record as record
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import session

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP = 3
LAYERS = 4
TRIMMED = 0.1
LIMIT_PERCENT = 0.2


def training(asked: argparse.Namespace) -> Callable[[], float]:
    """Return a function that trains one step, and returns the seconds that it takes."""
    torch, pipelining = (importlib.import_module(name) for name in ("torch", "torch.distributed.pipelining"))
    device = torch.device(asked.device)
    number = torch.bfloat16 if asked.device == "cuda" else torch.float32
    wait = torch.cuda.synchronize if asked.device == "cuda" else lambda: None
    layers = [torch.nn.Linear(asked.width, asked.width) for _ in range(LAYERS)]
    module = torch.nn.Sequential(*layers).to(device, number)
    stage = pipelining.PipelineStage(module, 0, 1, device)
    made = pipelining.Schedule1F1B(stage, asked.microbatches, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    data = torch.ones(asked.microbatches * asked.rows, asked.width, device=device, dtype=number)
    target = torch.zeros_like(data)

    def step() -> float:
        wait()
        began_ns = time.perf_counter_ns()
        optimizer.zero_grad()
        made.step(data, target=target)
        optimizer.step()
        wait()
        return (time.perf_counter_ns() - began_ns) / 1e9

    return step


def alternate(step: Callable[[], float], pairs: int) -> list[dict[bool, float]]:
    """Return the seconds of a step without and with the hooks, for each pair."""
    hooks, found = Hooks(), []
    for _ in range(WARM_UP):
        step()
    for _ in range(pairs):
        both = {}
        for on in random.sample((False, True), 2):
            hooks.set(on=on)
            both[on] = step()
        found.append(both)
    hooks.set(on=True)
    return found


def report(found: list[dict[bool, float]]) -> None:
    """Print the steps and their differences."""
    plain = statistics.median(pair[False] for pair in found)
    differences = sorted(100 * (pair[True] / pair[False] - 1) for pair in found)
    cut = round(TRIMMED * len(differences))
    kept = differences[cut : len(differences) - cut]
    half = 1.96 * statistics.stdev(kept) / len(kept) ** 0.5
    mean = statistics.mean(kept)
    print(f"  median step {1e3 * plain:.1f} ms; with recording {mean:+.3f} % (95 % CI {mean - half:+.3f} to "
          f"{mean + half:+.3f}, {len(kept)} of {len(found)} pairs; limit {LIMIT_PERCENT} %)")  # fmt: skip


def report_records() -> None:
    """Print how many records the steps have, on which clock, and what was dropped."""
    session.recorder.flush()
    contents = read_contents(Path(session.recorder.path).read_bytes())
    steps = Counter(int(step) for step in contents.spans["step"])
    device = session.recorder.timer.device
    print(f"  {max(steps.values())} records in a step, timed on {device.model if device else 'the host'}, "
          f"{contents.dropped_spans} of {len(contents.spans['step'])} dropped")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--microbatches", type=int, default=333)
    parser.add_argument("--width", type=int, default=8192, help="of the layers")
    parser.add_argument("--rows", type=int, default=1400, help="of each micro-batch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    dist = importlib.import_module("torch.distributed")
    with tempfile.TemporaryDirectory() as directory:
        dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=0, world_size=1)
        record.start(Path(directory, "recording"))
        step = training(asked)
        print(
            f"1F1B, {asked.microbatches} micro-batches, {LAYERS} layers of {asked.width}, {asked.rows} rows"
        )
        found = alternate(step, asked.pairs)
        report(found)
        report_records()
        record.stop()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
