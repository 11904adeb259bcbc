from stagescope import api as workflow
from stagescope.reports.simulations import comparison_table, schedule_list, simulation_summary
from stagescope.schedules import NAMES, Costs, Scope, find_fastest, order

UNIT = 1_000_000


def figures(step: workflow.SimulatedStep, **options: bool) -> str:
    return simulation_summary(step.simulation, step.bound, step.peak_in_flight, **options)


def test_summary_has_the_denominator_of_every_fraction() -> None:
    step = workflow.simulate(order("zb-h2", ranks=4, microbatches=8), Costs(forward=UNIT))
    lines = figures(step).splitlines()
    assert lines[:5] == [
        "makespan         27.00 ms",
        "lower bound      27.00 ms (from rank 3); the makespan is 0.0 % above it",
        "bubble           11.1 % of ranks x makespan",
        "own-span bubble  0.0 % of the longest rank's first start to last end",
        "peak memory      7 chunk activations on one rank",
    ]


def test_relative_costs_have_no_unit() -> None:
    step = workflow.simulate(order("1f1b", ranks=2, microbatches=2), Costs(forward=UNIT))
    assert figures(step, in_cost_units=True).startswith("makespan         9\n")


def test_neighbors_of_many_ranks_with_the_same_times_share_a_row() -> None:
    step = workflow.simulate(order("1f1b", ranks=512, microbatches=8), Costs(forward=UNIT))
    table = figures(step, in_cost_units=True).split("\n\n")[1].splitlines()
    assert [line.split() for line in table] == [
        ["rank", "busy", "idle", "peak", "chunks"],
        ["0-511", "24", "1533", "1-8"],
    ]


def test_shows_few_of_many_ranks_with_different_times_and_counts_the_rest() -> None:
    costs = Costs(forward=tuple(UNIT * (1 + stage % 2) for stage in range(48)))
    step = workflow.simulate(order("1f1b", ranks=48, microbatches=2), costs)
    lines = figures(step).split("\n\n")[1].splitlines()
    ranks = [line.split()[0] for line in lines[1:-1]]
    assert (len(ranks), ranks[0], ranks[-1]) == (16, "0", "47")
    assert lines[-1] == "32 ranks not shown"


def test_few_ranks_have_a_row_each() -> None:
    step = workflow.simulate(order("1f1b", ranks=16, microbatches=2), Costs(forward=UNIT))
    assert len(figures(step).split("\n\n")[1].splitlines()) == 17


def test_summary_of_an_empty_order() -> None:
    assert figures(workflow.simulate({0: []}, Costs())).startswith("makespan         0 ns\n")


def test_comparison_without_possible_schedules_has_only_reasons() -> None:
    found = find_fastest(Costs(), ranks=3, microbatches=4, scope=Scope(names=("dualpipe",)))
    lines = comparison_table(found).splitlines()
    assert not any(line.startswith("schedule ") for line in lines)
    assert any(line.startswith("  dualpipe: needs an even number of ranks") for line in lines)


def test_list_has_every_schedule_and_fits_the_page_width() -> None:
    text = schedule_list()
    assert max(map(len, text.splitlines())) <= 100
    assert all(f"\n\n{name}  " in f"\n\n{text}" for name in NAMES)
