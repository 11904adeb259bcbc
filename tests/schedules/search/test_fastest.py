import doctest
import importlib
from fractions import Fraction

import pytest

from stagescope.schedules.catalog import NAMES, SCHEDULES, order
from stagescope.schedules.costs import Costs
from stagescope.schedules.memory import ActivationSizes
from stagescope.schedules.search.fastest import Scope, find_fastest
from stagescope.schedules.simulator import simulate
from stagescope.vocabulary.errors import ScheduleError

COSTS = Costs(forward=1_000, backward=2_000)


def names(candidates) -> list[str]:
    return [each.trial.name for each in candidates]


def test_simulates_every_schedule_once_and_ranks_the_fastest_first() -> None:
    found = find_fastest(COSTS, ranks=4, microbatches=8)
    assert sorted([*names(found.ranked), *names(found.rejected)]) == sorted(NAMES)
    times = [each.makespan_ns for each in found.ranked]
    assert times == sorted(times)


def test_step_times_of_linear_schedules_equal_their_simulation() -> None:
    found = find_fastest(COSTS, ranks=4, microbatches=8, scope=Scope(names=("gpipe", "1f1b", "zb-h1")))
    for each in found.ranked:
        step = simulate(order(each.trial.name, ranks=4, microbatches=8), COSTS)
        assert (each.makespan_ns, each.bubble_fraction) == (step.makespan_ns, step.bubble_fraction)


def test_all_schedules_have_equal_work() -> None:
    found = find_fastest(COSTS, ranks=4, microbatches=8)
    for each in found.ranked:
        busy = (1 - each.bubble_fraction) * each.makespan_ns
        assert busy == pytest.approx(8 * 3_000), each.trial.name


def test_no_candidate_is_below_its_lower_bound() -> None:
    assert all(
        each.makespan_ns >= each.lower_bound_ns > 0
        for each in find_fastest(COSTS, ranks=4, microbatches=8).ranked
    )


def test_advice_reports_savings_at_the_same_memory() -> None:
    found = find_fastest(COSTS, ranks=4, microbatches=8, scope=Scope(names=("1f1b", "zb-h1")))
    assert found.advice("1f1b") == ("zb-h1 would save 18.2 % against 1f1b, at the same memory",)
    assert found.advice("zb-h1") == ("no simulated schedule within the limits is faster than zb-h1",)


def test_advice_reports_more_memory_and_parameters() -> None:
    scope = Scope(names=("1f1b", "dualpipe"))
    costs = Costs(forward=1_000, backward=2_000, overlapped=2_400)
    (sentence,) = find_fastest(costs, ranks=4, microbatches=16, scope=scope).advice("1f1b")
    assert sentence.endswith("at more memory (5 instead of 4) and a second copy of the parameters")


def test_rejects_schedules_above_the_memory_limit_with_their_results() -> None:
    found = find_fastest(COSTS, ranks=4, microbatches=8, memory_limit=4, scope=Scope(names=("gpipe", "1f1b")))
    assert names(found.ranked) == ["1f1b"]
    (gpipe,) = found.rejected
    assert gpipe.reason == "peak memory is 8; the limit is 4"
    assert gpipe.candidate.peak_memory == 8
    assert found.find("gpipe") == gpipe.candidate


def test_searched_schedules_search_within_the_limit() -> None:
    found = find_fastest(
        COSTS, ranks=4, microbatches=8, memory_limit=2.5, scope=Scope(names=("zb-1p", "zb-2p"))
    )
    assert [each.peak_memory for each in found.ranked] == [2, 2]


def test_rejects_a_limit_below_one_micro_batch() -> None:
    found = find_fastest(COSTS, ranks=4, microbatches=8, memory_limit=0.5, scope=Scope(names=("zb-1p",)))
    assert found.rejected[0].reason == (
        "zb-1p needs memory for one micro-batch on every rank; the memory limit is 0.5"
    )


def test_impossible_schedules_have_reason_and_hint() -> None:
    found = find_fastest(COSTS, ranks=4, microbatches=7)
    reasons = {each.trial.name: (each.reason, each.hint) for each in found.rejected}
    assert reasons["dualpipev"][0].startswith("dualpipev needs at least 2 x ranks micro-batches")
    assert reasons["dualpipev"][1] == "nearest valid: microbatches=8"


