"""Run many mutations of some formats, and summarize the outcomes."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuzz.worker import Result, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

THOROUGH_EVERY = 16
"""Analyses cost ten times as much as reading: one in so many mutations is analyzed and shown as well."""

ROUND = 20
COLUMNS = ("same", "with a diagnostic", "refused", "changed")


@dataclass(frozen=True)
class Plan:
    """What to run: formats, seed, mutations per format (None: until the time is up), seconds, processes.

    Of the mutations, one in `thorough_every` is analyzed and shown as well, none if it is 0.
    """

    formats: Sequence[str]
    seed: int
    count: int | None = None
    seconds: float | None = None
    workers: int = 1
    only: int | None = None
    thorough_every: int = THOROUGH_EVERY

    def is_thorough(self, number: int) -> bool:
        """Return whether a mutation is analyzed and shown as well."""
        return self.only is not None or bool(self.thorough_every and number % self.thorough_every == 0)


@dataclass
class Summary:
    """The results by format."""

    results: dict[str, list[Result]] = field(default_factory=lambda: defaultdict(list))

    @property
    def failures(self) -> list[tuple[str, Result]]:
        """Every failure with its format."""
        return [(name, one) for name, own in self.results.items() for one in own if one.is_failure]

    def groups(self) -> list[tuple[str, list[tuple[str, Result]]]]:
        """Return the failures that look alike together: by kind, and by the last line and place of a traceback."""
        found: dict[str, list[tuple[str, Result]]] = defaultdict(list)
        for name, one in self.failures:
            lines = one.details.strip().splitlines()
            places = [line.split("/src/")[-1] for line in lines if "/stagescope/" in line]
            found[" | ".join([one.kind, *places[-1:], *lines[-1:]])].append((name, one))
        return sorted(found.items(), key=lambda item: -len(item[1]))

    def table(self) -> str:
        """Return a Markdown table: one row per format, and the sum."""
        rows = [_row(name, own) for name, own in self.results.items()]
        rows.append(["all", *(str(sum(int(row[at]) for row in rows)) for at in range(1, len(COLUMNS) + 3))])
        head = ["format", "tried", *COLUMNS, "failures"]
        return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def _row(name: str, results: Iterable[Result]) -> list[str]:
    kinds = Counter(one.kind for one in results)
    failures = kinds.total() - sum(kinds[column] for column in COLUMNS)
    return [name, str(kinds.total()), *(str(kinds[column]) for column in COLUMNS), str(failures)]


def run(plan: Plan, keep: Path, *, shows_progress: bool = False) -> Summary:
    """Return the summary of a plan; the mutated files of failures are kept below `keep`."""
    summary = Summary()
    began = time.monotonic()
    rounds = _rounds(plan, began)

    def work() -> None:
        worker = Worker(keep)
        try:
            for name, numbers in rounds:
                for number in numbers:
                    found = worker.run(name, plan.seed, number, thorough=plan.is_thorough(number))
                    summary.results[name].append(found)
                if shows_progress:
                    _progress(summary, time.monotonic() - began)
        finally:
            worker.close()

    with ThreadPoolExecutor(plan.workers) as pool:
        for done in [pool.submit(work) for _ in range(plan.workers)]:
            done.result()
    summary.results = {name: summary.results[name] for name in plan.formats if name in summary.results}
    return summary


class _rounds:  # noqa: N801 - used like a generator, which threads cannot share
    """The rounds of a plan, shared by threads: each format in turn, ROUND mutations at a time."""

    def __init__(self, plan: Plan, began: float) -> None:
        from threading import Lock  # noqa: PLC0415 - local to this class

        self._lock, self._steps = Lock(), _steps(plan, began)

    def __iter__(self) -> Iterator[tuple[str, range]]:
        return self

    def __next__(self) -> tuple[str, range]:
        with self._lock:
            return next(self._steps)


def _steps(plan: Plan, began: float) -> Iterator[tuple[str, range]]:
    if plan.only is not None:
        yield from ((name, range(plan.only, plan.only + 1)) for name in plan.formats)
        return
    first = 0
    while plan.formats and (plan.count is None or first < plan.count):
        last = first + ROUND if plan.count is None else min(first + ROUND, plan.count)
        for name in plan.formats:
            if plan.seconds is not None and time.monotonic() - began > plan.seconds:
                return
            yield name, range(first, last)
        first = last


def _progress(summary: Summary, seconds: float) -> None:
    tried = sum(map(len, summary.results.values()))
    text = f"{seconds:.0f} s: {tried} mutations, {len(summary.failures)} failures"
    print(text, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
