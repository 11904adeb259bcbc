"""The fastest schedule for a model: all schedules, simulated with the costs of the model.

Every schedule gets the same model on the same ranks. `division` converts costs that were measured on one division of
the model into those of another: with v chunks per rank, a chunk costs 1/v. Micro-batches keep their size, so different
numbers of micro-batches are ranked by step time per micro-batch.

Memory is the peak of the activations of a rank, in the unit of `Scope.sizes`. By default, one unit is the activation
of one micro-batch on a rank's share (1/ranks) of the model. A bidirectional schedule holds every parameter twice:
`Candidate.model_copies` reports this, and the memory limit does not include it.
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
"""The memory limits that define these searched schedules, in activations per rank and number of ranks."""


class Trial(NamedTuple):
    """One schedule in one size, to be simulated."""

    name: str
    ranks: int
    microbatches: int
    chunks: int

    def __str__(self) -> str:
        schedule = find_schedule(self.name)
        has_choice = schedule.least_chunks is not None and self.chunks != schedule.chunks
        return (
            f"{self.name} with {self.chunks} chunk{'s' if self.chunks > 1 else ''}"
            if has_choice
            else self.name
        )


class Candidate(NamedTuple):
    """The simulation results of a possible schedule.

    The denominator of `bubble_fraction` is ranks x makespan, that of `own_span_bubble_fraction` the longest own span.
    """

    trial: Trial
    makespan_ns: int
    lower_bound_ns: int
    bubble_fraction: float
    own_span_bubble_fraction: float
    peak_memory: Fraction
    model_copies: int

    @property
    def microbatch_ns(self) -> Fraction:
        """Step time per micro-batch, by which candidates are ranked."""
        return Fraction(self.makespan_ns, self.trial.microbatches)


class Rejected(NamedTuple):
    """An impossible schedule, why, and what to change; `candidate` is set if only the memory limit is too small."""

    trial: Trial
    reason: str
    hint: str = ""
    candidate: Candidate | None = None


@dataclass(frozen=True)
class Scope:
    """The schedules that a search simulates.

    `chunks` are the numbers of model chunks per rank to try for schedules with a choice; empty means the default of
    each schedule. `on_progress` is called with the number of finished trials, the number of all trials, and the name
    of the next one.
    """

    names: Sequence[str] = NAMES
    chunks: Sequence[int] = ()
    sizes: ActivationSizes = CHUNKS
    on_progress: Callable[[int, int, str], object] | None = None


EVERYTHING = Scope()


@dataclass(frozen=True)
class SearchResult:
    """All trials: `ranked` has the possible ones, fastest first; `rejected` the others, in the order of the catalog."""

    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]

    def find(self, name: str) -> Candidate | None:
        """Return the best candidate of a schedule, even above the memory limit; None if it is impossible."""
        over_limit = (each.candidate for each in self.rejected if each.candidate)
        return next((each for each in (*self.ranked, *over_limit) if each.trial.name == name), None)

    def advice(self, current: str) -> tuple[str, ...]:
        """Return sentences on faster schedules: the best in at most the same memory, and the best within the limit.

        Step time per micro-batch is compared. Raises ScheduleError if `current` was not simulated or is impossible.

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
        return tuple(sentences) or (f"no simulated schedule within the limits is faster than {now.trial}",)


def find_fastest(
    costs: Costs,
    *,
    ranks: int,
    microbatches: int | Sequence[int],
    memory_limit: float | None = None,
    scope: Scope = EVERYTHING,
) -> SearchResult:
    """Return all schedules of a scope, simulated and ranked by step time per micro-batch.

    `costs` are those of the model on `ranks` ranks, see the module; `memory_limit` is the most activation memory that
    a rank may hold. Schedules that search an order themselves get costs and limit. Equal times are ranked by memory,
    then in the order of the catalog. Raises ScheduleError for unknown names and for inconsistent costs.
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
    # Stable: of equal time and memory the order of the catalog remains.
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
    """The inputs that all trials share."""

    costs: Costs
    sizes: ActivationSizes
    memory_limit: float | None

    def attempt(self, trial: Trial) -> Candidate | Rejected:
        """Return the results of a trial, or why it is impossible."""
        schedule = find_schedule(trial.name)
        try:
            schedule.shape(trial.ranks, trial.microbatches, trial.chunks, {})
        except ScheduleError as error:
            return Rejected(trial, str(error), error.hint)
        # Only now: dividing costs needs valid sizes.
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
            return Rejected(trial, f"peak memory is {kept}; the limit is {limit}", candidate=candidate)
        return candidate

    def _options(
        self, schedule: Schedule, trial: Trial, costs: Costs, scaled: ScaledSizes
    ) -> dict[str, object]:
        """Return the options of a schedule that searches for its order; empty for a fixed order."""
        known = {option.name for option in schedule.options}
        options: dict[str, object] = {"costs": costs} if "costs" in known else {}
        if "memory_limit" not in known:
            return options
        sizes = per_stage("activation", scaled.sizes.activation, trial.ranks)
        limits = [LIMIT_FACTORS[schedule.name] * trial.ranks * size for size in sizes]
        if self.memory_limit is not None:
            limits = [min(limit, int(self.memory_limit * scaled.scale)) for limit in limits]
            # The heuristic assumes that one micro-batch always fits.
            if any(limit < size for limit, size in zip(limits, sizes, strict=True)):
                raise ScheduleError.memory_limit_too_small(schedule.name, memory_text(self.memory_limit))
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
