"""What ``stagescope run`` prints on standard error after the command has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.cli.console import echo
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.number_ranges import ranks_text
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stagescope.record.contents import Contents
    from stagescope.record.launch import Ended

SUPPORTED = (
    "the schedules of torch, Megatron-core, DeepSpeed, Paddle, MindSpeed, FlagScale, Primus and ColossalAI"
)
CUT_SHORT = ", or it was killed or called os._exit within half a second after its first action"
NO_ACTION = f"no process completed an action of a pipeline schedule{CUT_SHORT}"
"""A process stores what it has recorded every half second. Nothing runs at an end without notice."""

MOST_LINES = 8
"""Ranks that recorded different amounts; more of them are summarized in one line."""

MARKING = """\
  to record a pipeline that is written by hand, mark its actions:
      import stagescope.record as record
      with record.forward(microbatch=m, stage=s): ...
      with record.backward(microbatch=m, stage=s): ...
  docs/hand-written-pipelines.md has an example"""
"""How to mark actions, if there are none."""


def print_summary(directory: Path, recordings: set[Path], ended: Ended, steps: str | None = None) -> None:
    """Print how the command ended, what its processes recorded, and what to do if that is not enough."""
    from stagescope.record.contents import count_contents, count_discarded, size_of
    from stagescope.record.launch import count_processes, refusals_in

    if ended.signal_number is not None:
        _print(f"stagescope: the command was terminated by signal {ended.signal_number}")
    elif ended.exit_code:
        _print(f"stagescope: the command failed with exit code {ended.exit_code}")
    if not recordings:
        _print(f"stagescope: nothing was recorded: {NO_ACTION}")
        _print(f"  supported: {SUPPORTED}, and marked actions")
        if ended.exit_code:
            return
        if steps is not None:
            _print(f"  --steps {steps}: a pipeline that is written by hand marks its steps with record.step")
        _print(MARKING)
        return
    size_kb = sum(map(size_of, recordings)) / 1e3
    processes = counted(count_processes(recordings), "process", "processes")
    _print(f"stagescope: recorded {processes} in {directory} ({size_kb:.0f} kB)")
    contents = count_contents(recordings)
    for line in _lines(contents):
        _print(f"  {line}")
    discarded = count_discarded(recordings)
    if discarded:
        _print(f"  discarded the oldest {counted(discarded, 'span')}, to stay within the bounds (--keep)")
    _print(f"  show it with: stagescope show {directory}")
    refusals = refusals_in(recordings)
    for reason in refusals:
        _print(f"  not recorded: {printable(reason)}")
    if contents and not refusals and not any(process.counts["actions"] for process in contents):
        is_whole = all(process.has_end for process in contents)
        reason = "no process ran a supported schedule" + ("" if is_whole else CUT_SHORT)
        _print(f"  no forward or backward was recorded: {reason}")
        _print(MARKING)


def _print(text: str) -> None:
    echo(text, err=True)


def _lines(contents: Sequence[Contents]) -> Iterator[str]:
    """Yield what each rank recorded, the ranks that recorded the same in one line."""
    ranks: dict[str, list[int]] = {}
    for process in contents:
        ranks.setdefault(_amounts(process), []).append(process.rank)
    if len(ranks) > MOST_LINES:
        least, most = (choose(contents, key=lambda one: one.counts["actions"]) for choose in (min, max))
        yield f"actions of each rank: {least.counts['actions']} (rank {least.rank}) to {most.counts['actions']}"
        return
    for amounts, members in ranks.items():
        yield f"{ranks_text(members)}: {amounts}"


def _amounts(process: Contents) -> str:
    """Return the counts of one process; what it did not record is left out, except actions."""
    counts = [
        counted(count, name.removesuffix("s"))
        for name, count in process.counts.items()
        if count or name == "actions"
    ]
    if process.counted_collectives:
        counts.append(f"{process.counted_collectives} more collectives only counted")
    return ", ".join(counts)
