"""Trends over steps, and outlier steps with their cause.

The trend of a pipeline's window is a line that a few odd steps do not move. A step is an outlier if its window is
farther from the others than chance explains in a whole series; its cause is the rank or link with the largest excess
over its own usual time, if that accounts for a fair part of the excess of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.idle.step_windows import find_step_windows
from stagescope.analysis.statistics.action_samples import sample_actions
from stagescope.analysis.statistics.estimates import rejections
from stagescope.analysis.statistics.link_samples import LINK, sample_links
from stagescope.analysis.statistics.rates import FAMILY_RATE
from stagescope.analysis.statistics.series import find_outliers, find_trend
from stagescope.model.large_tables import few_rows
from stagescope.model.messages import match_messages
from stagescope.model.pipelines import find_pipelines
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from stagescope.analysis.statistics.action_samples import ActionSamples
    from stagescope.analysis.statistics.link_samples import LinkSamples
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic

    Floats = NDArray[np.float64]

LEAST_TREND_FRACTION = 0.01
LEAST_OUTLIER_FRACTION = 0.05
LEAST_CAUSE_FRACTION = 0.2
"""A smaller fraction of a step's excess does not explain it."""

COMMON_FRACTION = 0.5
"""If the median rank has this fraction of the largest excess, all ranks were slower and none is named."""

LOCATIONS = ("compute", "all ranks", "link", "elsewhere")
LocationType = pl.Enum(list(LOCATIONS))

TRENDS = Table(
    "trends",
    "one pipeline",
    ("pipeline",),
    (
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("steps", pl.Int64, "", "Number of its steps: n."),
        Column("first_step", pl.Int32, "", "First step."),
        Column("last_step", pl.Int32, "", "Last step."),
        Column("median_ns", pl.Float64, "ns", "Median of its windows."),
        Column(
            "slope_ns_per_step",
            pl.Float64,
            "ns",
            "Slope: how much longer each window is than the previous one; null: too few steps.",
            nullable=True,
        ),
        Column("low_ns_per_step", pl.Float64, "ns", "Lower end of its 95 % CI.", nullable=True),
        Column("high_ns_per_step", pl.Float64, "ns", "Upper end.", nullable=True),
        Column(
            "change_fraction",
            pl.Float64,
            "of the median",
            "Slope times the steps from first to last.",
            nullable=True,
        ),
        Column("p_value", pl.Float64, "", "Probability of such a trend if steps drifted at random."),
        Column("is_claimed", pl.Boolean, "", "Whether it is claimed."),
    ),
)

OUTLIER_STEPS = Table(
    "outlier_steps",
    "one step of a pipeline that was longer than the others",
    ("pipeline", "step"),
    (
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("step", pl.Int32, "", "Training step."),
        Column("window_ns", pl.Int64, "ns", "Its window."),
        Column("usual_ns", pl.Float64, "ns", "Median of the windows, on the trend if there is one."),
        Column("excess_ns", pl.Float64, "ns", "window_ns - usual_ns."),
        Column("robust_z", pl.Float64, "", "Excess over 1.4826 times the median absolute deviation."),
        Column("location", LocationType, "", "Where the largest excess over its own usual time is."),
        Column("rank", pl.Int32, "", "The rank; of a link, the sender.", nullable=True),
        Column("stage", pl.Int32, "", "The stage with most of the excess.", nullable=True),
        Column("kind", pl.String, "", "The kind of action; of a link, its direction.", nullable=True),
        Column("peer", pl.Int32, "", "The receiver of a link.", nullable=True),
        Column("cause_ns", pl.Float64, "ns", "That excess, summed over the actions or messages of the step."),
    ),
)


@dataclass(frozen=True)
class StepTrends:
    """The tables TRENDS and OUTLIER_STEPS, and diagnostics."""

    trends: pl.DataFrame
    outliers: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


class OutlierWindows(NamedTuple):
    """The table TRENDS, and the windows that are longer than chance explains, without their causes.

    `windows` has pipeline, step, window_ns, usual_ns, excess_ns and robust_z, sorted by pipeline and step.
    """

    trends: pl.DataFrame
    windows: pl.DataFrame


class _Series(NamedTuple):
    """The windows of one pipeline: steps, lengths and slope, and their row of TRENDS before it is claimed."""

    pipeline: int
    steps: Floats
    lengths: Floats
    slope_ns: float
    row: tuple[object, ...]


def find_step_trends(
    timeline: Timeline,
    pipelines: pl.DataFrame | None = None,
    messages: pl.DataFrame | None = None,
    samples: ActionSamples | None = None,
) -> StepTrends:
    """Return the trend of every pipeline over its steps, and its outlier steps with their causes.

    `pipelines`, `messages` and `samples` are from find_pipelines, match_messages and sample_actions; None: computed
    here. With fewer than four steps nothing is found. Never raises.
    """
    if pipelines is None:
        pipelines = find_pipelines(timeline.spans, timeline.ranks)
    samples = samples or sample_actions(timeline.spans)
    windows = find_step_windows(timeline.spans, pipelines)
    messages = match_messages(timeline.spans) if messages is None else messages
    links = sample_links(timeline, messages, samples.sampling)
    return explain_step_trends(find_outlier_windows([windows]), pipelines, samples, (links, messages))


