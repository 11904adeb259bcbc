"""The cost of recording for the training, compared with other ways to mark a span in the same run.

    python benchmarks/overhead.py [--hours H]

Costs are CPU time of the marking thread, as medians over alternating rounds. A peer that cannot be imported is
reported; add viztracer, nvtx and Megatron-core with PYTHONPATH. `--hours` is the length of the training that the soak
simulates, at 1,000 spans per second (24 hours take about two minutes), with `--keep` as its bounds; time passes as
fast as the spans need it to. `--only soak` leaves out the rest; `--only steps` measures whole steps of torch,
Megatron-core and DeepSpeed (recorded_steps.py, recorded_ranks.py, framework_steps.py), which is the path of users.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import stagescope.record as record
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import retention, session
from stagescope.record.contents import count_discarded
from stagescope.record.control import Control
from stagescope.record.frameworks import collectives, groups, runs
from stagescope.record.requests import new_request, send

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    Mark = Callable[[int], None]

SPANS, ROUNDS = 20_000, 15
SPAN_LIMIT_US = 0.7
STEPS, SPANS_A_STEP, STEP_LIMIT_PERCENT = 7, 1000, 0.2
NOTHING = nullcontext()
COLLECTIVES = 500
COLLECTIVE_LIMITS_US = {"recorded, between actions": "   limit 5", "counted, inside an action": "   limit 1"}
MEMORY_LIMIT_MIB = 8
SOAK_BYTES = 64 * 2**20


class Bare:
    """The minimum that a ``with`` block needs to know when it ran and what it is."""

    __slots__ = ("end_ns", "kind", "start_ns")

    def __init__(self, kind: str, *, microbatch: int | None = None, stage: int | None = None) -> None:
        self.kind = (kind, microbatch, stage)

    def __enter__(self) -> None:
        self.start_ns = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        self.end_ns = time.monotonic_ns()


def ours_by_hand(_: ExitStack) -> Mark:
    span = record.span

    def mark(count: int) -> None:
        for number in range(count):
            with span("forward", microbatch=number, stage=2):
                pass

    return mark


def ours_in_a_hook(_: ExitStack) -> Mark:
    recorder, now_ns = session.recorder, time.monotonic_ns

    def mark(count: int) -> None:
        for number in range(count):
            if recorder.enabled:
                start_ns = now_ns()
                recorder.emit(1, start_ns, now_ns(), 2, number, 0)

    return mark


def bare(_: ExitStack) -> Mark:
    def mark(count: int) -> None:
        for number in range(count):
            with Bare("forward", microbatch=number, stage=2):
                pass

    return mark


def torch_record_function(_: ExitStack) -> Mark:
    record_function = importlib.import_module("torch").autograd.profiler.record_function

    def mark(count: int) -> None:
        for number in range(count):
            with record_function(f"F2.{number}"):
                pass

    return mark


def nvtx_annotate(_: ExitStack) -> Mark:
    annotate = importlib.import_module("nvtx").annotate

    def mark(count: int) -> None:
        for number in range(count):
            with annotate(f"F2.{number}"):
                pass

    return mark


def viztracer_log_event(stack: ExitStack) -> Mark:
    tracer = importlib.import_module("viztracer").VizTracer(
        log_torch=False, verbose=0, tracer_entries=2_000_000, max_stack_depth=0, ignore_c_function=True
    )
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    stack.callback(tracer.save, str(Path(directory, "trace.json")))

    def mark(count: int) -> None:
        tracer.clear()
        tracer.start()
        for number in range(count):
            with tracer.log_event(f"F2.{number}"):
                pass
        tracer.stop()

    return mark


def megatron_timers(_: ExitStack) -> Mark:
    module = importlib.import_module("megatron.core.timers")
    timers = module.Timers(log_level=2, log_option="minmax")
    if not module.torch.cuda.is_available():  # Timers would wait for the device at each end of a span
        module.torch.cuda.synchronize = lambda: None

    def mark(count: int) -> None:
        for _ in range(count):
            timers("forward", log_level=0).start(barrier=False)
            timers("forward").stop(barrier=False)

    return mark


WAYS = (
    ("stagescope: with span(...)", ours_by_hand),
    ("stagescope: what a hook calls last", ours_in_a_hook),
    ("a bare with and two clock reads", bare),
    ("torch record_function, profiler off", torch_record_function),
    ("nvtx.annotate, no tool attached", nvtx_annotate),
    ("viztracer log_event", viztracer_log_event),
    ("Megatron Timers, without its synchronize", megatron_timers),
)


def cost_us(mark: Mark) -> float:
    begun_ns = time.thread_time_ns()
    mark(SPANS)
    return (time.thread_time_ns() - begun_ns) / SPANS / 1e3


def compare_spans() -> None:
    print(f"one span, CPU us of the marking thread: median of {ROUNDS} rounds of {SPANS}, min, max")
    with ExitStack() as stack, tempfile.TemporaryDirectory() as directory:
        record.start(directory)
        session.recorder.flush()
        marks, costs = {}, {}
        for name, make in WAYS:
            try:
                marks[name] = make(stack)
            except Exception as error:  # noqa: BLE001, PERF203  # any error of a peer
                costs[name] = f"not measured: {type(error).__name__}: {str(error).splitlines()[0][:70]}"
        times = {name: [] for name in marks}
        for _ in range(ROUNDS):
            for name, mark in marks.items():
                times[name].append(cost_us(mark))
                session.recorder.flush()
        record.stop()
    for name, _ in WAYS:
        if name in costs:
            print(f"  {name:42}{costs[name]}")
            continue
        limit = f"   limit {SPAN_LIMIT_US}" if name.startswith("stagescope") else ""
        print(
            f"  {name:42}{statistics.median(times[name]):6.2f}{min(times[name]):8.2f}{max(times[name]):8.2f}{limit}"
        )


def collective_us(collective: Callable[[], object]) -> float:
    begun_ns = time.thread_time_ns()
    for _ in range(COLLECTIVES):
        collective()
    return (time.thread_time_ns() - begun_ns) / COLLECTIVES / 1e3


def with_span_us(collective: Callable[[], object]) -> float:
    """Return the cost of a call that is recorded as a span by hand, and not by the hooks."""

    def marked_collective() -> None:
        with record.span("other", stage=0):
            collective()

    guard = session.recorder.guards["torch.distributed"]
    guard.is_off = True
    cost = collective_us(marked_collective)
    guard.is_off = False
    return cost


def recorded_collectives(group: object, collective: Callable[[], object]) -> dict[str, float]:
    """Return the costs of a collective in one recording. Its group has one rank, and is taken for one of two."""
    with tempfile.TemporaryDirectory() as directory:
        record.start(directory)
        recorder = session.recorder
        collectives.collectives_of(recorder).keep_group(group, groups.Group("ranks", 2))
        recorder.begin_step(0)
        recorder.emit(1, 1, 2)
        recorder.flush()
        costs = {"recorded, between actions": collective_us(collective)}
        runs.begin_action(recorder, 0, 0)
        costs["counted, inside an action"] = collective_us(collective)
        runs.leave_action(recorder)
        recorder.switch(on=False)
        costs["outside of the recorded steps"] = collective_us(collective)
        recorder.switch(on=True)
        recorder.flush()
        costs["in a with span(...), not observed"] = with_span_us(collective)
        record.stop()
    return costs


def compare_collectives() -> None:
    """Print what recording adds to an all-reduce of torch.distributed, with gloo in one process."""
    print(f"an all-reduce by gloo, CPU us of the calling thread: median of {ROUNDS} rounds of {COLLECTIVES}")
    try:
        torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    except ImportError as error:
        print(f"  not measured: {error}")
        return
    with tempfile.TemporaryDirectory() as directory:
        dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=0, world_size=1)
        tensor, group, plain, added = torch.ones(4), dist.group.WORLD, [], {}
        for _ in range(ROUNDS):
            plain.append(collective_us(lambda: dist.all_reduce(tensor)))
            for name, cost in recorded_collectives(group, lambda: dist.all_reduce(tensor)).items():
                added.setdefault(name, []).append(cost - plain[-1])
        dist.destroy_process_group()
    print(f"  {'without the recorder':42}{statistics.median(plain):6.2f}")
    for name, costs in added.items():
        print(f"  {name:42}{statistics.median(costs):+6.2f}{COLLECTIVE_LIMITS_US.get(name, '')}")


def unmarked(number: int) -> AbstractContextManager[None]:
    del number
    return NOTHING


def marked_barely(number: int) -> Bare:
    return Bare("forward", microbatch=number, stage=0)


def marked(number: int) -> AbstractContextManager[None]:
    return record.span("forward", microbatch=number, stage=0)


def step_cpu_s(mark: Callable[[int], AbstractContextManager[None]], sleeps: int) -> float:
    """Return CPU seconds of this thread for a step that sleeps one second in `sleeps` pieces and contains all spans."""
    begun_ns, until = time.thread_time_ns(), time.monotonic()
    for number in range(SPANS_A_STEP):
        with mark(number):
            if number % (SPANS_A_STEP // sleeps) == 0:
                until += 1 / sleeps
                time.sleep(max(0.0, until - time.monotonic()))
    return (time.thread_time_ns() - begun_ns) / 1e9


def compare_steps() -> None:
    print(
        f"{SPANS_A_STEP} spans in a step of 1 s: CPU time added, in % of the step; {STEPS} alternating steps"
    )
    for sleeps, where in (
        (10, "ten sleeps of 100 ms"),
        (SPANS_A_STEP, "a sleep of 1 ms in each span, caches cold"),
    ):
        costs: dict[Callable[[int], AbstractContextManager[None]], list[float]] = {
            mark: [] for mark in (unmarked, marked_barely, marked)
        }
        with tempfile.TemporaryDirectory() as directory:
            record.start(directory)
            others_s = time.process_time() - time.thread_time()
            for _ in range(STEPS):
                for mark, seconds in costs.items():
                    seconds.append(step_cpu_s(mark, sleeps))
            others_s = time.process_time() - time.thread_time() - others_s
            record.stop()
        without = statistics.median(costs[unmarked])
        for name, mark in (
            ("stagescope: with span(...)", marked),
            ("a bare with and two clock reads", marked_barely),
        ):
            added = statistics.median(costs[mark]) - without
            limit = f"   limit {STEP_LIMIT_PERCENT}" if mark is marked else ""
            print(f"  {name:34}{where:44}{added * 100:7.3f}{limit}")
        print(f"  {'the writer thread':34}{where:44}{others_s / STEPS * 100:7.3f}")


LOOKS, LOOKS_A_SECOND = 20_000, 2


def measure_control() -> None:
    """Print what looking for requests of `stagescope control` costs: the writer thread, and the training thread."""
    print("looking for requests, CPU time in % of a second (two looks, one step):")
    with tempfile.TemporaryDirectory() as directory:
        record.start(directory)
        recorder = session.recorder
        recorder.end_step(recorder.begin_step(0))
        for name, prepare in (
            ("no request", lambda: None),
            ("a request that is known", lambda: ask(directory)),
        ):
            prepare()
            control = Control(recorder)
            control.look()
            begun_ns = time.thread_time_ns()
            for _ in range(LOOKS):
                control.look()
            cost_s = (time.thread_time_ns() - begun_ns) / LOOKS / 1e9 * LOOKS_A_SECOND
            print(f"  {f'the writer thread, {name}':42}{100 * cost_s:9.5f}   limit {STEP_LIMIT_PERCENT}")
        begun_ns = time.thread_time_ns()
        for _ in range(LOOKS):
            if recorder.requested is not None and recorder.requested.from_step <= 0:
                recorder.apply(recorder.requested)
            if recorder.kernels is not None:
                recorder.kernels.follow(0, is_wanted=False)
        cost_s = (time.thread_time_ns() - begun_ns) / LOOKS / 1e9
        print(f"  {'the training thread, once per step':42}{100 * cost_s:9.5f}   limit {STEP_LIMIT_PERCENT}")
        record.stop()


def ask(directory: str) -> None:
    """Leave a request that changes nothing."""
    send(directory, new_request(0, details=[]))


MEMORY = """
import contextlib, json, logging, os, re, select, signal, struct, subprocess, sys, tempfile, threading, typing, zlib
def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
before = resident_mib()
import stagescope.record as record
from stagescope.record import file, session
record.start(sys.argv[1])
def mark(count):
    for number in range(count):
        with record.span("forward", microbatch=number, stage=1):
            pass
        if number % 1000 == 0 and not hung:
            session.recorder.flush()
