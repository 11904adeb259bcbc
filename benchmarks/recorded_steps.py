"""The cost of recording on the real path: whole steps of torch.distributed.pipelining in one process.

Steps with the hooks, without them, and with ``with record.span(...)`` written by hand around the same calls alternate
in one process, in random order. All three evict the caches alike, which is most of the cost of a record: in a tight
loop a span by hand costs a fifth of what it costs between the operations of a training.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import stagescope.record as record
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import session
from stagescope.record.launch import recording_environment
from stagescope.record.patching import MARK
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP, MEASURED = 3, 10
WIDTH = 8
SCHEDULES = {"1F1B": 1, "InterleavedZeroBubble": 2}
"""Schedules, with their stages on the single rank."""

RATIO_LIMIT, STEP_LIMIT_US, START_LIMIT_MS = 3, 50, 20
METHODS = (
    ("forward_one_chunk", "forward"),
    ("backward_one_chunk", "backward"),
    ("backward_weight_one_chunk", "backward_weight"),
)
CODES = {BY_NAME[name].code for name in ("forward", "backward", "backward_input", "backward_weight")}


class Way(Protocol):
    """A way to record that can be turned on and off."""

    def set(self, *, on: bool) -> None:
        """Turn it on or off."""


class Hooks:
    """Takes all hooks of the recording away and puts them back, without ending it."""

    def __init__(self) -> None:
        self._patches = session._session.patches.replaced  # noqa: SLF001  # only the session knows them
        self._guards = list(session.recorder.guards.values())
        self._callbacks = gc.callbacks.copy()

    def set(self, *, on: bool) -> None:
        """Install the hooks, or put the functions of the framework in their place."""
        for owner, name, original, replacement in self._patches if on else reversed(self._patches):
            if isinstance(owner, dict):
                owner[name] = replacement if on else original
            else:
                setattr(owner, name, replacement if on else original)
        for guard in self._guards:
            guard.is_off = not on
        gc.callbacks[:] = self._callbacks if on else []


class Hand:
    """Marks each action by hand."""

    def __init__(self) -> None:
        self._owner = importlib.import_module("torch.distributed.pipelining.stage")._PipelineStageBase  # noqa: SLF001  # no public name
        self._original = {name: getattr(vars(self._owner)[name], MARK) for name, _ in METHODS}

    def set(self, *, on: bool) -> None:
        """Install the marked methods, or those of the framework."""
        for name, kind in METHODS:
            original = self._original[name]
            setattr(self._owner, name, _marked(kind, original) if on else original)


def _marked(kind: str, original: Callable) -> Callable:
    def call(stage: object, microbatch: int, *args: object, **kwargs: object) -> object:
        with record.span(kind, microbatch=microbatch, stage=stage.stage_index):
            return original(stage, microbatch, *args, **kwargs)

    return call


def training(schedule: str, microbatches: int) -> Callable[[], object]:
    """Return a function that trains one step."""
    torch, pipelining = (importlib.import_module(name) for name in ("torch", "torch.distributed.pipelining"))
    chunks = SCHEDULES[schedule]
    stages = [
        pipelining.PipelineStage(torch.nn.Linear(WIDTH, WIDTH), chunk, chunks, torch.device("cpu"))
        for chunk in range(chunks)
    ]
    cls = getattr(pipelining, f"Schedule{schedule}")
    made = cls(stages[0] if chunks == 1 else stages, microbatches, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD([one for stage in stages for one in stage.submod.parameters()], lr=0.01)
    data, target = torch.ones(microbatches, WIDTH), torch.zeros(microbatches, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        made.step(data, target=target)
        optimizer.step()

    return step


def measured(
    step: Callable[[], object], rounds: int, make_hand: Callable[[], Way]
) -> tuple[dict[str, float], int, int]:
    """Return CPU us of a step per way to record, and how many records and spans by hand a step has.

    Of each round, the medians of its steps are compared with those without a recording in the same round: the load of
    a shared machine changes from one round to the next.
    """
    for _ in range(WARM_UP):
        step()
    hooks, hand = Hooks(), make_hand()
    costs: dict[str, list[float]] = {"without": [], "hooks": [], "by hand": []}
    order = list(costs)
    for _ in range(rounds):
        random.shuffle(order)
        for way in order:
            hooks.set(on=way == "hooks")
            if way == "by hand":
                hand.set(on=True)
            times = []
            for number in range(WARM_UP + MEASURED):
                begun_ns = time.thread_time_ns()
                step()
                if number >= WARM_UP:
                    times.append((time.thread_time_ns() - begun_ns) / 1e3)
            costs[way].append(statistics.median(times))
            if way == "by hand":
                hand.set(on=False)
    hooks.set(on=True)
    step()
    session.recorder.flush()
    spans = read_contents(Path(session.recorder.path).read_bytes()).spans
    kinds = [int(kind) for kind in spans["kind"][spans["step"] == session.recorder.step]]
    by_hand = sum(kind in CODES for kind in kinds)
    plain = costs["without"]
    added = {way: [own - other for own, other in zip(costs[way], plain, strict=True)] for way in order}
    medians = {way: statistics.median(values) for way, values in added.items()}
    return {**medians, "without": statistics.median(plain)}, len(kinds), by_hand


def report(
    schedule: str, rounds: int, make: Callable[[int], Callable[[], object]], make_hand: Callable[[], Way]
) -> None:
    lines = []
    for microbatches in (2, 32):
        costs, records, by_hand = measured(make(microbatches), rounds, make_hand)
        added, hand = costs["hooks"], costs["by hand"]
        lines.append((records, added, by_hand, hand))
        print(f"  {schedule}, {microbatches} micro-batches: {costs['without']:.0f} us a step, {added:+.0f} us for "
              f"{records} records by hooks, {hand:+.0f} us for {by_hand} spans by hand")  # fmt: skip
    (few, less, few_hand, less_hand), (many, more, many_hand, more_hand) = lines
    each, each_hand = (more - less) / (many - few), (more_hand - less_hand) / (many_hand - few_hand)
    print(f"    {each:.1f} us a record, {each / each_hand:.1f} times a span by hand ({each_hand:.1f} us; limit "
          f"{RATIO_LIMIT}), and {less - few * each:+.0f} us a step (limit {STEP_LIMIT_US})")  # fmt: skip


def cpu_ms(environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "pass"], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime) * 1e3


def report_start(rounds: int, directory: Path) -> None:
    plain = dict(os.environ)
    recorded = recording_environment(directory, steps=None, run="benchmark", inherited=plain)
    added = statistics.median(cpu_ms(recorded) - cpu_ms(plain) for _ in range(rounds))
    print(f"start of a process that trains nothing: {added:+.1f} ms (limit {START_LIMIT_MS})")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=20)
    rounds = options.parse_args().rounds
    torch, dist = (importlib.import_module(name) for name in ("torch", "torch.distributed"))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=0, world_size=1)
        record.start(Path(directory, "recording"))
        print(f"CPU us of the training thread, medians of {rounds} pairs of {MEASURED} steps:")
        for schedule in SCHEDULES:
            report(schedule, rounds, partial(training, schedule), Hand)
        record.stop()
        dist.destroy_process_group()
        report_start(rounds, Path(directory, "started"))


if __name__ == "__main__":
    main()