def test_tries_chunk_counts_of_schedules_with_a_choice() -> None:
    scope = Scope(names=("1f1b", "interleaved", "dualpipev"), chunks=(2, 4))
    found = find_fastest(COSTS, ranks=4, microbatches=8, scope=scope)
    assert sorted(str(each.trial) for each in found.ranked) == [
        "1f1b",
        "dualpipev",
        "interleaved",
        "interleaved with 4 chunks",
    ]


def test_more_chunks_shorten_the_fill_and_shrink_activations() -> None:
    scope = Scope(names=("interleaved",), chunks=(1, 2, 4))
    by_chunks = {
        each.trial.chunks: each for each in find_fastest(COSTS, ranks=4, microbatches=8, scope=scope).ranked
    }
    idle = {v: each.makespan_ns - 8 * 3_000 for v, each in by_chunks.items()}
    assert idle == {1: 3 * 3_000, 2: 3 * 1_500, 4: 3 * 750}  # arXiv 2104.04473: (p-1)(F+B)/v
    assert by_chunks[2].peak_memory == Fraction(2 * 4 + 4 - 1, 2)


def test_ranks_micro_batch_counts_by_time_per_micro_batch() -> None:
    found = find_fastest(COSTS, ranks=4, microbatches=(4, 8, 16), scope=Scope(names=("1f1b",)))
    assert [each.trial.microbatches for each in found.ranked] == [16, 8, 4]


def test_accepts_costs_per_stage_and_sizes_in_bytes() -> None:
    costs = Costs(forward=[1_000, 1_000, 3_000, 1_000])
    scope = Scope(names=("1f1b", "interleaved"), sizes=ActivationSizes([100, 100, 300, 100]))
    found = find_fastest(costs, ranks=4, microbatches=8, scope=scope)
    assert found.find("1f1b").peak_memory == 600
    assert (
        found.find("1f1b").makespan_ns == simulate(order("1f1b", ranks=4, microbatches=8), costs).makespan_ns
    )


def test_reports_progress_from_first_to_last_trial() -> None:
    reports: list[tuple[int, int, str]] = []
    find_fastest(
        COSTS,
        ranks=2,
        microbatches=2,
        scope=Scope(names=("gpipe", "1f1b"), on_progress=lambda *all_: reports.append(all_)),
    )
    assert reports == [(0, 2, "gpipe"), (1, 2, "1f1b"), (2, 2, "")]


def test_rejects_an_unknown_name() -> None:
    with pytest.raises(ScheduleError, match="unknown schedule 'two-f-one-b'"):
        find_fastest(COSTS, ranks=2, microbatches=2, scope=Scope(names=("two-f-one-b",)))


def test_rejects_advice_on_a_schedule_that_was_not_simulated() -> None:
    found = find_fastest(COSTS, ranks=4, microbatches=7, scope=Scope(names=("1f1b", "dualpipev")))
    with pytest.raises(ScheduleError, match="gpipe was not among"):
        found.advice("gpipe")
    with pytest.raises(ScheduleError, match="dualpipev needs at least"):
        found.advice("dualpipev")


def test_invalid_costs_raise_instead_of_rejecting_schedules() -> None:
    with pytest.raises(ScheduleError, match="values for"):
        find_fastest(Costs(forward=[1, 2, 3], backward=[1, 2]), ranks=4, microbatches=8)


def test_counts_two_model_copies_of_bidirectional_schedules() -> None:
    copies = {
        each.trial.name: each.model_copies for each in find_fastest(COSTS, ranks=4, microbatches=8).ranked
    }
    both = {schedule.name for schedule in SCHEDULES if schedule.placement == "bidirectional"}
    assert {name for name, count in copies.items() if count == 2} == both


def test_examples_run() -> None:
    tried = doctest.testmod(importlib.import_module("stagescope.schedules.search.fastest"))
    assert (tried.failed, tried.attempted > 0) == (0, True)
