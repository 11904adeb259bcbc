import polars as pl

from stagescope.model import RANKS, Timeline, empty_timeline
from stagescope.model.simulated import COST_UNIT_CLOCK, SIMULATED_CLOCK, is_in_cost_units, is_simulated
from stagescope.model.validate import conform


def on_clocks(*clocks: str | None) -> Timeline:
    bare = empty_timeline()
    ranks = conform(pl.DataFrame({"rank": range(len(clocks)), "clock": clocks}), RANKS)
    return Timeline(bare.spans, ranks, bare.steps, bare.clocks, bare.diagnostics)


def test_a_recording_is_not_simulated() -> None:
    assert not is_simulated(on_clocks(None, "boot-id/monotonic"))
    assert not is_simulated(empty_timeline())


def test_a_single_recorded_rank_keeps_the_units() -> None:
    assert not is_in_cost_units(on_clocks(COST_UNIT_CLOCK, None))


def test_the_clock_determines_cost_units() -> None:
    assert is_simulated(on_clocks(SIMULATED_CLOCK, COST_UNIT_CLOCK))
    assert not is_in_cost_units(on_clocks(SIMULATED_CLOCK))
    assert is_in_cost_units(on_clocks(COST_UNIT_CLOCK))
