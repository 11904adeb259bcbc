"""How much longer the messages of each link take than those of its peers.

The peers of a link have messages of the same direction and size, and cross machines, or do not, as it does.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.statistics.estimates import estimate_means, medians_of_others
from stagescope.analysis.statistics.link_samples import LINK
from stagescope.model.large_tables import reduced
from stagescope.model.lazy import TableParts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from stagescope.analysis.statistics.action_samples import Sampling
    from stagescope.analysis.statistics.link_samples import LinkSamples

    Floats = NDArray[np.float64]

WAYS = 2
"""Ways between two ranks."""
ENDS = ["first", "second", "bytes", "crosses_machines"]
"""What identifies both ways between two ranks."""


def compare_links(links: LinkSamples, sampling: Sampling, least_fraction: float) -> pl.DataFrame:
    """Return one row per link that has a peer: rank (the sender), peer, kind (the direction), and its excess.

    Further columns: subject, finding, compared_with, peers, samples, span_count, excess_fraction, low_fraction,
    high_fraction, extra_ns_per_step, p_value. The excess is a difference in time, divided by the median of the peers;
    it has to exceed `least_fraction` of that plus the clock error of both ends.

    Between clocks with an error, both ways together are a row as well, without a kind: how far one clock is ahead of
    the other makes one way longer and the other one shorter, so the sum of both is exact.
    """
    known = links.links.filter(pl.col("error_ns").is_not_null()).with_row_index("link")
    each = _compare(links.parts, known, LINK, (sampling, least_fraction))
    found = [*each, *_compare_both_ways(links, sampling, least_fraction)]
    if not found:
        return pl.DataFrame(schema={"p_value": pl.Float64})
    return pl.concat(found).with_columns(
        subject=pl.lit("link"), finding=pl.lit("slow"), compared_with=pl.lit("other links")
    )


def _compare_both_ways(
    links: LinkSamples, sampling: Sampling, least_fraction: float
) -> Iterator[pl.DataFrame]:
    """Yield the links between two ranks with different clocks, both ways together, compared with each other."""
    parts = TableParts(links.parts, partial(_both_ways, links.links))
    known = reduced(parts, lambda rows: rows.group_by(ENDS).agg(pl.all("is_exact").all()))
    known = known.sort(ENDS).with_row_index("link")
    known = known.with_columns(
        source="first", target="second", error_ns=pl.lit(0.0), direction=pl.lit(None, pl.String)
    )
    inexact = known.filter(~pl.col("is_exact")).select(rank="source", peer="target")
    for rows in _compare(parts, known, ENDS, (sampling, least_fraction)):
        # What is added to a message is half of what is added to both ways.
        halved = rows.with_columns(pl.col("extra_ns_per_step") / WAYS)
        yield halved.join(inexact, on=["rank", "peer"], how="semi", maintain_order="left")


def _both_ways(links: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """Return samples of both ways between two ranks: the sums of the means of either way, in nanoseconds."""
    first, second = pl.min_horizontal("source", "target"), pl.max_horizontal("source", "target")
    pairs = samples.join(links, on=LINK, nulls_equal=True).with_columns(first=first, second=second)
    ways = pairs.group_by(*ENDS, "sample", "source").agg(
        pl.mean("median_ns"), pl.sum("messages"), is_exact=(pl.col("error_ns") == 0).all()
    )
    both = ways.group_by(*ENDS, "sample").agg(
        pl.sum("median_ns", "messages"), pl.all("is_exact"), ways=pl.len()
    )
    return both.filter(pl.col("ways") == WAYS)


def _compare(
    parts: Iterable[pl.DataFrame],
    known: pl.DataFrame,
    keys: Sequence[str],
    criteria: tuple[Sampling, float],
) -> Iterator[pl.DataFrame]:
    """Yield the links of one direction, size and place after the other, compared with each other.

    `known` has a row per link with the columns `keys` of the samples in `parts`, and its number (link).
    """
    if known.is_empty():
        return
    times, messages = _as_matrix(parts, known, keys, criteria[0].count)
    for facts in known.partition_by("direction", "bytes", "crosses_machines", maintain_order=True):
        own = facts["link"].to_numpy()
        yield _compare_alike(times[own], messages[own], facts, criteria)


def _as_matrix(
    parts: Iterable[pl.DataFrame], known: pl.DataFrame, keys: Sequence[str], count: int
) -> tuple[Floats, Floats]:
    """Return the time of a message as links x samples, NaN for missing samples, and the messages of each link."""
    times, messages = np.full((known.height, count), np.nan), np.zeros(known.height)
    numbers = known.select(*keys, "link")
    for part in parts:
        rows = part.join(numbers, on=keys, nulls_equal=True, maintain_order="left")
        link = rows["link"].to_numpy()
        times[link, rows["sample"].to_numpy()] = rows["median_ns"].to_numpy()
        messages += np.bincount(link, rows["messages"].to_numpy(), known.height)
    return times, messages


def _compare_alike(
    times: Floats, messages: Floats, facts: pl.DataFrame, criteria: tuple[Sampling, float]
) -> pl.DataFrame:
    """Return the links of one group compared with each other; `facts` has a row per link, as the arrays have."""
    sampling, least_fraction = criteria
    others = medians_of_others(times)
    estimates = estimate_means(times - others)
    usual_ns = np.maximum(estimate_means(others).value, 1.0)  # a link may take 0 ns in a simulation
    low, high = estimates.intervals()
    least_ns = least_fraction * usual_ns + facts["error_ns"].to_numpy()
    rows = facts.select(rank="source", peer="target", kind=pl.col("direction").cast(pl.String)).with_columns(
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
