"""Links compared with links of the same direction, size and distance."""

import polars as pl
import pytest

from stagescope.analysis.statistics.action_samples import Sampling
from stagescope.analysis.statistics.link_excess import compare_links
from stagescope.analysis.statistics.link_samples import LinkSamples

SAMPLING = Sampling((0, 1, 2, 3), parts=1, microbatches=8)


def link_samples(times, *, crossing=(), error_ns=0):
    """`times` maps (source, target) to the median of each sample; all are forward and of one size."""
    rows = [
        {
            "source": source,
            "target": target,
            "direction": "forward",
            "bytes": 8,
            "sample": number,
            "median_ns": float(value),
            "messages": 2,
        }
        for (source, target), values in times.items()
        for number, value in enumerate(values)
    ]
    table = pl.DataFrame(rows)
    links = table.select("source", "target", "direction", "bytes").unique(maintain_order=True)
    crosses = pl.Series([pair in crossing for pair in times])
    return LinkSamples(
        [table], links.with_columns(crosses_machines=crosses, error_ns=pl.lit(error_ns, pl.Int64)), ()
    )


def test_excess_is_a_fraction_of_the_time_of_other_links():
    times = {(0, 1): [100, 101, 99, 100], (1, 2): [150, 151, 149, 150], (2, 3): [100, 100, 100, 100]}
    rows = compare_links(link_samples(times), SAMPLING, 0.25).sort("rank")
    assert rows["excess_fraction"].to_list() == pytest.approx([-0.2, 0.5, -0.2], abs=0.01)
    assert rows["extra_ns_per_step"][1] == pytest.approx(100, rel=0.01)
    assert rows["p_value"][1] < 0.01
    assert rows["span_count"].to_list() == [8, 8, 8]


def test_clock_error_is_added_to_the_minimum():
    times = {(0, 1): [100, 101, 99, 100], (1, 2): [150, 151, 149, 150]}
    assert compare_links(link_samples(times), SAMPLING, 0.25)["p_value"].min() < 0.01
    assert compare_links(link_samples(times, error_ns=60), SAMPLING, 0.25)["p_value"].min() > 0.9


def test_links_between_machines_are_not_peers_of_links_within_one():
    times = {(0, 1): [100, 101, 99, 100], (1, 2): [900, 901, 899, 900], (2, 3): [100, 100, 100, 100]}
    rows = compare_links(link_samples(times, crossing=[(1, 2)]), SAMPLING, 0.25)
    assert sorted(rows["rank"]) == [0, 2]


def test_without_links_the_table_is_empty():
    none = link_samples({(0, 1): [1]})
    assert compare_links(LinkSamples([none.table.clear()], none.links.clear(), ()), SAMPLING, 0.25).is_empty()
