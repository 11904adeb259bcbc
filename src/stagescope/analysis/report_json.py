"""The report as plain data for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.explanation_json import explanation_json
from stagescope.analysis.understood import understood

if TYPE_CHECKING:
    from stagescope.analysis.bubble import Bubble
    from stagescope.analysis.lost_time import LostTime
    from stagescope.analysis.report import Report

SCHEMA = 2

LEAST_SHOWN = 1e-3
"""Culprits of less than this fraction of the iteration are left out: there is a row for every pair of ranks."""


def to_json(report: Report, clocks: dict[str, object] | None = None) -> dict[str, object]:
    """Return the report as dicts, lists, numbers and strings, ready for json.dumps.

    Times are integer nanoseconds, fractions 0 to 1. start_ns and end_ns may exceed 2**53, beyond which a reader that
    stores numbers as doubles loses nanoseconds; durations do not. docs/report.md lists the keys.

    ``schema``: 2; removing a key or changing its meaning makes it 3, adding one does not.

    ``microbatches``: per step and pipeline, or null.

    ``understood``: what a mapped or inferred trace was understood as, null for a recording: {ranks, stages,
    microbatches, steps, actions_per_step, slices_used, slices, mappings}; the first four are {count, values, unknown}
    (see Understood).

    ``steps``: the rows of REPORT_STEPS: {step, start_ns, end_ns, window_ns, bubble_fraction, in_totals}.

    ``ranks``: the rows of REPORT_RANKS: {rank, machine, stages, busy_ns, idle_ns, receive_wait_ns, send_wait_ns,
    window_ns, bubble_fraction}, summed over the steps in the totals.

    ``bubble``: {fraction, unknown_because, per_rank, denominator, steps, definitions}: idle time over window of all
    ranks in `steps` (null if unknown), a clause that states why it is unknown (null if it is known), the same fraction
    for each rank (keys are ranks as text), what the fractions divide by in words, and the steps in the totals.
    ``definitions`` has fraction, per_rank and denominator for each definition of the bubble: window, iteration,
    ideal-ratio and own-span.

    ``collectives``: {kinds, ranks, latest}: the rows of COLLECTIVE_KINDS and COLLECTIVE_RANKS, and the collectives to
    which a rank came latest after the others, at most 100: {group, sequence, group_kind, operation, step, bytes, ranks,
    first_ns, last_rank, last_ns, late_ns}.

    ``kernels``: {communication}: the rows of KERNEL_COMMUNICATION_KINDS; empty unless kernels were read.

    ``memory``: the rows of RANK_MEMORY, in bytes: {rank, device, allocated_bytes, reserved_bytes, resident_bytes}.

    ``data``: {per_second, steps}: tokens or samples per second of the iterations in the totals (null if unknown), and
    the rows of STEP_DATA: {step, unit, count, scope, iteration_ns, per_second}.

    ``diagnostics``: a list of {severity, code, message, source, rank, location, count}, errors first. An "error" means
    that data are missing.

    ``clocks``: `clocks` as given, the output of `stagescope clocks --json`; null if not asked for.

    ``verdict``, ``schedule``, ``ledger`` and everything else that explains the metrics: see explanation_json; without
    an explanation there is only ``schedule``, with the declared name.
    """
    bubble = report.bubble
    found = understood(report.timeline)
    return {
        "schema": SCHEMA,
        "understood": None if found is None else found.to_json(),
        **_explained(report),
        "microbatches": report.microbatches,
        "steps": report.steps.to_dicts(),
        "ranks": report.ranks.to_dicts(),
        "bubble": {
            "fraction": bubble.fraction,
            "unknown_because": bubble.unknown_because or None,
            "per_rank": _by_rank(bubble),
            "denominator": bubble.denominator,
            "steps": list(bubble.steps),
            "definitions": {
                name: {"fraction": each.fraction, "per_rank": _by_rank(each), "denominator": each.denominator}
                for name, each in bubble.definitions.items()
            },
        },
        "collectives": {
            "kinds": report.collective_kinds.to_dicts(),
            "ranks": report.collective_ranks.to_dicts(),
            "latest": report.latest_collectives.to_dicts(),
        },
        "kernels": {"communication": report.kernel_communication_kinds.to_dicts()},
        "memory": report.memory.to_dicts(),
        "data": {"per_second": report.throughput, "steps": report.data.to_dicts()},
        "clocks": clocks,
        "diagnostics": [asdict(diagnostic) for diagnostic in report.diagnostics],
    }


def _by_rank(bubble: Bubble) -> dict[str, float]:
    return {str(rank): fraction for rank, fraction in bubble.per_rank.items()}


def _explained(report: Report) -> dict[str, object]:
    if report.explanation is None or report.verdict is None:
        return {"schedule": {"declared": report.schedule}}
    return {
        "verdict": report.verdict._asdict(),
        **explanation_json(report.explanation, report.schedule),
        "culprits": _culprits(report.culprits, report.explanation.lost_time),
        "slowdowns": report.slowdowns.to_dicts(),
        "late_ranks": report.late_ranks.to_dicts(),
    }


def _culprits(culprits: pl.DataFrame, lost: LostTime | None) -> list[dict[str, object]]:
    """Return the rows of CULPRITS that are large enough to be shown."""
    if lost is None:
        return []
    least_ns = LEAST_SHOWN * lost.whole_ns / lost.rows
    return culprits.filter(pl.col("idle_ns").abs() >= least_ns).to_dicts()