hung = False
mark(300_000)
running = resident_mib() - before
hung = True
class Hung:
    def __getattr__(self, name):
        return getattr(os, name)
    def write(self, *_):
        threading.Event().wait()
file.os = Hung()
mark(300_000)
print(running, resident_mib() - before)
os._exit(0)
"""


def measure_memory() -> None:
    samples = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-c", MEMORY, directory]
            samples.append(
                [
                    float(word)
                    for word in subprocess.run(command, capture_output=True, check=True).stdout.split()
                ]
            )
    running, hung = (statistics.median(column) for column in zip(*samples, strict=True))
    print("additional memory in MiB, in a process that has imported the usual standard library modules:")
    print(f"  while the disk keeps up            {running:6.1f}   limit {MEMORY_LIMIT_MIB}")
    print(f"  while the disk hangs               {hung:6.1f}   limit {MEMORY_LIMIT_MIB}")


def resident_mib() -> float:
    return (
        int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        * os.sysconf("SC_PAGE_SIZE")
        / 2**20
    )


class SimulatedTime:
    """Replaces the module `time` in the bounds of a recording: the time of a training at 1,000 spans per second."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        """Return the seconds since the beginning of the training."""
        return self.now_s


def soak(hours: float, keep: str) -> None:
    """Emit the spans of a training of that length under bounds, flushing often; a step of 1,000 spans takes 1 s."""
    total, batch, most_bytes = int(hours * 3600 * 1000), 20_000, 0
    least_s, most_s = math.inf, 0.0
    gc.disable()  # its collections are recorded, too
    retention.time = simulated = SimulatedTime()
    bounds = retention.parse_keep(keep)
    with tempfile.TemporaryDirectory() as directory:
        record.start(directory, keep=keep)
        resident = []
        for begin in range(0, total, batch):
            for step in range(begin // 1000, min(begin + batch, total) // 1000):
                session.recorder.begin_step(step)
                for number in range(1000):
                    with record.span("forward", microbatch=number, stage=0):
                        pass
            simulated.now_s += batch / 1000
            session.recorder.flush()
            most_bytes = max(most_bytes, sum(file.stat().st_size for file in Path(directory).iterdir()))
            resident.append(resident_mib())
            kept_s = (begin + batch - count_discarded(Path(directory).iterdir())) / 1000
            if kept_s < begin / 1000:  # something was discarded
                least_s, most_s = min(least_s, kept_s), max(most_s, kept_s)
        record.stop()
        files = sorted(Path(directory).iterdir())
        contents = sorted(
            (read_contents(file.read_bytes()) for file in files), key=lambda c: c.header["segment"]
        )
        kept = sum(len(one.spans) for one in contents)
        discarded, dropped = contents[0].header["records_before"], contents[-1].dropped_spans
    tenth = len(resident) // 10
    grown = statistics.median(resident[-tenth:]) - statistics.median(resident[tenth : 2 * tenth])
    print(f"soak: {total} spans, as in {hours:g} h at 1,000 per second, with keep={keep}:")
    print(f"  maximum bytes on disk {most_bytes}   limit {bounds.max_bytes or 'none'}")
    print(f"  kept once something was discarded: {least_s:.0f} to {most_s:.0f} s, with one step per second")
    is_complete = total == kept + discarded + dropped
    print(f"  emitted {total} = kept {kept} + discarded {discarded} + dropped {dropped}: {is_complete}")
    print(f"  growth of resident memory from the second tenth of the time to the last: {grown:.2f} MiB")


def measure_framework_steps() -> None:
    """Run the benchmarks of whole steps of each framework that is installed, in processes of their own."""
    folder = Path(__file__).parent
    for package, script in (
        ("torch", ["recorded_steps.py"]),
        ("torch", ["recorded_ranks.py"]),
        ("megatron", ["framework_steps.py", "megatron"]),
        ("deepspeed", ["framework_steps.py", "deepspeed"]),
    ):
        print(f"steps of {package}", flush=True)
        if importlib.util.find_spec(package) is None:
            print("  not measured: it is not installed")
        else:
            subprocess.run([sys.executable, folder / script[0], *script[1:]], check=False)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--hours", type=float, default=1.0)
    options.add_argument("--keep", default=f"{SOAK_BYTES}B")
    options.add_argument("--only", choices=["soak", "control", "steps"])
    asked = options.parse_args()
    if asked.only is None:
        compare_spans()
        compare_collectives()
        compare_steps()
        measure_control()
        measure_memory()
    if asked.only == "control":
        measure_control()
    if asked.only in {None, "steps"}:
        measure_framework_steps()
    if asked.only in {None, "soak"}:
        soak(asked.hours, asked.keep)


if __name__ == "__main__":
    main()
