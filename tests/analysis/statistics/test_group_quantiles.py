"""Quantiles of many groups at once are those that Polars computes of each."""

import numpy as np
import polars as pl
import pytest

from stagescope.analysis.statistics.group_quantiles import GroupedValues


@pytest.mark.parametrize("groups", [1, 7, 400])
def test_quantiles_are_those_of_each_group(groups):
    chance = np.random.default_rng(groups)
    group = np.concatenate([np.arange(groups), chance.integers(0, groups, 500)])
    values = chance.integers(0, 50, len(group)).astype(np.float64)
    grouped = GroupedValues(values, group, groups)
    value = pl.col("value")
    expected = (
        pl.DataFrame({"group": group, "value": values})
        .group_by("group")
        .agg(
            low=value.quantile(0.2, "linear"),
            middle=value.median(),
            lower=value.quantile(0.5, "lower"),
            count=pl.len(),
        )
        .sort("group")
    )
    np.testing.assert_allclose(grouped.linear(0.2), expected["low"], rtol=1e-14)
    np.testing.assert_array_equal(grouped.linear(0.5), expected["middle"])
    np.testing.assert_array_equal(grouped.lower_median(), expected["lower"])
    np.testing.assert_array_equal(grouped.count, expected["count"])


def test_no_group_has_no_quantile():
    nothing = np.zeros(0)
    grouped = GroupedValues(nothing, nothing.astype(np.int64), 0)
    assert len(grouped.linear(0.5)) == len(grouped.lower_median()) == 0
