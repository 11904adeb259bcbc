from dataclasses import replace

import polars as pl

from drawing import timeline_from_text
from stagescope.clocks import align_clocks
from stagescope.clocks.recorded_offsets import MOMENTS, recorded_offset_observations
from stagescope.model import CLOCKS, RANKS
from stagescope.model.validate import conform

NUMBER = {"left": 0, "right": 1}


def recorded(errors_ns, *, text="O0 .  .  O1\nO0 .  .  O1"):
    """Return a run of two clocks without messages, with these recorded offset ranges (name, lowest, highest)."""
    timeline = timeline_from_text(text)
    rows = [
        {
            "clock": name,
            "machine": name,
            "offset_ns": 0,
            "error_lo_ns": low,
            "error_hi_ns": high,
            "method": "measured",
        }
        for name, low, high in errors_ns
    ]
    ranks = timeline.ranks.with_columns(
        clock=pl.Series(["left", "right"]), machine=pl.Series(["left", "right"])
    )
    return replace(timeline, ranks=conform(ranks, RANKS), clocks=conform(pl.DataFrame(rows), CLOCKS))


def observed(timeline):
    extent_ns = timeline.spans["start_ns"].min(), timeline.spans["end_ns"].max()
    return recorded_offset_observations(timeline.clocks, extent_ns, NUMBER)


def test_a_recorded_offset_is_two_observations_at_every_moment():
    found = observed(recorded([("left", -5, 5), ("right", 40, 60)]))
    assert len(found) == 4 * MOMENTS
    first = found.filter(pl.col("sent_ns").is_in([0, 40]) | (pl.col("received_ns") == 0))
    right = first.filter((pl.col("source") == 1) | (pl.col("target") == 1))
    rows = right.select("source", "target", "sent_ns", "received_ns").rows()
    assert sorted(rows) == [(1, 2, 0, 60), (2, 1, 40, 0)]


def test_a_single_recorded_offset_gives_no_observations():
    assert observed(recorded([("left", -5, 5)])).is_empty()


def test_an_offset_without_both_errors_gives_no_observations():
    assert observed(recorded([("left", -5, 5), ("right", None, None)])).is_empty()


def test_recorded_offsets_suffice_to_align_two_machines():
    aligned = align_clocks(recorded([("left", -5, 5), ("right", 40, 60)]))
    right = aligned.clocks.machines[1]
    assert right.state == "aligned"
    assert abs(right.offset_ns - 50) <= 5
    # The correction is between 35 and 65.
    assert right.offset_ns + right.error_lo_ns <= 35
    assert right.offset_ns + right.error_hi_ns >= 65
