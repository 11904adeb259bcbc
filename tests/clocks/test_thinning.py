"""Dense observations are thinned: bounds hold, estimates stay as close, and what contradicts is kept."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from planted_clocks import ClockStep, Plan, plant, uncovered
from stagescope.clocks import align_clocks, thinning
from stagescope.clocks.exits import OF_EXITS
from stagescope.clocks.observation_table import OBSERVATION_SCHEMA
from stagescope.clocks.thinning import OUTERMOST, thinned

MOST = 64
FEW_NS, RATE = 1_000, 30e-6


def messages(count: int, wrong: tuple[int, ...] = ()) -> pl.DataFrame:
    """Return messages both ways between clocks that drift apart; those of `wrong` places arrive 1 ms too early."""
    rng = np.random.default_rng(0)
    ways = []
    for source, sign in ((0, 1), (1, -1)):
        sent_ns = np.sort(rng.integers(0, 10_000_000_000, count))
        offset_ns = sign * (np.rint(sent_ns * RATE).astype(np.int64) + 40_000_000)
        delay_ns = 20_000 + rng.exponential(40_000, count).astype(np.int64)
        if source == 0:
            delay_ns[list(wrong)] -= 1_000_000
        ways.append(
            {
                "kind": "message",
                "source": source,
                "target": 1 - source,
                "source_rank": source,
                "target_rank": 1 - source,
                "step": 0,
                "microbatch": range(count),
                "sent_ns": sent_ns,
                "received_ns": sent_ns + offset_ns + delay_ns,
                "waited": True,
                **dict.fromkeys(("stay_ns", "by_exit", *OF_EXITS)),
            }
        )
    return pl.concat(pl.DataFrame(way, schema=OBSERVATION_SCHEMA) for way in ways)


def test_few_observations_are_left_as_they_are():
    table = messages(MOST)
    assert thinned(table, MOST).equals(table)


def test_the_shortest_delays_above_the_line_of_the_pair_are_kept():
    table = messages(50 * MOST)
    found = thinned(table, MOST)
    assert found.join(table, on=table.columns, how="anti", nulls_equal=True).is_empty()
    for source, sign in ((0, 1), (1, -1)):
        own = found.filter(source=source).sort("sent_ns")
        assert MOST <= own.height <= MOST + 2 * OUTERMOST
        above_ns = (
            own["received_ns"] - own["sent_ns"] - sign * (own["sent_ns"] * RATE + 40_000_000)
        ).to_numpy()
        # The shortest of 50 delays of 20 us and 40 us more on average.
        assert np.median(above_ns[OUTERMOST:-OUTERMOST]) < 22_000


def test_what_contradicts_is_kept_with_all_that_it_contradicts():
    table = messages(50 * MOST, wrong=(1_000,))
    found = thinned(table, MOST)
    wrong = table[1_000]
    assert found.join(wrong, on=["source", "sent_ns", "received_ns"], how="semi").height == 1
    near = (pl.col("sent_ns") - wrong["sent_ns"].item()).abs() < 20_000_000
    back = pl.col("source") == 1
    at_once = table.filter(near & back).height
    assert found.filter(near & back).height == at_once > 3


def test_pairs_are_thinned_alike_alone_and_together(monkeypatch):
    pairs = [
        messages(count, wrong).with_columns(pl.col("source", "target") * (number + 1))
        for number, (count, wrong) in enumerate(
            [(9 * MOST, (100,)), (MOST, ()), (30 * MOST, (7, 900)), (5 * MOST, ())]
        )
    ]
    table = pl.concat(pairs).sort("sent_ns")
    together = thinned(table, MOST)
    monkeypatch.setattr(thinning, "ROWS_TOGETHER", 1)
    assert thinned(table, MOST).equals(together)
    assert together.height < table.height


@pytest.mark.parametrize(
    "plan",
    [
        Plan(seed=3),
        Plan(ranks=8, ranks_per_machine=2, wander_ppm=5.0, seed=4),
        Plan(corrupt=0.02, seed=5),
        Plan(clock_steps=(ClockStep(2, 0.5, 300_000),), seed=6),
    ],
    ids=["steady", "wander", "outliers", "a clock set"],
)
def test_bounds_hold_and_estimates_are_as_close(plan, monkeypatch):
    planted = plant(plan)

    def median_ns() -> tuple[float, int, int]:
        aligned = align_clocks(planted.timeline)
        assert uncovered(planted, aligned.timeline).is_empty()
        error_ns = planted.errors_ns(aligned.timeline)["error_ns"].abs().median()
        count = sum(machine.observation_count for machine in aligned.clocks.machines)
        return float(error_ns), count, len(aligned.clocks.adjustments)  # type: ignore[arg-type]

    before_ns, every, adjustments = median_ns()
    monkeypatch.setattr(thinning, "OF_RUN", 0)
    monkeypatch.setattr(thinning, "LEAST_OF_PAIR", MOST)
    after_ns, count, still = median_ns()
    assert count < every
    assert still == adjustments == len(plan.clock_steps)
    assert after_ns < 2 * before_ns + FEW_NS
