"""How much longer the messages of each link take than those of its peers.

The peers of a link have messages of the same direction and size, and cross machines, or do not, as it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.statistics.action_samples import as_matrix
from stagescope.analysis.statistics.estimates import estimate_means, medians_of_others
from stagescope.analysis.statistics.link_samples import LINK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.analysis.statistics.action_samples import Sampling
    from stagescope.analysis.statistics.link_samples import LinkSamples

WAYS = 2
"""Ways between two ranks."""


def compare_links(links: LinkSamples, sampling: Sampling, least_fraction: float) -> pl.DataFrame:
    """Return one row per link that has a peer: rank (the sender), peer, kind (the direction), and its excess.

    Further columns: subject, finding, compared_with, peers, samples, span_count, excess_fraction, low_fraction,
    high_fraction, extra_ns_per_step, p_value. The excess is a difference in time, divided by the median of the peers;
    it has to exceed `least_fraction` of that plus the clock error of both ends.

    Between clocks with an error, both ways together are a row as well, without a kind: how far one clock is ahead of
    the other makes one way longer and the other one shorter, so the sum of both is exact.
    """
    known = links.links.filter(pl.col("error_ns").is_not_null()).with_row_index("link")
    samples = links.table.join(known, on=LINK, nulls_equal=True)
    parts = samples.partition_by("direction", "bytes", "crosses_machines", maintain_order=True)
    found = [
        *(_compare(one, known, sampling, least_fraction) for one in parts),
        *_compare_both_ways(links, sampling, least_fraction),
    ]
    if not found:
        return pl.DataFrame(schema={"p_value": pl.Float64})
    return pl.concat(found).with_columns(
        subject=pl.lit("link"), finding=pl.lit("slow"), compared_with=pl.lit("other links")
    )


def _compare_both_ways(
    links: LinkSamples, sampling: Sampling, least_fraction: float
) -> Iterator[pl.DataFrame]:
    """Yield the links between two ranks with different clocks, both ways together, compared with each other."""
    first, second = pl.min_horizontal("source", "target"), pl.max_horizontal("source", "target")
    pairs = links.table.join(links.links, on=LINK, nulls_equal=True).with_columns(first=first, second=second)
    keys = ["first", "second", "bytes", "crosses_machines"]
    ways = pairs.group_by(*keys, "sample", "source").agg(
        pl.mean("median_ns"), pl.sum("messages"), is_exact=(pl.col("error_ns") == 0).all()
    )
    both = (
        ways.group_by(*keys, "sample")
        .agg(pl.sum("median_ns", "messages"), pl.all("is_exact"), ways=pl.len())
        .filter(pl.col("ways") == WAYS)
    )
    known = both.group_by(keys).agg(pl.all("is_exact").all()).sort(keys).with_row_index("link")
    samples = both.drop("is_exact").join(known, on=keys, nulls_equal=True)
    known = known.rename({"first": "source", "second": "target"}).with_columns(
        error_ns=pl.lit(0.0), direction=pl.lit(None, pl.String)
    )
    for one in samples.partition_by("bytes", "crosses_machines", maintain_order=True):
        rows = _compare(one, known, sampling, least_fraction)
        inexact = known.filter(~pl.col("is_exact")).select(rank="source", peer="target")
        # What is added to a message is half of what is added to both ways.
        halved = rows.with_columns(pl.col("extra_ns_per_step") / WAYS)
        yield halved.join(inexact, on=["rank", "peer"], how="semi", maintain_order="left")


def _compare(
    samples: pl.DataFrame, known: pl.DataFrame, sampling: Sampling, least_fraction: float
) -> pl.DataFrame:
    """Return the links of one group compared with each other."""
    own = samples["link"].unique().sort()
    times = as_matrix(samples, "median_ns", own, "link", sampling.count)
    messages = np.nan_to_num(as_matrix(samples, "messages", own, "link", sampling.count)).sum(axis=1)
    others = medians_of_others(times)
    estimates = estimate_means(times - others)
    usual_ns = np.maximum(estimate_means(others).value, 1.0)  # a link may take 0 ns in a simulation
    low, high = estimates.intervals()
    facts = known.filter(pl.col("link").is_in(own.implode())).sort("link")
    least_ns = least_fraction * usual_ns + facts["error_ns"].to_numpy()
    rows = facts.select(rank="source", peer="target", kind=pl.col("direction").cast(pl.String)).with_columns(
        peers=pl.lit(len(own) - 1, pl.Int64),
        samples=pl.Series(estimates.count),
        span_count=pl.Series(messages.astype(np.int64)),
        excess_fraction=pl.Series(estimates.value / usual_ns),
        low_fraction=pl.Series(low / usual_ns),
        high_fraction=pl.Series(high / usual_ns),
        extra_ns_per_step=pl.Series(estimates.value * messages / max(len(sampling.steps), 1)),
        p_value=pl.Series(estimates.p_above(least_ns)),
    )
    return rows.filter(pl.Series(estimates.degrees > 0))
