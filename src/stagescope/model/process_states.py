"""What each process of a training is doing, as its recording states it while the training runs."""

from __future__ import annotations

from dataclasses import dataclass, field

WAIT, ACTIVITY = "wait", "activity"
"""Calls that are no span kinds: a wait for transfers or collectives, and an activity of the host that has a name."""


@dataclass(frozen=True)
class Call:
    """A call in progress: what it is (a span kind, `WAIT` or `ACTIVITY`), where, and since when.

    `waits_for` are the transfers and collectives that a wait is for. `pair` is the number of a collective in its group.
    `since_ns` is a moment of the process's clock, None where only the device knows it.
    """

    kind: str
    stage: int | None = None
    microbatch: int | None = None
    peer: int | None = None
    pair: int | None = None
    name: str | None = None
    since_ns: int | None = None
    waits_for: tuple[Call, ...] = ()


@dataclass(frozen=True)
class ProcessState:
    """One process: what it recorded last, and what it was doing then.

    rank, world_size, host, pid, source
        Who it is, and its recording. None where the header does not state it.
    step
        Training step that is in progress or was last.
    end_reason
        Why it ended, such as ``exit``; None while it runs, or if it was killed.
    exception
        Type of the exception that ended it, if one did.
    exit_status
        With which it ended itself; None if that is 0 or unknown.
    ended_ns
        When it ended its recording, on the wall clock of its machine; None unless it has.
    written_s
        Seconds since it last wrote anything: its writer thread writes every four seconds.
    quiet_s
        Seconds since the end of the last span; None without a span. If its steps are not recorded: how long the step
        had been in progress when the process reported it.
    is_recorded
        Whether the step is recorded; False because of ``--steps`` or a pause.
    steps_per_s
        Training steps per second among the spans that were read; 0 if they are of one step.
    longest_gap_s
        Longest time without a span before that, among the spans that were read.
    began_s
        Seconds since its recording began; None if that is unknown.
    exists
        Whether the process exists; None if it cannot be known, such as on another machine.
    is_certain
        Whether `exists` is certain; otherwise, a process that seems not to exist may be in another container.
    can_restart
        Whether its launcher may start it again: False if the launcher does not exist or has no restart left; True also
        if that is unknown.
    calls
        Calls in progress, the innermost first.
    state_s
        Seconds since the calls were read; None if they never were.
    groups
        Collectives issued so far by process group.
    stack, threads
        Frames of the training thread, the innermost first, and those of the other threads if they were asked for.
    request
        Answer to the last request of `stagescope control`, empty without one.
    """

    rank: int
    source: str
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    step: int | None = None
    end_reason: str | None = None
    exception: str | None = None
    exit_status: int | None = None
    ended_ns: int | None = None
    written_s: float = 0.0
    quiet_s: float | None = None
    steps_per_s: float = 0.0
    longest_gap_s: float = 0.0
    is_recorded: bool = True
    began_s: float | None = None
    exists: bool | None = None
    is_certain: bool = False
    can_restart: bool = True
    calls: tuple[Call, ...] = ()
    state_s: float | None = None
    groups: dict[str, int] = field(default_factory=dict)
    stack: tuple[str, ...] = ()
    threads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    request: dict[str, object] = field(default_factory=dict)