def explain_step_trends(
    found: OutlierWindows,
    pipelines: pl.DataFrame,
    samples: ActionSamples,
    transfers: tuple[LinkSamples, pl.DataFrame],
) -> StepTrends:
    """Return trends and outlier steps, given what find_outlier_windows returns, with the causes of the latter.

    `transfers` are the samples of all links, and the matched messages of at least the outlier steps.
    """
    trends, outliers = found
    if outliers.is_empty():
        return StepTrends(trends, OUTLIER_STEPS.empty(), samples.diagnostics)
    causes = pl.concat(
        [
            _slowest_ranks(outliers, pipelines, samples),
            _slowest_links(outliers, pipelines, _message_excess(*transfers, outliers)),
        ]
    )
    return StepTrends(trends, _with_causes(outliers, causes), samples.diagnostics)


def find_outlier_windows(parts: Iterable[pl.DataFrame]) -> OutlierWindows:
    """Return the trends of all pipelines, and their unusually long windows.

    `parts` have pipeline, step and window_ns, sorted, of all steps of some pipelines after those of others. They are
    iterated twice: what is unusual depends on how many pipelines there are.
    """
    rows = [one.row for windows in parts for one in _all_series(windows)]
    trends = pl.DataFrame(rows, schema=dict(TRENDS.schema), orient="row").fill_nan(None)
    claimed = rejections(trends["p_value"].to_numpy(), FAMILY_RATE)
    claims = pl.Series(claimed, dtype=pl.Boolean) & (pl.col("change_fraction").abs() >= LEAST_TREND_FRACTION)
    trends = trends.with_columns(is_claimed=claims.fill_null(value=False))
    has_trend = dict(trends.select("pipeline", "is_claimed").iter_rows())
    rate = FAMILY_RATE / max(len(rows), 1)
    return OutlierWindows(trends, pl.concat([_long_windows(windows, has_trend, rate) for windows in parts]))


def _all_series(windows: pl.DataFrame) -> Iterator[_Series]:
    """Yield the windows of each pipeline.

    Arrays, because a large run has thousands of pipelines, and every call of Polars for one of them takes longer.
    """
    steps, lengths = (windows[name].to_numpy().astype(float) for name in ("step", "window_ns"))
    pipelines = windows["pipeline"].to_numpy()
    begins = np.flatnonzero(np.diff(pipelines, prepend=-1))
    for first, stop in pairwise([*begins, len(lengths)]):
        yield _series(int(pipelines[first]), steps[first:stop], lengths[first:stop])


def _long_windows(windows: pl.DataFrame, has_trend: Mapping[int, bool], rate: float) -> pl.DataFrame:
    """Return the windows that are longer than chance explains at a rate per pipeline: `windows` of OutlierWindows."""
    found = [_compared(one, rate, has_trend=has_trend[one.pipeline]) for one in _all_series(windows)]
    columns = [np.concatenate([np.zeros(0), *each]) for each in zip(*found, strict=True)] or [np.zeros(0)] * 4
    *compared, is_long = columns
    names = ("usual_ns", "excess_ns", "robust_z")
    outliers = windows.with_columns(pl.Series(*each) for each in zip(names, compared, strict=True))
    return few_rows(outliers, pl.lit(pl.Series(is_long.astype(np.bool_))))


def _series(pipeline: int, steps: Floats, lengths: Floats) -> _Series:
    """Return the windows of one pipeline with their trend."""
    trend, median_ns = find_trend(steps, lengths), float(np.median(lengths))
    change = trend.slope * (steps[-1] - steps[0]) / median_ns if median_ns else 0.0
    reach = (pipeline, len(steps), int(steps[0]), int(steps[-1]), median_ns)
    return _Series(pipeline, steps, lengths, trend.slope, (*reach, *trend[:3], change, trend.p_value, False))


def _compared(series: _Series, rate: float, *, has_trend: bool) -> tuple[Floats, Floats, Floats, Floats]:
    """Return usual_ns, excess_ns and robust_z of the windows, and whether they are longer than chance explains.

    Usual is the median, on the line if there is a trend.
    """
    line = series.steps * series.slope_ns if has_trend else series.steps * 0.0
    usual_ns = line + np.median(series.lengths - line)
    excess_ns = series.lengths - usual_ns
    deviation = 1.4826 * np.median(np.abs(excess_ns))
    with np.errstate(divide="ignore", invalid="ignore"):  # windows without length
        ratio = np.log(np.maximum(series.lengths / usual_ns, 1e-9))
        robust_z = excess_ns / deviation if deviation else excess_ns * np.inf
    is_long = find_outliers(ratio, rate) & (np.expm1(ratio) >= LEAST_OUTLIER_FRACTION)
    return usual_ns, excess_ns, robust_z, is_long.astype(float)


