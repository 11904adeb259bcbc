"""How much longer the messages of each link take than those of its peers.

The peers of a link have messages of the same direction and size, and cross machines, or do not, as it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.statistics.estimates import estimate_means, medians_of_others
from stagescope.analysis.statistics.link_samples import LINK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.statistics.action_samples import Sampling
    from stagescope.analysis.statistics.link_samples import LinkSamples

    Floats = NDArray[np.float64]


def compare_links(links: LinkSamples, sampling: Sampling, least_fraction: float) -> pl.DataFrame:
    """Return one row per link that has a peer: rank (the sender), peer, kind (the direction), and its excess.

    Further columns: subject, finding, compared_with, peers, samples, span_count, excess_fraction, low_fraction,
    high_fraction, extra_ns_per_step, p_value. The excess is a difference in time, divided by the median of the peers;
    it has to exceed `least_fraction` of that plus the clock error of both ends.
    """
    known = links.links.filter(pl.col("error_ns").is_not_null()).with_row_index("link")
    if known.is_empty():
        return pl.DataFrame(schema={"p_value": pl.Float64})
    times, messages = _as_matrix(links, known, sampling.count)
    groups = known.partition_by("direction", "bytes", "crosses_machines", maintain_order=True)
    found = [
        _compare(times[own], messages[own], one, sampling, least_fraction)
        for one in groups
        for own in [one["link"].to_numpy()]
    ]
    return pl.concat(found).with_columns(
        subject=pl.lit("link"), finding=pl.lit("slow"), compared_with=pl.lit("other links")
    )


def _as_matrix(links: LinkSamples, known: pl.DataFrame, count: int) -> tuple[Floats, Floats]:
    """Return the time of a message as links x samples, NaN for missing samples, and the messages of each link."""
    times, messages = np.full((known.height, count), np.nan), np.zeros(known.height)
    for part in links.parts:
        rows = part.join(known.select(*LINK, "link"), on=LINK, nulls_equal=True, maintain_order="left")
        link = rows["link"].to_numpy()
        times[link, rows["sample"].to_numpy()] = rows["median_ns"].to_numpy()
        messages += np.bincount(link, rows["messages"].to_numpy(), known.height)
    return times, messages


def _compare(
    times: Floats, messages: Floats, facts: pl.DataFrame, sampling: Sampling, least_fraction: float
) -> pl.DataFrame:
    """Return the links of one group compared with each other; `facts` has a row per link, as the arrays have."""
    others = medians_of_others(times)
    estimates = estimate_means(times - others)
    usual_ns = np.maximum(estimate_means(others).value, 1.0)  # a link may take 0 ns in a simulation
    low, high = estimates.intervals()
    least_ns = least_fraction * usual_ns + facts["error_ns"].to_numpy()
    rows = facts.select(rank="source", peer="target", kind="direction").with_columns(
        peers=pl.lit(facts.height - 1, pl.Int64),
        samples=pl.Series(estimates.count),
        span_count=pl.Series(messages.astype(np.int64)),
        excess_fraction=pl.Series(estimates.value / usual_ns),
        low_fraction=pl.Series(low / usual_ns),
        high_fraction=pl.Series(high / usual_ns),
        extra_ns_per_step=pl.Series(estimates.value * messages / max(len(sampling.steps), 1)),
        p_value=pl.Series(estimates.p_above(least_ns)),
    )
    return rows.filter(pl.Series(estimates.degrees > 0))
