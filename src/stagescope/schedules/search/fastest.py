"""Which schedule would be the fastest: all of them, simulated with the costs of one model.

Every schedule gets the same model on the same ranks. `divide` says how costs that were measured on one cut of
the model become those of another: with v chunks a chunk takes 1/v. A micro-batch keeps its size, so different
numbers of micro-batches are ranked by the time that a step takes per micro-batch.

Memory is what a rank keeps of activations at most, in the unit of `Scope.sizes`: unless sizes are given, one
unit is what one rank's share of the model (1/ranks) keeps of one micro-batch. A bidirectional schedule holds
every parameter twice, which `Candidate.model_copies` says and the memory limit does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.bounds import lower_bound
from stagescope.schedules.catalog import NAMES, find_schedule, order
from stagescope.schedules.costs import per_stage
from stagescope.schedules.memory import CHUNKS, ActivationSizes, peak_in_flight
from stagescope.schedules.placement import stage_count
from stagescope.schedules.search.division import divide_costs, divide_sizes
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stagescope.schedules.costs import Costs
    from stagescope.schedules.registry import Schedule
    from stagescope.schedules.search.division import ScaledSizes

LIMIT_FACTORS = {"zb-1p": 1, "zb-2p": 2}
"""How many times the ranks' activations the searched schedules may hold by their own definition."""


class Trial(NamedTuple):
    """One schedule in one size, to be tried."""

    name: str
    ranks: int
    microbatches: int
    chunks: int

    def __str__(self) -> str:
        schedule = find_schedule(self.name)
        chosen = schedule.least_chunks is not None and self.chunks != schedule.chunks
        return (
            f"{self.name} with {self.chunks} chunk{'s' if self.chunks > 1 else ''}" if chosen else self.name
        )


class Candidate(NamedTuple):
    """One schedule that can be had, and how it does; fractions are of ranks x makespan and of the own span."""

    trial: Trial
    makespan_ns: int
    lower_bound_ns: int
    bubble_fraction: float
    own_span_bubble_fraction: float
    peak_memory: Fraction
    model_copies: int

    @property
    def microbatch_ns(self) -> Fraction:
        """Time of a step per micro-batch, what candidates are ranked by."""
        return Fraction(self.makespan_ns, self.trial.microbatches)


class Rejected(NamedTuple):
    """One schedule that cannot be had, why, and what to change; `candidate` where only the memory is too small."""

    trial: Trial
    reason: str
    hint: str = ""
    candidate: Candidate | None = None


@dataclass(frozen=True)
class Scope:
    """What a search tries.

    `chunks` are the numbers of model chunks per rank for schedules that leave the choice, none for each
    schedule's own. `on_progress` is called with the number of trials done, of all trials, and the next one's
    name.
    """

    names: Sequence[str] = NAMES
    chunks: Sequence[int] = ()
    sizes: ActivationSizes = CHUNKS
    on_progress: Callable[[int, int, str], object] | None = None


EVERYTHING = Scope()


@dataclass(frozen=True)
class SearchResult:
    """Every trial: those that can be had, the fastest first, and those that cannot, in the catalog's order."""

    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]

    def find(self, name: str) -> Candidate | None:
        """Return the best candidate of a schedule, one over the memory limit too; None where it is impossible."""
        over_limit = (each.candidate for each in self.rejected if each.candidate)
        return next((each for each in (*self.ranked, *over_limit) if each.trial.name == name), None)

    def advice(self, current: str) -> tuple[str, ...]:
        """Return in sentences what would be faster than a schedule: in its memory, and in any that is allowed.

        The time is that of a step per micro-batch. Raises ScheduleError where the schedule was not tried or is
        impossible.

        >>> from stagescope.schedules.costs import Costs
        >>> scope = Scope(names=("1f1b", "zb-h1"))
        >>> found = find_fastest(Costs(forward=1000, backward=2000), ranks=4, microbatches=8, scope=scope)
        >>> found.advice("1f1b")[0]
        'zb-h1 would save 18.2 % against 1f1b, at the same memory'
        """
        now = self.find(current)
        if now is None:
            reasons = (each.reason for each in self.rejected if each.trial.name == current)
            raise ScheduleError.not_tried(current, reasons)
        faster = [each for each in self.ranked if each.microbatch_ns < now.microbatch_ns]
        no_larger = [each for each in faster if _is_no_larger(each, now)]
        picks = [*no_larger[:1], *faster[:1]]
        sentences = [_saving(each, now) for each in dict.fromkeys(picks)]
        return tuple(sentences) or (f"nothing that was tried and fits is faster than {now.trial}",)


