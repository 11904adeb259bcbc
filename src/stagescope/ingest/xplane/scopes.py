"""Find actions in the scopes of kernels.

XLA runs a whole step as one program, which the host only starts. An annotation around its call on the host therefore
covers no action; a scope inside the program does (`with jax.named_scope("F0.3"):`), because every kernel carries the
scopes of the operation that it was compiled from. The kernels of a scope that run one after the other on the busiest
stream of a device are one action; the same scope after another one is the same action of a later step.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.ingest.annotations.kernel_classes import COMPUTE_KERNEL, kernel_class
from stagescope.ingest.device_ranges.enclosing_ranges import NO_RANGE
from stagescope.ingest.device_ranges.kernels import LAUNCHED_SCHEMA
from stagescope.ingest.device_ranges.memory_trace import KERNELS_SCHEMA, LAUNCHES_SCHEMA, MemoryTrace
from stagescope.ingest.device_ranges.range_names import range_meaning
from stagescope.ingest.device_ranges.trace import RANGES_SCHEMA, THREAD_BITS, TraceFacts, Wording
from stagescope.ingest.plausible_times import MAX_NS
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stagescope.ingest.annotations.name_pattern import NamePattern
    from stagescope.ingest.xplane.xspace import Kernel, Profile

WORDING = Wording(
    ranges="named scopes",
    file="profile",
    no_ranges="put \"with jax.named_scope(f'F{stage}.{microbatch}'):\" around each forward (B around each backward) "
    "inside the compiled function; or describe the names of scopes with --pattern",
    no_kernels="the profile needs a device trace",
    example="rank0.xplane.pb, rank1.xplane.pb",
    clock_method="wall time at which the profile began",
)


def trace_of(path: Path, profile: Profile, pattern: NamePattern | None) -> MemoryTrace:
    """Return a profile as a trace: a process per device, and a range around the kernels of each action."""
    marks: list[Any] = []
    calls: list[Any] = []
    dispatches: list[Any] = []
    beside: list[Any] = []
    names: dict[str, int] = {}
    actions: dict[str, str | None] = {}
    unused = 0
    faults = [Diagnostic("error", profile.damage, str(path), code="file.damaged")] if profile.damage else []
    for device, kernels in enumerate(profile.devices.values()):
        timed = [
            (kernel, _action(kernel.scope, actions, pattern))
            for kernel in sorted(kernels, key=lambda kernel: kernel.start_ns)
            if -MAX_NS < kernel.start_ns <= kernel.end_ns < MAX_NS
        ]
        scoped = [(kernel, scope) for kernel, scope in timed if scope is not None]
        main = _busiest(kernel for kernel, _ in scoped)
        used = [(kernel, scope) for kernel, scope in scoped if kernel.stream == main or _communicates(kernel)]
        unused += len(scoped) - len(used)
        thread = device << THREAD_BITS
        for kernel, scope in timed:
            if scope is None or not (kernel.stream == main or _communicates(kernel)):
                name = names.setdefault(kernel.name, len(names))
                times = (kernel.start_ns, kernel.end_ns)
                beside.append((NO_RANGE, device, kernel.stream, name, *times))
        own = [
            (kernel, scope) for kernel, scope in used if kernel.stream == main and not _communicates(kernel)
        ]
        for scope, group in groupby(own, key=lambda one: one[1]):
            run = [kernel for kernel, _ in group]
            marks.append((scope, thread, run[0].start_ns, max(kernel.end_ns for kernel in run)))
        for kernel, _ in used:
            number = len(calls) + 1
            name = names.setdefault(kernel.name, len(names))
            calls.append((thread, number, kernel.start_ns))
            times = (kernel.start_ns, kernel.end_ns)
            dispatches.append((device, number, kernel.stream, device, name, *times))
    if unused:
        text = "kernels of actions ran on other streams than the busiest one: their time is not shown"
        faults.append(Diagnostic("info", text, str(path), count=unused, code="kernels.other_stream"))
    # Scopes that are no action are examples in the refusal.
    if not marks:
        scopes = (part for scope in actions for part in _parts(scope))
        marks = [(name, -1, 0, 0) for name in dict.fromkeys(scopes)]
    titles = dict(enumerate(name.removeprefix("/device:") for name in profile.devices))
    return MemoryTrace(
        path,
        WORDING,
        TraceFacts(profile.host, profile.epoch_ns, titles),
        pl.DataFrame(marks, RANGES_SCHEMA, orient="row"),
        pl.DataFrame(calls, LAUNCHES_SCHEMA, orient="row"),
        pl.DataFrame(dispatches, KERNELS_SCHEMA, orient="row"),
        {number: name for name, number in names.items()},
        faults,
        beside=pl.DataFrame(beside, LAUNCHED_SCHEMA, orient="row"),
    )


def _action(scope: str, known: dict[str, str | None], pattern: NamePattern | None) -> str | None:
    """Return the innermost part of the scopes that is an action; None without one."""
    if scope not in known:
        found = (part for part in reversed(_parts(scope)) if _is_action(part, pattern))
        known[scope] = next(found, None)
    return known[scope]


def _is_action(part: str, pattern: NamePattern | None) -> bool:
    meaning = range_meaning(part, pattern)
    # Words without a number, such as "forward", are names of functions and modules too.
    return meaning is not None and meaning.kind in ACTION_KINDS and meaning.microbatch is not None


def _parts(scope: str) -> list[str]:
    """Return the scopes around an operation; transformations such as jvp(F0.3) name the scope that they transform."""
    return [part.rpartition("(")[2].rstrip(")") or part for part in scope.split("/")[:-1]]


def _busiest(kernels: Iterable[Kernel]) -> int:
    load: Counter[int] = Counter()
    for kernel in kernels:
        load[kernel.stream] += 0 if _communicates(kernel) else kernel.end_ns - kernel.start_ns
    return load.most_common(1)[0][0] if load else 0


def _communicates(kernel: Kernel) -> bool:
    return kernel_class(kernel.name) != COMPUTE_KERNEL
