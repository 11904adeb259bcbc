"""The data of a run as the viewer reads them; docs/viewer-format.md describes every part.

Results of the analysis come as `AnalysisLayers` or from functions of the analysis; nothing is analyzed here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope import __version__
from stagescope.analysis.statistics.stage_heat import measure_stage_heat
from stagescope.analysis.statistics.transfer_totals import measure_transfers
from stagescope.exporters.layers import AnalysisLayers
from stagescope.model.bubbles import step_bubbles
from stagescope.model.clock_groups import clock_groups
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.messages import match_messages
from stagescope.model.pipelines import find_pipelines
from stagescope.model.simulated import is_in_cost_units, is_simulated
from stagescope.reports.translations import meta_translations, with_translations
from stagescope.viewer.columns import encode_columns
from stagescope.viewer.counter_data import counter_section
from stagescope.viewer.idle_data import encode_idle, encode_idle_after_spans, viewer_idle
from stagescope.viewer.kernel_data import MOST_KERNELS, encode_kernels, omitted_kernels
from stagescope.viewer.links import TooManyPairsError, find_pairs
from stagescope.viewer.rank_heat import rank_heat_section
from stagescope.viewer.run_name import document_title
from stagescope.viewer.span_data import encode_spans, viewer_spans
from stagescope.viewer.step_data import step_lengths, viewer_steps
from stagescope.vocabulary.causes import WAIT_LABELS
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.kinds import ACTION_KINDS, KINDS
from stagescope.vocabulary.palette import SWATCHES, WAIT_SWATCHES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stagescope.model import Timeline

META_FORMAT = 1
EXACT_NS = 2**53
"""Up to this value every integer is exact as a double, the only number type of JavaScript."""

LINKS_OMITTED = (
    "dependency links are omitted: the recorded layout does not distinguish ranks that run the same action; record or "
    "pass --tp, --cp and --dp"
)

MOST_SLACK_ROWS = 500_000
"""Actions whose slack is sent to the page, about 10 bits each: with more, a page of 2 million spans exceeds 15 MB."""

WAITS = [
    {"name": name, "label": label, **WAIT_SWATCHES[name]._asdict()} for name, label in WAIT_LABELS.items()
]
"""How the viewer names and draws the idle intervals of each wait."""

COORDINATES = ("machine", "host", "device", "pp", "dp", "tp", "cp", "ep")


@dataclass(frozen=True)
class ViewerData:
    """One run for the viewer: meta as JSON, tables as column blobs (`spans` first), objects as JSON."""

    meta: dict[str, Any]
    tables: dict[str, bytes]
    objects: dict[str, Any]


def viewer_data(timeline: Timeline, extras: AnalysisLayers | None = None) -> ViewerData:
    """Return the data of a page: meta, spans, and the sections that the timeline and `extras` have."""
    spans = viewer_spans(timeline.spans, shown_ranks(timeline))
    rest = data_without_spans(timeline, spans, extras, in_page=True)
    blob = encode_spans(spans, _least(spans["start"]))
    return replace(rest, tables={"spans": blob, **rest.tables})


def viewer_spans_alone(timeline: Timeline) -> ViewerData:
    """Return the meta and the spans of a timeline without sections, for the second run of a comparison."""
    ranks = shown_ranks(timeline)
    spans = viewer_spans(timeline.spans, ranks)
    bubbles = step_bubbles(timeline.spans, find_pipelines(timeline.spans, timeline.ranks))
    blob = encode_spans(spans, _least(spans["start"]))
    return ViewerData(viewer_meta(timeline, step_lengths(bubbles), ranks), {"spans": blob}, {})


def data_without_spans(
    timeline: Timeline, spans: pl.DataFrame, extras: AnalysisLayers | None = None, *, in_page: bool = False
) -> ViewerData:
    """Return everything in `viewer_data` except the table `spans`; `spans` is what `viewer_spans` returns.

    `in_page` means that the reader holds all spans: starts of idle intervals may then refer to spans, and the links
    of all actions are included. The local server answers requests for links, and for kernels of which there are too
    many for a section, from its files instead.
    """
    extras = extras or AnalysisLayers()
    ranks = shown_ranks(timeline)
    bubbles = extras.bubbles
    if bubbles is None:
        bubbles = step_bubbles(timeline.spans, find_pipelines(timeline.spans, timeline.ranks))
    omitted = list(_omitted(extras))
    tables = {}
    heat = measure_stage_heat(timeline.spans, bubbles)
    if heat.height:
        tables["heat"] = encode_columns(heat)
    by_rank = rank_heat_section(bubbles, ranks)
    if by_rank is not None:
        tables["rank_heat"] = by_rank
    transfers = measure_transfers(match_messages(timeline.spans))
    if transfers.height:
        tables["transfers"] = encode_columns(transfers)
    counters = counter_section([timeline.counters], ranks, _least(spans["start"]))
    if counters is not None:
        tables["counters"] = counters
    if in_page:
        try:
            tables |= _links_section(timeline, spans, ranks)
        except TooManyPairsError:
            omitted.append(Diagnostic("info", LINKS_OMITTED, code="viewer.links_omitted"))
    tables |= dict(_extra_sections(extras, spans, ranks, _least(spans["start"]), in_page=in_page))
    if in_page:
        omitted += omitted_kernels(timeline.kernels)
    if 0 < timeline.kernels.height <= MOST_KERNELS:
        tables["kernels"] = encode_kernels(timeline.kernels, ranks, _least(spans["start"]))
    meta = viewer_meta(timeline.with_diagnostics(omitted), step_lengths(bubbles, extras), ranks)
    objects = with_translations(_with_span_ids(extras.objects, spans))
    meta["sections"] = [*tables, *objects]
    if "idle" in tables and extras.idle is not None:
        occurring = set(extras.idle["waiting_for"].cast(pl.String))
        meta["idle_waits"] = [name for name in WAIT_LABELS if name in occurring]
    return ViewerData(meta, tables, objects)


def _with_span_ids(objects: Mapping[str, Any], spans: pl.DataFrame) -> dict[str, Any]:
    """Return objects whose findings have `span`, the id of a span or None, instead of a row of the timeline."""
    verdict = objects.get("verdict")
    if not verdict:
        return dict(objects)
    rows = [finding["row"] for finding in verdict["findings"] if finding.get("row") is not None]
    ids = spans.with_row_index("id").filter(pl.col("source_row").is_in(rows))
    id_of = dict(ids.select("source_row", "id").iter_rows())
    findings = [
        {name: value for name, value in finding.items() if name != "row"}
        | {"span": id_of.get(finding.get("row"))}
        for finding in verdict["findings"]
    ]
    return {**objects, "verdict": {**verdict, "findings": findings}}


def _omitted(extras: AnalysisLayers) -> Iterator[Diagnostic]:
    """Yield a diagnostic for every section that is too large to be shown."""
    if extras.slack is not None and extras.slack.height > MOST_SLACK_ROWS:
        message = f"the slack of {extras.slack.height:,} actions is too large for the page and omitted"
        yield Diagnostic("info", message, code="viewer.slack_omitted")


def _links_section(timeline: Timeline, spans: pl.DataFrame, ranks: list[int]) -> dict[str, bytes]:
    """Return the section `links`, empty without links."""
    coordinates = pl.DataFrame(_ranks(timeline, ranks)).with_row_index("row")
    pairs = find_pairs(spans.with_row_index("id"), coordinates)
    return {"links": encode_columns(pairs, chained={"from": None, "to": None})} if pairs.height else {}


def shown_ranks(timeline: Timeline) -> list[int]:
    """Return all ranks with a span or an entry in the table `ranks`, in order: the rows of the picture."""
    return sorted({*timeline.ranks["rank"], *timeline.spans["rank"].unique()})


def viewer_meta(timeline: Timeline, lengths: pl.DataFrame, ranks: list[int]) -> dict[str, Any]:
    """Return the meta object; `lengths` is what `step_lengths` returns, `ranks` are the rows."""
    spans = timeline.spans
    base_ns = _least(spans["start_ns"])
    last_ns = spans.select(pl.max_horizontal(pl.max("start_ns"), pl.max("end_ns"))).item()
    end = (last_ns or base_ns) - base_ns
    title = _title(timeline, ranks, lengths)
    meta = {
        "format": META_FORMAT,
        "title": title,
        "document_title": document_title(title, timeline.ranks["source"]),
        "generator": f"stagescope {__version__}",
        "base_ns": str(base_ns),
        "end": end,
        "time_unit": "cost" if is_in_cost_units(timeline) else "ns",
        "span_count": spans.height,
        "kinds": _kinds(spans),
        "waits": WAITS,
        "ranks": _ranks(timeline, ranks),
        "steps": viewer_steps(spans, lengths, base_ns),
        "clocks": [] if is_simulated(timeline) else _clocks(timeline),
        "diagnostics": _diagnostics(timeline, end).to_dicts(),
        "sections": [],
        "levels": [],
        "tile_bins": 0,
        "tile_rows": 0,
    }
    return {**meta, "translations": meta_translations(meta)}


def _clocks(timeline: Timeline) -> list[dict[str, Any]]:
    """Return the clock error of every machine; a simulation was not measured with a clock and has none."""
    by_machine = timeline.clocks.group_by("machine", maintain_order=True)
    errors = by_machine.agg(
        pl.min("error_lo_ns"), pl.max("error_hi_ns", "estimated_error_ns"), pl.last("method")
    )
    return errors.to_dicts()


def _title(timeline: Timeline, ranks: list[int], lengths: pl.DataFrame) -> str:
    schedules = timeline.ranks["schedule"].drop_nulls().unique().sort().to_list()
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    facts = [", ".join(schedules)[:60] or "Pipeline", counted(len(ranks), "rank")]
    if microbatches := actions["microbatch"].drop_nulls().n_unique():
        facts.append(counted(microbatches, "micro-batch", "micro-batches"))
    if steps := lengths["step"].n_unique():
        facts.append(counted(steps, "step"))
    return " · ".join(facts)


def _kinds(spans: pl.DataFrame) -> list[dict[str, Any]]:
    present = set(spans["kind"].unique())
    return [{**kind._asdict(), **SWATCHES[kind.name]._asdict()} for kind in KINDS if kind.name in present]


def _ranks(timeline: Timeline, ranks: list[int]) -> dict[str, Any]:
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    stages = actions.group_by("rank").agg(pl.col("stage").drop_nulls().unique().sort().alias("stages"))
    rows = (
        pl.DataFrame({"rank": ranks}, schema={"rank": pl.Int32})
        .join(timeline.ranks.unique("rank", keep="first"), on="rank", how="left", maintain_order="left")
        .join(find_pipelines(timeline.spans, timeline.ranks), on="rank", how="left", maintain_order="left")
        .join(stages, on="rank", how="left", maintain_order="left")
        .with_columns(pl.col("stages").fill_null([]))
    )
    return rows.select("rank", *COORDINATES, "pipeline", "stages").to_dict(as_series=False)


def _diagnostics(timeline: Timeline, end: int) -> pl.DataFrame:
    """Return the diagnostics of the run and those of its display, errors first."""
    rows: list[Diagnostic] = []
    reversed_count = timeline.spans.filter(pl.col("end_ns") < pl.col("start_ns")).height
    if reversed_count:
        rows.append(
            Diagnostic(
                "warning",
                "spans end before they start; drawn without length",
                count=reversed_count,
                code="viewer.spans_reversed",
            )
        )
    if end > EXACT_NS:
        message = (
            f"the run lasts {end / 86_400e9:.0f} days: times more than 104 days after its start are rounded"
        )
        rows.append(Diagnostic("warning", message, code="viewer.times_rounded"))
    groups = clock_groups(timeline)
    if len(groups) > 1:
        names = "; ".join(group.name for group in groups)
        rows.append(
            Diagnostic(
                "warning",
                f"not on one clock, so their times cannot be compared: {names}",
                code="clock.unaligned",
            )
        )
    every = pl.concat([timeline.diagnostics, diagnostics_table(rows)])
    return every.sort("severity", maintain_order=True)  # an Enum sorts as declared, errors first


def _extra_sections(
    extras: AnalysisLayers, spans: pl.DataFrame, ranks: list[int], base_ns: int, *, in_page: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield the tables of the analysis, with rows and span ids of the viewer."""
    ids = spans.select(pl.col("source_row").cast(pl.Int64), pl.int_range(pl.len()).alias("id"))
    if extras.idle is not None and extras.idle.height:
        idle = viewer_idle(extras.idle, spans, ranks)
        yield "idle", encode_idle_after_spans(idle, spans, base_ns) if in_page else encode_idle(idle, base_ns)
    if extras.critical_path is not None and extras.critical_path.height:
        path = extras.critical_path.with_columns(pl.col("row").cast(pl.Int64))
        path = path.join(ids, left_on="row", right_on="source_row", how="inner", maintain_order="left")
        yield "critical_path", encode_columns(path.select(pl.col("id").alias("span")))
    if extras.slack is not None and 0 < extras.slack.height <= MOST_SLACK_ROWS:
        slack = extras.slack.with_columns(pl.col("row").cast(pl.Int64))
        slack = slack.join(ids, left_on="row", right_on="source_row", how="inner").sort("id")
        slack = slack.select(pl.col("id").alias("span"), _three_digits(pl.col("slack_ns")))
        yield "slack", encode_columns(slack, chained={"span": None})
    if extras.ideal is not None and extras.ideal.height:
        ideal = viewer_spans(extras.ideal.filter(pl.col("rank").is_in(ranks)), ranks)
        yield "ideal", encode_spans(ideal, base_ns)


def _three_digits(time_ns: pl.Expr) -> pl.Expr:
    """Return times rounded to three significant digits; 0 stays 0 and nothing else becomes 0.

    The trailing digits of a slack are noise that does not compress: to the nanosecond, they were a tenth of a page.
    """
    digits = time_ns.clip(1).cast(pl.Float64).log10().floor().cast(pl.Int64)
    unit = pl.lit(10, pl.Int64).pow((digits - 2).clip(0)).cast(pl.Int64)
    return ((time_ns + unit // 2) // unit * unit).cast(pl.Int64).alias("slack_ns")


def _least(column: pl.Series) -> int:
    lowest = column.min()
    return lowest if isinstance(lowest, int) else 0
