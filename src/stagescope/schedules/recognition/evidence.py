"""What a measured order says before it is compared with any schedule.

How many micro-batches ran, whether weight gradients and overlapped pairs were seen, which stages each rank
holds, how long the groups of an interleaved schedule are, and what is wrong with the order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stagescope.schedules.action import Action, read_actions
from stagescope.schedules.recognition.lines import F, Line, action_of, number_of, write_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MeasuredOrders = Mapping[int, Sequence["Action | str"]]

STRAY_SHARE = 1 / 8
"""A rank holds a stage if it runs at least this share of the stage's jobs; else these are strays."""

FAULTS_SHOWN = 5


@dataclass(frozen=True)
class Evidence:
    """A measured order, read.

    `actions` are the orders as given; `lines` the jobs of each rank that ran any, duplicates left out; `held`
    the stages of each rank. `weights` and `paired` tell whether W apart from B, and overlapped pairs, were seen
    at all. `repeated` counts the duplicates, `renumbered` the jobs of ranks that numbered theirs from elsewhere
    than 0. `faults` are sentences, the first few of each sort.
    """

    actions: dict[int, list[Action]]
    lines: dict[int, Line]
    held: dict[int, frozenset[int]]
    microbatches: int
    weights: bool
    paired: bool
    repeated: int
    renumbered: int
    faults: tuple[str, ...]

    @property
    def action_count(self) -> int:
        """How many jobs were read, duplicates too, each W apart from its B where any is."""
        return sum(len(line.numbers) for line in self.lines.values()) + self.repeated


def read_evidence(orders: MeasuredOrders) -> Evidence:
    """Return what the orders of all ranks together say; raises ScheduleError for a word that is no action."""
    parsed = {rank: read_actions(actions) for rank, actions in orders.items()}
    weights = any(
        job.kind == "W" for actions in parsed.values() for action in actions for job in action.parts
    )
    written = {rank: write_line(actions, weights=weights) for rank, actions in parsed.items() if actions}
    lines = {rank: Line(list(dict.fromkeys(line.numbers)), line.pairs) for rank, line in written.items()}
    microbatches = count_microbatches(lines.values())
    lines, faults, renumbered = _renumber(lines, microbatches)
    held = _held(lines)
    return Evidence(
        actions=parsed,
        lines=lines,
        held=held,
        microbatches=microbatches,
        weights=weights,
        paired=any(line.pairs for line in lines.values()),
        repeated=sum(len(written[rank].numbers) - len(line.numbers) for rank, line in lines.items()),
        renumbered=renumbered,
        faults=(
            *_some(f"rank {rank} is empty" for rank, actions in orders.items() if not actions),
            *_some(_twice(written)),
            *faults,
            *_some(_out_of_range(lines, microbatches)),
            *_some(_strays(lines, held)),
        ),
    )


def count_microbatches(lines: Iterable[Line]) -> int:
    """Return how many micro-batches ran; the last ones only count with half the jobs that others have."""
    jobs = Counter(action_of(number).microbatch for line in lines for number in line.numbers)
    if not jobs:
        return 0
    usual = sorted(jobs.values())[(len(jobs) - 1) // 2]
    return 1 + max(microbatch for microbatch, count in jobs.items() if 2 * count >= usual)


def group_sizes(evidence: Evidence) -> list[int]:
    """Return how many micro-batches go through a rank's first chunk before the next one's turn, likeliest first."""
    votes = Counter(_first_run(line, min(evidence.held[rank])) for rank, line in evidence.lines.items())
    return [size for size, _ in votes.most_common(3) if size]


def _first_run(line: Line, stage: int) -> int:
    last = -1
    for job in map(action_of, line.numbers):
        if job.kind == F:
            if job.stage != stage:
                break
            last = job.microbatch
    return last + 1


def _renumber(lines: dict[int, Line], microbatches: int) -> tuple[dict[int, Line], list[str], int]:
    """Return the lines with each stage's jobs of a kind counted from 0 where a rank counts them from elsewhere."""
    renumbered: dict[int, Line] = {}
    faults: list[str] = []
    changed = 0
    for rank, line in lines.items():
        shifts = _shifts(line, microbatches)
        changed += sum(number_of(*job) in shifts for job in map(action_of, line.numbers))
        jobs = [shifts.get(number, number) for number in line.numbers]
        renumbered[rank] = Line(jobs, {shifts.get(f, f): shifts.get(b, b) for f, b in line.pairs.items()})
        if shifts:
            first = action_of(next(iter(shifts)))
            count = len(shifts)
            faults.append(
                f"rank {rank} counts {'FBW'[first.kind]}{first.stage} from {first.microbatch} "
                f"to {first.microbatch + count - 1}, not from 0 to {count - 1}"
            )
    return renumbered, faults, changed


def _shifts(line: Line, microbatches: int) -> dict[int, int]:
    """Return old and new numbers of the first kind of a stage whose micro-batches are out of range as a row."""
    rows: dict[tuple[int, int], list[int]] = defaultdict(list)
    for job in map(action_of, line.numbers):
        rows[job.kind, job.stage].append(job.microbatch)
    for (kind, stage), row in rows.items():
        first = min(row)
        if max(row) >= microbatches == len(row) and sorted(row) == list(range(first, first + len(row))):
            return {number_of(kind, stage, i): number_of(kind, stage, i - first) for i in sorted(row)}
    return {}


def _held(lines: dict[int, Line]) -> dict[int, frozenset[int]]:
    by_rank = {
        rank: Counter(action_of(number).stage for number in line.numbers) for rank, line in lines.items()
    }
    total: Counter[int] = Counter()
    for stages in by_rank.values():
        total.update(stages)
    return {
        rank: frozenset(stage for stage, jobs in stages.items() if jobs >= STRAY_SHARE * total[stage])
        for rank, stages in by_rank.items()
    }


def _twice(written: dict[int, Line]) -> Iterator[str]:
    for rank, line in written.items():
        repeated = Counter(line.numbers) if len(set(line.numbers)) < len(line.numbers) else Counter()
        yield from (
            f"rank {rank} runs {_shown(number)} {count} times"
            for number, count in repeated.items()
            if count > 1
        )
    where: dict[int, int] = {}
    for rank, line in written.items():
        for number in set(line.numbers):
            if where.setdefault(number, rank) != rank:
                yield f"{_shown(number)} runs on rank {where[number]} and on rank {rank}"


def _out_of_range(lines: dict[int, Line], microbatches: int) -> Iterator[str]:
    for rank, line in lines.items():
        for number in line.numbers:
            if action_of(number).microbatch >= microbatches:
                yield f"rank {rank}, {_shown(number)}: micro-batches are 0 to {microbatches - 1}"


def _strays(lines: dict[int, Line], held: dict[int, frozenset[int]]) -> Iterator[str]:
    for rank, line in lines.items():
        for number in line.numbers:
            if action_of(number).stage not in held[rank]:
                yield f"rank {rank}, {_shown(number)}: the stage belongs to another rank"


def _shown(number: int) -> str:
    return str(action_of(number))


def _some(sentences: Iterable[str]) -> list[str]:
    """Return the first few sentences, and how many more there are."""
    every = list(sentences)
    more = len(every) - FAULTS_SHOWN
    return [*every[:FAULTS_SHOWN], *([f"{more} more like this"] if more > 0 else [])]
