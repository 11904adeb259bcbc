"""The cost of recording for the training: CPU time of the training thread per span.

Prints the median and the maximum of several rounds, each small enough for the recorder's buffer, so no span is
dropped. The baseline is the cheapest way to keep the same data in memory: two clock reads and a tuple appended to a
list.
"""

from __future__ import annotations

import statistics
import tempfile
import time

import stagescope.record as record
from stagescope.record import session

SPANS = 50_000
ROUNDS = 9
LIMIT_US = 0.7


def with_span(count: int) -> None:
    span = record.span
    for number in range(count):
        with span("forward", microbatch=number, stage=2):
            pass


def with_emit(count: int) -> None:
    """Do what the framework hooks do: two clock reads and one call."""
    emit, now_ns = session.recorder.emit, time.monotonic_ns
    for number in range(count):
        start_ns = now_ns()
        emit(1, start_ns, now_ns(), 2, number, 0)


def with_list(count: int) -> None:
    kept, now_ns = [], time.monotonic_ns
    for number in range(count):
        start_ns = now_ns()
        kept.append((1, start_ns, now_ns(), 2, number, 0))


def cost_us(work) -> float:
    """Return CPU microseconds per span in this thread, with the writer thread at work beside it."""
    with tempfile.TemporaryDirectory() as directory:
        record.start(directory)
        session.recorder.emit(1, 0, 1)
        session.recorder.flush()
        begun_ns = time.thread_time_ns()
        work(SPANS)
        spent_ns = time.thread_time_ns() - begun_ns
        session.recorder.flush()
        record.stop()
    return spent_ns / SPANS / 1e3


def main() -> None:
    print(f"{'':28}{'median us':>10}{'max us':>10}   limit {LIMIT_US} us")
    for name, work in (
        ("span() in a with block", with_span),
        ("a framework hook's span", with_emit),
        ("baseline: tuple to a list", with_list),
    ):
        costs = sorted(cost_us(work) for _ in range(ROUNDS))
        print(f"{name:28}{statistics.median(costs):10.2f}{costs[-1]:10.2f}")


if __name__ == "__main__":
    main()