def find_fastest(
    costs: Costs,
    *,
    ranks: int,
    microbatches: int | Sequence[int],
    memory_limit: float | None = None,
    scope: Scope = EVERYTHING,
) -> SearchResult:
    """Return all schedules of a scope, simulated and ranked by the time of a step per micro-batch.

    `costs` are those of the model on `ranks` ranks, see the module; `memory_limit` is the most activation
    memory that any rank may hold. The schedules that search an order themselves get costs and limit. Equal
    times are ranked by memory, then as the catalog lists them. Raises ScheduleError for unknown names and for
    costs that do not fit together.
    """
    counts = tuple(microbatches) if isinstance(microbatches, Sequence) else (microbatches,)
    trials = list(_trials(ranks, counts, scope))
    model = _Model(costs, scope.sizes, memory_limit)
    ranked: list[Candidate] = []
    rejected: list[Rejected] = []
    for done, trial in enumerate(trials):
        if scope.on_progress is not None:
            scope.on_progress(done, len(trials), str(trial))
        outcome = model.attempt(trial)
        if isinstance(outcome, Candidate):
            ranked.append(outcome)
        else:
            rejected.append(outcome)
    if scope.on_progress is not None:
        scope.on_progress(len(trials), len(trials), "")
    ranked.sort(key=lambda each: (each.microbatch_ns, each.peak_memory))
    return SearchResult(tuple(ranked), tuple(rejected))


def _trials(ranks: int, counts: tuple[int, ...], scope: Scope) -> Iterator[Trial]:
    for name, microbatches in product(scope.names, counts):
        schedule = find_schedule(name)
        free = schedule.least_chunks is not None and scope.chunks
        for chunks in dict.fromkeys(scope.chunks) if free else (schedule.chunks,):
            yield Trial(name, ranks, microbatches, chunks)


@dataclass(frozen=True)
class _Model:
    """What is the same for all trials."""

    costs: Costs
    sizes: ActivationSizes
    memory_limit: float | None

    def attempt(self, trial: Trial) -> Candidate | Rejected:
        """Return how a trial does, or why it cannot be had."""
        schedule = find_schedule(trial.name)
        try:
            schedule.shape(trial.ranks, trial.microbatches, trial.chunks, {})
        except ScheduleError as error:
            return Rejected(trial, str(error), error.hint)
        stages = stage_count(schedule.placement, trial.ranks, trial.chunks)
        costs = divide_costs(self.costs, trial.ranks, stages)
        scaled = divide_sizes(self.sizes, trial.ranks, stages)
        try:
            options = self._options(schedule, trial, costs, scaled)
            actions = order(
                trial.name, ranks=trial.ranks, microbatches=trial.microbatches, chunks=trial.chunks, **options
            )
        except ScheduleError as error:
            return Rejected(trial, str(error), error.hint)
        step = simulate(actions, costs)
        candidate = Candidate(
            trial,
            step.makespan_ns,
            lower_bound(actions, costs).makespan_ns,
            step.bubble_fraction,
            step.own_span_bubble_fraction,
            Fraction(max(peak_in_flight(actions, scaled.sizes).values()), scaled.scale),
            2 if schedule.placement == "bidirectional" else 1,
        )
        if self.memory_limit is not None and candidate.peak_memory > self.memory_limit:
            kept, limit = memory_text(candidate.peak_memory), memory_text(self.memory_limit)
            return Rejected(trial, f"keeps {kept} at its peak; the limit is {limit}", candidate=candidate)
        return candidate

    def _options(
        self, schedule: Schedule, trial: Trial, costs: Costs, scaled: ScaledSizes
    ) -> dict[str, object]:
        """Return the options of a schedule that looks for an order of its own."""
        known = {option.name for option in schedule.options}
        options: dict[str, object] = {"costs": costs} if "costs" in known else {}
        if "memory_limit" not in known:
            return options
        sizes = per_stage("activation", scaled.sizes.activation, trial.ranks)
        limits = [LIMIT_FACTORS[schedule.name] * trial.ranks * size for size in sizes]
        if self.memory_limit is not None:
            limits = [min(limit, int(self.memory_limit * scaled.scale)) for limit in limits]
            if any(limit < size for limit, size in zip(limits, sizes, strict=True)):
                raise ScheduleError.no_room(schedule.name, memory_text(self.memory_limit))
        return {**options, "sizes": scaled.sizes, "memory_limit": limits}


def memory_text(amount: float | Fraction) -> str:
    """Return an amount of memory with at most two decimals.

    >>> memory_text(Fraction(9, 2)), memory_text(4)
    ('4.5', '4')
    """
    return f"{float(amount):.2f}".rstrip("0").rstrip(".")


def _is_no_larger(candidate: Candidate, now: Candidate) -> bool:
    return candidate.peak_memory <= now.peak_memory and candidate.model_copies <= now.model_copies


def _saving(candidate: Candidate, now: Candidate) -> str:
    saved_fraction = 1 - candidate.microbatch_ns / now.microbatch_ns
    return (
        f"{candidate.trial}{_size_change(candidate.trial, now.trial)} would save {100 * float(saved_fraction):.1f} % "
        f"against {now.trial}, {_memory_change(candidate, now)}"
    )


def _size_change(trial: Trial, now: Trial) -> str:
    same = trial.microbatches == now.microbatches
    return "" if same else f" on {trial.microbatches} micro-batches instead of {now.microbatches}"


def _memory_change(candidate: Candidate, now: Candidate) -> str:
    after, before = candidate.peak_memory, now.peak_memory
    words = "at the same memory"
    if after != before:
        less = "less" if after < before else "more"
        words = f"at {less} memory ({memory_text(after)} instead of {memory_text(before)})"
    if candidate.model_copies > now.model_copies:
        words += " and a second copy of the parameters"
    return words