def _with_causes(outliers: pl.DataFrame, causes: pl.DataFrame) -> pl.DataFrame:
    """Return outlier steps with the rank or link that had the largest excess over its own usual time."""
    largest = (
        causes.sort("cause_ns", descending=True, maintain_order=True).group_by("pipeline", "step").first()
    )
    named = outliers.join(largest, on=["pipeline", "step"], how="left", maintain_order="left")
    small = pl.col("cause_ns").fill_null(0) < LEAST_CAUSE_FRACTION * pl.col("excess_ns")
    blank = [pl.when(~small).then(name).alias(name) for name in ("rank", "stage", "kind", "peer")]
    named = named.with_columns(
        *blank,
        location=pl.when(small).then(pl.lit("elsewhere")).otherwise("location"),
        cause_ns=pl.col("cause_ns").fill_null(0.0),
    )
    return named.select(pl.col(name).cast(dtype) for name, dtype in OUTLIER_STEPS.schema.items())


def _slowest_ranks(outliers: pl.DataFrame, pipelines: pl.DataFrame, samples: ActionSamples) -> pl.DataFrame:
    """Return per outlier step the rank whose actions had the largest excess over their usual time."""
    selected = outliers.select("pipeline", "step")
    of_class = ["rank", "stage", "kind", "is_pair"]
    usual = pl.concat([each.select(*of_class, "total_ns") for each in samples.parts])
    usual = usual.group_by(of_class).agg(usual_total_ns=pl.median("total_ns"))
    classes = pl.concat(
        [
            each.join(pipelines, on="rank").join(selected, on=["pipeline", "step"], maintain_order="left")
            for each in samples.every
        ]
    ).sort(*of_class, "step")
    ranks = (
        classes.join(usual, on=of_class, maintain_order="left")
        .with_columns(cause_ns=pl.col("total_ns") - pl.col("usual_total_ns"))
        .sort("cause_ns", descending=True, maintain_order=True)
        .group_by("pipeline", "step", "rank", maintain_order=True)
        .agg(pl.first("stage", "kind"), pl.col("cause_ns").sum())
        .sort("cause_ns", descending=True, maintain_order=True)
    )
    is_common = pl.col("cause_ns").median() > COMMON_FRACTION * pl.col("cause_ns").max()
    largest = ranks.group_by("pipeline", "step", maintain_order=True).agg(
        pl.first("rank", "stage", "kind", "cause_ns"), is_common=is_common & (pl.len() > 1)
    )
    return largest.with_columns(
        *(pl.when(~pl.col("is_common")).then(name).alias(name) for name in ("rank", "stage", "kind")),
        location=pl.when("is_common").then(pl.lit(LOCATIONS[1])).otherwise(pl.lit(LOCATIONS[0])),
        peer=pl.lit(None, pl.Int32),
    ).select(_cause_columns())


def _message_excess(links: LinkSamples, messages: pl.DataFrame, outliers: pl.DataFrame) -> pl.DataFrame:
    """Return the messages of the outlier steps with their excess over the usual time of their link.

    If the receive was posted after the send, a part of the transfer time is unknown; the rest is still evidence when it
    alone is longer than usual.
    """
    selected = messages.filter(pl.col("step").is_in(outliers["step"].unique().implode()))
    own = selected.select(LINK).unique()
    samples = pl.concat([each.join(own, on=LINK, how="semi", nulls_equal=True) for each in links.parts])
    usual = samples.group_by(LINK).agg(usual_ns=pl.col("median_ns").median())
    known = selected.join(usual, on=LINK, nulls_equal=True)
    taken_ns = pl.col("recv_end_ns") - pl.max_horizontal("send_start_ns", "recv_start_ns")
    return known.with_columns(cause_ns=taken_ns - pl.col("usual_ns")).filter(pl.col("cause_ns") > 0)


def _slowest_links(outliers: pl.DataFrame, pipelines: pl.DataFrame, excess: pl.DataFrame) -> pl.DataFrame:
    """Return per outlier step the link whose messages had the largest excess over their usual time."""
    placed = excess.join(pipelines, left_on="source", right_on="rank")
    links = placed.join(outliers.select("pipeline", "step"), on=["pipeline", "step"])
    return (
        links.group_by("pipeline", "step", "source", "target", "direction", maintain_order=True)
        .agg(pl.col("cause_ns").sum())
        .sort("cause_ns", descending=True, maintain_order=True)
        .group_by("pipeline", "step", maintain_order=True)
        .first()
        .rename({"source": "rank", "target": "peer", "direction": "kind"})
        .with_columns(location=pl.lit(LOCATIONS[2]), stage=pl.lit(None, pl.Int32))
        .select(_cause_columns())
    )


def _cause_columns() -> list[pl.Expr]:
    """Return the columns that ranks and links have in common, so that they can be compared."""
    whole = [pl.col(name).cast(pl.Int32) for name in ("rank", "stage", "peer")]
    texts = [pl.col(name).cast(pl.String) for name in ("location", "kind")]
    return [pl.col("pipeline"), pl.col("step"), *whole, *texts, pl.col("cause_ns").cast(pl.Float64)]
